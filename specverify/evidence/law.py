"""Is an exact law the target's? The law that code emitted on a pair, as numbers that anyone can judge again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specverify.evidence.judging import Judgement
from specverify.laws import Array, Pair, TableModel, Tokens, complete, sequence_law, total_variation


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
        ours, right = self.laws()
        worst_gap = float(np.abs(ours - right).max())
        distance = total_variation(ours, right)
        impossible = float(ours[right == 0].sum())
        numbers = {"deviation": worst_gap, "tolerance": self.tolerance, "tv": distance, "impossible": impossible}
        mass = float(sum(self.emitted.values()))
        if abs(mass + self.unexplored - 1) > self.tolerance:
            return Judgement("error", f"the explored paths have mass {mass:.12g}, not {1 - self.unexplored:.12g}", numbers)
        if self.unexplored > self.tolerance:
            return self._judge_part()
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
