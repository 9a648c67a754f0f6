"""How is code refused that cannot be followed? With the operation and the source line, and so that it cannot hide it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import torch

from specverify.errors import OpaqueRandomness, SpecverifyError

_INVISIBLE = tuple(str(Path(home).parent) for home in (torch.__file__, numpy.__file__, __file__))


def source_line() -> str:
    """``file:line (function)`` of the innermost frame outside torch, numpy and this engine."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_INVISIBLE, "<")):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


_listeners: list[Callable[[SpecverifyError], None]] = []
"""Who is told of refusals in the call under way: the code may catch them."""


@contextmanager
def hearing(note: Callable[[SpecverifyError], None]) -> Iterator[None]:
    """Within, every refusal is told to ``note`` when it is made."""
    _listeners.append(note)
    try:
        yield
    finally:
        _listeners.pop()


def heard(error: OpaqueRandomness) -> OpaqueRandomness:
    """Tell of a refusal and return it, to be raised."""
    if _listeners:
        _listeners[-1](error)
    return error


def opaque(operation: str, hint: str = "") -> OpaqueRandomness:
    """The error for an operation whose effect on the law is not followed."""
    advice = hint or "compare the random number with a threshold, let it race with others, or draw with torch.multinomial"
    return heard(
        OpaqueRandomness(
            f"{operation} on a random number at {source_line()} cannot be followed exactly; to be analysable, {advice}"
        )
    )
