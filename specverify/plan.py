"""What will a run do? Every test and control, the share of the false-alarm budget each has, fixed before the first draw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specverify import __version__
from specverify.checks import CHECKS, on_off
from specverify.checks.base import Part, Planned, Settings, Skipped
from specverify.errors import (
    SubjectError,
    UsageError,
)
from specverify.evidence.ledger import Ledger
from specverify.faults.catalogue import CATALOGUE, fault
from specverify.faults.several import TREE_FAULTS
from specverify.loading import load_subject, source_digest
from specverify.record import CONTROL
from specverify.subjects import Decoder, Subject
from specverify.trees import TreeVerifier
from specverify.unknown_law import OnOff

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
        return {
            "specverify": __version__,
            "spec": self.spec,
            "source": source_digest(self.subject),
            "settings": settings_json(self.settings),
        }

    def find(self, test: str) -> Planned:
        """The planned test of that name. Errors: UsageError listing similar ones."""
        for planned in self.tests:
            if planned.test == test:
                return planned
        close = [p.test for p in self.tests if test.lower() in p.test.lower()][:8]
        raise UsageError(f"no test is called {test!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))


def settings_json(settings: Settings) -> dict[str, Any]:
    """Settings as they stand in a certificate."""
    return {
        "budget": settings.budget.name,
        "alpha": settings.alpha,
        "seed": settings.seed,
        "timeout": settings.timeout,
        "max_tokens": settings.tokens,
    }


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
            if isinstance(part, OnOff) and module is not on_off:
                skipped.append(Skipped(module.NAME, part.name, "needs the target law, which is not known; see on_off"))
                continue
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
