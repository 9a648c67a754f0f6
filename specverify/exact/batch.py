"""What has one call decided so far? The rows of a call, each following one path, and what is known of their random numbers."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, RowsCoupled, SpecverifyError
from specverify.exact.chains import Array
from specverify.exact.products import Product
from specverify.exact.races import MOST_LAST, again_law, first_law, last_law
from specverify.exact.refusals import heard, opaque, source_line

MOST_DECISIONS = 2000
"""Decisions after which a path is taken to be endless."""
NEGLIGIBLE = 2.0**-80
"""Probability of all that is left of one problem below which the walk is complete: a loop that redraws until it accepts has
paths of any length, whose probabilities fall geometrically."""
UNLIKELY = 2.0**-16
"""Probability of a path below which it goes on by chance, so that it ends when the code would."""
_ROUNDING = 2.0**-46
"""Relative distance within which a second cut of a number is the first one."""


@dataclass(frozen=True, slots=True)
class Item:
    """Work left to do: the decisions that lead to an unexplored branch of one problem, and the branch's probability."""

    problem: int
    decisions: tuple[int, ...]
    weight: float


@dataclass(slots=True)
class Row:
    """One path under way: what it must replay, what it has decided, and the branches it passed by."""

    item: Item
    decided: list[int] = field(default_factory=list)
    weight: float = 1.0
    siblings: list[Item] = field(default_factory=list)

    def decide(self, weights: Sequence[float]) -> int:
        """Take the branch to replay, else the first possible one, remembering the others. ``weights`` sum to 1."""
        at = len(self.decided)
        replay = self.item.decisions
        if at < len(replay):
            choice = replay[at]
            if choice >= len(weights) or weights[choice] <= 0:
                raise RowsCoupled(
                    "the same decisions led to a different place the second time: the code keeps state between calls, "
                    "or its rows influence each other"
                )
        else:
            if at >= MOST_DECISIONS:
                raise heard(
                    OpaqueRandomness(
                        f"more than {MOST_DECISIONS} random decisions on one path, at {source_line()}: a loop that may go on "
                        "for ever; to be analysable, draw a bounded number of times"
                    )
                )
            possible = [i for i, w in enumerate(weights) if w > 0]
            choice = possible[0] if self.weight > UNLIKELY else self._by_chance(weights)
            if len(possible) > 1:
                head = tuple(self.decided)
                for i in reversed(possible):
                    if i != choice:
                        self.siblings.append(Item(self.item.problem, (*head, i), self.weight * weights[i]))
        self.decided.append(choice)
        self.weight *= weights[choice]
        if at + 1 == len(replay) and not math.isclose(self.weight, self.item.weight, rel_tol=1e-5):
            raise RowsCoupled(
                f"replayed decisions have probability {self.weight:.9g}, were {self.item.weight:.9g}: the code keeps state "
                "between calls, or its rows influence each other"
            )
        return choice

    def _by_chance(self, weights: Sequence[float]) -> int:
        """Go on as code does when it runs, so that a loop that redraws comes to its end."""
        at = zlib.crc32(b"%d %d" % (len(self.decided), self.item.problem)) / 2**32 * math.fsum(weights)
        ends = itertools.accumulate(weights)
        likely = max(range(len(weights)), key=weights.__getitem__)
        return next((i for i, end in enumerate(ends) if at < end and weights[i] > 0), likely)


@dataclass
class _Race:
    """A race that was run: the rates of its clocks, who won (the first to ring, or the last), whether they may run again."""

    rates: dict[int, float]
    winner: int
    side: int
    last: bool = False
    spent: bool = False


