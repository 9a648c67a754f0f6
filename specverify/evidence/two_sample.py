"""Do two decoders write alike when neither law is known? Speculation on against off, prompt by prompt, looked at at any time.

Guarantee of :class:`PairedBets`. For every prompt there is one sequence with speculation and one without. If both decoders have
the same law, the two may be exchanged given everything that came before; so the chance that the first of them is the one
with speculation is 1/2, and a bet that pays 2 P(first is with | both sequences, the past) has mean 1. The product over prompts
is a test martingale: P(it ever reaches 1 / alpha) <= alpha, for any models of the past that the bet is made with.

Guarantee of :func:`permutation_p`. With k of b random permutations at least as large as what was seen, (1 + k) / (1 + b) is a
p-value at any b (Phipson and Smyth 2010); k / b is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import logsumexp

from specverify.laws import Array, Ints

ORDERS = (0, 1, 2)
"""Tokens of context that the models of the past look at."""
STRENGTHS = (0.5, 4.0)
"""Tokens drawn from the pooled law that a context starts with."""


class _Counts:
    """How often each token followed each context of up to two tokens, by position or not, in one decoder."""

    def __init__(self, order: int, by_position: bool) -> None:
        self.order, self.by_position = order, by_position
        self.seen: dict[tuple[int, ...], dict[int, int]] = {}
        self.totals: dict[tuple[int, ...], int] = {}

    def context(self, tokens: Sequence[int], at: int) -> tuple[int, ...]:
        """What token ``at`` is taken to depend on."""
        past = tuple(tokens[max(0, at - self.order) : at])
        return (at, *past) if self.by_position else past

    def add(self, tokens: Sequence[int]) -> None:
        """Learn a sequence."""
        for at, token in enumerate(tokens):
            key = self.context(tokens, at)
            cell = self.seen.setdefault(key, {})
            cell[token] = cell.get(token, 0) + 1
            self.totals[key] = self.totals.get(key, 0) + 1


class PairedBets:
    """Wealth of bets on which of two sequences was made with speculation."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._models = [(_Counts(o, b), _Counts(o, b)) for o in ORDERS for b in (False, True)]
        self._logs = np.zeros(len(self._models) * len(STRENGTHS) + 1)
        self.pairs = 0
        self.highest = 0.0

    def _log_ratio(self, models: tuple[_Counts, _Counts], strength: float, tokens: Sequence[int]) -> float:
        """Ln of the probability of a sequence with speculation over that without, both as learned so far."""
        with_, without = models
        total = 0.0
        for at, token in enumerate(tokens):
            key = with_.context(tokens, at)
            counts = [m.seen.get(key, {}).get(token, 0) for m in models]
            totals = [m.totals.get(key, 0) for m in (with_, without)]
            pooled = (sum(counts) + 1 / self.vocab_size) / (sum(totals) + 1)
            first, second = ((n + strength * pooled) / (t + strength) for n, t in zip(counts, totals, strict=True))
            total += math.log(first / second)
        return total

    def add(self, with_speculation: Sequence[int], without: Sequence[int]) -> float:
        """One prompt's two sequences, (L,) each; returns ln of the wealth now."""
        gains = [0.0]  # one bet keeps its stake
        for models in self._models:
            for strength in STRENGTHS:
                swing = self._log_ratio(models, strength, with_speculation) - self._log_ratio(models, strength, without)
                gains.append(math.log(2) - float(np.logaddexp(0.0, -swing)))  # 2 / (1 + exp(-swing))
            models[0].add(with_speculation)
            models[1].add(without)
        self._logs = self._logs + np.array(gains)
        self.pairs += 1
        self.highest = max(self.highest, self.log_e)
        return self.log_e

    @property
    def log_e(self) -> float:
        """Ln of the wealth of all bets together, equally weighted."""
        return float(logsumexp(self._logs)) - math.log(len(self._logs))

    def refutes(self, alpha: float) -> bool:
        """Whether the wealth was ever at 1 / alpha or above."""
        return self.highest >= math.log(1 / alpha)


def permutation_p(
    statistic: Callable[[Ints], float], labels: Ints, permutations: int, rng: np.random.Generator, *, paired: bool = False
) -> float:
    """p-value of a statistic of the labels (N,) of 0 and 1 under exchange; paired swaps labels 2 i and 2 i + 1 only."""
    if permutations < 1:
        raise ValueError("at least one permutation is needed")
    seen, larger = statistic(labels), 0
    for _ in range(permutations):
        if paired:
            pairs = labels.reshape(-1, 2)
            swap = rng.random(len(pairs)) < 0.5
            shuffled = np.where(swap[:, None], pairs[:, ::-1], pairs).reshape(-1)
        else:
            shuffled = rng.permutation(labels)
        larger += statistic(shuffled) >= seen
    return (1 + larger) / (1 + permutations)


def hamming_mmd(sequences: Ints) -> Callable[[Ints], float]:
    """Squared maximum mean discrepancy between the sequences (N, L) labelled 1 and 0; kernel: share of equal tokens."""
    kernel: Array = (sequences[:, None] == sequences[None]).mean(-1)

    def statistic(labels: Ints) -> float:
        signs = np.where(labels == 1, 1 / max(int((labels == 1).sum()), 1), -1 / max(int((labels == 0).sum()), 1))
        return float(signs @ kernel @ signs)

    return statistic
