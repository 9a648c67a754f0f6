"""Which outcomes can randomness have? Depth-first walk over all of them, by replaying prefixes of decisions.

A *path* is one sequence of decisions, each with its conditional probability; the walk calls the code once per path, or,
when the code works on batches, once per batch of paths with one path per row. Zero-probability branches are never run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, PathBudgetExceeded, RowsCoupled, SpecverifyError

MOST_DECISIONS = 200
"""Decisions after which a path is taken to be endless."""


@dataclass(frozen=True)
class Item:
    """Work left to do: the decisions that lead to an unexplored branch of one problem, and the branch's probability."""

    problem: int
    decisions: tuple[int, ...]
    weight: float


@dataclass
class Row:
    """One path under way: what it must replay, what it has decided, and the branches it passed by."""

    item: Item
    decided: list[int] = field(default_factory=list)
    weight: float = 1.0
    siblings: list[Item] = field(default_factory=list)

    def decide(self, weights: Sequence[float]) -> int:
        """Take the branch to replay, else the first possible one, remembering the others. ``weights`` sum to 1."""
        at = len(self.decided)
        if at >= MOST_DECISIONS:
            raise OpaqueRandomness(
                f"more than {MOST_DECISIONS} random decisions on one path: a loop that may go on for ever has infinitely many "
                "paths; to be analysable, draw a bounded number of times"
            )
        if at < len(self.item.decisions):
            choice = self.item.decisions[at]
            if choice >= len(weights) or weights[choice] <= 0:
                raise RowsCoupled(
                    "the same decisions led to a different place the second time: the code keeps state between calls, "
                    "or its rows influence each other"
                )
        else:
            possible = [i for i, w in enumerate(weights) if w > 0]
            choice = possible[0]
            head = tuple(self.decided)
            self.siblings.extend(Item(self.item.problem, (*head, i), self.weight * weights[i]) for i in possible[:0:-1])
        self.decided.append(choice)
        self.weight *= weights[choice]
        if len(self.decided) == len(self.item.decisions) and not math.isclose(self.weight, self.item.weight, rel_tol=1e-5):
            raise RowsCoupled(
                f"replayed decisions have probability {self.weight:.9g}, were {self.item.weight:.9g}: the code keeps state "
                "between calls, or its rows influence each other"
            )
        return choice


class Batch:
    """The rows of one call, their atoms, and the numbers each random stream has handed out (the Decider of the tensors)."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.rows = [Row(item) for item in items]
        self.active = list(range(len(items)))
        self.low: list[float] = []
        self.high: list[float] = []
        self.owner: list[int] = []
        self.closed = False
        self.refused: SpecverifyError | None = None

    @contextmanager
    def only(self, rows: Sequence[int]) -> Iterator[None]:
        """Within, the code is called with these rows alone, in this order (the others have finished, or have other shapes)."""
        before, self.active = self.active, list(rows)
        try:
            yield
        finally:
            self.active = before

    def new_atoms(self, owners: Sequence[int]) -> Tensor:
        """Fresh uniforms, one per entry of ``owners`` (the row each belongs to)."""
        start = len(self.low)
        self.low.extend([0.0] * len(owners))
        self.high.extend([1.0] * len(owners))
        self.owner.extend(owners)
        return torch.arange(start, len(self.low))

    def below(self, atoms: Tensor, thresholds: Tensor) -> Tensor:
        """Decide ``u < threshold`` elementwise (see :class:`specverify.exact.symbolic.Decider`)."""
        self._check_owners(atoms)
        answers = []
        for atom, t in zip(atoms.reshape(-1).tolist(), thresholds.reshape(-1).tolist(), strict=True):
            low, high = self.low[atom], self.high[atom]
            if t >= high:
                answers.append(True)
            elif t <= low:
                answers.append(False)
            else:
                share = (t - low) / (high - low)
                answer = self.rows[self.owner[atom]].decide((share, 1.0 - share)) == 0
                if answer:
                    self.high[atom] = t
                else:
                    self.low[atom] = t
                answers.append(answer)
        return torch.tensor(answers, dtype=torch.bool).reshape(atoms.shape)

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide how many ascending edges lie at or below each atom (see :class:`specverify.exact.symbolic.Decider`)."""
        self._check_owners(atoms)
        answers = []
        for atom, row_edges in zip(atoms.reshape(-1).tolist(), edges.tolist(), strict=True):
            low, high = self.low[atom], self.high[atom]
            cuts = [low, *[min(max(e, low), high) for e in row_edges], high]
            widths = [(b - a) / (high - low) for a, b in itertools.pairwise(cuts)]
            choice = self.rows[self.owner[atom]].decide(widths)
            self.low[atom], self.high[atom] = cuts[choice], cuts[choice + 1]
            answers.append(choice)
        return torch.tensor(answers, dtype=torch.int64).reshape(atoms.shape)

    def _check_owners(self, atoms: Tensor) -> None:
        """Refuse numbers kept from an earlier call, and numbers that do not belong to the row where they are used."""
        if self.closed:
            raise OpaqueRandomness(
                "the code used random numbers that it drew in an earlier call; to be analysable, draw afresh in every call"
            )
        if len(self.active) == 1:
            return
        if atoms.dim() == 0 or atoms.shape[0] != len(self.active):
            raise RowsCoupled(
                f"a random number is compared in a shape {tuple(atoms.shape)} that has no row for each of "
                f"{len(self.active)} paths"
            )
        owners = torch.tensor(self.owner)[atoms]
        rows = torch.tensor(self.active).reshape(-1, *[1] * (atoms.dim() - 1))
        if not bool((owners == rows).all()):
            raise RowsCoupled("a row uses random numbers of another row")


@dataclass(frozen=True)
class Leaf:
    """A finished path."""

    problem: int
    decisions: tuple[int, ...]
    weight: float
    outcome: Any


@dataclass(frozen=True)
class Explored:
    """Every path of every problem, and how many calls it took."""

    leaves: list[Leaf]
    calls: int
    confirm: Callable[[int], None] = lambda _walks: None
    """Walk that many paths once more, drawn by their probability; OpaqueRandomness when one comes out differently."""


def explore(call: Callable[[Batch], Sequence[Hashable]], problems: int, *, rows: int, max_paths: int) -> Explored:
    """Walk all paths of ``problems`` separate problems with up to ``rows`` paths per call.

    ``call(batch)`` runs the code once for the rows of the batch and returns an outcome per row. Errors: PathBudgetExceeded
    after ``max_paths`` paths, with the probability mass explored so far.
    """
    pending = [Item(problem, (), 1.0) for problem in range(problems)]
    leaves: list[Leaf] = []
    calls = 0
    while pending:
        if len(leaves) >= max_paths:
            explored = sum(leaf.weight for leaf in leaves) / problems
            raise PathBudgetExceeded(
                f"walked {len(leaves)} paths and {explored:.6f} of the probability mass, and more remain; "
                "use a smaller K or V, or raise max_paths"
            )
        items, pending = pending[-rows:], pending[:-rows]
        batch = Batch(items)
        outcomes = call(batch)
        calls += 1
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if len(row.decided) < len(row.item.decisions):
                raise RowsCoupled("a path ended before all its decisions were replayed: the code keeps state between calls")
            leaves.append(Leaf(row.item.problem, tuple(row.decided), row.weight, outcome))
            pending.extend(row.siblings)
    return Explored(leaves, calls)
