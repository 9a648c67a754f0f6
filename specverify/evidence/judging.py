"""What follows from a measurement? Verdicts, which of several is the worst, and the shape every measurement has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Verdict = Literal["certified", "refuted", "inconclusive", "error", "skipped"]
"""``skipped`` says that a question could not be put this way and decides nothing; the other four are design.md's verdicts."""
_WORST_FIRST: tuple[Verdict, ...] = ("refuted", "error", "inconclusive", "certified", "skipped")


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for several: a refutation is a proof and outweighs an error; certified only when all others are.

    Nothing at all, or nothing but skips, is inconclusive for a whole run and skipped for a test; this gives ``skipped``.
    """
    return min(verdicts, key=_WORST_FIRST.index, default="skipped")


@dataclass(frozen=True)
class Judgement:
    """A verdict, why, and the numbers that decided it."""

    verdict: Verdict
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


class Measurement(Protocol):
    """The shape every measurement has."""

    kind: str

    def judge(self, alpha: float) -> Judgement:
        """Verdict at false-alarm probability ``alpha`` (ignored by exact measurements)."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The numbers, JSON-ready, with ``kind``."""
        ...
