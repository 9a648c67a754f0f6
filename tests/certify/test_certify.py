"""Whole runs: verdicts, errors as evidence, resuming, and certificates that can be rechecked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import subjects_for_tests as subjects

from specverify.certificate import EXIT_CODES, digest, load, recheck
from specverify.certify import Runner, certify
from specverify.checks.base import BUDGETS, Settings
from specverify.errors import CertificateError, UsageError
from specverify.evidence_file import EvidenceFile
from specverify.plan import controls, plan_for

SMOKE = Settings(BUDGETS["smoke"])


@pytest.fixture(scope="module")
def good_run(tmp_path_factory) -> Path:
    """A finished run of an exact verifier."""
    out = tmp_path_factory.mktemp("good")
    certificate = certify("subjects_for_tests:good", SMOKE, subject=subjects.good, out=out)
    assert certificate.verdict == "certified", certificate.sentence()
    return out


@pytest.fixture
def few_controls(monkeypatch):
    """Two faults instead of sixteen as controls, where a test is not about them."""
    every = controls(SMOKE)
    monkeypatch.setattr("specverify.plan.controls", lambda _settings: every[:4])


def test_an_exact_verifier_is_certified_with_all_controls_refuted(good_run):
    """The certificate is complete, its ledger sums to its total, and every known fault was refuted in the same run."""
    certificate = recheck(load(good_run / "certificate.json"))
    assert certificate.verdict == "certified"
    assert certificate.missing == []
    controls = [e for e in certificate.evidence if e.expected == "refuted"]
    assert len(controls) == 32
    assert all(e.verdict == "refuted" for e in controls)
    assert certificate.ledger.spent == pytest.approx(1e-8)
    assert set(certificate.ledger.shares) == {e.test for e in certificate.evidence if e.alpha and e.expected == "certified"}


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("from_target_after_rejection", "refuted", "law of"),
        ("never_accepts", "inconclusive", "too rare"),
        ("outside", "error", "outside 0.."),
        ("wrong_shape", "error", "shape (2, 2, 2)"),
        ("too_many", "error", "counts"),
        ("not_a_number", "error", "nan"),
        ("raises", "error", "first line second line"),
        ("says_too_much", "refuted", "reported accepted count"),
        ("leaves", "error", "SystemExit"),
    ],
)
def test_verdicts_of_verifiers(name, verdict, said, few_controls):
    """Bad verifiers get the verdict they deserve and a sentence of one line that says why."""
    certificate = certify(f"subjects_for_tests:{name}", SMOKE, subject=getattr(subjects, name))
    sentence = certificate.sentence()
    assert certificate.verdict == verdict, sentence
    assert said in sentence
    assert "\n" not in sentence
    assert EXIT_CODES[certificate.verdict] == {"refuted": 1, "inconclusive": 2, "error": 3}[verdict]


@pytest.mark.parametrize(
    ("name", "only", "said"),
    [
        ("wrong_in_small_batches", "small batches", "hold a token of probability 0"),
        ("wrong_in_bfloat16", "acceptance", "refute it"),
        ("wrong_on_one_size", "single_step", "generated pairs"),
    ],
)
def test_what_is_wrong_in_places_is_refuted_by_the_tests_that_look_there(name, only, said, few_controls):
    """Verifiers that are right but in small batches, at a low precision or for one size."""
    certificate = certify(f"subjects_for_tests:{name}", SMOKE, subject=getattr(subjects, name), only=only)
    assert certificate.verdict == "refuted"
    assert said in certificate.sentence()


def test_other_checks_still_run_after_an_error_and_say_how_to_repeat_it(few_controls):
    """One test in error leaves the rest of the evidence; the inputs and the command are in it."""
    certificate = certify("subjects_for_tests:outside", SMOKE, subject=subjects.outside)
    errors = [e for e in certificate.evidence if e.verdict == "error"]
    assert len(errors) >= 4
    assert sum(e.verdict == "refuted" for e in certificate.evidence) == 4
    assert "draft_tokens" in errors[0].measurements[0].reproduce
    assert "--only" in errors[0].measurements[0].reproduce


def test_a_subject_that_hangs_is_stopped_and_reported():
    """A loop that swallows exceptions is ended by the time limit, test by test."""
    plan = plan_for(subjects.hangs, "x", replace(SMOKE, timeout=0.3))
    runner = Runner(plan)
    for planned in [p for p in plan.tests if p.expected == "certified"]:
        evidence = runner.run(planned)
        assert evidence.verdict == "error"
        assert "did not come back" in evidence.judgements()[0].reason


def test_a_law_that_takes_too_long_is_inconclusive_and_not_an_error():
    """A walk that stops when its share of the time is up says what is left; nothing is certified by it, and nothing crashes."""
    plan = plan_for(subjects.slow, "x", replace(SMOKE, timeout=4.0))
    runner = Runner(plan)
    named = runner.run(next(p for p in plan.tests if p.check == "single_step" and p.variant == "named pairs"))
    assert named.verdict == "inconclusive", [j.reason for j in named.judgements()]
    # On a busy machine the time may be up before the smallest law is walked to its end, and again.
    said = ("of the probability was explored", "the time was up before")
    assert any(reason in j.reason for j in named.judgements() for reason in said)


def test_randomness_outside_torch_falls_back_to_sampling(few_controls):
    """A right verifier that draws from numpy is certified by sampling alone, and the skipped exact tests say why."""
    certificate = certify("x", SMOKE, subject=subjects.with_numpy)
    assert certificate.verdict == "certified", certificate.sentence()
    skipped = [e for e in certificate.evidence if e.verdict == "skipped"]
    assert {e.check for e in skipped} == {"single_step", "rounds", "acceptance", "edges"}
    assert "sampling alone" in skipped[0].notes[0]
    assert "more could not be put to it" in certificate.sentence()


def test_a_right_rule_that_judges_rows_one_by_one_is_certified():
    """Draws that do not say which row they belong to are walked one path per call, and the verdict is the same."""
    runner = Runner(plan_for(subjects.right_loop, "x", SMOKE))
    planned = [p for p in runner.plan.tests if p.expected == "certified" and p.check != "sequence"]
    assert {p.check for p in planned} == {"single_step", "rounds", "acceptance", "edges"}
    assert {runner.run(p).verdict for p in planned} == {"certified"}


@pytest.mark.parametrize(
    ("mode", "verdict", "check"),
    [
        ("right", "certified", None),
        ("wrong", "refuted", "sequence"),
        ("next row", "refuted", "sequence"),
        ("same rows", "refuted", "seeds"),
        ("one seed", "refuted", "seeds"),
        ("short", "error", "stopping"),
        ("long", "error", "stopping"),
        ("nan", "error", "sequence"),
    ],
)
def test_verdicts_of_decoders(mode, verdict, check, few_controls):
    """Decoders that mix rows, repeat themselves, miscount or leave their law are told apart by the check made for it."""
    certificate = certify("x", SMOKE, subject=subjects.tiny(mode))
    assert certificate.verdict == verdict, certificate.sentence()
    if check is not None:
        assert check in {e.check for e in certificate.evidence if e.verdict == verdict and e.expected == "certified"}


@pytest.mark.parametrize(
    ("mode", "facts", "verdict"),
    [
        ("coarse", {}, "refuted"),
        ("coarse", {"logit_tolerance": 0.2}, "inconclusive"),
        ("right", {"logit_tolerance": 0.05}, "certified"),
        ("wrong", {"logit_tolerance": 0.02}, "refuted"),
    ],
)
def test_declared_rounding_is_not_taken_for_a_fault(mode, facts, verdict, few_controls):
    """A decoder whose logits are off by no more than it declares is not refuted, and a wrong one does not pass with it.

    At a tolerance so large that nothing tells one of the known faults from rounding, that fault is named as left.
    """
    certificate = certify("x", SMOKE, subject=subjects.tiny(mode, **facts))
    assert certificate.verdict == verdict, certificate.sentence()
    if verdict == "inconclusive":
        assert "target_unwarped (not at this tolerance)" in certificate.sentence()


def test_a_killed_run_is_resumed_without_doing_anything_twice(tmp_path, good_run):
    """Evidence written before a kill, even with half a line at the end, is kept; the rest is run."""
    lines = (good_run / "evidence.jsonl").read_text().splitlines()
    (tmp_path / "evidence.jsonl").write_text("\n".join(lines[:30]) + "\n" + lines[30][: len(lines[30]) // 2])
    ran = []
    certificate = certify(
        "subjects_for_tests:good",
        SMOKE,
        subject=subjects.good,
        out=tmp_path,
        resume=True,
        on_done=lambda e, *_: ran.append(e.test),
    )
    assert certificate.verdict == "certified"
    assert len(ran) == len(lines) - 30
    assert len((tmp_path / "evidence.jsonl").read_text().splitlines()) == len(lines)


def test_evidence_of_another_plan_is_not_mixed_in(tmp_path, good_run):
    """Resuming with other settings is refused."""
    (tmp_path / "evidence.jsonl").write_text((good_run / "evidence.jsonl").read_text())
    with pytest.raises(UsageError, match=r"belongs to other settings \(seed was 0, is 1\); choose another --out"):
        certify("subjects_for_tests:good", replace(SMOKE, seed=1), subject=subjects.good, out=tmp_path, resume=True)
    assert EvidenceFile(tmp_path / "none.jsonl", {}).read() == []


def test_evidence_of_another_version_is_not_mixed_in(tmp_path, good_run, monkeypatch):
    """Whoever resumes with another specverify, source or subject is told which of them is another."""
    text = (good_run / "evidence.jsonl").read_text()
    (tmp_path / "evidence.jsonl").write_text(text)
    key = json.loads(text.splitlines()[0])["plan"]
    for part, said in (
        ("specverify", r"another version of specverify \(was '[0-9.]+', is 'new'\)"),
        ("source", "another version of the subject's source; choose"),
        ("spec", r"another subject \(was 'subjects_for_tests:good', is 'new'\)"),
    ):
        with pytest.raises(UsageError, match=f"evidence.jsonl belongs to {said}"):
            EvidenceFile(tmp_path / "evidence.jsonl", {**key, part: "new"}).read()
    old = {name: value for name, value in key.items() if name != "specverify"}
    (tmp_path / "evidence.jsonl").write_text(json.dumps({"plan": old}) + "\n")
    with pytest.raises(UsageError, match=r"another version of specverify \(was not recorded"):
        EvidenceFile(tmp_path / "evidence.jsonl", key).read()
    monkeypatch.setattr("specverify.plan.__version__", "new")
    with pytest.raises(UsageError, match="another version of specverify"):
        certify("subjects_for_tests:good", SMOKE, subject=subjects.good, out=good_run, resume=True)


@pytest.mark.parametrize(
    ("number", "line", "said"),
    [
        (1, b"[]", "line 1, is a JSON list, not an object; start again without --resume"),
        (1, b'{"a": 1}', "line 1, does not say which plan"),
        (1, b'{"plan": 1}', "line 1, does not say which plan"),
        (2, b'{"a": 1}', "line 2, is not the evidence of a test: it has no 'measurements'; delete that line"),
        (2, b"7", "line 2, is a JSON int"),
        (3, b'{"test": "x", \xff\xfe', "line 3, holds bytes that are not UTF-8; delete that line"),
        (3, b'{"test": "x", "che', "line 3, is not JSON; delete that line"),
        (3, b"", "line 3, is not JSON"),
        (-1, b'{"test": "x", "che', "line 60, is not JSON"),
        (-1, b"[" * 100_000, "line 60, is not JSON"),
    ],
)
def test_a_damaged_line_is_named_with_its_cure(tmp_path, good_run, number, line, said):
    """Whatever was written whole must be readable; what is not is an error with file and line, and the file is left alone."""
    lines = (good_run / "evidence.jsonl").read_bytes().splitlines()
    key = json.loads(lines[0])["plan"]
    lines[number - 1 if number > 0 else number] = line
    said = said.replace("line 60", f"line {len(lines)}")
    damaged = tmp_path / "evidence.jsonl"
    damaged.write_bytes(b"\n".join(lines) + b"\n")
    before = damaged.read_bytes()
    with pytest.raises(UsageError, match=f"evidence.jsonl, {said}"):
        EvidenceFile(damaged, key).read()
    assert damaged.read_bytes() == before


def test_evidence_that_cannot_be_judged_is_named_with_its_line(tmp_path, good_run):
    """Numbers that make no sense are damage too."""
    lines = (good_run / "evidence.jsonl").read_text().splitlines()
    evidence = json.loads(lines[1])
    evidence["measurements"][0] = {"kind": "rate", "label": "l", "successes": "many", "trials": 1, "bound": 0.5}
    for broken in (evidence, {**evidence, "measurements": [{"kind": "omens"}]}, {**evidence, "measurements": None}):
        (tmp_path / "evidence.jsonl").write_text("\n".join([lines[0], json.dumps(broken), *lines[2:], ""]))
        with pytest.raises(UsageError, match=r"line 2, is not evidence that can be judged: .*; delete that line"):
            EvidenceFile(tmp_path / "evidence.jsonl", json.loads(lines[0])["plan"]).read()


@pytest.mark.parametrize(("cut", "kept"), [(0, 0), (20, 0), ("first", 0), ("first line", 0), (-1, 2), (-30, 1), (-1000, 1)])
def test_a_last_line_cut_short_is_dropped_wherever_it_was_cut(tmp_path, good_run, cut, kept):
    """What a kill leaves is a beginning of the file; every whole line of it is used."""
    whole = b"".join(line + b"\n" for line in (good_run / "evidence.jsonl").read_bytes().splitlines()[:3])
    first = whole.index(b"\n")
    end = {"first": first, "first line": first + 1}.get(cut, cut)
    (tmp_path / "evidence.jsonl").write_bytes(whole[:end])
    read = EvidenceFile(tmp_path / "evidence.jsonl", json.loads(whole[:first])["plan"]).read()
    assert [e.test for e in read] == [json.loads(line)["test"] for line in whole.splitlines()[1 : 1 + kept]]


def test_nothing_is_lost_when_a_resumed_run_is_killed_while_it_begins(tmp_path, good_run, monkeypatch):
    """The file of the earlier run stays until what is kept of it has been written in full."""
    lines = (good_run / "evidence.jsonl").read_text().splitlines(keepends=True)[:4]
    path = tmp_path / "evidence.jsonl"
    path.write_text("".join(lines))
    file = EvidenceFile(path, json.loads(lines[0])["plan"])
    kept = file.read()

    def killed(_evidence):
        raise KeyboardInterrupt

    with monkeypatch.context() as while_writing:
        while_writing.setattr("specverify.record.Evidence.to_json", killed)
        with pytest.raises(KeyboardInterrupt):
            file.start(kept)
    assert path.read_text() == "".join(lines)
    file.start(kept)
    assert [e.test for e in file.read()] == [e.test for e in kept]
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_of_the_plan_never_certifies():
    """Running only some tests, or no control, is at most inconclusive."""
    certificate = certify("x", SMOKE, subject=subjects.good, only="single_step/good")
    assert certificate.verdict == "inconclusive"
    assert "planned tests left no evidence" in certificate.sentence()
    with pytest.raises(UsageError, match="no test is called"):
        certify("x", SMOKE, subject=subjects.good, only="no such test")


def test_a_control_that_is_not_refuted_puts_the_run_in_error(good_run):
    """When a known fault slips through, the run cannot be trusted and says so."""
    from specverify.certificate import from_data

    certificate = from_data(load(good_run / "certificate.json"))
    own = next(e for e in certificate.evidence if e.expected == "certified" and e.verdict == "certified")
    blind = tuple(
        replace(e, measurements=own.measurements) if e.test.endswith("naive_accept/control, exact") else e
        for e in certificate.evidence
    )
    broken = replace(certificate, evidence=blind)
    assert broken.verdict == "error"
    assert "naive_accept" in broken.sentence()


def _tamper(data, path, value):
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("verdict",), "refuted", "digest"),
        (("evidence", 0, "measurements", 0, "emitted", 0, 1), 0.123, "digest"),
        (("ledger", "alpha"), 1e-7, "digest"),
        (("evidence", 0, "verdict"), "wonderful", "certificate: at"),
        (("schema",), 99, "certificate: at"),
    ],
)
def test_a_changed_byte_is_noticed(good_run, tmp_path, path, value, said):
    """Any change of the file is noticed by schema or digest."""
    data = json.loads((good_run / "certificate.json").read_text())
    _tamper(data, path, value)
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(CertificateError, match=said):
        load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("verdict",), "refuted", "the evidence says certified"),
        (("evidence", 0, "verdict"), "refuted", "its measurements say"),
        (("evidence", 0, "measurements", 0, "emitted", 0, 1), 0.123, "its numbers say"),
        (("evidence", 0, "measurements", 0, "emitted"), [["a", "b", 3]], "cannot be"),
        (("evidence", 0, "measurements", 0, "pair", "k"), None, "cannot be"),
        (("ledger", "shares", "sequence/good/table models V3-K2"), 1e-7, "shares sum to"),
        (("ledger", "shares", "sequence/good/table models V3-K2"), 1e-300, "shares differ"),
    ],
)
def test_a_verdict_that_does_not_follow_is_named_even_with_a_fitting_digest(good_run, path, value, said):
    """Whoever recomputes the digest after a change is caught by the recomputed verdicts."""
    data = json.loads((good_run / "certificate.json").read_text())
    _tamper(data, path, value)
    data["digest"] = digest(data)
    with pytest.raises(CertificateError, match=said):
        recheck(data)


SAMPLED, EXACT = "sequence/good/table models V3-K2", "single_step/good/named pairs"
"""A test of the verifier that has a share of the ledger, and one that has none."""


def _of(data, test):
    return next(e for e in data["evidence"] if e["test"] == test)


def _judged_at(test, alpha):
    return lambda data: _of(data, test).update(alpha=alpha)


def _renamed_share(data):
    data["ledger"]["shares"]["sequence/good/no such test"] = data["ledger"]["shares"].pop(SAMPLED)


def _not_planned(data):
    data["planned"].remove(EXACT)


def _called_a_control(data):
    _of(data, EXACT).update(expected="refuted")


def _a_part_of_another_name(data):
    _of(data, EXACT).update(expected="refuted", part="fault: hidden")


def _no_longer_a_control(data):
    next(e for e in data["evidence"] if e["part"].startswith("fault:")).update(expected="certified")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_judged_at(SAMPLED, 0.0), f"{SAMPLED} was judged at 0, its share is"),
        (_judged_at(SAMPLED, 1e-300), f"{SAMPLED} was judged at 1e-300, its share is"),
        (_judged_at(SAMPLED, 0.5), f"{SAMPLED} was judged at 0.5, its share is"),
        (_judged_at(EXACT, 1e-12), "its share is 0 .it does not stand in the ledger"),
        (_judged_at("sequence/fault:naive_accept/control, sampled", 0.5), "judged at 0.5, its share is"),
        (_renamed_share, "ledger has a share for sequence/good/no such test, which is not among the planned"),
        (_not_planned, f"evidence for {EXACT}, which is not among the planned"),
        (_called_a_control, f"{EXACT} is recorded as expected to be refuted, but it is no control"),
        (_a_part_of_another_name, f"{EXACT} is recorded as a test of check single_step on part fault: hidden"),
        (_no_longer_a_control, "is recorded as expected to be certified, but it is a control"),
    ],
)
def test_evidence_that_has_no_place_in_the_plan_is_refused_even_with_a_fitting_digest(good_run, change, said):
    """Every test is judged at the share that the ledger gives it, is planned, and is a control exactly when its part is."""
    data = json.loads((good_run / "certificate.json").read_text())
    change(data)
    data["digest"] = digest(data)
    with pytest.raises(CertificateError, match=said):
        recheck(data)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("wealth", ("tokens",)),
        ("wealth", ("impossible",)),
        ("wealth", ("counted", "counts", 0, 0)),
        ("cells", ("forbidden",)),
        ("cells", ("groups", 0, "counts", 0)),
        ("rate", ("trials",)),
        ("rate", ("successes",)),
        ("violations", ("trials",)),
        ("violations", ("violations",)),
    ],
)
def test_nothing_is_counted_less_than_no_times(good_run, kind, path):
    """A number below 0 where something was counted is refused as it is read, whatever it would do to the verdict."""
    data = json.loads((good_run / "certificate.json").read_text())
    violations = {"kind": "violations", "label": "l", "violations": 0, "trials": 1, "example": ""}
    rate = {"kind": "rate", "label": "l", "successes": 0, "trials": 1, "bound": 0.5}
    judged = {"verdict": "certified", "reason": "", "numbers": {}}
    _of(data, EXACT)["measurements"] += [violations | judged, rate | judged]
    recheck(data)
    _tamper(next(m for e in data["evidence"] for m in e["measurements"] if m["kind"] == kind), path, -3)
    with pytest.raises(CertificateError, match="number below 0"):
        recheck(data)


def test_files_that_are_no_certificates_are_refused(tmp_path):
    """A missing file, text and unrelated JSON each get a message that says so."""
    with pytest.raises(CertificateError, match="cannot be read"):
        load(tmp_path / "none.json")
    (tmp_path / "t.json").write_text("hello")
    with pytest.raises(CertificateError, match="not JSON"):
        load(tmp_path / "t.json")
    (tmp_path / "u.json").write_text("{}")
    with pytest.raises(CertificateError, match="not a certificate"):
        load(tmp_path / "u.json")


def test_the_snippet_of_a_counterexample_runs_and_shows_it(capsys, few_controls):
    """The code printed with a refutation reproduces the two laws."""
    certificate = certify("specverify.faults:naive_accept", SMOKE, subject=_naive())
    shown = [e.counterexample for e in certificate.evidence if e.counterexample and e.expected == "certified"]
    assert shown
    for counterexample in shown:
        exec(compile(counterexample["snippet"], "snippet", "exec"), {})
        assert len(capsys.readouterr().out.splitlines()) >= 2
    smallest = min(shown, key=lambda c: len(str(c["pair"])))
    assert smallest["pair"]["k"] == 1
    assert "1/2" in " ".join(smallest["lines"])


def _naive():
    from specverify import faults

    return faults.naive_accept


def test_the_sentence_names_the_fault_that_the_tokens_fit(few_controls):
    """Also where an exact law refutes first, and only where bets refute; a pass by sampling says what would have been seen."""
    from specverify.faults.cases import C07_gumbels_reused, C10_inverted_ratio, C17_repaired

    sentence = certify("x", SMOKE, subject=C07_gumbels_reused).sentence()
    assert "first single_step/" in sentence
    assert "What its tokens say: fits best: shared_noise" in sentence
    exact_only = certify("x", SMOKE, subject=C10_inverted_ratio, only="single_step").sentence()
    assert "tokens say" not in exact_only
    passed = certify("x", SMOKE, subject=C17_repaired).sentence()
    assert "A known fault that differs on its models would have been refuted, had it governed every token." in passed
    blind = certify("x", SMOKE, subject=subjects.tiny("right")).sentence()
    assert "that needs no draft laws and differs" in blind
    assert "The others were not bet on: give draft_log_probs." in blind


@pytest.mark.parametrize(("name", "said"), [("lenience", True), ("naive_accept", False)])
def test_a_refuted_rule_that_declares_itself_lossy_is_called_so(name, said):
    """A rule that changes the law by design is refuted like any other, and the sentence says that it declares it."""
    sentence = certify(f"specverify.faults:{name}", SMOKE, only=f"single_step/{name}/named pairs").sentence()
    assert "does not sample from its target law" in sentence
    assert ("lossy by its own declaration" in sentence) == said
