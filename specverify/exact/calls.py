"""Where do the streams of other libraries stand while a call of the code is under way? Shared by those that follow them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from specverify.exact.interception import Interception
from specverify.exact.streams import State

ELSEWHERE = (
    "the code drew random numbers in a way that the exact engine does not follow; to be analysable, draw with torch, or call "
    "random.random() and numpy.random by their modules, and make numpy generators inside the call"
)
IMPORTED: list[str] = []
"""Modules that were imported during the walk and drew from Python's stream by themselves."""
CALLS: list[Interception] = []
"""The call under way, if any (the innermost last)."""
REAL_STATE = np.random.RandomState
GLOBAL_BITS = np.random.mtrand._rand._bit_generator
"""What numpy's global stream draws from."""


BASE: list[tuple[Any, Any]] = []
"""States of Python's and numpy's global streams when the walk of a law began; every call starts from them."""


@dataclass(frozen=True)
class Stream:
    """A stream of another library. source: what holds it; read and put: its state as the library gives and takes it; named:
    such a state as something that can be looked up; start: where it stood when the call began.
    """

    source: Any
    read: Callable[[], Any]
    put: Callable[[Any], None]
    named: Callable[[Any], State]
    start: Any


@contextmanager
def drawing_for(call: Interception) -> Iterator[None]:
    """Within, draws belong to this call; streams that were drawn from are put back afterwards. Errors: OpaqueRandomness when
    one of them was drawn from unseen.
    """
    CALLS.append(call)
    try:
        yield
        for stream in call.elsewhere.values():
            call.streams.insist_on_known(stream.named(stream.read()))
    finally:
        CALLS.pop()
        for stream in call.elsewhere.values():
            stream.put(stream.start)


def draw(stream: Stream, spec: Any, really: Callable[[], Any]) -> tuple[State, Any]:
    """Move a stream as the real draw does. Returns its state before, and what was drawn from that state earlier, if anything.
    Errors: OpaqueRandomness when it stands where no draw that was seen has left it.
    """
    call = CALLS[-1]
    if id(stream.source) not in call.elsewhere:
        call.elsewhere[id(stream.source)] = stream
        call.streams.left.add(stream.named(stream.start))
    state = stream.named(stream.read())
    call.streams.insist_on_known(state)
    with letting_through():
        really()
    call.streams.left.add(stream.named(stream.read()))
    return state, call.streams.known(state, spec)


def frozen(state: Any) -> State:
    """A numpy state as something that can be looked up."""

    def freeze(value: Any) -> Any:
        if isinstance(value, dict):
            return tuple((k, freeze(v)) for k, v in value.items())
        return value.tobytes() if isinstance(value, np.ndarray) else value

    return "numpy", freeze(state)


@contextmanager
def letting_through() -> Iterator[None]:
    """Within, draws are real: the libraries' own functions call each other."""
    held = CALLS[:]
    CALLS.clear()
    try:
        yield
    finally:
        CALLS.extend(held)
