"""Does one token come too often, whatever the context? Bets that a small share of all tokens leaks to it.

For every token (over more than 64 tokens: for every class of ids that are equal modulo 64) the alternative is
y = (1 - l) p + l p(. | the class): a bet pays 1 + l (1 / P(class) - 1) when the token is in the class and 1 - l when not, with
mean 1 under p. It needs P of the token's own class only, so a vocabulary of 150,000 costs a sum over 2,400 ids a token.
"""

from __future__ import annotations

import numpy as np

from specverify.evidence.eprocess import Alternative
from specverify.laws import Array, Ints

MOST_CLASSES = 64
LEAKS = (0.1, 0.03, 0.01, 0.004, 0.002, 0.001, 0.0005, 0.00025)
"""Shares that leak. A bet at share l on a true share m grows at 1 - (1 - l/m)^2 of the best rate, while both are small."""


def classes_of(vocab_size: int) -> int:
    """How many classes ids fall into."""
    return min(vocab_size, MOST_CLASSES)


def leak_alternatives(vocab_size: int) -> list[Alternative]:
    """One for each class and share, class by class; weights within the family."""
    each = vocab_size <= MOST_CLASSES
    names = [f"token {c}" if each else f"tokens {c} + {MOST_CLASSES} n" for c in range(classes_of(vocab_size))]
    return [Alternative("leak", name, level, 1.0) for name in names for level in LEAKS]


def _folded(p: Array) -> Array:
    """Laws (N, V) as (N, V / classes, classes), filled up with zeros."""
    classes = classes_of(p.shape[-1])
    return np.pad(p, ((0, 0), (0, -p.shape[-1] % classes))).reshape(len(p), -1, classes)


def class_mass(p: Array, x: Ints) -> Array:
    """P of the class that each token x (N,) falls into, for laws p (N, V)."""
    folded = _folded(p)
    mass: Array = np.take_along_axis(folded, (x % folded.shape[2])[:, None, None], -1)[..., 0].sum(-1)
    return mass


def class_masses(p: Array) -> Array:
    """P of every token's class (N, V), for laws p (N, V)."""
    folded = _folded(p)
    mass: Array = folded.sum(1)[:, np.arange(p.shape[-1]) % folded.shape[2]]
    return mass


def leak_gains(mass: Array) -> Array:
    """What a bet on a token's own class wins more than all other bets of its share, (8, ...): ln pay(in) - ln pay(out)."""
    gains = [np.log1p(level * (1 / mass - 1)) - np.log1p(-level) for level in LEAKS]
    return np.stack(gains)


def leak_logs(gains: Array, x: Ints, vocab_size: int, counts: Ints | None = None) -> Array:
    """Sum of the logarithms of all bets (classes * 8,) over tokens x (N,) with gains (8, N), each ``counts`` (N,) times."""
    classes = classes_of(vocab_size)
    times = np.ones(x.shape, np.int64) if counts is None else counts
    won = np.stack([np.bincount(x % classes, weights=times * gain, minlength=classes) for gain in gains], 1)
    logs: Array = won + times.sum() * np.log1p(-np.array(LEAKS))
    return logs.reshape(-1)
