"""Does code hold at the ends of its random numbers? It is run as it is, with one draw pushed to a boundary at a time.

The exact law ignores what has measure zero, and a sampled run will not meet what happens once in 2^24. Probes look exactly
there: a uniform that is exactly 0, the largest one below 1, the values on the sampler's grid between which the outcome
changes (where a tie with a threshold lies, if the grid has one), the first and the last token that a choice can give, the
ends of an exponential. A probe changes one element of one draw and leaves the others as they were drawn, so what it shows
happens with the probability of that one value, given the rest.

Ties are found by bisection on the sampler's own grid, not by reading thresholds off comparisons: it needs to know nothing
of how the code uses its uniform, and every value it tries is one that the sampler can give. What it cannot see is a value
that alone behaves differently while both its neighbours agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact.problems import Outcome, Problems, problems_of, row_of, run_call
from specverify.exact.pushing import Push, Pushing, Streams
from specverify.exact.tasks import Effort, Place, Task, end_tasks, spread, take_in, tie_tasks
from specverify.laws import Pair, Tokens
from specverify.randomness import derive
from specverify.subjects import Decoder, Step, Verifier

FEWEST_ROWS = 11
"""A batch is filled up to so many rows: more than there are drafted tokens, so that a row is not taken for a place."""
COARSE = 8
"""Equal pieces of the unit interval between which changes of the outcome are looked for first."""
PASSES = 2
"""Changes that are followed to the grid for each element."""
BITS = 53
"""Calls that following one change can take: the bits of the finest grid."""
LENGTH = 4
"""Tokens that a decoder is asked for."""
ENOUGH = 6
"""Different findings after which code has been shown to be wrong often enough."""
MOST_FAILED = 12
"""Failed batches that are taken apart row by row."""
ORDINARY = "ordinary draws"


@dataclass(frozen=True)
class Event:
    """Something that must not happen, and the draws that made it happen.

    kind: "impossible" (a token of probability 0 was emitted) or "error" (an exception, NaN, an id outside the vocabulary).
    boundary: what the pushed element was set to, "ordinary draws" when it happened without. chance: probability of that
    value per draw, 0 when the sampler cannot be relied on to give it, 1 for ordinary draws. draw counts the draws of the call
    from 0 (-1: none was pushed), element the numbers within the row. draws: all draws of the row, in order. repeated: a run
    of that row alone, with these draws, showed it again.
    """

    kind: Literal["impossible", "error"]
    message: str
    boundary: str
    chance: float
    draw: int
    element: int
    source: str
    dtype: str
    where: str
    drafted: Tokens
    tokens: Tokens
    draws: tuple[Tensor, ...]
    repeated: bool


@dataclass
class Probed:
    """What probing showed.

    probes: rows run with an element pushed. runs: rows run with ordinary draws. draws: the draws of a run, in words.
    unfollowed: random functions that were called and cannot be pushed. alone: whether a call took one row.
    """

    probes: int = 0
    runs: int = 0
    alone: bool = False
    events: list[Event] = field(default_factory=list)
    draws: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()


def probe(
    part: Verifier | Step | Decoder, pair: Pair, *, seed: int, effort: Effort | None = None, length: int = LENGTH
) -> Probed:
    """Probe a part on a pair; see the module. Errors: OpaqueRandomness when it draws by means that cannot be followed."""
    problems = problems_of(part, pair, length)
    with Streams() as streams:
        try:
            return _Prober(problems, streams, seed, effort or Effort(), problems.rows).run_all()
        except _MixedRowsError:
            return _Prober(problems, streams, seed, effort or Effort(), 1).run_all()


def run_with(
    part: Verifier | Step | Decoder, pair: Pair, draws: Sequence[Any], drafted: Sequence[int] = (), length: int = LENGTH
) -> Tokens:
    """Run a part on one row with its draws set to what a finding recorded; returns the tokens emitted.

    Errors: SubjectError when the part raises.
    """
    problems = problems_of(part, pair, length)
    given = [torch.as_tensor(d, dtype=torch.float64) for d in draws]
    with Streams() as streams:
        (outcome,), _ = run_call(problems, streams, [problems.drafted.index(tuple(drafted))], 0, given=given)
    if isinstance(outcome, SubjectError):
        raise outcome
    return outcome


class _MixedRowsError(Exception):
    """Rows cannot be told apart: a draw without one entry per row, or a row that behaves otherwise when it is alone."""


class _EnoughSeenError(Exception):
    """So much has gone wrong that nothing more is to be learnt."""


@dataclass
class _Prober:
    """Runs the tasks of one pair and keeps what they show. rows: per call."""

    problems: Problems
    streams: Streams
    seed: int
    effort: Effort
    rows: int
    found: Probed = field(default_factory=Probed)
    keys: set[Any] = field(default_factory=set)
    failed: int = 0

    def run_all(self) -> Probed:
        """Survey, push to the ends, follow changes to the grid."""
        alone, effort, number = self.rows == 1, self.effort, len(self.problems.drafted)
        followed = COARSE + 1 + BITS * (1 if alone else PASSES)  # calls per task
        self.found.alone = alone
        try:
            places = self._survey()
            for chunk in self._chunks(end_tasks(places, number, effort.ends_alone if alone else effort.ends * self.rows)):
                self._push(chunk)
            ties = (effort.ties_alone if alone else effort.ties) // followed * self.rows
            for chunk in self._chunks(tie_tasks(places, number, ties)):
                self._follow(chunk, [places[t.draw].last for t in chunk])
        except _EnoughSeenError:
            pass
        return self.found

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """``rows`` tasks at a time, the last chunk filled up by repeating."""
        wide = min(self.rows, max(FEWEST_ROWS, len(tasks)))
        for start in range(0, len(tasks), wide):
            chunk = list(tasks[start : start + wide])
            yield chunk + [chunk[i % len(chunk)] for i in range(wide - len(chunk))]

    def _survey(self) -> list[Place]:
        """Ordinary runs that accept early, late, and as it comes; what they draw. Errors: OpaqueRandomness."""
        places: list[Place] = []
        numbers = spread(range(len(self.problems.drafted)), self.rows * 4 if self.rows > 1 else 24)
        for chunk in self._chunks([Task(n, turn) for turn in (-1, 0, 99) for n in numbers]):
            outcomes, mode = self._call(chunk, [])
            self.found.runs += len(chunk)
            self.found.unfollowed = tuple(sorted({*self.found.unfollowed, *mode.unfollowed}))
            if len(mode.draws) > len(self.found.draws):
                self.found.draws = tuple(f"{d.source} in {d.dtype} at {d.where}" for d in mode.draws)
            take_in(places, mode.draws, len(chunk))
            self._judge(chunk, outcomes, mode, None)
        if not places:
            self._must_be_fixed(numbers)
        return places

    def _must_be_fixed(self, numbers: Sequence[int]) -> None:
        """Without a draw that can be seen, the same call must give the same tokens. Errors: OpaqueRandomness."""
        chunk = next(self._chunks([Task(n) for n in numbers]))
        runs = [run_call(self.problems, self.streams, [t.problem for t in chunk], 0)[0] for _ in range(8)]
        if any([str(o) for o in run] != [str(o) for o in runs[0]] for run in runs):
            raise OpaqueRandomness(
                "the code draws random numbers by means that cannot be followed, so their boundaries cannot be tried; to be "
                "probed, draw with torch, with random.random or with numpy.random.random"
            )

    def _call(self, chunk: Sequence[Task], pushes: Sequence[Push]) -> tuple[list[Outcome], Pushing]:
        """Run a chunk; its ordinary draws do not depend on what is pushed. Errors: _MixedRowsError."""
        rows, numbers, turns = len(chunk), [t.problem for t in chunk], [t.turn for t in chunk]
        seed = derive(self.seed, str(numbers), str(turns), str([t.trial for t in chunk]))
        outcomes, mode = run_call(self.problems, self.streams, numbers, seed, pushes, turns)
        if mode.mixed:
            raise _MixedRowsError
        if rows > 1 and isinstance(outcomes[0], SubjectError):
            self.failed += 1
            if self.failed > MOST_FAILED:
                raise _EnoughSeenError if self.found.events else _MixedRowsError
            outcomes = [self._alone(t.problem, row_of(mode.draws, r, rows)) for r, t in enumerate(chunk)]
        return outcomes, mode

    def _alone(self, problem: int, draws: Sequence[Tensor]) -> Outcome:
        """The outcome of one row with the draws it had in a batch."""
        (outcome,), _ = run_call(self.problems, self.streams, [problem], derive(self.seed, "alone"), given=draws)
        return outcome

    def _push(self, chunk: Sequence[Task]) -> None:
        """Run a chunk as it comes and pushed, so that what a push shows can be told from what was there anyway."""
        before, _ = self._call(chunk, [])
        after, mode = self._call(chunk, [t.push(r) for r, t in enumerate(chunk)])
        self._judge(chunk, after, mode, before)

    def _follow(self, chunk: Sequence[Task], last: Sequence[int]) -> None:
        """Bisect the changes of each row's outcome over the grid of its uniform, whose last steps are ``last``."""
        before, _ = self._call(chunk, [])

        def at(steps: Sequence[int]) -> list[str]:
            outcomes, mode = self._call(chunk, [t.push(r, k) for r, (t, k) in enumerate(zip(chunk, steps, strict=True))])
            self._judge(chunk, outcomes, mode, before)
            return [str(outcome) for outcome in outcomes]

        points = [[k * i // COARSE for k in last] for i in range(COARSE + 1)]
        seen = [at(steps) for steps in points]
        for turn in range(PASSES):
            low, high, below = list(last), list(last), list(seen[-1])
            for r in range(len(chunk)):
                changes = [i for i in range(COARSE) if seen[i][r] != seen[i + 1][r]]
                if turn < len(changes):
                    i = changes[turn]
                    low[r], high[r], below[r] = points[i][r], points[i + 1][r], seen[i][r]
            while any(b - a > 1 for a, b in zip(low, high, strict=True)):
                middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
                for r, outcome in enumerate(at(middle)):
                    if outcome == below[r]:
                        low[r] = middle[r]
                    else:
                        high[r] = middle[r]

    def _judge(
        self, chunk: Sequence[Task], outcomes: Sequence[Outcome], mode: Pushing, before: Sequence[Outcome] | None
    ) -> None:
        """Keep what must not happen; where it happened before the push as well, it is a matter of ordinary draws."""
        for r, (task, outcome) in enumerate(zip(chunk, outcomes, strict=True)):
            moved = mode.draws[task.draw].moved.get(r) if 0 <= task.draw < len(mode.draws) else None
            self.found.probes += moved is not None
            kind = self._kind(outcome)
            if kind is None:
                continue
            by_push = moved is not None and before is not None and self._kind(before[r]) != kind
            event = self._event(kind, task, outcome, row_of(mode.draws, r, len(chunk)), mode if by_push else None, r)
            key = (kind, event.where, event.source, "tie" if event.boundary.startswith("exactly 0.") else event.boundary)
            if key in self.keys:
                continue
            self.keys.add(key)
            event = replace(event, repeated=self._kind(self._alone(task.problem, event.draws)) == kind)
            if not event.repeated and len(chunk) > 1:
                raise _MixedRowsError
            self.found.events.append(event)
            if len(self.found.events) >= ENOUGH:
                raise _EnoughSeenError

    def _event(
        self,
        kind: Literal["impossible", "error"],
        task: Task,
        outcome: Outcome,
        draws: tuple[Tensor, ...],
        mode: Pushing | None,
        row: int,
    ) -> Event:
        """What happened, blamed on the pushed draw when ``mode`` is given."""
        message, tokens = (" ".join(str(outcome).split()), ()) if isinstance(outcome, SubjectError) else ("", outcome)
        drafted = self.problems.drafted[task.problem]
        if mode is None:
            return Event(kind, message, ORDINARY, 1.0, -1, 0, "", "", "", drafted, tokens, draws, repeated=False)
        draw = mode.draws[task.draw]
        to = draw.moved[row]
        at = (draw.source, draw.dtype, draw.where)
        return Event(kind, message, to.name, to.chance, task.draw, task.element, *at, drafted, tokens, draws, repeated=False)

    def _kind(self, outcome: Outcome) -> Literal["impossible", "error"] | None:
        if isinstance(outcome, SubjectError):
            return "error"
        return "impossible" if self.problems.impossible(outcome) is not None else None
