"""What does a bet pay so that it stays honest when logits may be off? The largest mean it can have under any such law.

With every logit off by at most d, exact means any law p' proportional to p e^a with |a| <= d. A bet that pays 1 + l g(x) has
mean 1 + l E_p'[g] under it, and divides by the largest such mean. The maximum over p' is found exactly: it raises by e^d what
lies above the mean and lowers by e^-d what lies below it; repeating that from E_p[g] climbs to it in few steps (Dinkelbach
1967).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specverify.evidence.bets import FAULT_LEVELS, TILTS
from specverify.laws import Array

MOST_STEPS = 100


def widened_by(p: Array, tolerance: float) -> Array:
    """Ln of how much larger a probability can be when every logit may be off by ``tolerance``: the most p'(x) / p(x).

    p'(x) = p(x) e^a / sum p e^b <= p(x) e^d / (p(x) e^d + (1 - p(x)) e^-d). A bet that pays y(x) over that bound has mean at
    most 1 under every such law, whatever else y depends on: the price of bets on ranks, pairs, places and leaks.
    """
    if tolerance == 0:
        return np.zeros(p.shape)
    most: Array = tolerance - np.log(p * np.exp(tolerance) + (1 - p) * np.exp(-tolerance))
    return most


def largest_mean(p: Array, g: Array, tolerance: float) -> Array:
    """Largest E_p'[g] (M, N) of payoffs g (M, N, V) over all laws p' within the tolerance of p (N, V)."""
    mean: Array = (p * g).sum(-1)
    if tolerance == 0:
        return mean
    high, low = np.exp(tolerance), np.exp(-tolerance)
    for _ in range(MOST_STEPS):
        weights = p * np.where(g > mean[..., None], high, low)
        better = (weights * g).sum(-1) / weights.sum(-1)
        if (better <= mean + 1e-14 * (1 + np.abs(mean))).all():
            break
        mean = np.maximum(mean, better)
    rounded_up: Array = mean + 1e-12 * (1 + np.abs(mean))
    return rounded_up


def _within(p: Array, g: Array, level: float, tolerance: float) -> NDArray[np.bool_]:
    """Where (M, N) the law p (1 + l g) lies within the tolerance of p itself: half the spread of ln(1 + l g) is no more."""
    possible = p > 0
    with np.errstate(divide="ignore", invalid="ignore"):  # a law that shares no token with p is not near it
        largest = np.where(possible, g, -np.inf).max(-1)
        smallest = np.where(possible, g, np.inf).min(-1)
        spread = np.abs(np.log1p(np.maximum(level * largest, -1.0)) - np.log1p(np.maximum(level * smallest, -1.0))) / 2
    near: NDArray[np.bool_] = spread <= tolerance
    return near


def fault_price(p: Array, faults: Array, level: float, tolerance: float) -> tuple[Array, NDArray[np.bool_]]:
    """Ln of the price (F, N) of bets at one level on faults with payoffs (F, N, V), and where they are made at all.

    Where a fault lies within the tolerance it can win nothing and is not bet on.
    """
    made = ~_within(p, faults, level, tolerance)
    return np.where(made, np.log1p(level * np.maximum(largest_mean(p, faults, tolerance), 0.0)), 0.0), made


def prices(p: Array, faults: Array, tilts: Array, tolerance: float) -> tuple[Array, NDArray[np.bool_]]:
    """The same for every bet on faults (F, N, V) and directions (D, N, V): both (bets, N), in their order."""
    highest, lowest = largest_mean(p, tilts, tolerance), -largest_mean(p, -tilts, tolerance)
    most = np.maximum(largest_mean(p, faults, tolerance), 0.0)
    made = np.stack(
        [~_within(p, one, level, tolerance) for one in faults for level in FAULT_LEVELS]
        + [~_within(p, one, level, tolerance) for one in tilts for level in TILTS]
    )
    paid = [np.log1p(level * one) for one in most for level in FAULT_LEVELS]
    for up, down in zip(highest, lowest, strict=True):
        paid += [np.log1p(np.maximum(level * (up if level > 0 else down), 0.0)) for level in TILTS]
    return np.where(made, np.stack(paid), 0.0), made
