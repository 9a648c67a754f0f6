"""Which elements of which draws are pushed, and where to? Lists of tasks made from what ordinary runs drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specverify.exact.boundaries import last_step
from specverify.exact.pushing import ENDS, Draw, End, Kind, Push
from specverify.subjects import DTYPES


@dataclass(frozen=True)
class Effort:
    """How many calls pushing to the ends, and following changes to the grid, may cost; alone: where a call takes one row."""

    ends: int = 12
    ties: int = 130
    ends_alone: int = 300
    ties_alone: int = 400


def _elements(draw: Draw, rows: int) -> int:
    """What can be pushed in a row of a draw: numbers, or, where tokens are chosen, the laws they are chosen from."""
    each = draw.value.numel() // rows
    return each // draw.shape[-1] if draw.kind == "choice" and draw.shape and draw.shape[-1] else each


@dataclass(frozen=True)
class Task:
    """One row to run: its problem, its background (``turn``, see Pushing), the element to push; draw -1 pushes nothing.

    Tasks that differ in ``trial`` alone have different ordinary draws.
    """

    problem: int
    turn: int = -1
    draw: int = -1
    element: int = 0
    to: End | int = "lowest"
    trial: int = 0

    def push(self, row: int, to: int | None = None) -> Push:
        """The push of this task when it is run in a row of a batch, to its own end or to a step of the grid."""
        return Push(row, self.draw, self.element, self.to if to is None else to)


@dataclass
class Place:
    """One draw as several runs showed it: the kinds it can be of, elements per row, the last step of a uniform's grid."""

    draw: int
    kinds: set[Kind] = field(default_factory=set)
    elements: int = 0
    last: int = 0

    @property
    def uniforms(self) -> int:
        """How many uniforms of a row it holds."""
        return self.elements if "uniform" in self.kinds else 0


def take_in(places: list[Place], draws: Sequence[Draw], rows: int) -> None:
    """Add the draws of one call with ``rows`` rows to what is known of their places."""
    for number, draw in enumerate(draws):
        if number == len(places):
            places.append(Place(number))
        place = places[number]
        place.kinds.add(draw.kind)
        place.elements = max(place.elements, _elements(draw, rows))
        if draw.kind == "uniform":
            place.last = last_step(DTYPES[draw.dtype])


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the items, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[i * len(items) // most] for i in range(most)]


def _mixed(items: Sequence[Any]) -> list[Any]:
    """The items in an order that has nothing to do with theirs, so that a selection leaves out no kind of them."""
    stride = 7919  # a prime, hence no factor in common with shorter lists
    return [items[i * stride % len(items)] for i in range(len(items))] if len(items) % stride else list(items)


TRIALS = 32
"""Tasks made for one element where the code drafts itself and there is a single problem: other drafts each time."""


def _problems(problems: int) -> list[tuple[int, int]]:
    """(problem, trial): each problem once, a few of them several times."""
    return [(problem, trial) for trial in range(max(1, TRIALS // problems)) for problem in range(problems)]


def end_tasks(places: Sequence[Place], problems: int, most: int) -> list[Task]:
    """Every element to its ends, for every problem, behind 0, 1, 2, .. acceptances and as it comes."""
    uniforms = sum(p.uniforms for p in places)
    turns = [-1, *range(uniforms + 1)] if uniforms else [-1] * 4
    return spread(
        _mixed(
            [
                Task(problem, turn, place.draw, element, end, trial)
                for turn in turns
                for problem, trial in _problems(problems)
                for place in places
                for element in range(place.elements)
                for end in dict.fromkeys(e for kind in sorted(place.kinds) for e in ENDS[kind])
            ]
        ),
        most,
    )


def tie_tasks(places: Sequence[Place], problems: int, most: int) -> list[Task]:
    """Every uniform, reached after all before it were low, for every problem."""
    tasks: list[Task] = []
    ordinal = 0
    for place in places:
        for element in range(place.uniforms):
            tasks += [Task(n, ordinal + element, place.draw, element, trial=i) for n, i in _problems(problems)]
        ordinal += place.uniforms
    return spread(_mixed(tasks), most)
