"""What does a bet on a fault make of counted tokens? Tokens of table models, by the context that each came after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specverify.evidence.contamination import ratios_of
from specverify.evidence.eprocess import FLOOR
from specverify.evidence.pointwise import Rows
from specverify.evidence.rounding import fault_price
from specverify.laws import Array, Ints


@dataclass(frozen=True, eq=False)
class Counted:
    """Tokens of table models: how often each came after each context (C, V), and the laws p and q (C, V) that governed it."""

    counts: Ints
    p: Array
    q: Array | None

    def rows(self) -> Rows:
        """The laws, p standing for an unknown q."""
        return Rows(self.p, self.p if self.q is None else self.q)

    def log_of(self, name: str, level: float, tolerance: float) -> float:
        """Ln of the wealth of a fault, from the counts."""
        rows = self.rows()
        payoff = (ratios_of(rows, name) - 1) * (rows.p > 0)
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log1p(level * payoff), FLOOR)
        if tolerance > 0:
            price, made = fault_price(rows.p, payoff[None], level, tolerance)
            logs = np.where(made[0][:, None], logs - price[0][:, None], 0.0)
        return float((self.counts * logs).sum())
