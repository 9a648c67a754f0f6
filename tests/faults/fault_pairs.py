"""Pairs of models for the tests of the catalogue: small integer weights, every law different, corners included."""

from __future__ import annotations

import numpy as np

from specverify.laws import Pair, TableModel

ROWS = 5
CORNERS: dict[str, tuple[list[int], list[int]]] = {
    "equal": ([1, 2, 3], [1, 2, 3]),
    "equal and uniform": ([1, 1, 1], [1, 1, 1]),
    "disjoint": ([1, 2, 0, 0], [0, 0, 3, 1]),
    "target one-hot": ([0, 1, 0], [1, 2, 1]),
    "draft one-hot": ([1, 2, 1], [1, 0, 0]),
    "both one-hot, equal": ([0, 1], [0, 1]),
    "both one-hot, different": ([0, 1], [1, 0]),
    "ties of argmax p": ([2, 2, 1], [1, 1, 3]),
    "ties of argmax q and p - q": ([2, 2, 2], [3, 3, 0]),
    "draft misses the support": ([1, 1, 2], [0, 1, 1]),
    "draft leaves the support": ([0, 1, 1], [2, 1, 1]),
    "improbable target token": ([1, 99], [1, 1]),
    "near": ([1000, 1001], [1001, 1000]),
    "one token": ([3], [2]),
}


def _table(rng: np.random.Generator, first: list[int] | None, vocab_size: int) -> TableModel:
    """Make a table whose row for the prompt (0,) is ``first``; weights 0 to 4, never a row of zeros."""
    weights = rng.integers(0, 5, size=(ROWS, vocab_size))
    weights[weights.sum(1) == 0, rng.integers(vocab_size)] = 1
    if first is not None:
        weights[1 % ROWS] = first
    return TableModel.from_weights(weights)


def corner(name: str, k: int = 1) -> Pair:
    """Make a pair whose laws at the first position are those of a corner."""
    p, q = CORNERS[name]
    rng = np.random.default_rng(len(name))
    return Pair(_table(rng, p, len(p)), _table(rng, q, len(q)), k, (0,), name)


def random_pairs(number: int, k: int, vocab_sizes: tuple[int, ...] = (2, 3, 4, 5)) -> list[Pair]:
    """Make pairs of random small weights, zeros and one-hots among them."""
    rng = np.random.default_rng(k)
    sizes = [vocab_sizes[i % len(vocab_sizes)] for i in range(number)]
    return [Pair(_table(rng, None, V), _table(rng, None, V), k, (0,), f"random {i}") for i, V in enumerate(sizes)]


def plain_pair(k: int) -> Pair:
    """Make a pair on three tokens without zeros, on which every catalogued fault shows."""
    target = [[3, 2, 1], [8, 5, 1], [1, 4, 2], [2, 1, 4], [5, 2, 3]]
    draft = [[1, 1, 2], [5, 2, 7], [3, 1, 1], [1, 3, 2], [2, 3, 4]]
    return Pair(TableModel.from_weights(target), TableModel.from_weights(draft), k, (0,), "plain")


def two_token_pair(k: int) -> Pair:
    """Make a pair on two tokens without zeros, small enough to walk every path of a decoder over several rounds."""
    target = [[3, 1], [2, 3], [1, 4], [3, 2], [1, 2]]
    draft = [[1, 2], [4, 1], [1, 1], [1, 3], [3, 1]]
    return Pair(TableModel.from_weights(target), TableModel.from_weights(draft), k, (0,), "two tokens")
