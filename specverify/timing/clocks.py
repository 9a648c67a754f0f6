"""How long did a call take? On the host by a clock between synchronisations, on CUDA by events that the device stamps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from specverify.errors import UsageError

T = TypeVar("T")

UNJOINED = 100e-6
"""Seconds: how long the device may still be busy after the events of a call before that counts as its work too. Asking an idle
device whether it is done takes some microseconds, which are no work of the call."""


class Clock(Protocol):
    """Something that times a call."""

    kind: str
    """How it measures, in words, for the record."""

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        """Seconds of one call, and what it returned. Whatever the call started has ended when this returns."""
        ...


class WallClock:
    """Reads ``now``, seconds, before and after. CUDA is waited for where this process uses it: its calls return early."""

    kind = "wall clock"

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        """Seconds between two readings, with nothing pending at either."""
        _wait_for_cuda()
        began = self.now()
        result = call()
        _wait_for_cuda()
        return self.now() - began, result


def _wait_for_cuda() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


class CudaClock:
    """Two events on the current stream of a device, with nothing pending before the first and after the second.

    The second event is stamped once all that the call put on the current stream is done, and not before the call has
    returned, so host work counts wherever the device waits for it. What the call left running on other streams counts from
    there on, measured by the host, when it is more than ``UNJOINED``. ``cuda`` stands in for ``torch.cuda`` in tests.
    """

    kind = "CUDA events"

    def __init__(
        self, device: torch.device | str = "cuda", *, cuda: Any = torch.cuda, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.device = torch.device(device)
        self.cuda = cuda
        self.now = now

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        """Seconds between two events around the call, and what the call left unfinished on other streams."""
        with self.cuda.device(self.device):
            first, last = (self.cuda.Event(enable_timing=True) for _ in range(2))
            self.cuda.synchronize()
            first.record()
            result = call()
            last.record()
            last.synchronize()
            joined = self.now()
            self.cuda.synchronize()
            late = self.now() - joined
            return first.elapsed_time(last) / 1000 + (late if late > UNJOINED else 0.0), result


class ProcessClock(WallClock):
    """Counts the processor seconds of this process, so that what other processes take is no part of it.

    It says what the wall clock says on a quiet machine, for work of this process in one thread. Waiting, other processes and
    devices do not count, and several threads count several times.
    """

    kind = "processor time"

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        super().__init__(now)


def clock_for(device: str | None, kind: str = "wall") -> Clock:
    """Events for a CUDA device; for anything else the wall clock, or with "cpu" the processor's time. Errors: UsageError."""
    if device is not None and torch.device(device).type == "cuda":
        if kind == "cpu":
            raise UsageError("--clock cpu counts no work of a CUDA device; leave it out with --device cuda")
        return CudaClock(device)
    return ProcessClock() if kind == "cpu" else WallClock()
