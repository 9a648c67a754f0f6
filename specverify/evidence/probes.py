"""What came of draws at the ends of their range? Findings that anyone can judge again from the pair and the tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specverify.evidence.judging import Judgement, Verdict
from specverify.laws import Pair, first_impossible


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
        if self.probes == 0:
            return Judgement("skipped", f"{self.label}: no draw was seen that has a boundary to push it to", numbers)
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
