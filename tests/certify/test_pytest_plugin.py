"""The suites as a product: options, skips with reasons, evidence under xdist, failures that explain themselves."""

import json
import os
import types
from pathlib import Path

import pytest
import subjects_for_tests

from specverify import pytest_plugin
from specverify.certificate import load, recheck
from specverify.certify import certify
from specverify.checks.base import BUDGETS, Settings
from specverify.plan import plan_for

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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])))
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


BREAKABLE = """
from pathlib import Path
import specverify
from subjects_for_tests import token_rejection

@specverify.verifier
def breakable(draft_tokens, draft_probs, target_probs):
    if Path("broken").exists():
        raise RuntimeError("broken")
    return token_rejection(draft_tokens, draft_probs, target_probs)
"""


def test_a_resumed_run_judges_only_what_was_not_judged(suite, monkeypatch):
    """What was judged counts as it came out, failed or passed, and is not run again; in a worker and without one.

    Where it was judged does not matter: here one test was judged by the command.
    """
    monkeypatch.chdir(suite.path)
    (suite.path / "breakable.py").write_text(BREAKABLE)
    given = ["--specverify-subject", "breakable.py:breakable"]
    broken = suite.path / "broken"
    broken.write_text("")
    certify("breakable.py:breakable", Settings(BUDGETS["smoke"]), out=Path("run"), only="acceptance")
    broken.unlink()
    both = [*given, "-k", "(acceptance or sequence) and breakable and (exact or V3-K2)", "--specverify-resume", "run"]
    result = suite(*both, "-n", "1")
    result.assert_outcomes(failed=1, passed=2)
    kept = (suite.path / "run" / "evidence.jsonl").read_bytes()
    assert len(list((suite.path / "run" / "shards").glob("*.log"))) >= 1
    broken.write_text("")
    result = suite(*both)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["*raised RuntimeError: broken*"])
    assert (suite.path / "run" / "evidence.jsonl").read_bytes() == kept
    certificate = recheck(load(suite.path / "run" / "certificate.json"))
    assert [e.verdict for e in certificate.evidence] == ["error", "certified", "certified"]


@pytest.fixture
def config(tmp_path):
    """A controller's configuration over a plan of the verifier ``good``, as far as a run needs it."""

    def make(**options):
        given = {"--specverify-out": None, "--specverify-resume": None, "--specverify-seed": 0, **options}
        made = types.SimpleNamespace(getoption=given.get, rootpath=tmp_path, stash=pytest.Stash())
        made.stash[pytest_plugin._plan_key] = plan_for(
            subjects_for_tests.good, "good", Settings(BUDGETS["smoke"], seed=given["--specverify-seed"])
        )
        return made

    return make


def test_folders_that_cannot_be_used_are_usage_errors_and_left_alone(config, tmp_path, monkeypatch):
    """One that is not there, two at once, one that another run holds, one of another plan: each is said in one line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.UsageError, match="there is no run to resume in nowhere"):
        pytest_plugin._run(config(**{"--specverify-resume": "nowhere"}))
    with pytest.raises(pytest.UsageError, match="leave --specverify-out out"):
        pytest_plugin._run(config(**{"--specverify-resume": ".", "--specverify-out": "run"}))
    held = pytest_plugin._run(config(**{"--specverify-out": "run"}))
    before = Path("run/evidence.jsonl").read_bytes()
    for option in ("--specverify-out", "--specverify-resume"):
        with pytest.raises(pytest.UsageError, match=rf"run is in use: process {os.getpid()} on"):
            pytest_plugin._run(config(**{option: "run"}))
    held.close()
    with pytest.raises(pytest.UsageError, match=r"belongs to other settings \(seed was 0, is 1\)"):
        pytest_plugin._run(config(**{"--specverify-resume": "run", "--specverify-seed": 1}))
    assert Path("run/evidence.jsonl").read_bytes() == before
    pytest_plugin._run(config(**{"--specverify-resume": "run"})).close()


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
