"""The command, the certificate it completes, and the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scripted

from specverify.certificate import load, recheck
from specverify.certify import Runner, assemble
from specverify.checks.base import Settings, budget_named
from specverify.plan import plan_for
from specverify.timing.__main__ import main, read_ks
from specverify.timing.attach import newest_run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SUBJECT = f"{HERE / 'scripted.py'}:subject"
QUICK = ["--tokens", "24", "--repetitions", "2", "--k", "1..2"]


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
    record = json.loads(file.read_text())
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
    """Numbers, lists and ranges may be mixed; every K is measured once, in order."""
    assert read_ks("4", 8) == (4,)
    assert read_ks("1..3,8,2", 8) == (1, 2, 3, 8)


def test_a_subject_without_timing_says_what_it_needs(capsys):
    """A decoder that cannot be timed ends the command with 3 and names the protocol."""
    assert main([f"{HERE / 'scripted.py'}:untimed"]) == 3
    assert "untimed has no attribute 'timing'" in capsys.readouterr().err


def test_a_verifier_cannot_be_timed(capsys):
    """A single verification step has no speed of its own."""
    assert main(["reference.exposed:greedy_verifier"]) == 3
    assert "is a verifier: only a decoder" in capsys.readouterr().err


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
        str(ROOT / "suites" / "timing"),
        *arguments,
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SPECVERIFY"))}
    return subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=environment, check=False).stdout


def test_the_suite_measures_prints_and_passes():
    """Without xdist the suite prints the table and every test passes."""
    out = _suite("-n", "0", "--specverify-subject", SUBJECT)
    assert "4 passed" in out, out
    assert "draft mismatched" in out


def test_the_suite_skips_under_xdist():
    """With xdist every test skips and says how to run it."""
    out = _suite("-n", "1", "--specverify-subject", SUBJECT)
    assert "4 skipped" in out, out
    assert "timing needs a quiet machine: run pytest suites/timing -n 0" in out


def test_the_suite_skips_a_subject_without_timing():
    """A subject that cannot be timed is skipped with the reason."""
    out = _suite("-n", "0", "--specverify-subject", f"{HERE / 'scripted.py'}:untimed")
    assert "4 skipped" in out, out
    assert "untimed has no attribute 'timing'" in out
