"""Is a token drawn with numbers that another token was drawn with? Bets on pairs of tokens: positions, rows, requests.

A token x of a law with distribution function F stands for the interval [F(x-), F(x)] of its uniform when it is drawn by
inverting F in order of the ids. Given the first token of a pair, every payoff has mean 0 under the law of the second:

- "same uniform": the uniform of the first, known to lie in its interval, draws the second too: y(x) = |I' and I_x| / |I'|;
- "alike", "unlike": y = p (1 +- l m' m) with m = F(x-) + F(x) - 1 in [-1, 1], the middle of the interval, which has mean 0;
- "same token": y = delta at the first token, where the second law has it at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specverify.evidence.eprocess import FLOOR, Alternative
from specverify.laws import Array

LEVELS = (0.9, 0.3, 0.1, 0.03, 0.01)
MOST_LAG = 6
"""Positions back that a token is compared with."""
PLACES = (*(f"{lag} back" for lag in range(1, MOST_LAG + 1)), "row before", "request before")
"""Where the first token of a pair stands, seen from the second."""
KINDS = ("same uniform", "alike", "same token")


@dataclass(frozen=True, eq=False)
class Drawn:
    """Tokens as intervals of their uniforms: F(x-) and p(x), any one shape."""

    low: Array
    mass: Array

    @property
    def middle(self) -> Array:
        """F(x-) + F(x) - 1."""
        middle: Array = 2 * self.low + self.mass - 1
        return middle


def pair_payoffs(first: Drawn, second: Drawn, same: Array, repeated: Array) -> Array:
    """Payoffs (3, ...) in the order of ``KINDS``. same: whether the tokens are equal; repeated: the second law at the first."""
    ends = np.minimum(first.low + first.mass, second.low + second.mass)
    overlap = np.maximum(ends - np.maximum(first.low, second.low), 0.0)
    there = repeated > 0
    return np.stack(
        np.broadcast_arrays(
            overlap / (first.mass * second.mass) - 1,
            first.middle * second.middle,
            np.where(there, same / np.where(there, repeated, 1.0) - 1, 0.0),
        )
    )


BETS: tuple[tuple[str, float], ...] = (
    *(("same uniform", level) for level in LEVELS),
    *(("alike", sign * level) for level in LEVELS for sign in (1, -1)),
    *(("same token", level) for level in LEVELS),
)
"""Kind and level of every bet on a pair."""


def dependence_alternatives() -> list[Alternative]:
    """All bets on pairs in the order of :func:`log_payoffs`, place by place; weights within the family."""
    return [Alternative("dependence", f"{kind}, {place}", level, 1.0) for place in PLACES for kind, level in BETS]


def log_payoffs(payoffs: Array) -> Array:
    """ln(1 + l payoff) for payoffs (3, ...) and every bet (20, ...), in the order of ``BETS``."""
    logs = np.stack([np.log1p(level * payoffs[KINDS.index(kind)]) for kind, level in BETS])
    bounded: Array = np.maximum(logs, FLOOR)
    return bounded
