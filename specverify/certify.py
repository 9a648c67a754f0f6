"""Does a subject sample exactly from its target? Plans the checks that apply, runs them in order, returns a certificate."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from specverify.breakdowns import noting_breakdowns
from specverify.certificate import Certificate, environment
from specverify.checks import CHECKS
from specverify.checks.base import Context, Found, Part, Planned, Settings
from specverify.errors import (
    DrawsDiffer,
    FolderError,
    OpaqueRandomness,
    PathBudgetExceeded,
    SpecverifyError,
)
from specverify.evidence.measurements import OutcomeMeasurement
from specverify.evidence_file import EvidenceFile
from specverify.exact.walk import stopping_after
from specverify.limits import Alarm, time_limit
from specverify.loading import PROCESS, load_subject, source_digest
from specverify.opening import check_opened
from specverify.plan import Plan, control_part, parts_of, plan_for, settings_json
from specverify.randomness import derive
from specverify.record import CONTROL, Evidence, control_share
from specverify.runs.lock import RunLock
from specverify.runs.shards import UNKEPT, Shards
from specverify.runs.store import RunShards, forget
from specverify.subjects import Decoder, DecoderLike, Subject

OWN_MODELS = ("own models", "mixed batch")
"""How the variants begin that need a decoder's own models."""
WALKING = 0.6
"""Share of a test's time after which exact walks stop with what they have."""
ANEW = "the run was stopped within this test and resumed; the subject then drew otherwise than before, so the test began anew"


@dataclass
class Runner:
    """Runs planned tests one at a time; opens the decoder's own models once. shards: where what they draw is kept."""

    plan: Plan
    shards: RunShards | None = None
    _opened: DecoderLike | None = field(default=None, init=False)

    def run(self, planned: Planned, watch: Callable[[], AbstractContextManager[None]] = nullcontext) -> Evidence:
        """Run one test and return its evidence, whatever happens; errors of the subject become evidence too.

        A test that was begun before a kill, and whose subject now draws otherwise than then, is run from its first shard on.
        watch: around every such run. Errors: FolderError when what is drawn cannot be kept.
        """
        try:
            with watch():
                return self._once(planned)
        except DrawsDiffer:
            with watch():
                return self._once(planned, anew=True)

    def _once(self, planned: Planned, *, anew: bool = False) -> Evidence:
        settings = self.plan.settings
        seed = derive(settings.seed, planned.test)
        alpha = self.share(planned)
        started = time.perf_counter()
        broken: Sequence[str] = ()
        try:
            shards = self._shards(planned, anew=anew)
            with noting_breakdowns() as broken, time_limit(settings.timeout), stopping_after(WALKING * settings.timeout):
                found = self._found(planned, seed, alpha, shards)
        except (FolderError, DrawsDiffer):
            raise
        except OpaqueRandomness as error:
            found = Found((OutcomeMeasurement("skipped", str(error)),), None, ("judged by sampling alone",))
        except PathBudgetExceeded as error:
            found = Found((OutcomeMeasurement("inconclusive", str(error)),))
        except SpecverifyError as error:
            found = self.failed(planned, str(error), getattr(error, "inputs", ""))
        except (KeyboardInterrupt, Alarm):
            raise
        except BaseException as error:
            found = self.failed(planned, f"raised {type(error).__name__}: {error}")
        if anew:
            found = replace(found, notes=(*found.notes, ANEW))
        evidence = self.evidence(planned, found, alpha, time.perf_counter() - started)
        if broken and not any(broken[0] in j.reason for j in evidence.judgements() if j.verdict == "error"):
            evidence = self.evidence(planned, self.failed(planned, broken[0]), alpha, evidence.seconds)
        return evidence

    def _shards(self, planned: Planned, *, anew: bool) -> Shards:
        if self.shards is None:
            return UNKEPT
        shards = self.shards.of(planned.test)
        return shards.begin_anew() if anew else shards

    def share(self, planned: Planned) -> float:
        """The false-alarm probability at which a test is judged; 0 for an exact one."""
        if planned.expected == "refuted":
            return control_share(self.plan.ledger) if planned.statistical else 0.0
        return self.plan.ledger.share(planned.test)

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
            f"specverify certify {shlex.quote(self.plan.spec)} --only {planned.test!r} --seed {settings.seed} "
            f"--budget {settings.budget.name} --alpha {settings.alpha:g}"
            + ("" if settings.max_tokens is None else f" --max-tokens {settings.max_tokens}")
        )
        line = " ".join(message.split())
        return Found((OutcomeMeasurement("error", line, again + (f"\n  inputs: {inputs}" if inputs else "")),))

    def _found(self, planned: Planned, seed: int, alpha: float, shards: Shards) -> Found:
        part = self._part(planned.part)
        context = Context(part, self.plan.spec, self.plan.settings, seed, alpha, shards=shards)
        if isinstance(part, Decoder) and planned.variant.startswith(OWN_MODELS):
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
        check_opened(self._opened, part.name)
        return self._opened


