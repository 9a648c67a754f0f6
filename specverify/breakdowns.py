"""Did something break down for good while a test ran? What a crashed or hung process of a subject leaves to be known.

A check may catch an error and ask again, which is right for code that fails on certain inputs. A process that died is
another matter: asking a fresh one again would judge the law of those answers that were survived. So whoever loses a process
says so here, and a test during which that happened is an error, whatever else it found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_noted: ContextVar[list[str] | None] = ContextVar("specverify_breakdowns", default=None)


@contextmanager
def noting_breakdowns() -> Iterator[list[str]]:
    """Collect what breaks down inside the block, in order."""
    found: list[str] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def note_breakdown(message: str) -> None:
    """Say that something broke down; outside of a test nobody listens, and the error that is raised says it all."""
    found = _noted.get()
    if found is not None:
        found.append(message)


def broken_here() -> list[str] | None:
    """The list of the test that runs now, the same object throughout the test; None outside of one."""
    return _noted.get()
