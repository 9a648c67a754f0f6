"""Is an event more frequent than it may be? Exact binomial tails.

Guarantee. :func:`rate_above` returns P(X >= successes) for X ~ Binomial(trials, bound) exactly; under any rate at most
``bound`` the probability that it is <= alpha is at most alpha. :func:`trials_to_refute` is its sample-size twin.
"""

from __future__ import annotations

import math

from scipy import stats


def rate_above(successes: int, trials: int, bound: float) -> float:
    """Exact p-value of the claim that the rate is at most ``bound``."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if bound >= 1:
        return 1.0
    if successes == 0:
        return 1.0
    return float(stats.binom.sf(successes - 1, trials, max(bound, 0.0)))


def rate_off(successes: int, trials: int, rate: float) -> float:
    """Exact p-value of the claim that the rate equals ``rate``: twice the smaller tail, at most 1."""
    lower = float(stats.binom.cdf(successes, trials, rate))
    upper = rate_above(successes, trials, rate)
    return min(1.0, 2 * min(lower, upper))


def trials_to_refute(rate: float, bound: float, alpha: float) -> float:
    """Trials after which a true ``rate`` above ``bound`` is refuted on average: ln(1/alpha) / KL(rate || bound)."""
    if rate <= bound:
        return math.inf
    if bound <= 0:
        return 1 / rate
    divergence = rate * math.log(rate / bound) + (0 if rate >= 1 else (1 - rate) * math.log((1 - rate) / (1 - bound)))
    return math.log(1 / alpha) / divergence
