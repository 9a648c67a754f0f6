"""Which outcomes can randomness have? A walk over all of them, the likeliest first, by replaying prefixes of decisions.

A *path* is one sequence of decisions, each with its conditional probability; the walk calls the code once per path, or,
when the code works on batches, once per batch of paths with one path per row. Zero-probability branches are never run.
Their number grows as V^K. A walk may be stopped at any time: what is left then has a known probability.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from specverify.errors import RowsCoupled
from specverify.exact.batch import NEGLIGIBLE, Batch, Item

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def stopping_after(seconds: float) -> Iterator[None]:
    """Within, walks stop after that many seconds from now, with what they have."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_is_up() -> bool:
    """Whether walks stop now."""
    return time.monotonic() > _deadline.get()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A finished path."""

    problem: int
    decisions: tuple[int, ...]
    weight: float
    outcome: Any


@dataclass(frozen=True)
class Explored:
    """Every path of every problem that was walked, how many calls it took, and the probability left in each problem."""

    leaves: list[Leaf]
    calls: int
    left: list[float] = field(default_factory=list)
    why: str = ""
    """Why the walk stopped before its end."""
    confirm: Callable[[int], None] = lambda _walks: None
    """Walk that many paths once more, drawn by their probability; OpaqueRandomness when one comes out differently."""


def explore(call: Callable[[Batch], Sequence[Hashable]], problems: int, *, rows: int, max_paths: int) -> Explored:
    """Walk the paths of ``problems`` separate problems with up to ``rows`` paths per call, likely ones first.

    ``call(batch)`` runs the code once for the rows of the batch and returns an outcome per row. The walk ends when nothing
    but ``NEGLIGIBLE`` probability is left, after ``max_paths`` paths, or when time is up; the rest is in ``left``.
    """
    order = itertools.count()
    pending = [(-1.0, next(order), Item(problem, (), 1.0)) for problem in range(problems)]
    left = [1.0] * problems
    leaves: list[Leaf] = []
    calls = 0
    why = ""
    while pending and -pending[0][0] * len(pending) > NEGLIGIBLE:
        if len(leaves) >= max_paths:
            why = f"max_paths = {max_paths} paths were walked"
        elif calls and time_is_up():  # at least once, so that code that hangs is seen to
            why = "the time for this law was up"
        if why:
            break
        items = [heapq.heappop(pending)[2] for _ in range(min(rows, len(pending), max_paths - len(leaves)))]
        batch = Batch(items)
        outcomes = call(batch)
        calls += 1
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if len(row.decided) < len(row.item.decisions):
                raise RowsCoupled("a path ended before all its decisions were replayed: the code keeps state between calls")
            leaves.append(Leaf(row.item.problem, tuple(row.decided), row.weight, outcome))
            left[row.item.problem] -= row.weight
            for item in row.siblings:
                heapq.heappush(pending, (-item.weight, next(order), item))
    # What is left by subtraction is good to rounding; after a complete walk nothing is left.
    return Explored(leaves, calls, [max(x, 0.0) if why else 0.0 for x in left], why)
