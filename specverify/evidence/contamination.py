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


def share_on_grid(levels: Array, logs: Array, alpha: float) -> float:
    """The same from ln L at some levels only (rising): the least level that is excluded, with all above it; 1 if none is."""
    values = np.concatenate([[0.0], logs])
    floor = float(logsumexp(values)) - math.log(len(values)) - math.log(1 / alpha)
    best = int(np.argmax(values))
    excluded = [float(level) for i, level in enumerate(levels, 1) if i > best and values[i] <= floor]
    return min(excluded, default=1.0)


@dataclass(frozen=True)
class Growth:
    """Mean and variance of ln y/p for one token drawn from y: infinite where y emits what p never does."""

    mean: float
    variance: float

    def tokens(self, alpha: float, weight: float) -> float:
        """Tokens after which the fault is refuted with probability about 0.99 by a bet of this weight."""
        if self.mean <= 1e-15:
            return math.inf
        if math.isinf(self.mean):
            return 1.0
        goal, spread = math.log(1 / alpha) - math.log(weight), SURE * math.sqrt(self.variance)
        root = (spread + math.sqrt(spread**2 + 4 * self.mean * goal)) / (2 * self.mean)
        return root**2


def seen_by_now(growth: Growth, tokens: int, alpha: float, weight: float) -> bool:
    """Whether a fault with this growth would have been refuted within so many tokens."""
    return tokens >= growth.tokens(alpha, weight)


def growths(rows: Rows, shares: Array, with_q: bool) -> dict[str, Growth]:
    """Growth of every catalogued fault when contexts come with these shares (C,), which sum to 1."""
    everywhere = At.everywhere(rows)
    found = {}
    for name, law in FAULT_LAWS.items():
        if not with_q and name not in WITHOUT_Q:
            continue
        y = law(everywhere)
        visited = shares > 0
        if (y[visited][rows.p[visited] <= 0] > 1e-12).any():
            found[name] = Growth(math.inf, 0.0)
            continue
        there = (y > 0) & (rows.p > 0)
        logs = np.log(np.where(there, y, 1.0) / np.where(there, rows.p, 1.0))
        mean = float((shares[:, None] * y * logs).sum())
        second = float((shares[:, None] * y * logs**2).sum())
        found[name] = Growth(max(mean, 0.0), max(second - mean**2, 0.0))
    return found


def ratios_of(rows: Rows, name: str) -> Array:
    """y/p (C, V) of a fault, 1 where p = 0."""
    y = FAULT_LAWS[name](At.everywhere(rows))
    ratios: Array = np.where(rows.p > 0, y / np.where(rows.p > 0, rows.p, 1.0), 1.0)
    return ratios
