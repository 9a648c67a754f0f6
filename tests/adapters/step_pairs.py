"""Pairs for the step of transformers: V of 2 to 4, K of 1 to 3, every law different, corners among them."""

from __future__ import annotations

import numpy as np

from specverify.laws import Pair, TableModel

ROWS = 5
CORNERS: dict[str, tuple[list[int], list[int]]] = {
    "equal": ([1, 2, 3], [1, 2, 3]),
    "disjoint": ([1, 2, 0, 0], [0, 0, 3, 1]),
    "target one-hot": ([0, 1, 0], [1, 2, 1]),
    "draft one-hot": ([1, 2, 1], [1, 0, 0]),
    "both one-hot, equal": ([0, 1], [0, 1]),
    "both one-hot, different": ([0, 1], [1, 0]),
    "draft misses the support": ([1, 1, 2], [0, 1, 1]),
    "draft leaves the support": ([0, 1, 1], [2, 1, 1]),
    "improbable": ([1, 9999], [1, 1]),
}


def _weights(rng: np.random.Generator, vocab_size: int) -> np.ndarray:
    weights = rng.integers(0, 5, size=(ROWS, vocab_size))
    weights[weights.sum(1) == 0, rng.integers(vocab_size)] = 1
    return weights


def corner(name: str, k: int) -> Pair:
    """Make a pair whose laws after the prompt (0,) are those of a corner, and random ones elsewhere."""
    p, q = CORNERS[name]
    rng = np.random.default_rng([len(name), k])
    target, draft = _weights(rng, len(p)), _weights(rng, len(p))
    target[1], draft[1] = p, q
    return Pair(TableModel.from_weights(target), TableModel.from_weights(draft), k, (0,), name)


def random_pairs(number: int) -> list[Pair]:
    """Make pairs of small random weights, zeros and one-hots among them."""
    made = []
    for i in range(number):
        rng = np.random.default_rng([7, i])
        V, k = 2 + i % 3, 1 + i // 3 % 3
        if k == 3:
            V = min(V, 3)
        target, draft = TableModel.from_weights(_weights(rng, V)), TableModel.from_weights(_weights(rng, V))
        made.append(Pair(target, draft, k, (0,), f"random {i}"))
    return made


def near_pairs(number: int) -> list[Pair]:
    """Make pairs with p == q, or with one entry of every law of q moved by one unit in the last place."""
    made = []
    for i in range(number):
        rng = np.random.default_rng([8, i])
        V, k = 2 + i % 3, 1 + i % 2
        laws = TableModel.from_weights(_weights(rng, V) + (1 if i % 2 else 0)).laws
        moved = laws.copy()
        if i >= number // 3:
            at = (np.arange(ROWS), laws.argmax(1))
            moved[at] = np.nextafter(moved[at], 1.0 if i % 4 < 2 else 0.0)
        made.append(Pair(TableModel(laws), TableModel(moved), k, (0,), f"near {i}"))
    return made
