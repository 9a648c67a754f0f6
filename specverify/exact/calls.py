"""Where do the streams of other libraries stand while a call of the code is under way? Shared by those that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
MOST_VALUES = 4096
"""Most values of a drawn integer that are told apart."""
GLOBAL_BITS = np.random.mtrand._rand._bit_generator
"""What numpy's global stream draws from."""


BASE: list[tuple[Any, Any]] = []
"""States of Python's and numpy's global streams when the walk of a law began; every call starts from them."""


@contextmanager
def drawing_for(call: Interception) -> Iterator[None]:
    """Within, draws belong to this call; streams that were drawn from are put back afterwards."""
    CALLS.append(call)
    try:
        yield
        for bits, _ in call.bit_generators:
            kind = "python" if hasattr(bits, "rng") else "numpy"
            call.streams.insist_on_known(("python", bits.rng.getstate()) if kind == "python" else frozen(bits.state))
    finally:
        CALLS.pop()
        for bits, state in call.bit_generators:
            bits.state = state


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
