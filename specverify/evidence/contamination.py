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
from scipy.special import logsumexp

from specverify.evidence.pointwise import FAULT_LAWS, WITHOUT_Q, At, Rows
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


def share_on_grid(levels: Array, logs: Array, alpha: float, *, paid: bool = False) -> float:
    """The same from ln L at some levels only (rising): the least level that is excluded, with all above it; 1 if none is.

    paid: every ln L has paid for a tolerance of the logits, all the same; what nobody bet on, which has not, is then left out.
    """
    values = logs if paid else np.concatenate([[0.0], logs])
    first = 0 if paid else 1
    floor = float(logsumexp(values)) - math.log(len(values)) - math.log(1 / alpha)
    best = int(np.argmax(values))
    excluded = [float(level) for i, level in enumerate(levels, first) if i > best and values[i] <= floor]
    return min(excluded, default=1.0)


SAME_LAW = 1e-3
"""TV per token up to which a fault counts as no fault on the models at hand; by then no budget would show it."""


@dataclass(frozen=True)
class Growth:
    """What one token drawn from y does for a bet on y: mean and variance of ln y/p, where p has the token at all.

    impossible: probability of a token that p never has, which refutes by itself. tv: TV(y, p).
    """

    mean: float
    variance: float
    impossible: float = 0.0
    tv: float = 1.0

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

    level: share of the tokens that follow the fault.
    """

    def __init__(self, with_q: bool, *, level: float = 1.0) -> None:
        self.level = level
        self._names = [n for n in FAULT_LAWS if with_q or n in WITHOUT_Q]
        self._sums = np.zeros((len(self._names), 4))
        self._weight = 0.0

    def add(self, rows: Rows, shares: Array, paid: Array) -> None:
        """Laws (C, V) that came with these weights (C,); paid (C, V) is what every bet pays for a token."""
        everywhere, p = At.everywhere(rows), rows.p
        self._weight += float(shares.sum())
        for sums, name in zip(self._sums, self._names, strict=True):
            y = (1 - self.level) * p + self.level * FAULT_LAWS[name](everywhere)
            there = (y > 0) & (p > 0)
            logs = np.where(there, np.log(np.where(there, y, 1.0) / np.where(there, p, 1.0)) - paid, 0.0)
            each = (y * logs, y * logs**2, y * (p <= 0), np.abs(y - p) / 2)
            sums += [float(shares @ one.sum(1)) for one in each]

    def growths(self) -> dict[str, Growth]:
        """By the name of the fault. Rounding leaves a mean of 1e-16 where nothing grows."""
        found = {}
        for name, sums in zip(self._names, self._sums, strict=True):
            mean, second, impossible, tv = map(float, sums / max(self._weight, 1e-300))
            found[name] = Growth(max(mean, 0.0), max(second - mean**2, 0.0), impossible if impossible > 1e-12 else 0.0, tv)
        return found


def growths(rows: Rows, shares: Array, with_q: bool, *, level: float = 1.0, paid: Array | None = None) -> dict[str, Growth]:
    """Growth of every catalogued fault when laws come with these shares (C,), which sum to 1."""
    meter = GrowthMeter(with_q, level=level)
    meter.add(rows, shares, np.zeros(rows.p.shape) if paid is None else paid)
    return meter.growths()


def ratios_of(rows: Rows, name: str) -> Array:
    """y/p (C, V) of a fault, 1 where p = 0."""
    y = FAULT_LAWS[name](At.everywhere(rows))
    ratios: Array = np.where(rows.p > 0, y / np.where(rows.p > 0, rows.p, 1.0), 1.0)
    return ratios
