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
        ("wrong_in_small_batches", "refuted", "tokens came that the target never gives"),
        ("wrong_in_bfloat16", "refuted", "refute it"),
        ("wrong_on_one_size", "refuted", "generated pairs"),
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


def test_a_right_rule_that_judges_rows_one_by_one_is_certified(few_controls):
    """Draws that do not say which row they belong to are walked one path per call, and the verdict is the same."""
    certificate = certify("x", SMOKE, subject=subjects.right_loop)
    assert certificate.verdict == "certified", certificate.sentence()


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


def test_small_batches_are_judged_apart(few_controls):
    """What goes wrong in batches of 2 to 64 is refuted by the test that samples in such batches, too."""
    certificate = certify("x", SMOKE, subject=subjects.wrong_in_small_batches, only="small batches")
    assert [e.verdict for e in certificate.evidence] == ["refuted"]


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
    with pytest.raises(UsageError, match="other settings"):
        certify("subjects_for_tests:good", replace(SMOKE, seed=1), subject=subjects.good, out=tmp_path, resume=True)
    assert EvidenceFile(tmp_path / "none.jsonl", {}).read() == []


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
    ],
)
def test_a_verdict_that_does_not_follow_is_named_even_with_a_fitting_digest(good_run, path, value, said):
    """Whoever recomputes the digest after a change is caught by the recomputed verdicts."""
    data = json.loads((good_run / "certificate.json").read_text())
    _tamper(data, path, value)
    data["digest"] = digest(data)
    with pytest.raises(CertificateError, match=said):
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
