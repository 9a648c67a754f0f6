"""The suites as a product: options, skips with reasons, evidence under xdist, failures that explain themselves."""

import json
from pathlib import Path

import pytest

from specverify.certificate import load, recheck

HERE = Path(__file__).parent
SUITE = """
import pytest

@pytest.mark.specverify_check("single_step", "rounds", "acceptance", "edges", "stopping", "sequence", "rows", "seeds")
def test_checks(planned, judge):
    judge(planned)

@pytest.mark.specverify_controls
def test_controls(planned, judge):
    judge(planned)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A folder with one suite over all checks, run in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("SPECVERIFY_SUBJECT", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(test_suite=SUITE)

    def run(*arguments):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--specverify-budget", "smoke", *arguments)

    run.path = pytester.path
    return run


def test_a_right_subject_is_certified_in_two_workers_and_nothing_is_lost(suite):
    """Under xdist the certificate holds every planned test and its ledger sums to the total."""
    result = suite("-n", "2", "--specverify-subject", "subjects_for_tests:good", "--specverify-out", "run")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*CERTIFIED: good samples from its target law*"])
    certificate = recheck(load(suite.path / "run" / "certificate.json"))
    assert certificate.verdict == "certified"
    assert certificate.missing == []
    assert certificate.ledger.spent == pytest.approx(1e-8)
    lines = (suite.path / "run" / "evidence.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(certificate.evidence)
    assert {json.loads(line)["test"] for line in lines[1:]} == set(certificate.planned)


def test_a_wrong_subject_fails_with_its_counterexample(suite):
    """The failure prints p, q, the law that came out, and code that reproduces it."""
    result = suite(
        "-k",
        "single_step and not fault",
        "--specverify-subject",
        "specverify.faults:naive_accept",
        "--specverify-out",
        "run",
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*refuted (expected certified)*", "*target p*", "*came out*", "*run it yourself*"])
    result.stdout.fnmatch_lines(["*exploration: * planned tests ran, so nothing is certified*"])


def test_checks_that_do_not_apply_skip_with_the_reason(suite):
    """A verifier has no stopping or seeds tests, and the suite says why."""
    result = suite(
        "-k", "stopping or seeds", "-rs", "--specverify-subject", "subjects_for_tests:good", "--specverify-out", "run"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*a single round does not stop*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--specverify-subject", "no_such_module"], "cannot import no_such_module"),
        (["--specverify-subject", "subjects_for_tests:good", "--specverify-alpha", "3"], "alpha"),
        (["--specverify-subject", "subjects_for_tests:good", "--specverify-max-tokens", "0"], "most tokens"),
    ],
)
def test_a_subject_that_cannot_be_loaded_is_a_usage_error(suite, arguments, said):
    """No traceback: one line that says what to do."""
    result = suite(*arguments)
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert said in text
    assert "Traceback" not in text


def test_the_subject_may_come_from_the_environment_or_the_ini_file(suite, monkeypatch, pytester):
    """SPECVERIFY_SUBJECT and specverify_subject name the subject too."""
    monkeypatch.setenv("SPECVERIFY_SUBJECT", "subjects_for_tests:one_row")
    result = suite("--collect-only", "-q", "--specverify-out", "run")
    assert "single_step/one_row/named pairs" in result.stdout.str()
    monkeypatch.delenv("SPECVERIFY_SUBJECT")
    pytester.makeini("[pytest]\nspecverify_subject = subjects_for_tests:good\n")
    result = suite("--collect-only", "-q", "--specverify-out", "run")
    assert "single_step/good/named pairs" in result.stdout.str()
    assert "one_row" not in result.stdout.str()


def test_the_plugin_is_silent_in_other_projects(pytester):
    """A test folder that does not use it collects nothing, imports no torch and writes nothing."""
    pytester.makepyfile(
        test_other="""
        import sys

        def test_light():
            assert "torch" not in sys.modules
            assert "specverify.certify" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=1)
    assert not (pytester.path / "reports").exists()
