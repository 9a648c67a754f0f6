"""pytest options and fixtures: suites ask the planned tests of a subject, evidence goes to a certificate.

Nothing heavy is imported until a suite of specverify is collected. A suite's test takes the fixtures ``planned`` and
``judge`` and is marked ``specverify_check("name", ...)``; it becomes one pytest test per planned test of those checks.
Workers of pytest-xdist send evidence with their reports; the controller writes it as it comes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specverify.certify import Runner
    from specverify.checks.base import Planned
    from specverify.evidence_file import EvidenceFile
    from specverify.plan import Plan

EVIDENCE = "specverify_evidence"
DEFAULT_SUBJECT = "reference"

_plan_key = pytest.StashKey[Any]()
_run_key = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suites."""
    group = parser.getgroup("specverify", "certification of speculative decoders")
    group.addoption("--specverify-subject", default=None, metavar="PKG.MOD:ATTR", help="what to certify (default: reference)")
    group.addoption("--specverify-budget", default="standard", help="smoke, standard or certify")
    group.addoption("--specverify-alpha", type=float, default=None, help="false-alarm probability of the whole run (1e-8)")
    group.addoption("--specverify-seed", type=int, default=0, help="root seed")
    group.addoption("--specverify-max-tokens", type=int, default=None, help="most tokens per test that goes on")
    group.addoption("--specverify-timeout", type=float, default=300.0, help="seconds per test")
    group.addoption(
        "--specverify-out",
        default=None,
        metavar="DIR",
        help="where the certificate goes (default reports/SUBJECT-DATE)",
    )
    parser.addini("specverify_subject", "what to certify", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; fix the run's folder once, so that workers and controller agree."""
    config.addinivalue_line("markers", "specverify_check(*names): this test asks the planned tests of these checks")
    config.addinivalue_line("markers", "specverify_controls: this test asks the known-bad rules, which must be refuted")


def _spec(config: pytest.Config) -> str:
    return (
        config.getoption("--specverify-subject")
        or os.environ.get("SPECVERIFY_SUBJECT")
        or config.getini("specverify_subject")
        or DEFAULT_SUBJECT
    )


def _plan(config: pytest.Config) -> Plan:
    """The plan of this run; the same in every worker, since it depends on declarations only."""
    if _plan_key not in config.stash:
        from specverify.checks.base import Settings, budget_named
        from specverify.errors import SpecverifyError
        from specverify.evidence.ledger import DEFAULT_ALPHA
        from specverify.loading import load_subject
        from specverify.plan import plan_for

        alpha = config.getoption("--specverify-alpha")
        try:
            settings = Settings(
                budget_named(config.getoption("--specverify-budget")),
                DEFAULT_ALPHA if alpha is None else alpha,
                config.getoption("--specverify-seed"),
                config.getoption("--specverify-timeout"),
                config.getoption("--specverify-max-tokens"),
            )
            config.stash[_plan_key] = plan_for(load_subject(_spec(config)), _spec(config), settings)
        except SpecverifyError as error:
            raise pytest.UsageError(str(error)) from None
    plan: Plan = config.stash[_plan_key]
    return plan


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One pytest test per planned test of the checks a suite names; skips carry their reason."""
    if "planned" not in metafunc.fixturenames:
        return
    checks = [name for mark in metafunc.definition.iter_markers("specverify_check") for name in mark.args]
    controls = metafunc.definition.get_closest_marker("specverify_controls") is not None
    if not checks and not controls:
        return
    plan = _plan(metafunc.config)
    chosen = [p for p in plan.tests if (controls if p.expected == "refuted" else p.check in checks)]
    params: list[Any] = [pytest.param(planned, id=planned.test) for planned in chosen]
    if not controls:
        params += [
            pytest.param(s, id=f"{s.check}/{s.part}", marks=pytest.mark.skip(reason=s.reason))
            for s in plan.skipped
            if s.check in checks
        ]
    metafunc.parametrize("planned", params)


@pytest.fixture(scope="session")
def specverify_runner(request: pytest.FixtureRequest) -> Runner:
    """Runs planned tests; opens the subject's own models once per process."""
    import torch

    from specverify.certify import Runner

    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)
    return Runner(_plan(request.config))


@pytest.fixture
def judge(request: pytest.FixtureRequest, specverify_runner: Runner) -> Callable[[Planned], None]:
    """Run a planned test, record its evidence, and fail unless it came out as a sound run needs it."""
    from specverify.showing import failure, why_skipped

    def run(planned: Planned) -> None:
        evidence = specverify_runner.run(planned)
        # As text: pytest-xdist sends nothing but plain types, and a number of another kind would end the worker.
        request.node.user_properties.append((EVIDENCE, json.dumps(evidence.to_json())))
        if evidence.verdict == "skipped":
            pytest.skip(why_skipped(evidence))
        if evidence.verdict != evidence.expected:
            pytest.fail(failure(evidence), pytrace=False)

    return run


def _is_worker() -> bool:
    return bool(os.environ.get("PYTEST_XDIST_WORKER"))


class _Run:
    """The controller's side: evidence written as it comes, the certificate at the end."""

    def __init__(self, config: pytest.Config) -> None:
        from specverify.cli import run_folder
        from specverify.evidence_file import EvidenceFile

        self.plan = _plan(config)
        given = config.getoption("--specverify-out")
        self.folder = Path(given) if given else run_folder(self.plan.spec, config.rootpath / "reports")
        self.file: EvidenceFile = EvidenceFile(self.folder / "evidence.jsonl", self.plan.key)
        self.file.start()
        self.evidence: list[Any] = []
        self.lost: list[str] = []

    def add(self, data: dict[str, Any]) -> None:
        from specverify.record import Evidence

        evidence = Evidence.from_json(data)
        self.evidence.append(evidence)
        self.file.add(evidence)


class _Controller:
    """Hooks that belong to the process that collects the reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take evidence out of a report, from this process or from a worker."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == EVIDENCE:
                data = json.loads(value) if isinstance(value, str) else value
                if _run_key not in self.config.stash:
                    self.config.stash[_run_key] = _Run(self.config)
                self.config.stash[_run_key].add(data)
        report.user_properties = [(n, v) for n, v in report.user_properties if n != EVIDENCE]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the certificate and say what it says."""
        if _run_key not in self.config.stash:
            return
        from specverify.certify import assemble

        run: _Run = self.config.stash[_run_key]
        certificate = assemble(run.plan, run.evidence)
        certificate.write(run.folder / "certificate.json")
        terminalreporter.section("specverify")
        ran, planned = len(certificate.evidence), len(certificate.planned)
        if ran < planned:
            terminalreporter.line(f"exploration: {ran} of {planned} planned tests ran, so nothing is certified")
        terminalreporter.line(f"{certificate.verdict.upper()}: {certificate.sentence()}")
        spent = certificate.ledger.spent
        tests = len(certificate.ledger.shares)
        terminalreporter.line(f"ledger: {tests} statistical tests share {certificate.ledger.alpha:g} (sum {spent:g})")
        terminalreporter.line(f"certificate: {run.folder / 'certificate.json'}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Only the controller collects evidence."""
    if not _is_worker():
        session.config.pluginmanager.register(_Controller(session.config), "specverify-controller")
