"""How is Python's ``random`` followed? Its methods hand out symbolic numbers while a call is under way."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from specverify.exact.calls import BASE, CALLS, IMPORTED, Stream, draw
from specverify.exact.interception import MOST_INTEGERS
from specverify.exact.number import SymbolicNumber
from specverify.exact.refusals import opaque
from specverify.exact.seeds import SMALLEST_RANGE, Seed
from specverify.exact.streams import State
from specverify.exact.symbolic import SymbolicTensor

_REAL_RANDOM = random.Random.random
_REAL_BELOW = random.Random._randbelow  # type: ignore[attr-defined]
_REAL_BITS = random.Random.getrandbits
_ENGINE = str(Path(__file__).with_name("engine.py"))


def _draw(rng: random.Random, spec: Any, really: Callable[[], Any]) -> tuple[State, Any]:
    start = BASE[-1][0] if rng is random._inst else rng.getstate()
    return draw(Stream(rng, rng.getstate, rng.setstate, lambda state: ("python", state), start), spec, really)


def _new_number(state: State, spec: Any, found: Any) -> SymbolicNumber:
    call = CALLS[-1]
    if found is None:
        found = call.batch.new_atoms(call.owners(torch.Size(()), None))
        call.streams.remember(state, spec, found)
    return SymbolicNumber(SymbolicTensor.make(found.reshape(()), call.batch, torch.float64))


def _idle() -> bool:
    """Whether a draw is none of the code's: outside a call, or by a module that is being imported by then."""
    if not CALLS:
        return True
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != _ENGINE:  # no farther than the code under analysis
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            IMPORTED.append(frame.f_code.co_filename)
            return True
        frame = frame.f_back
    return False


def followed_random(self: random.Random) -> Any:
    """``Random.random``: a symbolic number."""
    if _idle():
        return _REAL_RANDOM(self)
    state, found = _draw(self, "random", lambda: _REAL_RANDOM(self))
    return _new_number(state, "random", found)


def _integer(state: State, spec: Any, found: Any, low: int, high: int) -> int:
    """One of low .. high - 1."""
    call = CALLS[-1]
    if found is None and high - low >= SMALLEST_RANGE:
        found = Seed.drawn(low, high)
        call.streams.remember(state, spec, found)
    if found is None:
        if not 0 < high - low <= MOST_INTEGERS:
            raise opaque(f"drawing one of {high - low} integers", f"draw from at most {MOST_INTEGERS}")
        owner = call.owners(torch.Size(()), None)[0]
        found = low + call.batch.rows[owner].decide([1.0 / (high - low)] * (high - low))
        call.streams.remember(state, spec, found)
    return found  # type: ignore[no-any-return]


def followed_below(self: random.Random, n: int) -> int:
    """``Random._randbelow``, which randrange, choice, shuffle and sample call: one of n."""
    if _idle():
        return int(_REAL_BELOW(self, n))
    state, found = _draw(self, ("below", n), lambda: _REAL_BELOW(self, n))
    return _integer(state, ("below", n), found, 0, n)


def followed_bits(self: random.Random, k: int) -> int:
    """``Random.getrandbits``: one of 2**k, a seed where k is large."""
    if _idle():
        return _REAL_BITS(self, k)
    state, found = _draw(self, ("bits", k), lambda: _REAL_BITS(self, k))
    return _integer(state, ("bits", k), found, 0, 1 << k)


def through(real: Callable[[Any], float], name: str) -> Callable[[Any], Any]:
    """A function of ``math`` that also takes random numbers."""
    return lambda x, *more: x.mapped(name) if isinstance(x, SymbolicNumber) and not more else real(x, *more)
