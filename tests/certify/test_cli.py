"""The specverify command: exit codes, one-line errors, what is printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specverify.certificate import recheck
from specverify.cli import main, run_folder
from specverify.faults import CATALOGUE, all_faults

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Commands write under a fresh folder, from which the test subjects can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 64, "required"),
        (["certify"], 64, "required"),
        (["nonsense"], 64, "invalid choice"),
        (["certify", "subjects_for_tests:good", "--budget", "lavish"], 64, "no budget is called 'lavish'"),
        (["certify", "subjects_for_tests:good", "--alpha", "2"], 64, "alpha"),
        (["certify", "subjects_for_tests:good", "--timeout", "0"], 64, "timeout"),
        (["certify", "subjects_for_tests:good", "--max-tokens", "0"], 64, "most tokens must lie between 1 and 10^12"),
        (["certify", "subjects_for_tests:good", "--resume", "nowhere"], 64, "no run to resume"),
        (["certify", "subjects_for_tests:good", "--only", "zebra"], 64, "no test is called"),
        (["certify", "no_such_module"], 3, "cannot import no_such_module"),
        (["certify", "subjects_for_tests:absent"], 3, "has no attribute 'absent'"),
        (["certify", "subjects_for_tests:HERE.x"], 3, "has no attribute"),
        (["certify", "json:dumps"], 3, "is a plain function; put @specverify.verifier above it"),
        (["recheck", "missing.json"], 64, "no certificate at"),
    ],
)
def test_wrong_calls_say_in_one_line_what_was_wrong(arguments, code, said, capsys):
    """Usage errors exit with 64, subjects that cannot be used with 3, and none shows a traceback."""
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_max_tokens_bounds_what_is_sampled_and_says_what_would_do(capsys):
    """A run that may sample too little is inconclusive, stands so in the certificate, and resumes under the same bound only."""
    some = ["certify", "subjects_for_tests:good", "--budget", "smoke", "--only", "every known fault"]
    assert main([*some, "--max-tokens", "800", "--out", "run"]) == 2
    assert "(the budget of 800 is spent)" in capsys.readouterr().err
    data = json.loads(Path("run/certificate.json").read_text())
    assert data["settings"]["max_tokens"] == 800
    (evidence,) = data["evidence"]
    assert evidence["measurements"][0]["tokens"] == 800
    assert main([*some, "--resume", "run"]) == 64
    assert "max_tokens was 800" in capsys.readouterr().err


def test_certify_exits_0_when_certified_and_recheck_agrees(capsys):
    """An exact verifier: exit 0, the sentence, and a certificate that recheck accepts."""
    assert main(["certify", "subjects_for_tests:good", "--budget", "smoke", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "CERTIFIED: good samples from its target law" in out
    assert "32 of 32 runs of known-bad rules refuted" in out
    assert main(["recheck", "run/certificate.json"]) == 0
    assert "every verdict follows" in capsys.readouterr().out


def test_certify_exits_1_and_shows_a_counterexample_to_check_by_hand(capsys):
    """Naive acceptance: exit 1 and the smallest pair as fractions."""
    assert main(["certify", "specverify.faults:naive_accept", "--budget", "smoke", "--out", "run"]) == 1
    out = capsys.readouterr().out
    assert "REFUTED" in out
    assert "smallest counterexample" in out
    assert "V = 2 tokens, K = 1" in out
    assert "target p [1/2, 1/2], draft q [1, 0]" in out
    assert "run it yourself" in out


def test_certify_exits_2_for_a_part_of_the_plan_and_3_for_an_error(capsys):
    """A partial run is inconclusive; an error names its inputs and the command that repeats it."""
    assert main(["certify", "subjects_for_tests:good", "--budget", "smoke", "--only", "single_step/good", "--out", "a"]) == 2
    assert main(["certify", "subjects_for_tests:outside", "--budget", "smoke", "--only", "outside", "--out", "b"]) == 3
    out = capsys.readouterr().out
    assert "reproduce: specverify certify subjects_for_tests:outside --only" in out
    assert "inputs: draft_tokens" in out


def test_a_damaged_run_is_not_resumed_and_says_which_line(tmp_path, capsys):
    """A usage error in one line instead of a traceback."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "evidence.jsonl").write_bytes(b"\xff\xfe\n")
    assert main(["certify", "subjects_for_tests:good", "--budget", "smoke", "--resume", "run"]) == 64
    error = capsys.readouterr().err
    assert "evidence.jsonl, line 1, holds bytes that are not UTF-8; start again without --resume" in error
    assert "Traceback" not in error


def test_a_call_that_cannot_be_interrupted_ends_the_process_and_keeps_the_evidence(tmp_path):
    """Code that hangs with alarms blocked is ended from outside; what was known is on disk, with exit code 3."""
    (tmp_path / "deaf.py").write_text(
        "import signal, time, specverify, specverify.certify\n"
        "specverify.certify.GRACE = 0.5\n"
        "@specverify.verifier\n"
        "def deaf(d, q, p):\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "    time.sleep(600)\n"
    )
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "specverify",
            "certify",
            "deaf:deaf",
            "--budget",
            "smoke",
            "--only",
            "sequence/deaf",
            "--timeout",
            "0.5",
            "--out",
            "run",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 3, run.stderr
    assert "cannot be interrupted" in run.stderr
    assert "--resume" in run.stderr
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["verdict"] == "error"
    assert recheck(certificate).verdict == "error"


def test_the_catalogue_is_listed(capsys):
    """All faults with a sentence each, the sixteen controls first, also as JSON."""
    assert main(["faults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(all_faults())
    assert len(CATALOGUE) == 16
    assert main(["faults", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(all_faults())


def test_run_folders_do_not_collide(tmp_path):
    """Two runs in one second get two folders, with the subject's name made safe."""
    first = run_folder("a.b:c d", tmp_path)
    first.mkdir()
    second = run_folder("a.b:c d", tmp_path)
    assert first != second
    assert ":" not in second.name
    assert " " not in second.name


def test_there_is_no_progress_bar_in_a_log(capsys):
    """Without a terminal nothing is redrawn."""
    main(["certify", "subjects_for_tests:good", "--budget", "smoke", "--only", "acceptance", "--out", "run"])
    both = capsys.readouterr()
    assert "\r" not in both.err + both.out
    assert "%|" not in both.err
