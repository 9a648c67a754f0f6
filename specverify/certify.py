"""Does a subject sample exactly from its target? Plans the checks that apply, runs them in order, returns a certificate."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from specverify.breakdowns import noting_breakdowns
from specverify.certificate import Certificate, environment
from specverify.checks import CHECKS
from specverify.checks.base import Context, Found, Part, Planned, Settings
from specverify.errors import (
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
from specverify.subjects import Decoder, DecoderLike, Subject

OWN_MODELS = ("own models", "mixed batch")
"""How the variants begin that need a decoder's own models."""
WALKING = 0.6
"""Share of a test's time after which exact walks stop with what they have."""


@dataclass
class Runner:
    """Runs planned tests one at a time; opens the decoder's own models once."""

    plan: Plan
    _opened: DecoderLike | None = field(default=None, init=False)

    def run(self, planned: Planned) -> Evidence:
        """Run one test and return its evidence, whatever happens; errors of the subject become evidence too."""
        settings = self.plan.settings
        seed = derive(settings.seed, planned.test)
        alpha = self.share(planned)
        started = time.perf_counter()
        try:
            with noting_breakdowns() as broken, time_limit(settings.timeout), stopping_after(WALKING * settings.timeout):
                found = self._found(planned, seed, alpha)
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
        evidence = self.evidence(planned, found, alpha, time.perf_counter() - started)
        if broken and not any(broken[0] in j.reason for j in evidence.judgements() if j.verdict == "error"):
            evidence = self.evidence(planned, self.failed(planned, broken[0]), alpha, evidence.seconds)
        return evidence

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

    def _found(self, planned: Planned, seed: int, alpha: float) -> Found:
        part = self._part(planned.part)
        context = Context(part, self.plan.spec, self.plan.settings, seed, alpha)
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
