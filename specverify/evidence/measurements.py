"""What was measured, and what follows from it? Plain numbers that anyone can judge again without the subject.

Every measurement is a frozen dataclass with ``to_json`` and ``judge(alpha)``; :func:`from_json` rebuilds it. ``judge`` uses
nothing but the numbers in the measurement, so a certificate can be re-judged by whoever holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specverify.errors import CertificateError
from specverify.evidence.judging import Judgement, Measurement, Verdict, worst
from specverify.evidence.law import ROUNDING_AT_MOST, LawMeasurement, law_tolerance, rounded, stopped
from specverify.evidence.multinomial import CellGroup, detectable_tv, fit_test
from specverify.evidence.on_off import OnOffMeasurement
from specverify.evidence.probes import ProbeMeasurement, power_of_two
from specverify.evidence.rates import rate_above
from specverify.evidence.wealth import WealthMeasurement
from specverify.laws import Pair

__all__ = [
    "ROUNDING_AT_MOST",
    "AnyMeasurement",
    "BoundMeasurement",
    "CellMeasurement",
    "CoverageMeasurement",
    "Judgement",
    "LawMeasurement",
    "Measurement",
    "OnOffMeasurement",
    "OutcomeMeasurement",
    "ProbeMeasurement",
    "RateMeasurement",
    "Verdict",
    "ViolationMeasurement",
    "WealthMeasurement",
    "from_json",
    "law_tolerance",
    "power_of_two",
    "rounded",
    "stopped",
    "worst",
]


@dataclass(frozen=True)
class CellMeasurement:
    """Counts of sampled sequences in groups of cells, and how many held a token of probability 0.

    widened: ln of how much larger the probability of any cell may be by rounding that was declared. Lowering the evidence by
    that for each draw keeps its mean at most 1 under every law within it.
    """

    label: str
    groups: tuple[CellGroup, ...]
    forbidden: int = 0
    example: str = ""
    widened: float = 0.0
    kind = "cells"

    def judge(self, alpha: float) -> Judgement:
        """Refuted at once by a forbidden token, else when the finite-sample bound is at most ``alpha``."""
        test = fit_test(self.groups)
        p = math.exp(-max(test.log_e - self.widened * test.total, 0.0))
        numbers = {
            "p": p,
            "divergence": test.divergence,
            "dof": test.dof,
            "chi_square": test.chi_square,
            "chi_square_p": test.chi_square_p,
            "draws": test.total,
            "detectable_tv": detectable_tv(test.total, test.dof, alpha) if alpha > 0 else 1.0,
            "forbidden": self.forbidden,
        }
        if self.forbidden:
            return Judgement(
                "refuted", f"{self.forbidden} sampled sequences hold a token of probability 0: {self.example}", numbers
            )
        if p <= alpha:
            return Judgement(
                "refuted",
                f"{self.label}: the counts have probability at most {max(p, 1e-300):.2g} under the target law",
                numbers,
            )
        if test.total == 0 or test.dof == 0:
            return Judgement("skipped", f"{self.label}: no cell is expected often enough to be judged", numbers)
        return Judgement("certified", f"{self.label}: {test.total} draws fit the target law (bound {p:.2g})", numbers)

    def to_json(self) -> dict[str, Any]:
        """Counts and probabilities of every cell."""
        return {
            "kind": self.kind,
            "label": self.label,
            "forbidden": self.forbidden,
            "example": self.example,
            "widened": self.widened,
            "groups": [
                {"label": g.label, "counts": list(g.counts), "probs": list(g.probs), "names": list(g.names)}
                for g in self.groups
            ],
        }


@dataclass(frozen=True)
class RateMeasurement:
    """How often an event happened that may have at most rate ``bound``."""

    label: str
    successes: int
    trials: int
    bound: float
    kind = "rate"

    def judge(self, alpha: float) -> Judgement:
        """Refuted when the exact binomial tail is at most ``alpha``."""
        p = rate_above(self.successes, self.trials, self.bound)
        numbers = {"p": p, "successes": self.successes, "trials": self.trials, "bound": self.bound}
        said = f"{self.label}: {self.successes} of {self.trials}, at most {self.bound:.4g} expected"
        return Judgement("refuted" if p <= alpha else "certified", said, numbers)

    def to_json(self) -> dict[str, Any]:
        """Counts and bound."""
        return {
            "kind": self.kind,
            "label": self.label,
            "successes": self.successes,
            "trials": self.trials,
            "bound": self.bound,
        }


@dataclass(frozen=True)
class BoundMeasurement:
    """An exactly known number that may not exceed ``bound`` by more than ``tolerance``."""

    label: str
    value: float
    bound: float
    tolerance: float
    kind = "bound"

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - exact
        """Refuted when the value is too large."""
        over = self.value > self.bound + self.tolerance
        numbers = {"value": self.value, "bound": self.bound, "tolerance": self.tolerance}
        said = f"{self.label}: {self.value:.6g}, {'above the' if over else 'within the'} bound {self.bound:.6g}"
        return Judgement("refuted" if over else "certified", said, numbers)

    def to_json(self) -> dict[str, Any]:
        """Value, bound, tolerance."""
        return {
            "kind": self.kind,
            "label": self.label,
            "value": self.value,
            "bound": self.bound,
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True)
class ViolationMeasurement:
    """How often something happened that must never happen, with an example."""

    label: str
    violations: int
    trials: int
    example: str = ""
    kind = "violations"

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - exact
        """Refuted by a single violation."""
        numbers = {"violations": float(self.violations), "trials": float(self.trials)}
        if self.violations:
            return Judgement(
                "refuted", f"{self.label}: {self.violations} of {self.trials} violate it, e.g. {self.example}", numbers
            )
        if self.trials == 0:
            return Judgement("inconclusive", f"{self.label}: never put to the test", numbers)
        return Judgement("certified", f"{self.label}: {self.trials} of {self.trials} hold", numbers)

    def to_json(self) -> dict[str, Any]:
        """Counts and example."""
        return {
            "kind": self.kind,
            "label": self.label,
            "violations": self.violations,
            "trials": self.trials,
            "example": self.example,
        }


@dataclass(frozen=True)
class CoverageMeasurement:
    """Did the events that a check is about happen often enough? A subject that never accepts passes vacuously."""

    events: Mapping[str, float]
    minimum: float
    known: bool = True
    kind = "coverage"

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - no statistics
        """Inconclusive when an event was too rare; unknown coverage is said but does not decide."""
        if not self.known:
            return Judgement("certified", "coverage is not known: the subject does not report accepted counts", {})
        rare = {name: count for name, count in self.events.items() if count < self.minimum}
        if rare:
            said = ", ".join(f"{name} {count:.4g}" for name, count in rare.items())
            return Judgement("inconclusive", f"too rare to judge (at least {self.minimum:g} needed): {said}", dict(self.events))
        return Judgement(
            "certified", "covered: " + ", ".join(f"{n} {c:.4g}" for n, c in self.events.items()), dict(self.events)
        )

    def to_json(self) -> dict[str, Any]:
        """Events and the minimum."""
        return {"kind": self.kind, "events": dict(self.events), "minimum": self.minimum, "known": self.known}


@dataclass(frozen=True)
class OutcomeMeasurement:
    """A check that could not be carried out: an error of the subject, or randomness that cannot be followed."""

    verdict: Literal["error", "inconclusive", "skipped"]
    message: str
    reproduce: str = ""
    kind = "outcome"

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - no statistics
        """The verdict as recorded."""
        return Judgement(self.verdict, self.message, {})

    def to_json(self) -> dict[str, Any]:
        """Message and how to reproduce it."""
        return {"kind": self.kind, "verdict": self.verdict, "message": self.message, "reproduce": self.reproduce}


AnyMeasurement = (
    LawMeasurement
    | CellMeasurement
    | RateMeasurement
    | BoundMeasurement
    | ViolationMeasurement
    | CoverageMeasurement
    | ProbeMeasurement
    | WealthMeasurement
    | OnOffMeasurement
    | OutcomeMeasurement
)


def from_json(data: Mapping[str, Any]) -> AnyMeasurement:
    """Rebuild a measurement. Errors: CertificateError when it is of no known kind or incomplete."""
    rest = {k: v for k, v in data.items() if k != "kind"}
    try:
        match data["kind"]:
            case "law":
                emitted = {tuple(tokens): float(mass) for tokens, mass in rest["emitted"]}
                pair, length = Pair.from_json(rest["pair"]), int(rest["length"])
                left = float(rest.get("unexplored", 0.0))
                return LawMeasurement(pair, length, emitted, rest["dtype"], rest["eos_id"], left)
            case "cells":
                groups = tuple(
                    CellGroup(g["label"], tuple(g["counts"]), tuple(g["probs"]), tuple(g["names"])) for g in rest["groups"]
                )
                return CellMeasurement(rest["label"], groups, rest["forbidden"], rest["example"], rest.get("widened", 0.0))
            case "rate":
                return RateMeasurement(**rest)
            case "bound":
                return BoundMeasurement(**rest)
            case "violations":
                return ViolationMeasurement(**rest)
            case "coverage":
                return CoverageMeasurement(**rest)
            case "probes":
                return ProbeMeasurement(
                    rest["label"], Pair.from_json(rest["pair"]), rest["probes"], rest["runs"], tuple(rest["findings"])
                )
            case "wealth":
                return WealthMeasurement.from_json(rest)
            case "on_off":
                return OnOffMeasurement.from_json(rest)
            case "outcome":
                return OutcomeMeasurement(**rest)
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"a measurement of kind {data.get('kind')!r} cannot be read: {error}") from error
    raise CertificateError(f"unknown kind of measurement {data.get('kind')!r}; written by a newer version?")
