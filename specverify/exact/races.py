"""Who wins a race of exponential clocks, also when the same clocks ran a race before? Closed forms, plain numpy.

Clock i rings at E_i / r_i with E_i exponential of mean 1 and independent: at rate r_i. A rate of 0 never rings.
"""

from __future__ import annotations

import itertools

import numpy as np

from specverify.exact.chains import Array

MOST_LAST = 14
"""Most clocks of which the law of the last one is worked out (it sums over their subsets)."""


def first_law(rates: Array) -> Array:
    """Probability that each clock rings first: r_i / sum r."""
    law: Array = rates / rates.sum()
    return law


def last_law(rates: Array) -> Array:
    """Probability that each clock rings last, all rates positive, by inclusion and exclusion over the others.

    P(i last) = E prod_{j != i} (1 - exp(-r_j T_i)) = sum over subsets S of the others of (-1)^|S| r_i / (r_i + r(S)).
    """
    n = len(rates)
    law = np.zeros(n)
    for i in range(n):
        others = np.delete(rates, i)
        for size in range(n):
            sums = np.array([sum(s) for s in itertools.combinations(others, size)])
            law[i] += (-1) ** size * (rates[i] / (rates[i] + sums)).sum()
    return law


def again_law(before: Array, winner: int, rates: Array) -> Array:
    """Probability that each clock rings first at ``rates`` given that ``winner`` rang first at the rates ``before``.

    The first race ended at a time T, exponential of rate L = sum before and independent of the winner. Then E_g = before_g T
    for the winner g, and E_j = before_j T + E'_j with fresh exponentials for the others (they have no memory). With
    a_i = before_i / rates_i clock g rings at a_g T and clock j from a_j T on at its rate; all scales with T, so integrating
    over T first leaves one integral of a rational function that is piecewise known:
    P(g) = L / (L + sum_j (r_j a_g - before_j)+) and P(j) = integral over x from a_j to a_g of L r_j / (L + G(x))^2 with
    G(x) = sum_{k != g} (r_k x - before_k)+. A clock that was not in the first race has before = 0.
    """
    total = before.sum()
    law = np.zeros(len(rates))
    others = [j for j in range(len(rates)) if j != winner and rates[j] > 0]
    end = before[winner] / rates[winner] if rates[winner] > 0 else np.inf

    def behind(x: float) -> float:
        return float(sum(max(rates[k] * x - before[k], 0.0) for k in others))

    if np.isfinite(end):
        law[winner] = total / (total + behind(end))
    starts = sorted({before[k] / rates[k] for k in others if before[k] / rates[k] < end})
    for low, high in itertools.pairwise([*starts, end]):
        running = [k for k in others if before[k] / rates[k] <= low]
        slope = float(sum(rates[k] for k in running))
        left = 1 / (total + behind(low))
        right = 1 / (total + behind(high)) if np.isfinite(high) else 0.0
        for k in running:
            law[k] += total * rates[k] / slope * (left - right)
    return law
