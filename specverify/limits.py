"""What if a test does not end? An alarm that neither a subject nor Hypothesis can swallow."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specverify.errors import (
    SubjectTimeout,
)


class Alarm(BaseException):
    """Time is up. Not an Exception, so that neither a subject nor Hypothesis takes it for a failure of its own."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise SubjectTimeout in the main thread after ``seconds``; elsewhere, and where there are no alarms, do nothing."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signum: int, _frame: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Alarm:
        raise SubjectTimeout(
            f"did not come back within {seconds:g} s; give it more with --timeout, or look for a loop that does not end"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
