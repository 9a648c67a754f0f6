"""How are trees of drafts drawn from a table model? All of them with their probabilities, or some at random."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specverify.laws import Array, Ints, Pair, TableModel
from specverify.trees import Children, Tree, TreeShape, TreeVerifier

LARGEST_VOCAB = 5
"""Most tokens with which tree verifiers are walked exactly."""


@dataclass(frozen=True, eq=False)
class DraftedTrees:
    """Trees of one shape with the laws along them.

    tokens (M, N); drawn (M, N, V) the law each node was drawn from; drafter and target (M, N+1, V), row 0 after the prefix, row
    i+1 after node i; weights (M,) the probability of the tree.
    """

    shape: TreeShape
    certain: bool
    tokens: Ints
    drawn: Array
    drafter: Array
    target: Array
    weights: Array

    def tensors(self) -> tuple[Tree, Tensor]:
        """The trees and the target's laws as torch tensors."""
        drawn = None if self.certain else torch.from_numpy(self.drawn)
        tree = Tree(self.shape, torch.from_numpy(self.tokens), drawn, torch.from_numpy(self.drafter))
        return tree, torch.from_numpy(self.target)


def drawn_from(children: Children, law: Array, earlier: Ints) -> Array:
    """Law (R, V) that a child is drawn from, given the drafter's law (R, V) and its earlier siblings' tokens (R, S)."""
    if children == "with replacement":
        return law.copy()
    lines = np.arange(len(law))[:, None]
    if children == "top-k":
        keys = law.copy()
        keys[lines, earlier] = -1.0
        certain: Array = np.eye(law.shape[1])[keys.argmax(1)]
        return certain
    if earlier.shape[1] == 0:
        return law.copy()
    left, others = law.copy(), np.ones_like(law)
    left[lines, earlier] = 0.0
    others[lines, earlier] = 0.0
    left = np.where(left.sum(1, keepdims=True) > 0, left, others)
    drawn: Array = left / left.sum(1, keepdims=True)
    return drawn


def _after(model: TableModel, ids: Ints, ends: Ints, path: Ints) -> Array:
    """Laws (R, V) after prefixes ids[r, : ends[r]] and path tokens (R, D); ids must have room for the path."""
    work, lines = ids.copy(), np.arange(len(ids))
    for j, column in enumerate(path.T):
        work[lines, ends + j] = column
    law: Array = model.laws[model.contexts_along(work)[lines, ends + path.shape[1]]]
    return law


Choose = Callable[[Array], tuple[Ints, Ints]]
"""From laws (R, V) to (rows, tokens): which rows go on, possibly several times each, and with which token."""


def _grow(shape: TreeShape, children: Children, pair: Pair, ids: Ints, ends: Ints, choose: Choose) -> DraftedTrees:
    """Draft node after node; a tree of n nodes is shared by all the trees that continue it."""
    V, N = pair.vocab_size, shape.size
    if children != "with replacement" and shape.width > V:
        raise ValueError(f"{shape.width} distinct siblings cannot be drawn from {V} tokens")
    tokens, drawn = np.zeros((len(ids), N), np.int64), np.zeros((len(ids), N, V))
    weights = np.ones(len(ids))
    for node, parent in enumerate(shape.parents):
        law = _after(pair.draft, ids, ends, tokens[:, list(shape.path(parent))])
        q = drawn_from(children, law, tokens[:, list(shape.earlier_siblings(node))])
        rows, picks = choose(q)
        ids, ends, tokens, drawn = ids[rows], ends[rows], tokens[rows], drawn[rows]
        tokens[:, node], drawn[:, node] = picks, q[rows]
        weights = weights[rows] * q[rows, picks]
    places = [tokens[:, list(shape.path(node))] for node in range(-1, N)]
    drafter = np.stack([_after(pair.draft, ids, ends, path) for path in places], 1)
    target = np.stack([_after(pair.target, ids, ends, path) for path in places], 1)
    return DraftedTrees(shape, children == "top-k", tokens, drawn, drafter, target, weights)


def all_trees(shape: TreeShape, children: Children, pair: Pair) -> DraftedTrees:
    """Every tree of positive probability that the pair's draft makes after its prompt."""
    start = len(pair.prompt)
    ids = np.zeros((1, start + shape.depth), np.int64)
    ids[:, :start] = pair.prompt

    def each(q: Array) -> tuple[Ints, Ints]:
        rows, picks = np.nonzero(q > 0)
        return rows, picks

    return _grow(shape, children, pair, ids, np.full(1, start), each)


def some_trees(
    shape: TreeShape, children: Children, pair: Pair, ids: Ints, ends: Ints, draw: Callable[[Array], Ints]
) -> DraftedTrees:
    """One tree per prefix ids[r, : ends[r]] (R, T); ``draw`` takes laws (R, V) and gives one token per row."""
    return _grow(shape, children, pair, ids, ends, lambda q: (np.arange(len(q)), draw(q)))


def first_draft_sets(shape: TreeShape, children: Children, pair: Pair) -> dict[frozenset[int], float]:
    """Probability of every set of tokens that the root's children can hold."""
    star = TreeShape((-1,) * len(shape.children(-1)))
    trees = all_trees(star, children, pair)
    sets: dict[frozenset[int], float] = {}
    for row, weight in zip(trees.tokens.tolist(), trees.weights.tolist(), strict=True):
        sets[frozenset(row)] = sets.get(frozenset(row), 0.0) + weight
    return sets


def tree_count(shape: TreeShape, children: Children, vocab_size: int) -> int:
    """Most trees of positive probability over ``vocab_size`` tokens."""
    if children == "top-k":
        return 1
    if children == "with replacement":
        return int(vocab_size**shape.size)
    return math.prod(vocab_size - len(shape.earlier_siblings(node)) for node in range(shape.size))


def vocab_sizes(verifier: TreeVerifier, most_trees: int) -> list[int]:
    """Vocabulary sizes up to ``LARGEST_VOCAB`` at which a verifier has at most ``most_trees`` trees to judge, ascending."""
    sizes = range(verifier.smallest_vocab, max(LARGEST_VOCAB, verifier.smallest_vocab) + 1)
    return [v for v in sizes if tree_count(verifier.shape, verifier.children, v) <= most_trees]
