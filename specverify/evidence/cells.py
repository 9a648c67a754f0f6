"""Into which cells do sampled sequences fall? Joint cells of several tokens, and each conditional, chosen before sampling.

Cells form a tree: a prefix expected at least ``smallest`` times in N draws is followed further; the tokens after it that are
expected less often share one cell. The choice depends on the law alone, never on the sample. A sequence ends at ``eos_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specverify.evidence.multinomial import CellGroup, pool_small
from specverify.laws import Array, Ints, Tokens

NextLaws = Callable[[Ints], Array]
"""Prefixes (M, T) of new tokens after a fixed prompt -> laws (M, V) of the token that follows each."""


@dataclass(frozen=True)
class CellTree:
    """The followed prefixes by depth, each with its probability and the law of the next token."""

    laws: dict[Tokens, Array]
    mass: dict[Tokens, float]
    length: int
    eos_id: int | None


def grow(next_laws: NextLaws, length: int, draws: int, *, smallest: float = 25.0, eos_id: int | None = None) -> CellTree:
    """Follow every prefix expected at least ``smallest`` times among ``draws`` sequences of ``length`` tokens."""
    laws: dict[Tokens, Array] = {}
    mass: dict[Tokens, float] = {(): 1.0}
    frontier: list[Tokens] = [()]
    for depth in range(length):
        if not frontier:
            break
        rows = next_laws(np.asarray(frontier, np.int64).reshape(len(frontier), depth))
        following: list[Tokens] = []
        for prefix, law in zip(frontier, rows, strict=True):
            laws[prefix] = law
            for token in np.flatnonzero(mass[prefix] * law * draws >= smallest):
                child = (*prefix, int(token))
                mass[child] = mass[prefix] * float(law[token])
                if int(token) != eos_id and depth + 1 < length:
                    following.append(child)
        frontier = following
    return CellTree(laws, mass, length, eos_id)


@dataclass(frozen=True)
class CellCounts:
    """A sample sorted into cells. forbidden: sequences with a token of probability 0, each with its position."""

    joint: CellGroup
    conditionals: tuple[tuple[CellGroup, ...], ...]
    forbidden: tuple[tuple[Tokens, int], ...]


def sort_into(tree: CellTree, sequences: Sequence[Tokens]) -> CellCounts:
    """Count sequences by joint cell and, at each depth, by conditional cell after every followed prefix.

    Conditional groups are given their prefix's count, which is a count of *completed* sequences with that prefix, so nothing
    is conditioned on how many tokens were accepted.
    """
    after: dict[Tokens, Ints] = {}
    forbidden: list[tuple[Tokens, int]] = []
    unique: dict[Tokens, int] = {}
    for sequence in sequences:
        unique[sequence] = unique.get(sequence, 0) + 1
    for sequence, times in unique.items():
        for depth, token in enumerate(sequence):
            prefix = sequence[:depth]
            law = tree.laws.get(prefix)
            if law is None:
                break
            after.setdefault(prefix, np.zeros(len(law), np.int64))[token] += times
            if law[token] <= 0:
                forbidden.extend([(sequence, depth)] * times)
                break
            if token == tree.eos_id:
                break
    return CellCounts(_joint(tree, after, len(sequences)), _conditionals(tree, after), tuple(forbidden))


def _joint(tree: CellTree, after: dict[Tokens, Ints], total: int) -> CellGroup:
    """Leaves of the tree as one multinomial: full sequences, and per prefix the tokens not followed further."""
    counts: list[int] = []
    probs: list[float] = []
    names: list[str] = []
    for prefix, law in tree.laws.items():
        seen = after.get(prefix, np.zeros(len(law), np.int64))
        kept = np.array([(*prefix, t) in tree.mass for t in range(len(law))])
        leaf = kept & np.array([(*prefix, t) not in tree.laws for t in range(len(law))])
        for token in np.flatnonzero(leaf):
            counts.append(int(seen[token]))
            probs.append(tree.mass[prefix] * float(law[token]))
            names.append(" ".join(map(str, (*prefix, token))))
        other = ~kept & (law > 0)
        if other.any():
            counts.append(int(seen[other].sum()))
            probs.append(tree.mass[prefix] * float(law[other].sum()))
            names.append(" ".join(map(str, (*prefix, "..."))))
    return pool_small("joint", counts, probs, names, total=total)


def _conditionals(tree: CellTree, after: dict[Tokens, Ints]) -> tuple[tuple[CellGroup, ...], ...]:
    by_depth: list[tuple[CellGroup, ...]] = []
    for depth in range(tree.length):
        groups = []
        for prefix, law in tree.laws.items():
            possible = np.flatnonzero(law > 0)
            if len(prefix) != depth or len(possible) < 2 or not after.get(prefix, np.zeros(1))[: len(law)].any():
                continue
            label = "after " + (" ".join(map(str, prefix)) or "the prompt")
            group = pool_small(label, after[prefix][possible], law[possible], [str(t) for t in possible])
            if len(group.counts) > 1 and group.total:
                groups.append(group)
        by_depth.append(tuple(groups))
    return tuple(by_depth)
