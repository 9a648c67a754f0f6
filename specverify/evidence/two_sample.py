"""Do two decoders write alike when neither law is known? Speculation on against off, call by call, looked at at any time.

Guarantee of :class:`PairedBets`. For every call there is a batch made with speculation and one without, of the same prompts.
If both decoders have the same law, the two batches may be exchanged given everything that came before, however the rows of a
batch depend on each other; so the chance that the first of them is the one with speculation is 1/2, and a bet that pays
2 P(first is with | both batches, the past) has mean 1. The product over calls is a test martingale:
P(it ever reaches 1 / alpha) <= alpha, for any models of the past that the bet is made with.

Guarantee of :func:`permutation_p`. With k of b random permutations at least as large as what was seen, (1 + k) / (1 + b) is a
p-value at any b (Phipson and Smyth 2010); k / b is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

from specverify.evidence.two_sample_views import VIEWS, Cells, Seen, cells_of
from specverify.laws import Array, Ints

STRENGTHS = (0.5, 4.0)
"""Tokens drawn from the pooled law that a context starts with."""
CAUTION = 300.0
"""What the weights of the joint bet are held to 0 with, in units of the information in the pairs seen."""


class JointBet:
    """One bet on all swings together: weights (F,), learned from the rows seen so far by online Newton steps."""

    def __init__(self, features: int) -> None:
        self.weights = np.zeros(features)
        self._information = CAUTION * np.eye(features)

    def swing(self, swings: Array) -> float:
        """Ln of the odds that the first batch is the one with speculation, from the swings of a call (F,)."""
        return float(self.weights @ swings)

    def learn(self, rows: Array) -> None:
        """Learn from the swings of each row (R, F), of which the first was with speculation."""
        doubt = expit(-(rows @ self.weights))
        self._information += rows.T @ (rows * (doubt * (1 - doubt))[:, None])
        self.weights = self.weights + np.linalg.solve(self._information, rows.T @ doubt)


class PairedBets:
    """Wealth of bets on which of two batches was made with speculation."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._seen = Seen()
        self._joint = JointBet(len(VIEWS) * len(STRENGTHS))
        self._logs = np.zeros(len(VIEWS) * len(STRENGTHS) + 2)
        self.pairs = 0
        self.highest = 0.0

    def _swings(self, cells: Cells) -> Array:
        """By every bet and row (R, F): ln of the odds that the first batch of the two is the one with speculation."""
        counts, totals = self._seen.counts(cells)
        pooled = (counts.sum(0) + 1 / self.vocab_size) / (totals.sum(0) + 1)
        found = []
        for strength in STRENGTHS:
            first, second = (counts + strength * pooled) / (totals + strength)
            likelier = np.log(first / second).sum(-1)  # (views, 2, R)
            found.append(likelier[:, 0] - likelier[:, 1])
        swings: Array = np.concatenate(found).T
        return swings

    def add(self, with_speculation: Sequence[int] | Ints, without: Sequence[int] | Ints, prompts: Ints | None = None) -> float:
        """One call's two batches of sequences, (R, L) or (L,) each, and the number of each row's prompt (R,).

        Returns ln of the wealth now.
        """
        batches = np.stack([np.atleast_2d(np.asarray(x, np.int64)) for x in (with_speculation, without)])
        which = np.zeros(batches.shape[1], np.int64) if prompts is None else np.asarray(prompts, np.int64)
        cells = cells_of(batches, which, self._seen)
        rows = self._swings(cells)
        each = rows.sum(0)
        swings = np.concatenate([[0.0], each, [self._joint.swing(each)]])  # one bet keeps its stake
        self._logs = self._logs + math.log(2) - np.logaddexp(0.0, -swings)  # 2 / (1 + exp(-swing))
        self._joint.learn(rows)
        self._seen.learn(cells, batches, which)
        self.pairs += len(which)
        self.highest = max(self.highest, self.log_e)
        return self.log_e

    @property
    def log_e(self) -> float:
        """Ln of the wealth of all bets together, equally weighted."""
        return float(np.logaddexp.reduce(self._logs)) - math.log(len(self._logs))

    @property
    def leader(self) -> str:
        """The view of the bet that holds the most wealth, in words."""
        best = int(self._logs[1:].argmax())
        return VIEWS[best % len(VIEWS)] if best < len(self._logs) - 2 else "several views together"

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
