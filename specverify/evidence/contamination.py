"""What does a pass mean? The largest share of tokens that can still follow each fault, and which faults would have been seen.

Guarantee of the bound. If tokens follow (1 - l) p + l y with one l, whatever contexts come, then for every mixture M of the
likelihoods L(l') over l' the ratio M / L(l) has mean 1, and by Ville's inequality stays below 1 / alpha for ever with
probability at least 1 - alpha. ln L is concave in l, so the l that are not excluded form an interval; :func:`largest_share`
is its upper end, and exceeds the true l with probability at least 1 - alpha at any moment one stops.

Power. Under the fault itself ln L(1) grows by KL(y || p) a token, with a variance that is known too;
:func:`seen_by_now` asks whether the fault would have been refuted by now with probability about 0.99.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from specverify.evidence.pointwise import FAULT_LAWS, WITHOUT_Q, At, Rows
from specverify.evidence.rounding import fault_price
from specverify.laws import Array, Ints

SHARES = (0.0, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares over which the likelihood is mixed, with equal weights."""
SURE = 2.33
"""Standard deviations below the mean at which power is asked for: 0.99."""


def log_likelihood(share: float, counts: Ints, ratios: Array) -> float:
    """Ln of L(l) / L(0) for tokens counted (C, V) and ratios y/p (C, V), where p > 0."""
    seen = counts > 0
    with np.errstate(divide="ignore"):
        return float((counts[seen] * np.log1p(share * (ratios[seen] - 1))).sum())


def largest_share(counts: Ints, ratios: Array, alpha: float) -> float:
    """Upper confidence bound on the share of tokens that follow a fault. counts and ratios y/p, both (C, V)."""
    values = [log_likelihood(share, counts, ratios) for share in SHARES]
    floor = float(logsumexp(values)) - math.log(len(SHARES)) - math.log(1 / alpha)
    if values[-1] > floor:
        return 1.0
    best = int(np.argmax(values))
    low, high = SHARES[best], 1.0  # beyond the largest value a concave function falls
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_likelihood(middle, counts, ratios) > floor else (low, middle)
    return high


def share_on_grid(levels: Array, logs: Array, alpha: float) -> float:
    """The same from ln L at some levels only (rising): the least level that is excluded, with all above it; 1 if none is."""
    values = np.concatenate([[0.0], logs])
    floor = float(logsumexp(values)) - math.log(len(values)) - math.log(1 / alpha)
    best = int(np.argmax(values))
    excluded = [float(level) for i, level in enumerate(levels, 1) if i > best and values[i] <= floor]
    return min(excluded, default=1.0)


SAME_LAW = 1e-3
"""TV per token up to which a fault counts as no fault on the models at hand; by then no budget would show it."""


@dataclass(frozen=True)
class Growth:
    """What one token drawn from y does for a bet on y: mean and variance of ln y/p, where p has the token at all.

    impossible: probability of a token that p never has, which refutes by itself. tv: TV(y, p). spread: how far logits must be
    off at least so that p becomes y.
    """

    mean: float
    variance: float
    impossible: float = 0.0
    tv: float = 1.0
    spread: float = math.inf

    def tokens(self, alpha: float, weight: float) -> float:
        """Tokens after which the fault is refuted with probability about 0.99 by a bet of this weight."""
        goal, spread = math.log(1 / alpha) - math.log(weight), SURE * math.sqrt(self.variance)
        by_wealth = math.inf
        if self.mean > 1e-15:
            by_wealth = ((spread + math.sqrt(spread**2 + 4 * self.mean * goal)) / (2 * self.mean)) ** 2
        return min(by_wealth, math.log(100) / self.impossible if self.impossible > 0 else math.inf)


def seen_by_now(growth: Growth, tokens: int, alpha: float, weight: float) -> bool:
    """Whether a fault with this growth would have been refuted within so many tokens."""
    return tokens >= growth.tokens(alpha, weight)


class GrowthMeter:
    """Growth of every catalogued fault over the laws that came along a run.

    level: share of the tokens that follow the fault. tolerance: of the logits, whose price every bet pays.
    """

    def __init__(self, with_q: bool, *, level: float = 1.0, tolerance: float = 0.0) -> None:
        self.level, self.tolerance = level, tolerance
        self._names = [n for n in FAULT_LAWS if with_q or n in WITHOUT_Q]
        self._sums = np.zeros((len(self._names), 4))
        self._spread = np.zeros(len(self._names))
        self._weight = 0.0

    def add(self, rows: Rows, shares: Array) -> None:
        """Laws (C, V) that came with these weights (C,)."""
        everywhere, p = At.everywhere(rows), rows.p
        self._weight += float(shares.sum())
        for i, name in enumerate(self._names):
            law = np.maximum(FAULT_LAWS[name](everywhere), 0.0)
            y = (1 - self.level) * p + self.level * law
            there = (y > 0) & (p > 0)
            logs = np.where(there, np.log(np.where(there, y, 1.0) / np.where(there, p, 1.0)), 0.0)
            self._spread[i] = max(self._spread[i], float((_spread(logs, there, p > 0) * (shares > 0)).max(initial=0.0)))
            if self.tolerance > 0:
                payoff = np.where(p > 0, law / np.where(p > 0, p, 1.0) - 1, 0.0)
                price, made = (one[0][:, None] for one in fault_price(p, payoff[None], self.level, self.tolerance))
                logs = np.where(there & made, logs - price, 0.0)
            each = (y * logs, y * logs**2, y * (p <= 0), np.abs(y - p) / 2)
            self._sums[i] += [float(shares @ one.sum(1)) for one in each]

    def growths(self) -> dict[str, Growth]:
        """By the name of the fault. Rounding leaves a mean of 1e-16 where nothing grows."""
        found = {}
        for name, sums, spread in zip(self._names, self._sums, self._spread, strict=True):
            mean, second, impossible, tv = map(float, sums / max(self._weight, 1e-300))
            impossible = impossible if impossible > 1e-12 else 0.0
            found[name] = Growth(max(mean, 0.0), max(second - mean**2, 0.0), impossible, tv, float(spread))
        return found


def _spread(logs: Array, there: NDArray[np.bool_], possible: NDArray[np.bool_]) -> Array:
    """Half the distance (C,) between the largest and the smallest ln y/p of a law; infinite where y loses a token of p."""
    largest = np.where(there, logs, -np.inf).max(1, initial=-np.inf)
    smallest = np.where(there, logs, np.inf).min(1, initial=np.inf)
    whole = (there | ~possible).all(1) & there.any(1)
    with np.errstate(invalid="ignore"):
        half: Array = np.where(whole, (largest - smallest) / 2, np.inf)
    return half


def growths(rows: Rows, shares: Array, with_q: bool, *, level: float = 1.0, tolerance: float = 0.0) -> dict[str, Growth]:
    """Growth of every catalogued fault when laws come with these shares (C,), which sum to 1."""
    meter = GrowthMeter(with_q, level=level, tolerance=tolerance)
    meter.add(rows, shares)
    return meter.growths()


def ratios_of(rows: Rows, name: str) -> Array:
    """y/p (C, V) of a fault, 1 where p = 0."""
    y = FAULT_LAWS[name](At.everywhere(rows))
    ratios: Array = np.where(rows.p > 0, y / np.where(rows.p > 0, rows.p, 1.0), 1.0)
    return ratios