class Batch:
    """The rows of one call, their atoms, and what is known of them (the Decider of the tensors)."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.rows = [Row(item) for item in items]
        self.active = list(range(len(items)))
        self.low: list[float] = []
        self.high: list[float] = []
        self.owner: list[int] = []
        self.raced: dict[int, _Race] = {}
        self.products: dict[int, Product] = {}
        self.factors: set[int] = set()
        """Atoms that went into a product."""
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
        """Decide ``u < threshold`` elementwise (see :class:`specverify.exact.tensor.Decider`)."""
        self.check_rows(atoms)
        if self.products and not self.products.keys().isdisjoint(flat := atoms.reshape(-1).tolist()):
            return self._products_below(flat, thresholds.reshape(-1).tolist()).reshape(atoms.shape)
        lows, highs, rows, owner = self.low, self.high, self.rows, self.owner
        answers = []
        for atom, t in zip(atoms.reshape(-1).tolist(), thresholds.reshape(-1).tolist(), strict=True):
            if t == math.inf or t == -math.inf:  # whatever the number is, also where there is none
                answers.append(t > 0)
                continue
            low, high = lows[atom], highs[atom]
            if t >= high:
                answers.append(True)
            elif t <= low:
                answers.append(False)
            else:
                self._insist_simple(atom)
                share = (t - low) / (high - low)
                if (low > 0 or high < 1) and not _ROUNDING < share < 1 - _ROUNDING:
                    answers.append(share > 0.5)  # a number cut before, at the same place but for rounding
                    continue
                answer = rows[owner[atom]].decide((share, 1.0 - share)) == 0
                if answer:
                    highs[atom] = t
                else:
                    lows[atom] = t
                answers.append(answer)
        return torch.tensor(answers, dtype=torch.bool).reshape(atoms.shape)

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide how many ascending edges lie at or below each atom (see :class:`specverify.exact.tensor.Decider`)."""
        self.check_rows(atoms)
        answers = []
        for atom, row_edges in zip(atoms.reshape(-1).tolist(), edges.tolist(), strict=True):
            self._insist_simple(atom)
            low, high = self.low[atom], self.high[atom]
            cuts = [low, *[min(max(e, low), high) for e in row_edges], high]
            widths = [(b - a) / (high - low) for a, b in itertools.pairwise(cuts)]
            choice = self.rows[self.owner[atom]].decide(widths)
            self.low[atom], self.high[atom] = cuts[choice], cuts[choice + 1]
            answers.append(choice)
        return torch.tensor(answers, dtype=torch.int64).reshape(atoms.shape)

    def race(self, atoms: Sequence[int], rates: Sequence[float], *, last: bool, side: int) -> int:
        """Decide which clock rings first, or last (see :class:`specverify.exact.tensor.Decider`). Rates are positive."""
        if len(atoms) == 1:
            return 0
        owners = {self.owner[atom] for atom in atoms}
        if len(owners) > 1:
            raise RowsCoupled("random numbers of several rows race with each other")
        if len(set(atoms)) < len(atoms):
            self._refuse("the same random number takes part in a race twice")
        if not self.products.keys().isdisjoint(atoms) or not self.factors.isdisjoint(atoms):
            self._refuse("random numbers race that were multiplied with others")
        if any(self.low[atom] > 0 or self.high[atom] < 1 for atom in atoms):
            self._refuse("random numbers race that were compared with thresholds before")
        runs = dict(zip(atoms, rates, strict=True))
        known = {id(self.raced[atom]): self.raced[atom] for atom in atoms if atom in self.raced}
        if len(known) == 1:
            (before,) = known.values()
            if before.side == side and before.last == last and _same_race(before.rates, runs):
                return list(atoms).index(before.winner)
        law = self._second_law(list(known.values()), runs, last, side) if known else self._law(rates, last)
        choice = self.rows[owners.pop()].decide(law.tolist())
        for before in known.values():
            before.spent = True
        self.raced.update(dict.fromkeys(atoms, _Race(runs, atoms[choice], side, last, spent=last or bool(known))))
        return choice

    def note_race(self, rates: dict[int, float], winner: int) -> None:
        """Note that fresh clocks ran a race in which ``winner`` rang first."""
        self.raced.update(dict.fromkeys(rates, _Race(rates, winner, 0)))

    def _law(self, rates: Sequence[float], last: bool) -> Array:
        """Law (n,) of the place of the clock that rings first, or last, when all are fresh."""
        if last and len(rates) > MOST_LAST:
            self._refuse(f"the largest of more than {MOST_LAST} exponentials is looked for")
        return last_law(np.array(rates)) if last else first_law(np.array(rates))

    def _second_law(self, known: list[_Race], runs: dict[int, float], last: bool, side: int) -> Array:
        """Law (n,) of the place of the clock that rings first when some of them ran a race before."""
        before = known[0]
        if last or len(known) > 1 or before.spent or before.side != side:
            self._refuse("the noise of a race is used for a third race, or by two races at once")
        clocks = [*before.rates, *(atom for atom in runs if atom not in before.rates)]
        law = again_law(
            np.array([before.rates.get(atom, 0.0) for atom in clocks]),
            clocks.index(before.winner),
            np.array([runs.get(atom, 0.0) for atom in clocks]),
        )
        of_these: Array = law[[clocks.index(atom) for atom in runs]] / law.sum()
        return of_these

    def _refuse(self, what: str) -> None:
        raise opaque(what + ",", "draw fresh noise for every choice")

    def _insist_simple(self, atom: int) -> None:
        if atom in self.raced:
            self._refuse("a comparison of the noise of a race with a threshold,")
        if atom in self.factors or atom in self.products:
            self._refuse("a random number that was multiplied with others is used alone, or as they are not")

    def multiplied(self, atoms: Tensor) -> Tensor:
        """Running products along the last dimension (see :class:`specverify.exact.tensor.Decider`)."""
        self.check_rows(atoms)
        rows = atoms.reshape(-1, atoms.shape[-1]).tolist()
        out = self.new_atoms([self.owner[row[0]] for row in rows for _ in row]).tolist()
        made = iter(out)
        for first, *rest in rows:
            product = self.products.get(first) or Product.of_one(self.low[first], self.high[first])
            if first in self.raced or first in self.factors or product.extended:
                self._refuse("a random number that was used before is multiplied")
            self.products[next(made)] = product
            for atom in rest:
                if self.owner[atom] != self.owner[first]:
                    raise RowsCoupled("random numbers of several rows are multiplied")
                fresh = self.low[atom] == 0 and self.high[atom] == 1 and atom not in self.raced
                if not fresh or atom in self.factors or atom in self.products or atom == first:
                    self._refuse("a random number that was used before is multiplied")
                product.extended = True
                product = Product(before=product)
                self.products[next(made)] = product
                self.factors.add(atom)
            self.factors.add(first)
        return torch.tensor(out).reshape(atoms.shape)

    def _products_below(self, atoms: list[int], thresholds: list[float]) -> Tensor:
        """Decide ``product < threshold``, shorter products first."""
        answers = [False] * len(atoms)
        for place in sorted(range(len(atoms)), key=atoms.__getitem__):
            atom, t = atoms[place], thresholds[place]
            if t in (math.inf, -math.inf):
                answers[place] = t > 0
                continue
            if atom not in self.products:
                self._refuse("products of random numbers beside single ones are compared")
            product = self.products[atom]
            share = product.share_below(t)
            if not _ROUNDING < share < 1 - _ROUNDING:
                answers[place] = share > 0.5
                continue
            answers[place] = self.rows[self.owner[atom]].decide((share, 1.0 - share)) == 0
            product.cut(t, answers[place])
        return torch.tensor(answers)

    def check_rows(self, atoms: Tensor) -> None:
        """Refuse numbers kept from an earlier call, and numbers that do not belong to the row where they are used."""
        if self.closed:
            raise heard(
                OpaqueRandomness(
                    "the code used random numbers that it drew in an earlier call; to be analysable, draw afresh in every call"
                )
            )
        if len(self.active) == 1:
            return
        if atoms.dim() == 0 or atoms.shape[0] != len(self.active):
            raise RowsCoupled(
                f"a random number is compared in a shape {tuple(atoms.shape)} that has no row for each of "
                f"{len(self.active)} paths"
            )
        used = atoms.reshape(len(self.active), -1).numpy()
        owners = np.asarray(self.owner)[used]
        if not ((owners == np.asarray(self.active)[:, None]) | (used < 0)).all():
            raise RowsCoupled("a row uses random numbers of another row")


def _same_race(first: dict[int, float], second: dict[int, float]) -> bool:
    """Whether a race has the clocks and, up to a factor, the rates of an earlier one: then it has the same winner."""
    if first.keys() != second.keys():
        return False
    ratios = np.array([second[atom] / first[atom] for atom in first])
    return bool(np.ptp(ratios) <= 1e-12 * ratios[0])
