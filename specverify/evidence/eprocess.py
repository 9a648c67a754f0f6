"""How much evidence is there against exactness so far? A mixture of bets whose wealth may be looked at after every token.

Guarantee. Each alternative m multiplies its wealth by y_m(x) / p(x) at a token x drawn from p, where the law y_m is chosen from
the past alone; so under exactness its wealth has mean 1 given the past, and so has the mixture E = sum_m w_m prod y_m / p
with weights w_m that sum to 1. By Ville's inequality P(E ever reaches 1 / alpha) <= alpha: refuting at that moment, however
often one looks and whenever one stops, has a false-alarm probability of at most alpha. Wealth of separate streams multiplies,
alternative by alternative, so shards merge by adding logarithms.

Power. Where tokens follow y_m, ln E grows by KL(y_m || p) a token on average and has ln(1 / w_m) to make up:
:func:`tokens_to_refute` is the sample-size twin. No test needs fewer than ln(1 / alpha) / KL on average (Wald).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from specverify.laws import Array

FLOOR = -1e9
"""Logarithm that stands for no wealth left."""


@dataclass(frozen=True)
class Alternative:
    """One bet: a fault or a direction by name, the share ``level`` of tokens that follow it, and its weight in the mixture."""

    family: str
    name: str
    level: float
    weight: float


def weighted(family_weights: dict[str, float], alternatives: Sequence[Alternative]) -> tuple[Alternative, ...]:
    """Scale weights so that each family has its share and all sum to 1; families without alternatives give theirs up."""
    totals: dict[str, float] = {}
    for one in alternatives:
        totals[one.family] = totals.get(one.family, 0.0) + one.weight
    there = sum(family_weights[family] for family in totals)
    return tuple(
        Alternative(a.family, a.name, a.level, a.weight / totals[a.family] * family_weights[a.family] / there)
        for a in alternatives
    )


class EProcess:
    """The wealth of every alternative, in logarithms."""

    def __init__(self, alternatives: Sequence[Alternative]) -> None:
        if not math.isclose(sum(a.weight for a in alternatives), 1.0, rel_tol=1e-9):
            raise ValueError("the weights of the alternatives must sum to 1")
        self.alternatives = tuple(alternatives)
        self.log_weights = np.log([a.weight for a in alternatives])
        self.logs: Array = np.zeros(len(self.alternatives))
        self.tokens = 0
        self.highest = 0.0
        """The largest ln E at any moment that was looked at."""

    def add(self, increments: Array, tokens: int) -> float:
        """Multiply every wealth by exp(increments), (M,), after ``tokens`` more tokens, and look: ln E now.

        Errors: ValueError for an increment that is no number, which would hide all evidence from then on.
        """
        if np.isnan(increments).any():
            names = {self.alternatives[int(i)].name for i in np.flatnonzero(np.isnan(increments))}
            raise ValueError(f"bets on {', '.join(sorted(names))} pay what is no number; are the laws finite and not negative?")
        self.logs = self.logs + increments
        self.tokens += tokens
        now = self.log_e
        self.highest = max(self.highest, now)
        return now

    @property
    def log_e(self) -> float:
        """Ln E now."""
        return float(logsumexp(self.logs + self.log_weights))

    def refutes(self, alpha: float) -> bool:
        """Whether E has ever been seen at 1 / alpha or above."""
        return self.highest >= math.log(1 / alpha)

    def log_wealth(self) -> dict[tuple[str, str], float]:
        """Ln of the wealth by (family, name), its levels together with their weights, largest first.

        Directions are told apart by their sense: towards a law or away from it.
        """
        logs: dict[tuple[str, str], list[float]] = {}
        for one, log in zip(self.alternatives, self.logs + self.log_weights, strict=True):
            sense = "" if one.family != "direction" else "towards " if one.level > 0 else "away from "
            logs.setdefault((one.family, sense + one.name), []).append(float(log))
        found = {key: float(logsumexp(of)) for key, of in logs.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def posterior(self) -> dict[tuple[str, str], float]:
        """Share of the wealth by (family, name), largest first."""
        total = self.log_e
        return {key: math.exp(log - total) for key, log in self.log_wealth().items()}

    def merged(self, other: EProcess) -> EProcess:
        """The wealth of both streams together. ``highest`` is then what was seen at the end of both. Errors: ValueError."""
        if self.alternatives != other.alternatives:
            raise ValueError("only wealth of the same alternatives can be merged")
        both = EProcess(self.alternatives)
        both.add(self.logs + other.logs, self.tokens + other.tokens)
        return both


def tokens_to_refute(divergence: float, weight: float, alpha: float) -> float:
    """Tokens after which an alternative at this KL (nats per token) from the target is refuted on average."""
    return math.inf if divergence <= 0 else (math.log(1 / alpha) + math.log(1 / weight)) / divergence


def information_limit(divergence: float, alpha: float) -> float:
    """Tokens that any test needs on average, knowing the alternative: ln(1 / alpha) / KL."""
    return math.inf if divergence <= 0 else math.log(1 / alpha) / divergence
