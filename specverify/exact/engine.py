"""What is the exact law of this code? Replay it over every outcome of its randomness.

While :class:`Interception` is active every random call of torch hands out symbolic numbers or makes an exact categorical
choice; code is never edited (see :mod:`specverify.exact.interception`).
"""

from __future__ import annotations

import math
import random
import sys
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy.random
from torch import Tensor

from specverify.errors import OpaqueRandomness, PathBudgetExceeded, RowsCoupled, SpecverifyError, SubjectError
from specverify.exact.arrays import SymbolicArray
from specverify.exact.batch import Batch, Item
from specverify.exact.calls import ELSEWHERE, drawing_for
from specverify.exact.draws import intercepting
from specverify.exact.elsewhere import OWN_FILES, elsewhere_in_the_streams, following, unseen
from specverify.exact.refusals import hearing
from specverify.exact.symbolic import SymbolicNumber, SymbolicTensor
from specverify.exact.walk import Explored, Leaf, explore, time_is_up
from specverify.laws import masses

DEFAULT_MAX_PATHS = 500_000


@dataclass(frozen=True)
class Law:
    """An exact law: probabilities by outcome, and what it took to find it."""

    pmf: dict[Any, float]
    paths: int
    calls: int
    unexplored: float = 0.0
    """Probability of the paths that were not walked; 0 unless the walk was stopped."""

    @property
    def mass(self) -> float:
        """Sum of all probabilities found; with ``unexplored`` 1 up to rounding."""
        return float(sum(self.pmf.values()))

    def deviation(self, right: Mapping[Any, float]) -> tuple[float, float]:
        """Bounds (least, most) on the largest deviation of a probability from ``right``.

        They are equal for a complete walk. Otherwise each probability lies between what was found and that plus
        ``unexplored``, so that both bounds hold whatever the paths not walked return.
        """
        least, most = 0.0, self.unexplored
        for outcome in {*self.pmf, *right}:
            gap = self.pmf.get(outcome, 0.0) - right.get(outcome, 0.0)
            least = max(least, gap, -gap - self.unexplored)
            most = max(most, abs(gap), abs(gap + self.unexplored))
        return least, most


_PLAIN = frozenset({int, bool, str, type(None)})


def freeze(value: Any, is_random: Callable[[Tensor], bool] = lambda _tensor: False) -> Hashable:
    """Make an outcome hashable: tensors, arrays and lists become nested tuples of numbers, NaN the word "nan".

    ``is_random`` tells whether random numbers were written into a tensor.
    """
    if type(value) in _PLAIN:  # at once: asking whether a number is a tensor takes longer than all else
        return value  # type: ignore[no-any-return]
    if type(value) is tuple:
        return value if _PLAIN.issuperset(map(type, value)) else tuple([freeze(v, is_random) for v in value])
    if isinstance(value, (SymbolicTensor, SymbolicNumber, SymbolicArray)) or (isinstance(value, Tensor) and is_random(value)):
        raise OpaqueRandomness("the code returned random numbers themselves; only what is decided by them has a finite law")
    if isinstance(value, (Tensor, numpy.ndarray, numpy.generic)):
        return freeze(value.tolist())
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v, is_random) for v in value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if hasattr(value, "rows") and callable(value.rows):
        return freeze(value.rows())
    try:
        hash(value)
    except TypeError:
        raise SubjectError(
            f"returned a {type(value).__name__}; the exact engine reads tensors, lists, tuples and numbers"
        ) from None
    return value  # type: ignore[no-any-return]


