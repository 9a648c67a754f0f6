"""Does a subject sample exactly from its target? Plans the checks that apply, runs them in order, returns a certificate."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from specverify.certificate import Certificate, Evidence, environment
from specverify.checks import CHECKS
from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.errors import (
    OpaqueRandomness,
    PathBudgetExceeded,
    SpecverifyError,
    SubjectError,
    SubjectTimeout,
    UsageError,
)
from specverify.evidence.ledger import Ledger
from specverify.evidence.measurements import OutcomeMeasurement
from specverify.exact.walk import stopping_after
from specverify.faults.catalogue import CATALOGUE, fault
from specverify.faults.several import TREE_FAULTS
from specverify.loading import load_subject, source_digest
from specverify.randomness import derive
from specverify.subjects import Decoder, DecoderLike, Subject
from specverify.trees import TreeVerifier

WALKING = 0.6
"""Share of a test's time after which exact walks stop with what they have."""
CONTROL = "fault:"
CONTROL_SIZE, TREE_CONTROL_SIZE = (5, 2), (4, 1)
"""(V, K) of a control; trees, with two children at every node, are many already at depth 1."""
CONTROL_DRAWS = 20_000
"""Sequences a control is sampled for at least: enough to refute each of them at the default budget many times over."""


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, fixed before it starts."""

    spec: str
    subject: Subject
    settings: Settings
    tests: tuple[Planned, ...]
    skipped: tuple[Skipped, ...]
    ledger: Ledger

    @property
    def key(self) -> dict[str, Any]:
        """What must agree for evidence of an earlier, killed run to be used again."""
        return {"spec": self.spec, "source": source_digest(self.subject), "settings": settings_json(self.settings)}

    def find(self, test: str) -> Planned:
        """The planned test of that name. Errors: UsageError listing similar ones."""
        for planned in self.tests:
            if planned.test == test:
                return planned
        close = [p.test for p in self.tests if test.lower() in p.test.lower()][:8]
        raise UsageError(f"no test is called {test!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))


def settings_json(settings: Settings) -> dict[str, Any]:
    """Settings as they stand in a certificate."""
    return {"budget": settings.budget.name, "alpha": settings.alpha, "seed": settings.seed, "timeout": settings.timeout}


def parts_of(subject: Subject) -> tuple[Part, ...]:
    """The parts of a decoder, then the subject itself."""
    own: tuple[Part, ...] = tuple(subject.parts) if isinstance(subject, Decoder) else ()
    names = [p.name for p in (*own, subject)]
    if any(name.startswith(CONTROL) for name in names):
        raise SubjectError(f"no part may be named {CONTROL}...: such names are kept for the known-bad rules")
    if len(set(names)) != len(names):
        raise SubjectError(f"the parts of {subject.name} need different names, got {', '.join(names)}")
    return (*own, subject)


def controls(settings: Settings) -> list[Planned]:
    """Every catalogued fault, exactly and by sampling: known-bad rules that the same run must refute."""
    return _controls(settings, CATALOGUE, CONTROL_SIZE)


def tree_controls(settings: Settings) -> list[Planned]:
    """The same for the faults of trees: controls of a run that judges a tree verifier."""
    return _controls(settings, TREE_FAULTS, TREE_CONTROL_SIZE)


def _controls(settings: Settings, names: Iterable[str], size: tuple[int, int]) -> list[Planned]:
    tests = []
    params = {"v": size[0], "k": size[1], "length": 3, "draws": max(CONTROL_DRAWS, settings.budget.sequences)}
    for name in names:
        tests.append(Planned("single_step", CONTROL + name, "control, exact", False, {"sizes": [size]}, "refuted"))
        tests.append(Planned("sequence", CONTROL + name, "control, sampled", True, params, "refuted"))
    return tests


def control_part(name: str) -> Part:
    """The rule of a control, by the name it has in a plan."""
    known = fault(name.removeprefix(CONTROL))
    return known.make((TREE_CONTROL_SIZE if known.name in TREE_FAULTS else CONTROL_SIZE)[1])


def plan_for(subject: Subject, spec: str, settings: Settings) -> Plan:
    """List the tests, in order, and split the false-alarm budget over the statistical ones that are not controls."""
    tests: list[Planned] = []
    skipped: list[Skipped] = []
    for module in CHECKS.values():
        for part in parts_of(subject):
            planned = module.plan(part, settings)
            if isinstance(planned, Skipped):
                skipped.append(planned)
            else:
                tests.extend(planned)
    ledger = (
        Ledger.split(settings.alpha, (p.test for p in tests if p.statistical))
        if any(p.statistical for p in tests)
        else Ledger(settings.alpha, {})
    )
    trees = any(isinstance(part, TreeVerifier) for part in parts_of(subject))
    bad = [*controls(settings), *(tree_controls(settings) if trees else [])]
    return Plan(spec, subject, settings, (*tests, *bad), tuple(skipped), ledger)


def find_part(spec: str, name: str) -> Any:
    """Load a subject and return the part of that name, or the named fault. Used by the snippets of counterexamples."""
    if name.startswith(CONTROL):
        return control_part(name)
    for part in parts_of(load_subject(spec)):
        if part.name == name:
            return part
    raise UsageError(f"{spec} has no part {name!r}")


class _Alarm(BaseException):
    """Time is up. Not an Exception, so that neither a subject nor Hypothesis takes it for a failure of its own."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise SubjectTimeout in the main thread after ``seconds``; elsewhere, and where there are no alarms, do nothing."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signum: int, _frame: Any) -> None:
        raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Alarm:
        raise SubjectTimeout(
            f"did not come back within {seconds:g} s; give it more with --timeout, or look for a loop that does not end"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Runner:
    """Runs planned tests one at a time; opens the decoder's own models once."""

    plan: Plan
    _opened: DecoderLike | None = field(default=None, init=False)

    def run(self, planned: Planned) -> Evidence:
        """Run one test and return its evidence, whatever happens; errors of the subject become evidence too."""
        settings = self.plan.settings
        seed = derive(settings.seed, planned.test)
        alpha = self.plan.ledger.share(planned.test)
        if planned.expected == "refuted" and planned.statistical:
            alpha = settings.alpha / max(len(self.plan.ledger.shares), 1)
        started = time.perf_counter()
        try:
            with time_limit(settings.timeout), stopping_after(WALKING * settings.timeout):
                found = self._found(planned, seed, alpha)
        except OpaqueRandomness as error:
            found = Found((OutcomeMeasurement("skipped", str(error)),), None, ("judged by sampling alone",))
        except PathBudgetExceeded as error:
            found = Found((OutcomeMeasurement("inconclusive", str(error)),))
        except SpecverifyError as error:
            found = self.failed(planned, str(error), getattr(error, "inputs", ""))
        except (KeyboardInterrupt, _Alarm):
            raise
        except BaseException as error:
            found = self.failed(planned, f"raised {type(error).__name__}: {error}")
        return self.evidence(planned, found, alpha, time.perf_counter() - started)

    def evidence(self, planned: Planned, found: Found, alpha: float, seconds: float) -> Evidence:
        """What a test found, with what is known about the test."""
        return Evidence(
            planned.test,
            planned.check,
            planned.part,
            CHECKS[planned.check].QUESTION,
            planned.expected,
            alpha,
            found.measurements,
            None if found.counterexample is None else found.counterexample.to_json(),
            found.notes,
            derive(self.plan.settings.seed, planned.test),
            seconds,
        )

    def failed(self, planned: Planned, message: str, inputs: str = "") -> Found:
        """An error of the subject as a finding, with the command that reproduces it."""
        settings = self.plan.settings
        again = (
            f"specverify certify {self.plan.spec} --only {planned.test!r} --seed {settings.seed} "
            f"--budget {settings.budget.name} --alpha {settings.alpha:g}"
        )
        line = " ".join(message.split())
        return Found((OutcomeMeasurement("error", line, again + (f"\n  inputs: {inputs}" if inputs else "")),))

    def _found(self, planned: Planned, seed: int, alpha: float) -> Found:
        part = self._part(planned.part)
        context = Context(part, self.plan.spec, self.plan.settings, seed, alpha)
        if isinstance(part, Decoder) and planned.variant == "own models":
            context.opened = self._open(part)
        found: Found = CHECKS[planned.check].run(planned, context)
        if not found.measurements:
            note = found.notes[0] if found.notes else "nothing to measure"
            return Found((OutcomeMeasurement("skipped", note),))
        return found

    def _part(self, name: str) -> Part:
        if name.startswith(CONTROL):
            return control_part(name)
        return next(p for p in parts_of(self.plan.subject) if p.name == name)

    def _open(self, part: Decoder) -> DecoderLike:
        if self._opened is None:
            assert part.open is not None
            self._opened = part.open()
        return self._opened


def subject_json(subject: Subject, spec: str) -> dict[str, Any]:
    """Who was judged: name, kind, source digest, version and declared facts."""
    top = spec.split(":", maxsplit=1)[0].split(".", maxsplit=1)[0]
    try:
        version: str | None = metadata.version(top)
    except (metadata.PackageNotFoundError, ValueError):
        version = None
    return {
        "name": subject.name,
        "spec": spec,
        "kind": subject.kind,
        "source_digest": source_digest(subject),
        "version": version,
        "parts": [{"name": p.name, "kind": p.kind, "facts": asdict(p.facts)} for p in parts_of(subject)],
    }


def assemble(plan: Plan, evidence: Sequence[Evidence], timing: Mapping[str, Any] | None = None) -> Certificate:
    """Put evidence into plan order and make the certificate."""
    order = {planned.test: i for i, planned in enumerate(plan.tests)}
    known = sorted((e for e in evidence if e.test in order), key=lambda e: order[e.test])
    return Certificate(
        subject_json(plan.subject, plan.spec),
        settings_json(plan.settings),
        plan.ledger,
        tuple(known),
        tuple({"check": s.check, "part": s.part, "reason": s.reason} for s in plan.skipped),
        environment(),
        tuple(p.test for p in plan.tests),
        timing,
    )


class EvidenceFile:
    """Evidence as JSON lines, one per finished test, flushed at once; the first line names the plan it belongs to."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path, self.key = path, dict(key)

    def read(self) -> list[Evidence]:
        """Evidence of an earlier run of the same plan; a line cut short by a kill is dropped. Errors: UsageError when the
        file belongs to another plan.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        if not records:
            return []
        if records[0].get("plan") != self.key:
            raise UsageError(
                f"{self.path} belongs to another subject version or other settings; choose another --out, or remove it"
            )
        return [Evidence.from_json(r) for r in records[1:]]

    def start(self, keep: Sequence[Evidence] = ()) -> None:
        """Begin the file anew with what is kept."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps({"plan": self.key}) + "\n")
            stream.writelines(json.dumps(e.to_json()) + "\n" for e in keep)

    def add(self, evidence: Evidence) -> None:
        """Append one finished test."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(evidence.to_json()) + "\n")


GRACE = 15.0
"""Seconds after a test's timeout before a call that cannot be interrupted ends the process."""


@contextmanager
def _watch(
    runner: Runner, planned: Planned, done: Sequence[Evidence], file: EvidenceFile | None, out: Path | None
) -> Iterator[None]:
    """End the process when a test hangs inside compiled code, where no alarm is heard, after writing what is known."""
    if file is None or out is None:
        yield
        return

    def give_up() -> None:
        message = f"hangs in code that cannot be interrupted: no answer within {runner.plan.settings.timeout + GRACE:g} s"
        evidence = runner.evidence(planned, runner.failed(planned, message), 0.0, runner.plan.settings.timeout + GRACE)
        file.add(evidence)
        certificate = assemble(runner.plan, [*done, evidence])
        certificate.write(out / "certificate.json")
        sys.stderr.write(f"specverify: {planned.test} {message}; stopped, continue with --resume {out}\n")
        sys.stderr.flush()
        os._exit(3)

    timer = threading.Timer(runner.plan.settings.timeout + GRACE, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def certify(
    spec: str,
    settings: Settings | None = None,
    *,
    subject: Subject | None = None,
    out: Path | None = None,
    resume: bool = False,
    only: str | None = None,
    on_done: Callable[[Evidence, int, int], None] | None = None,
) -> Certificate:
    """Certify a subject: run every check that applies and the negative controls.

    spec is ``"pkg.mod:attr"``; ``subject`` may hand the object itself. With ``out`` evidence is written as it comes, and
    ``resume`` continues a killed run there. ``only`` runs the tests whose name contains it; the result is then at most
    inconclusive. Guarantee: if the subject is exact, the verdict is ``refuted`` with probability at most settings.alpha.
    Errors: SubjectError when it cannot be loaded; UsageError. Errors inside tests are evidence, not exceptions.
    """
    settings = settings or Settings()
    out = None if out is None else out.resolve()
    plan = plan_for(subject if subject is not None else load_subject(spec), spec, settings)
    chosen = [p for p in plan.tests if only is None or only in p.test]
    if not chosen:
        plan.find(only or "")
    file = None if out is None else EvidenceFile(out / "evidence.jsonl", plan.key)
    done: list[Evidence] = file.read() if file is not None and resume else []
    if file is not None:
        file.start(done)
    finished = {e.test for e in done}
    runner = Runner(plan)
    for planned in chosen:
        if planned.test in finished:
            continue
        with _watch(runner, planned, done, file, out):
            evidence = runner.run(planned)
        done.append(evidence)
        if file is not None:
            file.add(evidence)
        if on_done is not None:
            on_done(evidence, len(done), len(chosen))
    certificate = assemble(plan, done)
    if out is not None:
        certificate.write(out / "certificate.json")
    return certificate
