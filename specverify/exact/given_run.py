"""How are many searches run with few calls? Probes of all regions of all problems share calls; then the result is tested.

A *problem* is one setting of the other arguments (one draft and its laws). The search of every problem starts from all its
numbers and goes on until every region has one outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.random
import torch

from specverify.errors import OpaqueRandomness, PathBudgetExceeded, RowsCoupled, SpecverifyError
from specverify.exact.given_search import JOINT, Search, examine
from specverify.exact.given_space import Points, Region, Space, join
from specverify.laws import Ints
from specverify.randomness import stream

Evaluate = Callable[[Ints, Points], Sequence[Hashable]]
"""Runs the code on the problems named, one row each, with the numbers at these points."""

MOST_REGIONS = 1000
"""Regions of one problem after which its outcome is taken not to be a matter of boxes."""
MOST_REFINEMENTS = 8
"""Times that random points may disagree with the regions found before the code is refused."""
AT_ONCE = 1024
"""Regions under search at the same time."""
ASKED_AGAIN = 64


@dataclass
class Asker:
    """Puts points to the code, up to ``rows`` in a call, and gives outcomes as numbers into ``outcomes``."""

    evaluate: Evaluate
    rows: int
    outcomes: list[Hashable] = field(default_factory=list)
    calls: int = 0
    asked: int = 0
    remembered: list[tuple[int, Points, int]] = field(default_factory=list)
    _number: dict[Hashable, int] = field(default_factory=dict)

    def __call__(self, problems: Ints, points: Points) -> Ints:
        """Outcome (N,) of each problem at its point."""
        numbers: list[int] = []
        for start in range(0, len(problems), self.rows):
            span = slice(start, start + self.rows)
            found = self._call(problems[span], points.take(span))
            pick = start + self.calls % len(found)
            self.remembered.append((int(problems[pick]), points.take([pick]), found[pick - start]))
            numbers += found
        return np.array(numbers, np.int64)

    def _call(self, problems: Ints, points: Points) -> list[int]:
        self.calls += 1
        self.asked += len(problems)
        found = []
        for outcome in self.evaluate(problems, points):
            if outcome not in self._number:
                self._number[outcome] = len(self.outcomes)
                self.outcomes.append(outcome)
            found.append(self._number[outcome])
        return found

    def ask_again(self) -> None:
        """Ask for some outcomes once more, each point alone in its call. Errors: see :meth:`repeat`."""
        step = max(1, len(self.remembered) // ASKED_AGAIN)
        for problem, point, outcome in self.remembered[::step][::-1]:
            self.repeat(problem, point, outcome)

    def repeat(self, problem: int, point: Points, outcome: int) -> None:
        """Insist on the outcome of a point. Errors: RowsCoupled, or OpaqueRandomness where calls have one row anyway."""
        if self._call(np.array([problem]), point) == [outcome]:
            return
        if self.rows > 1:
            raise RowsCoupled("a row alone came out differently from the same row among others")
        raise OpaqueRandomness(
            "the code is not a function of the numbers it is given: the same ones came out differently the second time; "
            "to be analysable, take all random numbers as arguments and keep no state between calls"
        )


@dataclass(frozen=True)
class Leaf:
    """A region with one outcome."""

    region: Region
    outcome: int


@dataclass(frozen=True)
class Regions:
    """All regions of every problem, found by one asker."""

    space: Space
    asker: Asker
    leaves: list[list[Leaf]]
    weights: Sequence[float]
    seed: int

    def compare(self, n: int, *names: str | int) -> list[tuple[int, int, Points]]:
        """Run the code at ``n`` random settings, problems by weight; (problem, leaf, point) where a leaf was wrong."""
        rng = stream(self.seed, "compare", *names)
        shares = np.array(self.weights) / np.sum(self.weights)
        problems = np.sort(rng.choice(len(shares), n, p=shares))
        points = self.space.whole().sample(n, rng)
        outcomes = self.asker(problems, points)
        wrong = []
        for problem in np.unique(problems).tolist():
            rows = np.flatnonzero(problems == problem)
            wrong += [
                (problem, leaf, points.take([rows[r]])) for leaf, r in self._wrong(problem, points.take(rows), outcomes[rows])
            ]
        return wrong

    def _wrong(self, problem: int, points: Points, outcomes: Ints) -> Iterator[tuple[int, int]]:
        """(leaf, point) for each leaf with a wrong point, the first one."""
        for number, leaf in enumerate(self.leaves[problem]):
            inside, unclear = leaf.region.holds(points)
            bad = np.flatnonzero(inside & ~unclear & (outcomes != leaf.outcome))
            if len(bad):
                yield number, int(bad[0])

    def confirm(self, n: int) -> None:
        """Run the code at ``n`` random settings more. Errors: OpaqueRandomness when a region found is not right there."""
        with own_streams():
            if self.compare(n, "confirm"):
                raise OpaqueRandomness(JOINT)


Work = tuple[int, Region, Points | None]


def explore_given(
    evaluate: Evaluate, space: Space, weights: Sequence[float], *, rows: int, checks: int, max_regions: int, seed: int = 0
) -> Regions:
    """Find the regions of one outcome for every problem.

    Guarantee: ``checks`` random settings of (problem by weight, numbers) agree with the regions returned, so that regions
    wrong on mass d in all pass with probability at most (1 - d)**checks; what one region may miss is said at
    :func:`specverify.exact.given_search.examine`. Errors: OpaqueRandomness when the outcome is not decided by comparing
    single numbers and by races, or the code draws numbers of its own; RowsCoupled (rows > 1 only); PathBudgetExceeded.
    """
    found = Regions(space, Asker(evaluate, rows), [[] for _ in weights], weights, seed)
    rngs = [stream(seed, "given", problem) for problem in range(len(weights))]
    with own_streams():
        try:
            _look_twice(found)
            _refine(found, rngs, checks, max_regions)
        except OpaqueRandomness:
            found.asker.ask_again()  # code that is no function of its numbers, or couples rows, is to be told so
            raise
        found.asker.ask_again()
    return found


def _look_twice(found: Regions) -> None:
    """Ask ``ASKED_AGAIN`` random settings together, then each alone: a long search in code that is no function is spared."""
    rng = stream(found.seed, "twice")
    problems = rng.integers(0, len(found.weights), ASKED_AGAIN)
    points = found.space.whole().sample(ASKED_AGAIN, rng)
    outcomes = found.asker(problems, points)
    for row, (problem, outcome) in enumerate(zip(problems.tolist(), outcomes.tolist(), strict=True)):
        found.asker.repeat(problem, points.take([row]), outcome)


def _refine(found: Regions, rngs: Sequence[np.random.Generator], checks: int, max_regions: int) -> None:
    """Search, try random settings, and search again where these disagree."""
    work: list[Work] = [(problem, found.space.whole(), None) for problem in range(len(rngs))]
    for attempt in range(MOST_REFINEMENTS):
        _search(found, work, rngs, max_regions)
        wrong = found.compare(checks, attempt)
        if not wrong:
            return
        work = [(problem, found.leaves[problem][leaf].region, point) for problem, leaf, point in wrong]
        for problem, leaf, _ in reversed(wrong):
            del found.leaves[problem][leaf]
    raise OpaqueRandomness(JOINT)


def _search(found: Regions, work: list[Work], rngs: Sequence[np.random.Generator], max_regions: int) -> None:
    """Examine regions until each has one outcome, all under search sharing calls."""
    active: list[tuple[int, Region, Search, Points]] = []
    regions = [len(leaves) for leaves in found.leaves]
    while work or active:
        while work and len(active) < AT_ONCE:
            problem, region, witness = work.pop()
            regions[problem] += 1
            if regions[problem] > MOST_REGIONS:
                raise OpaqueRandomness(f"more than {MOST_REGIONS} regions of given numbers differ in outcome; " + JOINT)
            if sum(regions) > max_regions:
                raise PathBudgetExceeded(
                    f"found {max_regions} regions of given numbers, and more remain; use a smaller K or V, or raise max_paths"
                )
            task = examine(region, rngs[problem], witness)
            active.append((problem, region, task, next(task)))
        sizes = [len(points) for *_, points in active]
        problems = np.repeat([problem for problem, *_ in active], sizes)
        outcomes = np.split(found.asker(problems, join([points for *_, points in active])), np.cumsum(sizes)[:-1])
        going: list[tuple[int, Region, Search, Points]] = []
        for (problem, region, task, _), outcome in zip(active, outcomes, strict=True):
            try:
                going.append((problem, region, task, task.send(outcome)))
            except StopIteration as done:
                if isinstance(done.value, int):
                    found.leaves[problem].append(Leaf(region, done.value))
                else:
                    work += [(problem, part, None) for part in done.value]
        active = going


@contextmanager
def own_streams() -> Iterator[None]:
    """Refuse code that draws from a global stream of torch, Python or numpy beside the numbers it is given."""
    before = _streams()
    failed: SpecverifyError | None = None
    try:
        yield
    except (OpaqueRandomness, RowsCoupled) as error:  # what came of such draws, most likely
        failed = error
    if _streams() != before:
        raise OpaqueRandomness(
            "the code draws random numbers of its own beside those it is given; to be analysable, draw none, or take them all "
            "as arguments"
        )
    if failed is not None:
        raise failed


def _streams() -> tuple[object, ...]:
    """States of the global streams."""
    legacy = numpy.random.get_state(legacy=False)  # noqa: NPY002 - the legacy stream is the one that is watched
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(legacy)