_FOREIGN = (random.Random, numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
_STAND_IN = ("Symbolic", "doesn't have storage", "TorchScript interpreter", "vmap")
"""What messages of Python, torch, torch.func and TorchScript say when they met a stand-in for a random tensor."""


def walk_rows(
    run: Callable[[list[int], Batch], Sequence[Any]], problems: int, *, rows: int, max_paths: int = DEFAULT_MAX_PATHS
) -> Explored:
    """All paths of several problems: ``run(numbers, batch)`` runs the code on the problems named, one per row.

    A sample of the paths is walked again, alone and (with more than one row per call) among other batch-mates; a different
    outcome or weight means that rows influence each other, or that the code is not a function of its draws.
    A walk that was stopped says what is left; when its time is up that sample is not walked.
    Errors: RowsCoupled (more than one row per call only), OpaqueRandomness, and
    SubjectError when the code raises.
    """

    def call(batch: Batch) -> list[Hashable]:
        numbers = [row.item.problem for row in batch.rows]
        try:
            with hearing(partial(setattr, batch, "refused")), intercepting(batch) as interception, drawing_for(interception):
                raw = run(numbers, batch)
        except SpecverifyError as error:
            if batch.refused is not None and error is not batch.refused:
                raise batch.refused from error  # the code fell over, or gave up, because of a refusal that it had caught
            raise
        except Exception as error:
            if batch.refused is not None:
                raise batch.refused from error
            if any(mark in str(error) for mark in _STAND_IN):
                raise OpaqueRandomness(_met(f"{type(error).__name__}: {error}")) from error
            weight = min(row.weight for row in batch.rows)
            raise SubjectError(f"raised {type(error).__name__}: {error} (on a path of probability {weight:.3g})") from error
        if batch.refused is not None:
            raise batch.refused
        outcomes = [freeze(outcome, interception.fills.holds) for outcome in raw]
        if len(outcomes) != len(numbers):
            raise SubjectError(f"returned {len(outcomes)} outcomes for {len(numbers)} rows")
        return outcomes

    try:
        with following():
            before = unseen()
            explored = explore(call, problems, rows=rows, max_paths=max_paths)
            if not (explored.why and time_is_up()):  # a part certifies nothing, and refutes only once it is confirmed
                _walk_again(call, explored.leaves, rows)
            after = unseen()
            if any(after.get(i, state) != state for i, state in before.items()):
                raise OpaqueRandomness(ELSEWHERE + " (a numpy generator that is kept in an object or a closure was drawn from)")
    except RowsCoupled as error:
        if rows > 1:
            raise
        raise OpaqueRandomness(
            f"the code is not a function of what it draws ({error}); it keeps state between calls, or draws random numbers by "
            "means that the exact engine does not see; to be analysable, draw with torch and start every call afresh"
        ) from None
    return replace(explored, confirm=partial(_confirm, call, explored.leaves, rows))


def _confirm(call: Callable[[Batch], list[Hashable]], leaves: list[Leaf], rows: int, walks: int) -> None:
    """Walk paths again, drawn by probability. Hidden randomness that moves mass d goes unseen with chance (1-d)^walks."""
    chosen = random.Random(walks).choices(leaves, [leaf.weight for leaf in leaves], k=walks)
    try:
        with following():
            try:
                for start in range(0, walks, rows):
                    with elsewhere_in_the_streams():
                        _compare(call, chosen[start : start + rows])
            except RowsCoupled:
                if rows == 1:
                    raise
                for leaf in chosen[:512]:  # rows that influence each other are no sign of hidden randomness: ask each alone
                    with elsewhere_in_the_streams():
                        _compare(call, [leaf])
    except RowsCoupled as error:
        raise OpaqueRandomness(
            f"the code is not a function of what it draws ({error}); it draws random numbers by means that the exact engine "
            "does not see; to be analysable, draw with torch"
        ) from None


@contextmanager
def _watching() -> Iterator[None]:
    """Refuse code that calls the system's generator, or numpy's or Python's in a way that is not followed, however seldom it
    matters.
    """
    seen: list[str] = []
    swallowed: list[str] = []

    def raised(frame: Any, event: str, arg: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and any(mark in str(arg[1]) for mark in _STAND_IN):
            swallowed.append(f"{arg[0].__name__}: {arg[1]}")
        return raised

    def look(frame: Any, event: str, called: Any) -> None:
        if event != "c_call" or called.__name__ in ("getstate", "get_state", "seed", "setstate", "set_state"):
            return
        if frame.f_code.co_filename in OWN_FILES or frame.f_code.co_filename.endswith("secrets.py"):
            return
        if isinstance(getattr(called, "__self__", None), _FOREIGN) or called.__name__ == "urandom":
            seen.append(called.__name__)

    before, tracing = sys.getprofile(), sys.gettrace()
    sys.setprofile(look)
    if tracing is None:
        sys.settrace(raised)
    try:
        yield
    finally:
        if tracing is None:
            sys.settrace(None)
        sys.setprofile(before if before is None or callable(before) else None)
        enable = getattr(before, "enable", None)  # of cProfile, which cannot be put back otherwise
        if enable is not None:
            enable()
    if seen:
        raise OpaqueRandomness(ELSEWHERE + f" (it called {seen[0]!r})")
    if swallowed:
        raise OpaqueRandomness(_met(swallowed[0]))


def _met(what: str) -> str:
    return (
        f"a random number met an operation that cannot be followed exactly ({what}); to be analysable, compare it with a "
        "threshold, or draw with torch.multinomial"
    )


def _mixed(leaves: list[Leaf]) -> list[Leaf]:
    """Put leaves into a fixed order without pattern (no generator is touched)."""
    rank = [zlib.crc32(b"%d" % i) for i in range(len(leaves))]
    return [leaves[i] for i in sorted(range(len(leaves)), key=rank.__getitem__)]


WATCHED = 8
"""Calls that are watched for draws by means that are not followed; watching makes a call several times slower."""


def _walk_again(call: Callable[[Batch], list[Hashable]], leaves: list[Leaf], rows: int) -> None:
    """Walk paths once more. Errors: RowsCoupled when one comes out differently; OpaqueRandomness.

    32 calls of one path each, repeating paths where there are fewer; with more than one row per call 8 of them and up to 16
    calls of full batches. The order has nothing to do with that of the first walk, so that counters show.
    """
    if not leaves:
        return
    sample = 32 if rows == 1 else 8
    heavy = sorted(leaves, key=lambda leaf: -leaf.weight)[: sample // 2]
    spread = heavy + leaves[:: max(1, 2 * len(leaves) // sample)][: sample - len(heavy)]
    alone = [[leaf] for leaf in _mixed([spread[i % len(spread)] for i in range(sample)])]
    batches: list[list[Leaf]] = []
    if rows > 1:
        step = max(1, len(leaves) // (rows * 16))
        mixed = _mixed(leaves[::step][: rows * 16])
        mixed = [mixed[i % len(mixed)] for i in range(max(len(mixed), 64))]
        batches = [mixed[i : i + rows] for i in range(0, len(mixed), rows)]
    for number, batch in enumerate(alone + batches):
        if time_is_up():
            raise PathBudgetExceeded(
                f"the time was up before a sample of {len(leaves)} paths could be walked again; give it more with --timeout"
            )
        with elsewhere_in_the_streams(), _watching() if number < WATCHED else nullcontext():
            _compare(call, batch)


def _compare(call: Callable[[Batch], list[Hashable]], again: Sequence[Leaf]) -> None:
    """Walk these paths in one call. Errors: RowsCoupled when one comes out differently from before."""
    batch = Batch([Item(leaf.problem, leaf.decisions, leaf.weight) for leaf in again])
    outcomes = call(batch)
    for leaf, row, outcome in zip(again, batch.rows, outcomes, strict=True):
        if outcome != leaf.outcome or tuple(row.decided) != leaf.decisions:
            raise RowsCoupled(f"the same decisions gave {leaf.outcome} first and {outcome} when walked again")


def induced_law(run: Callable[[], Any], *, max_paths: int = DEFAULT_MAX_PATHS) -> Law:
    """Exact law of what ``run()`` returns, over everything torch draws in it.

    ``run`` takes no argument, must not keep state between calls, and returns tensors, lists, tuples or numbers. The
    probabilities are products of conditional probabilities in float64. After ``max_paths`` paths, the likeliest first, the
    walk stops: ``unexplored`` is then what is left and :meth:`Law.deviation` gives bounds. Errors: OpaqueRandomness naming the
    operation and line when a random number is used in a way that cannot be followed; SubjectError when it raises.
    """
    explored = walk_rows(lambda _numbers, _batch: [run()], 1, rows=1, max_paths=max_paths)
    pmf: dict[Any, float] = masses((leaf.outcome, leaf.weight) for leaf in explored.leaves)
    return Law(pmf, len(explored.leaves), explored.calls, explored.left[0])
