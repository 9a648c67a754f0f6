"""What was measured, and what follows from it? Plain numbers that anyone can judge again without the subject.

Every measurement is a frozen dataclass with ``to_json`` and ``judge(alpha)``; :func:`from_json` rebuilds it. ``judge`` uses
nothing but the numbers in the measurement, so a certificate can be re-judged by whoever holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from specverify.errors import CertificateError
from specverify.evidence.multinomial import CellGroup, detectable_tv, fit_test
from specverify.evidence.rates import rate_above
from specverify.laws import Array, Pair, TableModel, Tokens, complete, first_impossible, sequence_law, total_variation

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


def rounded(model: TableModel, dtype: str) -> TableModel:
    """The model whose laws are those of ``model`` rounded to ``dtype``: what a subject of that precision was given."""
    if dtype == "float64":
        return model
    import torch

    from specverify.subjects import DTYPES

    table = torch.from_numpy(np.ascontiguousarray(model.laws)).to(DTYPES[dtype]).to(torch.float64).numpy()
    return TableModel(table / table.sum(1, keepdims=True))


ROUNDING_AT_MOST = 0.05
"""A deviation above this is never passed as rounding, whatever the precision."""


def law_tolerance(dtype: str, vocab_size: int, length: int) -> float:
    """Allowed deviation of a probability: 32 units of rounding per token of the vocabulary and of the sequence."""
    eps = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    return 32 * vocab_size * length * eps


@dataclass(frozen=True, eq=False)
class LawMeasurement:
    """The exact law that code emitted on a pair, against the target law of ``length`` tokens.

    emitted: probability by token tuple. Shorter tuples are completed by the target. eos_id: tokens after it do not count.
    unexplored: probability of the paths that were not walked; every probability found is then a lower bound.
    """

    pair: Pair
    length: int
    emitted: Mapping[Tokens, float]
    dtype: str = "float64"
    eos_id: int | None = None
    unexplored: float = 0.0
    kind = "law"

    def laws(self) -> tuple[Array, Array]:
        """(law that came out, right law), each of shape (V,) * length."""
        target = rounded(self.pair.target, self.dtype)
        ours = complete(self.emitted, target, self.length, self.pair.prompt)
        right = sequence_law(target, self.length, self.pair.prompt)
        if self.eos_id is not None:
            right = stopped(right, self.eos_id)
            ours = stopped(ours, self.eos_id)
        return ours, right

    @property
    def tolerance(self) -> float:
        """Largest deviation that rounding explains."""
        return law_tolerance(self.dtype, self.pair.vocab_size, self.length)

    def deviation(self) -> tuple[float, float]:
        """Bounds (least, most) on the largest deviation of the probability of a sequence; equal when all was explored."""
        ours, right = self.laws()
        gap = ours - right
        least = max(float(gap.max()), float(-gap.min()) - self.unexplored, 0.0)
        return least, max(float(np.abs(gap).max()), float(np.abs(gap + self.unexplored).max()))

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - an exact law has no false alarms
        """Refuted when a probability of a sequence deviates by more than rounding explains, whatever was not explored."""
        if self.unexplored > self.tolerance:
            return self._judge_part()
        ours, right = self.laws()
        worst_gap = float(np.abs(ours - right).max())
        distance = total_variation(ours, right)
        impossible = float(ours[right == 0].sum())
        numbers = {"deviation": worst_gap, "tolerance": self.tolerance, "tv": distance, "impossible": impossible}
        mass = float(sum(self.emitted.values()))
        if abs(mass + self.unexplored - 1) > self.tolerance:
            return Judgement("error", f"the explored paths have mass {mass:.12g}, not 1", numbers)
        largest = max(worst_gap, impossible)
        if ROUNDING_AT_MOST < largest <= self.tolerance:
            return Judgement(
                "inconclusive", f"off by {largest:.2g}, which rounding in {self.dtype} might just explain", numbers
            )
        if worst_gap > self.tolerance or impossible > self.tolerance:
            return Judgement("refuted", f"the law of {self.length} tokens is off by TV {distance:.4g}", numbers)
        return Judgement("certified", f"equal to the target law within {worst_gap:.1e}", numbers)

    def _judge_part(self) -> Judgement:
        """Verdict on a walk that was stopped."""
        ours, right = self.laws()
        least, most = self.deviation()
        impossible = float(ours[right == 0].sum())
        numbers = {
            "deviation": least,
            "deviation_at_most": most,
            "tolerance": self.tolerance,
            "tv": max(least, impossible),
            "impossible": impossible,
            "unexplored": self.unexplored,
        }
        seen = f"{1 - self.unexplored:.6f} of the probability was explored"
        if max(least, impossible) > self.tolerance:
            return Judgement("refuted", f"a sequence of {self.length} tokens is off by {least:.4g} at least ({seen})", numbers)
        return Judgement(
            "inconclusive",
            f"{seen}: no sequence of {self.length} tokens is off by more than {most:.4g}; use a smaller V or K",
            numbers,
        )

    def to_json(self) -> dict[str, Any]:
        """Pair, length and emitted law, exactly."""
        return {
            "kind": self.kind,
            "pair": self.pair.to_json(),
            "length": self.length,
            "dtype": self.dtype,
            "eos_id": self.eos_id,
            "unexplored": self.unexplored,
            "emitted": [[list(tokens), mass] for tokens, mass in sorted(self.emitted.items())],
        }


def stopped(law: Array, eos_id: int) -> Array:
    """Move the mass of all sequences that agree up to and including their first eos to the one that repeats eos."""
    out = np.zeros_like(law)
    for index in np.argwhere(law > 0):
        tokens = list(map(int, index))
        if eos_id in tokens:
            at = tokens.index(eos_id)
            tokens[at:] = [eos_id] * (len(tokens) - at)
        out[tuple(tokens)] += law[tuple(index)]
    return out


@dataclass(frozen=True)
class CellMeasurement:
    """Counts of sampled sequences in groups of cells, and how many held a token of probability 0."""

    label: str
    groups: tuple[CellGroup, ...]
    forbidden: int = 0
    example: str = ""
    kind = "cells"

    def judge(self, alpha: float) -> Judgement:
        """Refuted at once by a forbidden token, else when the finite-sample bound is at most ``alpha``."""
        test = fit_test(self.groups)
        numbers = {
            "p": test.p,
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
        if test.p <= alpha:
            return Judgement(
                "refuted",
                f"{self.label}: the counts have probability at most {test.p:.2g} under the target law",
                numbers,
            )
        if test.total == 0 or test.dof == 0:
            return Judgement("skipped", f"{self.label}: no cell is expected often enough to be judged", numbers)
        return Judgement("certified", f"{self.label}: {test.total} draws fit the target law (bound {test.p:.2g})", numbers)

    def to_json(self) -> dict[str, Any]:
        """Counts and probabilities of every cell."""
        return {
            "kind": self.kind,
            "label": self.label,
            "forbidden": self.forbidden,
            "example": self.example,
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


def power_of_two(chance: float) -> str:
    """A probability as ``2^-24`` where it is a power of two, else in digits."""
    mantissa, exponent = math.frexp(chance)
    return f"2^{exponent - 1}" if mantissa == 0.5 and chance < 1 else f"{chance:.2g}"


@dataclass(frozen=True, eq=False)
class ProbeMeasurement:
    """What came out on a pair when draws were pushed to their boundaries, one at a time.

    probes: rows run with an element pushed; runs: rows run with ordinary draws. findings, JSON-ready: kind ("impossible": a
    token of target probability 0 was emitted; "error": an exception, NaN, an id outside the vocabulary), message, boundary
    and chance (probability of the pushed value per draw; 0 where the sampler cannot be relied on to give it, 1 when nothing
    had to be pushed), which draw (number, element, source, dtype, where), and what repeats it (drafted, tokens, draws).
    """

    label: str
    pair: Pair
    probes: int
    runs: int
    findings: tuple[Mapping[str, Any], ...] = ()
    kind = "probes"

    def judge(self, alpha: float) -> Judgement:  # noqa: ARG002 - no false alarms: each finding was seen to happen
        """Refuted by an impossible token, in error by an exception, if the draw that causes it has positive probability."""
        numbers = {"probes": float(self.probes), "runs": float(self.runs), "findings": float(len(self.findings))}
        for wanted, verdict in (("impossible", "refuted"), ("error", "error")):
            counted = [f for f in self.findings if f["kind"] == wanted and f["chance"] > 0]
            if counted:
                worst_one = max(counted, key=lambda f: float(f["chance"]))
                if wanted == "impossible" and self.place(worst_one) is None:
                    return Judgement("error", f"{self.label}: the recorded tokens are all possible; nothing follows", numbers)
                numbers["chance"] = float(worst_one["chance"])
                said: Verdict = "refuted" if verdict == "refuted" else "error"
                return Judgement(said, f"{self.label}: {self.describe(worst_one)}", numbers)
        if self.probes + self.runs == 0:
            return Judgement("inconclusive", f"{self.label}: never put to the test", numbers)
        return Judgement("certified", f"{self.label}: {self.probes} draws pushed to a boundary, all came out well", numbers)

    def place(self, finding: Mapping[str, Any]) -> int | None:
        """Place of the first emitted token with target probability 0; None when all have some."""
        return first_impossible(self.pair.target, [int(t) for t in finding["tokens"]], self.pair.prompt)

    def describe(self, finding: Mapping[str, Any]) -> str:
        """What happened, and in which event of which draw."""
        if finding["kind"] == "error":
            what = str(finding["message"])
        else:
            at, tokens = self.place(finding), finding["tokens"]
            before = f"after {list(tokens[:at])}" if at else "first"
            what = f"emits token {tokens[at] if at is not None else '?'} {before}, where the target gives it probability 0"
        if finding["draw"] < 0:
            return f"{what}, with {finding['boundary']}"
        which = f"draw {finding['draw']} ({finding['source']} in {finding['dtype']} at {finding['where']})"
        return f"{what}, when {which} gives {finding['boundary']}: probability {power_of_two(finding['chance'])} per draw"

    def to_json(self) -> dict[str, Any]:
        """Pair, counts and findings, exactly."""
        return {
            "kind": self.kind,
            "label": self.label,
            "pair": self.pair.to_json(),
            "probes": self.probes,
            "runs": self.runs,
            "findings": [dict(f) for f in self.findings],
        }


AnyMeasurement = (
    LawMeasurement
    | CellMeasurement
    | RateMeasurement
    | BoundMeasurement
    | ViolationMeasurement
    | CoverageMeasurement
    | ProbeMeasurement
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
                return CellMeasurement(rest["label"], groups, rest["forbidden"], rest["example"])
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
            case "outcome":
                return OutcomeMeasurement(**rest)
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"a measurement of kind {data.get('kind')!r} cannot be read: {error}") from error
    raise CertificateError(f"unknown kind of measurement {data.get('kind')!r}; written by a newer version?")
