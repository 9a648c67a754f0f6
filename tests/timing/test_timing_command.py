"""The command, the certificate it completes, and the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import scripted

from specverify.bench import main
from specverify.certificate import load, recheck
from specverify.certify import Runner, assemble
from specverify.checks.base import Settings, budget_named
from specverify.errors import UsageError
from specverify.plan import plan_for
from specverify.timing.attach import newest_run
from specverify.timing.clocks import WallClock
from specverify.timing.options import few_of, read_ks

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SUBJECT = "scripted:subject"
ALONE = ["--temperatures", "none", "--batches", "none"]
QUICK = ["--tokens", "24", "--repetitions", "2", "--k", "1..2", *ALONE]
TELLING = "scripted:telling"


@pytest.fixture(autouse=True)
def scripted_clock(monkeypatch):
    """Time scripted decoders by their own clock."""
    monkeypatch.setattr("specverify.timing.clocks.clock_for", lambda device, kind: scripted.opened_clock())


def _write_certificate(folder: Path, subject: object = scripted.subject) -> Path:
    """Write the certificate of a run of one control."""
    plan = plan_for(subject, "scripted", Settings(budget_named("smoke"), 1e-8, 0, 60.0))
    control = next(p for p in plan.tests if p.expected == "refuted" and not p.statistical)
    path = folder / "certificate.json"
    assemble(plan, [Runner(plan).run(control)]).write(path)
    return path


def test_bench_prints_a_table_and_writes_json(tmp_path, capsys):
    """A run exits with 0, prints the table without a progress bar, and writes what it printed as JSON."""
    file = tmp_path / "timing.json"
    assert main([SUBJECT, *QUICK, "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    record = json.loads(file.read_text())["specverify"]
    assert "draft mismatched" in out
    assert err == ""
    assert (record["tokens"], record["repetitions"], record["batch"], record["machine"]["threads"]) == (24, 2, 1, 1)
    assert [(run["draft"], run["k"]) for run in record["runs"]] == [
        ("aligned", 1),
        ("aligned", 2),
        ("mismatched", 1),
        ("mismatched", 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--k", "0"], "1..8"),
        (["--k", "2..9"], "1..8"),
        (["--k", "many"], "no list of numbers"),
        (["--drafts", "aligned,wrong"], "no draft 'wrong'; it has aligned, mismatched"),
        (["--tokens", "12"], "ask for 20 or more"),
        (["--repetitions", "0"], "at least 1"),
        (["--prompts", "9"], "has 4 prompts"),
        (["--batch", "two"], "invalid int value"),
        (["--fail-above", "1.5"], "is no share"),
        (["--temperatures", "hot"], "is no list of numbers"),
        (["--batches", "0"], "must be at least 1"),
        (["--clock", "cpu", "--threads", "2"], "use it with --threads 1"),
        (["--clock", "sun"], "invalid choice"),
        (["--quick", "--full"], "contradict each other"),
        (["--device", "toaster"], "is no device of torch"),
        (["--device", "mps"], "--device mps has no clock"),
        (["--compare", "nothing.json"], "cannot read nothing.json"),
        (["--plots", __file__], "is a file; name a folder"),
        (["--json", "no/such/folder.json"], "there is no folder no/such"),
        (["--attach", "nowhere"], "there is no certificate.json in nowhere"),
        (["--unknown"], "unrecognized arguments"),
    ],
)
def test_usage_errors_exit_with_64_and_one_line(arguments, said, capsys):
    """A wrong call says in one line what was wrong."""
    assert main([SUBJECT, *arguments]) == 64
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_ks_are_read_as_numbers_lists_and_ranges():
    """Numbers, lists and ranges may be mixed; every K is measured once, in order; a decoder may know a few only."""
    assert read_ks("4", tuple(range(1, 9))) == (4,)
    assert read_ks("1..3,8,2", tuple(range(1, 9))) == (1, 2, 3, 8)
    with pytest.raises(UsageError, match="must lie within 3, what this subject drafts"):
        read_ks("2", (3,))


def test_a_few_of_the_known_ks_hold_the_largest():
    """Where K ends earlier than what is wanted, its end is measured too."""
    assert few_of(tuple(range(1, 9)), (1, 2, 4, 8)) == (1, 2, 4, 8)
    assert few_of((1, 2, 3), (1, 2, 4, 8)) == (1, 2, 3)
    assert few_of((3, 16), (1, 2, 4, 8)) == ()


def test_a_subject_without_timing_is_timed_all_the_same(capsys, monkeypatch):
    """A decoder that only generates gets its speed and a note on what to add."""
    monkeypatch.setattr("specverify.timing.clocks.clock_for", lambda device, kind: WallClock())
    assert main(["scripted:generating", *ALONE, "--tokens", "24", "--repetitions", "2"]) == 0
    assert "note: the decoder has no 'timing' and no 'build'" in capsys.readouterr().out


def test_temperatures_batches_and_memory_are_part_of_a_run(tmp_path, capsys):
    """A decoder that tells everything has all of it in the table and in the file, at a few K and with its first draft."""
    file = tmp_path / "timing.json"
    given = ["--tokens", "24", "--repetitions", "1", "--k", "1,2", "--json", str(file)]
    assert main([TELLING, *given, "--temperatures", "0,1", "--batches", "1,2"]) == 0
    record = json.loads(file.read_text())["specverify"]
    assert [one["temperature"] for one in record["temperatures"]["at"]] == [0, 1]
    assert [one["batch"] for one in record["batches"]["at"]] == [1, 2]
    assert {(run["draft"], run["k"]) for one in record["batches"]["at"] for run in one["runs"]} == {("aligned", 2)}
    assert record["memory"]["caches"] == {"target": 4096}
    assert record["machine"]["cuda"].startswith("not run on cuda")
    assert record["notes"] == []
    out = capsys.readouterr().out
    assert "temperature 0" in out
    assert "speculation pays up to batch 2" in out


def test_what_was_measured_is_kept_where_memory_cannot_be(monkeypatch, capsys):
    """A run that fails while its memory is read is noted, and the table printed."""

    def failing(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("specverify.timing.memory.memory_json", failing)
    assert main([SUBJECT, *QUICK]) == 0
    out = capsys.readouterr().out
    assert "draft aligned" in out
    assert "note: memory was not measured: RuntimeError: out of memory" in out


def test_full_varies_with_every_draft_and_k(tmp_path):
    """With --full temperatures and batches are swept as the main run is."""
    file = tmp_path / "timing.json"
    given = ["--tokens", "24", "--repetitions", "1", "--k", "1,2", "--json", str(file), "--full", "--batches", "2"]
    assert main([TELLING, *given, "--temperatures", "none"]) == 0
    record = json.loads(file.read_text())["specverify"]
    assert len(record["batches"]["at"][0]["runs"]) == 4


def test_a_later_run_fails_where_it_lost_speed(tmp_path, capsys):
    """Against an equal run the exit code is 0; against one that was twice as fast it is 1, with a table."""
    old = tmp_path / "old.json"
    assert main([SUBJECT, *QUICK, "--json", str(old)]) == 0
    assert main([SUBJECT, *QUICK, "--compare", str(old)]) == 0
    assert "no regression" in capsys.readouterr().out
    contents = json.loads(old.read_text())
    for run in contents["specverify"]["runs"]:
        run["speedup"] = {name: 2 * value for name, value in run["speedup"].items()}
    old.write_text(json.dumps(contents))
    assert main([SUBJECT, *QUICK, "--compare", str(old)]) == 1
    out = capsys.readouterr().out
    assert "4 of 4 speed-ups lost more than 10%" in out
    assert main([SUBJECT, *QUICK, "--compare", str(old), "--fail-above", "0.6"]) == 0


def test_runs_of_another_subject_are_not_compared(tmp_path, capsys):
    """The subject is compared before minutes are spent."""
    old = tmp_path / "old.json"
    assert main([SUBJECT, *QUICK, "--json", str(old)]) == 0
    assert main([TELLING, *QUICK, "--compare", str(old)]) == 64
    assert "is of scripted, not of telling" in capsys.readouterr().err


def test_plots_are_written_as_files(tmp_path, capsys):
    """Each plot is a file of its own with its title and its colours, and parses as XML."""
    assert main([TELLING, "--tokens", "200", "--repetitions", "2", *ALONE, "--plots", str(tmp_path / "plots")]) == 0
    written = sorted((tmp_path / "plots").glob("*.svg"))
    assert [path.stem for path in written] == ["acceptance", "mismatch-tax", "phases", "speed-up", "tokens-per-second"]
    for path in written:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title").text
    out = capsys.readouterr().out
    assert all(f"plot         {path}" in out for path in written)


def test_a_verifier_cannot_be_timed(capsys):
    """A single verification step has no speed of its own."""
    assert main(["reference.exposed:greedy_verifier"]) == 3
    assert "is a verifier: only a decoder has a speed" in capsys.readouterr().err


def test_attach_completes_a_certificate(tmp_path, capsys):
    """The certificate holds when loaded and judged again, says what it said, has the timing and another digest."""
    path = _write_certificate(tmp_path)
    before = load(path)
    assert main([SUBJECT, *QUICK, "--attach", str(tmp_path)]) == 0
    after = load(path)
    recheck(after)
    assert before["timing"] is None
    assert after["timing"]["best"]["aligned"]["predicted_k"] == 2
    assert before["digest"] != after["digest"]
    assert {k: v for k, v in before.items() if k not in ("timing", "digest")} == {
        k: v for k, v in after.items() if k not in ("timing", "digest")
    }
    assert str(path) in capsys.readouterr().out


def test_attach_refuses_the_certificate_of_another_subject(tmp_path, capsys):
    """A timing never ends up in the certificate of something else."""
    path = _write_certificate(tmp_path, scripted.untimed)
    before = path.read_bytes()
    assert main([SUBJECT, *QUICK, "--attach", str(tmp_path)]) == 64
    assert "is of untimed, not of scripted" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_attach_refuses_a_changed_certificate(tmp_path, capsys):
    """A certificate that was edited is not given a fresh digest."""
    path = _write_certificate(tmp_path)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    assert main([SUBJECT, *QUICK, "--attach", str(tmp_path)]) == 1
    assert "was changed after it was written" in capsys.readouterr().err


def test_attach_takes_the_newest_run_by_default(tmp_path, monkeypatch, capsys):
    """Without a folder the certificate written last under reports/ is completed, and without any run that is said."""
    monkeypatch.chdir(tmp_path)
    assert main([SUBJECT, *QUICK, "--attach"]) == 64
    assert "there is no run under reports/" in capsys.readouterr().err
    for age, name in enumerate(("newer", "older")):
        os.utime(_write_certificate(tmp_path / "reports" / name), (1e9 - age, 1e9 - age))
    assert newest_run() == Path("reports/newer")
    assert main([SUBJECT, *QUICK, "--attach"]) == 0
    assert load(tmp_path / "reports/newer/certificate.json")["timing"] is not None
    assert load(tmp_path / "reports/older/certificate.json")["timing"] is None


def _suite(*arguments: str) -> str:
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-p",
        "scripted_clock",
        str(ROOT / "suites" / "timing"),
        *arguments,
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SPECVERIFY"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=environment, check=False).stdout


def test_the_suite_measures_prints_and_passes():
    """Without xdist the suite prints the table and every test passes."""
    out = _suite("-n", "0", "--specverify-subject", TELLING)
    assert "5 passed" in out, out
    assert "draft mismatched" in out


def test_the_suite_skips_under_xdist():
    """With xdist every test skips and says how to run it."""
    out = _suite("-n", "1", "--specverify-subject", SUBJECT)
    assert "5 skipped" in out, out
    assert "timing needs a quiet machine: run pytest suites/timing -n 0" in out


def test_the_suite_takes_a_subject_without_timing():
    """A subject that only generates is timed as far as it can be."""
    out = _suite("-n", "0", "--specverify-subject", "scripted:generating")
    assert "failed" not in out, out
    assert "note: the decoder has no 'timing'" in out


def test_the_suite_skips_what_has_no_speed():
    """A verification step is skipped with the reason."""
    out = _suite("-n", "0", "--specverify-subject", "reference.exposed:greedy_verifier")
    assert "5 skipped" in out, out
    assert "only a decoder has a speed" in out


def test_what_the_subject_does_is_not_taken_for_a_result(tmp_path, monkeypatch, capsys):
    """A decoder that leaves the program while being timed is not measurable, and no success."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text(
        "import sys\nimport torch\n\n\n"
        "class Leaving:\n    vocab_size = 5\n\n"
        "    def generate(self, prompts, max_new_tokens, seed):\n        sys.exit(0)\n\n"
        "    def target_log_probs(self, ids):\n        return torch.zeros(*ids.shape, 5).log_softmax(-1)\n\n\n"
        "from specverify import decoder\n\nsubject = decoder(Leaving())\n"
    )
    assert main(["leaving.py:subject", "--quick"]) == 3
    assert "called sys.exit(0)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "."], "is a folder; name a file"),
        (["--plots", "nowhere/plots"], "no folder nowhere for --plots"),
        (["--k", "1..99999999999"], "must lie within 1..8"),
    ],
)
def test_what_cannot_be_written_or_swept_is_refused_at_once(tmp_path, monkeypatch, capsys, arguments, message):
    """Before anything is measured, with the exit code of wrong usage."""
    monkeypatch.chdir(tmp_path)
    assert main(["reference", "--quick", *arguments]) == 64
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("damage", [{"machine": [1]}, {"temperatures": [1]}, {"batches": {"at": [{}]}}, {"runs": []}])
def test_a_damaged_record_is_refused_before_measuring(tmp_path, capsys, damage):
    """What --compare cannot use is said at once."""
    run = {"draft": "aligned", "k": 1, "speedup": {"median": 1.0, "low": 0.9, "high": 1.1}}
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"specverify": {"subject": "reference", "runs": [run], **damage}}))
    assert main(["reference", "--quick", "--compare", str(old)]) == 64
    assert "--json FILE" in capsys.readouterr().err
