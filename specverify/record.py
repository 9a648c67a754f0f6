"""What does one test leave behind? Its measurements, the verdict that follows from them, and what a reader needs to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specverify.errors import CertificateError
from specverify.evidence.ledger import Ledger
from specverify.evidence.measurements import (
    AnyMeasurement,
    Judgement,
    Verdict,
    from_json,
    worst,
)

STATISTICAL_KINDS = ("cells", "rate", "wealth", "on_off")
"""Measurements that have false alarms."""
CONTROL = "fault:"
"""How the parts begin that are known-bad rules."""
COUNTS = ("tokens", "impossible", "trials", "successes", "violations", "forbidden", "counts")
"""Fields of measurements that say how often something happened."""


def control_share(ledger: Ledger) -> float:
    """The share at which a control is sampled: outside the ledger, since it is no false alarm, but the size of one in it."""
    return ledger.alpha / max(len(ledger.shares), 1)


@dataclass(frozen=True)
class Evidence:
    """One test: what was asked, what was measured, and at which share of the false-alarm budget it is judged."""

    test: str
    check: str
    part: str
    question: str
    expected: Literal["certified", "refuted"]
    alpha: float
    measurements: tuple[AnyMeasurement, ...]
    counterexample: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0

    def judgements(self) -> list[Judgement]:
        """Judge every measurement; the share of the test is split equally over the statistical ones."""
        statistical = sum(m.kind in STATISTICAL_KINDS for m in self.measurements)
        each = self.alpha / max(statistical, 1)
        return [m.judge(each) for m in self.measurements]

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from the measurements."""
        return worst([j.verdict for j in self.judgements()])

    @property
    def as_expected(self) -> bool:
        """Whether the test came out as a sound run needs it: a control refuted, anything else not counted here."""
        return self.expected != "refuted" or self.verdict == "refuted"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; verdict and reasons are included for reading and are recomputed by recheck."""
        judgements = self.judgements()
        return {
            "test": self.test,
            "check": self.check,
            "part": self.part,
            "question": self.question,
            "expected": self.expected,
            "alpha": self.alpha,
            "verdict": self.verdict,
            "measurements": [
                {**m.to_json(), "verdict": j.verdict, "reason": j.reason, "numbers": _finite(j.numbers)}
                for m, j in zip(self.measurements, judgements, strict=True)
            ],
            "counterexample": None if self.counterexample is None else dict(self.counterexample),
            "notes": list(self.notes),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """Rebuild from JSON; stored verdicts are dropped, since they follow from the measurements.

        Errors: CertificateError when a measurement cannot be read or counts something less than no times.
        """
        for m in data["measurements"]:
            _refuse_negative_counts(m)
        judged = ("verdict", "reason", "numbers")
        measurements = tuple(
            from_json({k: v for k, v in m.items() if k not in judged or (k == "verdict" and m.get("kind") == "outcome")})
            for m in data["measurements"]
        )
        return cls(
            data["test"],
            data["check"],
            data["part"],
            data["question"],
            data["expected"],
            data["alpha"],
            measurements,
            data["counterexample"],
            tuple(data["notes"]),
            data["seed"],
            data["seconds"],
        )


def _refuse_negative_counts(measured: Mapping[str, Any]) -> None:
    """Nothing happens less than no times, and a negative count could hide as many that refute. Errors: CertificateError."""
    counted, groups = measured.get("counted") or {}, measured.get("groups") or ()
    for holder in (measured, counted, *groups):
        for name in COUNTS:
            if name in holder and any(x < 0 for x in _numbers(holder[name])):
                raise CertificateError(
                    f"{measured.get('label') or measured.get('kind')}: {name} holds a number below 0, which no count can be"
                )


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a number, a list, or a list of lists."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, (int, float)):
        yield value


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {k: (float(v) if abs(v) < float("inf") else None) for k, v in numbers.items()}
