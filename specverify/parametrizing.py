"""How does a test file of one's own ask all checks of its subjects? One pytest test per planned test, by a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from specverify.asserting import NotExact, NotJudged, settings_for, undisturbed
from specverify.certify import Runner
from specverify.checks.base import Planned
from specverify.errors import UsageError
from specverify.evidence.ledger import DEFAULT_ALPHA
from specverify.naming import named_subject
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.showing import failure, why_skipped


@dataclass(frozen=True, eq=False)
class Check:
    """One planned test of one subject: ``check(subject)`` puts the subject to it."""

    planned: Planned
    runner: Runner = field(repr=False)
    subject: Any = field(repr=False)

    def __call__(self, subject: Any) -> Evidence:
        """Run the test and return its evidence; skip where it cannot be put to the subject.

        Errors: NotExact (an AssertionError) when the test refutes the subject; NotJudged when it is inconclusive, ends in an
        error, or does not refute a known-bad rule; both hold the ``evidence``. UsageError for another subject than the one
        that is handed to the same test.
        """
        __tracebackhide__ = True
        if subject is not self.subject:
            raise UsageError(
                f"{self.planned.test} was planned for the subject that is handed to the same test, not for another"
            )
        with undisturbed():
            evidence = self.runner.run(self.planned)
        if evidence.verdict == "skipped":
            pytest.skip(why_skipped(evidence))
        if evidence.verdict != evidence.expected:
            kind = NotExact if evidence.verdict == "refuted" else NotJudged
            raise kind(failure(evidence), evidence=evidence)
        return evidence


def parametrize_with_checks(
    subjects: Iterable[Any],
    *,
    budget: str = "smoke",
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
    timeout: float = 300.0,
    max_tokens: int | None = None,
    controls: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate ``def test_name(subject, check): check(subject)``, which becomes one pytest test per planned test.

    subjects: whatever can be plugged in, or names to load it by, all of different names. Each is put to every test of every
    check that applies, ``subject`` being what was given here; an id reads ``check/name/variant``. With ``controls`` the
    known-bad rules that must be refuted follow, once for all subjects, with the name of the rule as ``subject``; without them
    nothing shows that the checks see anything. alpha: false-alarm probability of all subjects together, split evenly.
    timeout: seconds per test. Tests are planned from declarations alone, so that workers of pytest-xdist agree.
    ``check(subject)`` returns the evidence of its test; no file is written, and no option of pytest is needed.

    Guarantee: if every subject is exact, some test of theirs is refuted with probability at most ``alpha``.
    Errors: UsageError; SubjectError when one is no subject.
    """
    given = list(subjects)
    if not given:
        raise UsageError("parametrize_with_checks needs at least one subject")
    settings = settings_for(budget, alpha, seed, timeout, max_tokens, len(given))
    cases: dict[str, tuple[Any, Check]] = {}
    known_bad: dict[str, tuple[Any, Check]] = {}
    names = set()
    for one in given:
        judged, spec = named_subject(one)
        if judged.name in names:
            raise UsageError(f"two subjects are called {judged.name}; give them different names with name=")
        names.add(judged.name)
        plan = plan_for(judged, spec, settings)
        runner = Runner(plan)
        for planned in plan.tests:
            if planned.expected == "certified":
                cases[planned.test] = (one, Check(planned, runner, one))
            elif controls:
                known_bad.setdefault(planned.test, (planned.part, Check(planned, runner, planned.part)))
    found = {**cases, **known_bad}
    return pytest.mark.parametrize(("subject", "check"), list(found.values()), ids=list(found))
