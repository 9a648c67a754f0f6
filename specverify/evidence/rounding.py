"""What does a bet pay so that it stays honest when logits may be off? The largest mean it can have under any such law.

With every logit off by at most d, exact means any law p' proportional to p e^a with |a| <= d. A bet that pays 1 + l g(x) has
mean 1 + l E_p'[g] under it, and divides by the largest such mean. The maximum over p' is found exactly: it raises by e^d what
lies above the mean and lowers by e^-d what lies below it; repeating that from E_p[g] climbs to it in few steps (Dinkelbach
1967).
"""

from __future__ import annotations

import numpy as np

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


def fault_price(p: Array, faults: Array, level: float, tolerance: float) -> Array:
    """Ln of the price (F, N) of bets at one level on faults with payoffs (F, N, V)."""
    price: Array = np.log1p(level * np.maximum(largest_mean(p, faults, tolerance), 0.0))
    return price


def prices(p: Array, faults: Array, tilts: Array, tolerance: float) -> Array:
    """Ln of what every bet on faults (F, N, V) and directions (D, N, V) pays for a token: (bets, N), in their order."""
    highest, lowest = largest_mean(p, tilts, tolerance), -largest_mean(p, -tilts, tolerance)
    most = np.maximum(largest_mean(p, faults, tolerance), 0.0)
    paid = [np.log1p(level * one) for one in most for level in FAULT_LEVELS]
    for up, down in zip(highest, lowest, strict=True):
        paid += [np.log1p(np.maximum(level * (up if level > 0 else down), 0.0)) for level in TILTS]
    return np.stack(paid)