def subject_json(subject: Subject, spec: str) -> dict[str, Any]:
    """Who was judged: name, kind, source digest, version and declared facts."""
    top = spec.split(":", maxsplit=1)[0].split(".", maxsplit=1)[0]
    try:
        version: str | None = None if spec.startswith(PROCESS) else metadata.version(top)
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
        seconds = runner.plan.settings.timeout + GRACE
        evidence = runner.evidence(planned, runner.failed(planned, message), runner.share(planned), seconds)
        try:
            file.add(evidence)
            certificate = assemble(runner.plan, [*done, evidence])
            certificate.write(out / "certificate.json")
            sys.stderr.write(f"specverify: {planned.test} {message}; stopped, continue with --resume {out}\n")
            sys.stderr.flush()
        finally:  # even when there is no room left to write to
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
    ``resume`` continues a killed run there: finished tests are kept, and of the one that was running all shards of what it
    drew. ``only`` runs the tests whose name contains it; the result is then at most
    inconclusive. Guarantee: if the subject is exact, the verdict is ``refuted`` with probability at most settings.alpha.
    Errors: SubjectError when it cannot be loaded; UsageError, also when another process writes to ``out`` or it holds a run of
    another plan; FolderError when it takes no more. Errors inside tests are evidence, not exceptions.
    """
    settings = settings or Settings()
    out = None if out is None else out.resolve()
    plan = plan_for(subject if subject is not None else load_subject(spec), spec, settings)
    chosen = [p for p in plan.tests if only is None or only in p.test]
    if not chosen:
        plan.find(only or "")
    if out is None:
        return assemble(plan, _run_all(Runner(plan), chosen, [], None, None, on_done))
    with RunLock(out):
        file = EvidenceFile(out / "evidence.jsonl", plan.key, about(plan))
        done, shards = open_run(file, plan, resume=resume)
        try:
            done = _run_all(Runner(plan, shards), chosen, done, file, out, on_done)
            certificate = assemble(plan, done)
            certificate.write(out / "certificate.json")
        finally:
            shards.close()
    return certificate


def about(plan: Plan) -> dict[str, Any]:
    """What the first line of a run's evidence says beside its plan, for whoever lists or resumes it."""
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"started": started, "tests": len(plan.tests), "max_tokens": plan.settings.max_tokens}


def open_run(file: EvidenceFile, plan: Plan, *, resume: bool) -> tuple[list[Evidence], RunShards]:
    """Evidence and shards of an earlier run of the plan, or the beginnings of a new one. The folder is the caller's alone.

    Errors: UsageError when what is there belongs to another plan or is damaged, or the folder cannot be written.
    """
    folder = file.path.parent
    if not resume:
        file.start()
        forget(folder)
        return [], RunShards(folder, plan.key)
    done, shards = file.read(), RunShards(folder, plan.key)
    file.start(done)
    return done, shards


def _run_all(
    runner: Runner,
    chosen: Sequence[Planned],
    done: list[Evidence],
    file: EvidenceFile | None,
    out: Path | None,
    on_done: Callable[[Evidence, int, int], None] | None,
) -> list[Evidence]:
    """Evidence of all chosen tests: what is done, then what is run."""
    finished = {e.test for e in done}
    for planned in chosen:
        if planned.test in finished:
            continue
        evidence = runner.run(planned, partial(_watch, runner, planned, done, file, out))
        done.append(evidence)
        if file is not None:
            file.add(evidence)
        if on_done is not None:
            on_done(evidence, len(done), len(chosen))
    return done
