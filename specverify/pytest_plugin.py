"""pytest options and fixtures: suites ask the planned tests of a subject, evidence goes to a certificate.

Nothing heavy is imported until a suite of specverify is collected. A suite's test takes the fixtures ``planned`` and
``judge`` and is marked ``specverify_check("name", ...)``; it becomes one pytest test per planned test of those checks.
Workers of pytest-xdist send evidence with their reports; the controller writes it as it comes. What a test draws is kept by
the process that runs it, shard by shard, in files of its own; so a killed run can be resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specverify.certify import Runner
    from specverify.checks.base import Planned
    from specverify.evidence_file import EvidenceFile
    from specverify.plan import Plan
    from specverify.record import Evidence

EVIDENCE = "specverify_evidence"
DEFAULT_SUBJECT = "reference"

_plan_key = pytest.StashKey[Any]()
_run_key = pytest.StashKey[Any]()
_folder_key = pytest.StashKey[Path]()
WORKER_FOLDER = "specverify_folder"
"""Under this name the controller tells its workers the folder of the run."""


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
        help="where the certificate goes (default reports/SUBJECT-DATE); a run that is there is replaced",
    )
    group.addoption(
        "--specverify-resume",
        default=None,
        metavar="DIR",
        help="continue a killed run in DIR: tests judged there are not run again, and count as they came out",
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


def _folder(config: pytest.Config) -> Path:
    """The folder of this run, as the controller chose it. Errors: pytest.UsageError."""
    if _folder_key not in config.stash:
        from specverify.cli import run_folder

        given, resumed = config.getoption("--specverify-out"), config.getoption("--specverify-resume")
        if given and resumed:
            raise pytest.UsageError("--specverify-resume continues in its own folder; leave --specverify-out out")
        if resumed and not Path(resumed).is_dir():
            raise pytest.UsageError(f"there is no run to resume in {resumed}")
        told = getattr(config, "workerinput", {}).get(WORKER_FOLDER)
        chosen = told or given or resumed
        config.stash[_folder_key] = (
            Path(chosen).absolute() if chosen else run_folder(_spec(config), config.rootpath / "reports")
        )
    return config.stash[_folder_key]


def _run(config: pytest.Config) -> _Run:
    """The controller's run, begun when it is first needed. Errors: pytest.UsageError."""
    if _run_key not in config.stash:
        from specverify.errors import SpecverifyError

        try:
            config.stash[_run_key] = _Run(config)
        except SpecverifyError as error:
            raise pytest.UsageError(str(error)) from None
    run: _Run = config.stash[_run_key]
    return run


@pytest.fixture(scope="session")
def specverify_runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Runs planned tests; opens the subject's own models once per process, and keeps what they draw."""
    import torch

    from specverify.certify import Runner
    from specverify.runs.store import RunShards

    plan = _plan(request.config)
    if not _is_worker():
        yield Runner(plan, _run(request.config).shards)
        return
    torch.set_num_threads(1)
    shards = RunShards(_folder(request.config), plan.key, own_index=False)
    yield Runner(plan, shards)
    shards.close()


@pytest.fixture(scope="session")
def specverify_done(request: pytest.FixtureRequest) -> dict[str, Evidence]:
    """Evidence that a resumed run has already, by test."""
    if not request.config.getoption("--specverify-resume"):
        return {}
    from specverify.evidence_file import EvidenceFile

    if not _is_worker():
        return {e.test: e for e in _run(request.config).evidence}
    return {e.test: e for e in EvidenceFile(_folder(request.config) / "evidence.jsonl", _plan(request.config).key).read()}


@pytest.fixture
def judge(
    request: pytest.FixtureRequest, specverify_runner: Runner, specverify_done: dict[str, Evidence]
) -> Callable[[Planned], None]:
    """Run a planned test, record its evidence, and fail unless it came out as a sound run needs it.

    A test that a resumed run has judged already is not run again, and comes out as it did.
    """
    from specverify.errors import FolderError
    from specverify.showing import failure, why_skipped

    def run(planned: Planned) -> None:
        if planned.test in specverify_done:
            evidence = specverify_done[planned.test]
        else:
            try:
                evidence = specverify_runner.run(planned)
            except FolderError as error:
                pytest.fail(str(error), pytrace=False)
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
        from specverify.certify import about, open_run
        from specverify.evidence_file import EvidenceFile
        from specverify.runs.lock import RunLock

        self.plan, self.folder = _plan(config), _folder(config)
        self.lock = RunLock(self.folder)
        self.lock.take()
        self.file: EvidenceFile = EvidenceFile(self.folder / "evidence.jsonl", self.plan.key, about(self.plan))
        try:
            self.evidence, self.shards = open_run(self.file, self.plan, resume=bool(config.getoption("--specverify-resume")))
        except BaseException:
            self.lock.release()
            raise

    def add(self, data: dict[str, Any]) -> None:
        from specverify.record import Evidence

        evidence = Evidence.from_json(data)
        self.evidence.append(evidence)
        self.file.add(evidence)

    def close(self) -> None:
        self.shards.close()
        self.lock.release()


class _Controller:
    """Hooks that belong to the process that collects the reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Take a folder that was named before any worker writes there."""
        named = self.config.getoption("--specverify-out") or self.config.getoption("--specverify-resume")
        if named and not self.config.option.collectonly:
            _run(self.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist the folder."""
        node.workerinput[WORKER_FOLDER] = str(_folder(self.config))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take evidence out of a report, from this process or from a worker."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == EVIDENCE:
                data: Any = json.loads(value) if isinstance(value, str) else value
                self._add(data)
        report.user_properties = [(n, v) for n, v in report.user_properties if n != EVIDENCE]

    def _add(self, data: dict[str, Any]) -> None:
        from specverify.errors import FolderError

        try:
            _run(self.config).add(data)
        except (FolderError, pytest.UsageError) as error:
            pytest.exit(str(error), returncode=3)

    def pytest_unconfigure(self) -> None:
        """Let go of the folder."""
        if _run_key in self.config.stash:
            self.config.stash[_run_key].close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the certificate and say what it says."""
        if _run_key not in self.config.stash:
            return
        from specverify.certify import assemble
        from specverify.errors import FolderError

        run: _Run = self.config.stash[_run_key]
        certificate = assemble(run.plan, run.evidence)
        terminalreporter.section("specverify")
        try:
            certificate.write(run.folder / "certificate.json")
        except FolderError as error:
            terminalreporter.line(str(error))
            return
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
