"""What a clock counts: everything a call started, nothing that came before, on a scripted device and on a real one."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from specverify.errors import UsageError
from specverify.timing.clocks import UNJOINED, CudaClock, ProcessClock, WallClock, clock_for


class Device:
    """A device with a current stream and another one: work is queued, and the host moves on."""

    def __init__(self) -> None:
        self.host = self.current = self.other = 0.0
        self.log: list[str] = []
        self.cuda = SimpleNamespace(Event=self._event, synchronize=self._synchronise, device=lambda _: nullcontext())

    def now(self) -> float:
        """Time on the host."""
        return self.host

    def work(self, seconds: float, stream: str = "current") -> None:
        """Queue work that takes so long after what is queued there already."""
        setattr(self, stream, max(getattr(self, stream), self.host) + seconds)

    def _synchronise(self) -> None:
        self.log.append("synchronise")
        self.host = max(self.host, self.current, self.other)

    def _event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace()

        def record() -> None:
            self.log.append("record")
            event.at = self.current = max(self.current, self.host)

        def synchronize() -> None:
            self.host = max(self.host, event.at)

        event.record, event.synchronize = record, synchronize
        event.elapsed_time = lambda later: 1000 * (later.at - event.at)
        return event


def _timed(device: Device, call) -> float:
    return CudaClock(cuda=device.cuda, now=device.now).timed(call)[0]


def test_the_wall_clock_takes_the_difference_of_two_readings():
    """A call between readings 3 and 10 took 7 and returns what it returns."""
    readings = iter([3.0, 10.0])
    assert WallClock(lambda: next(readings)).timed(lambda: "made") == (7.0, "made")


def test_work_that_is_only_queued_is_counted():
    """A call that returns at once leaves two seconds of work on the device: two seconds."""
    device = Device()
    assert _timed(device, lambda: device.work(2.0)) == pytest.approx(2.0)


def test_work_queued_before_is_not_counted():
    """Five seconds queued by an earlier call are waited for before the first event."""
    device = Device()
    device.work(5.0)
    assert _timed(device, lambda: device.work(2.0)) == pytest.approx(2.0)
    assert device.log[:2] == ["synchronise", "record"]


def test_host_work_counts_where_the_device_waits_for_it():
    """A second on the host before two on the device, and one after it is done: four seconds in all."""
    device = Device()

    def call() -> None:
        device.host += 1
        device.work(2.0)
        device.host += 3

    assert _timed(device, call) == pytest.approx(4.0)


def test_work_left_on_another_stream_is_counted():
    """Three seconds on another stream end a second after the two on the current one."""
    device = Device()

    def call() -> None:
        device.work(2.0)
        device.work(3.0, "other")

    assert _timed(device, call) == pytest.approx(3.0)


def test_asking_an_idle_device_is_no_work():
    """A last synchronisation that takes microseconds is not added."""
    device = Device()
    assert _timed(device, lambda: device.work(UNJOINED / 2, "other")) == 0.0


def test_cuda_is_timed_with_events_and_everything_else_on_the_wall():
    """The device decides the clock."""
    assert isinstance(clock_for("cuda:0"), CudaClock)
    assert isinstance(clock_for("cpu"), WallClock)
    assert isinstance(clock_for(None), WallClock)
    assert (clock_for("cuda").kind, clock_for(None).kind) == ("CUDA events", "wall clock")
    with pytest.raises(UsageError, match="--clock cpu counts no work of a CUDA device"):
        clock_for("cuda", "cpu")


def test_processor_time_does_not_pass_while_waiting():
    """A sleep counts on the wall and not for the processor."""
    clock = clock_for(None, "cpu")
    assert (type(clock), clock.kind) == (ProcessClock, "processor time")
    asleep = 0.05
    assert WallClock().timed(lambda: time.sleep(asleep))[0] >= asleep
    assert clock.timed(lambda: time.sleep(asleep))[0] < asleep


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_real_device_more_work_takes_longer():
    """Forty products of large matrices take longer than four, by events as by the wall, though both calls return at once."""
    x = torch.randn(4096, 4096, device="cuda")

    def products(n: int):
        return lambda: [x @ x for _ in range(n)]

    for clock in (clock_for("cuda"), WallClock()):
        clock.timed(products(4))
        assert clock.timed(products(40))[0] > 3 * clock.timed(products(4))[0]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_real_device_other_streams_are_waited_for():
    """Work on a stream of its own counts although the current stream has none."""
    x, stream = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream()

    def aside() -> None:
        with torch.cuda.stream(stream):
            for _ in range(40):
                x @ x

    clock = clock_for("cuda")
    clock.timed(aside)
    assert clock.timed(aside)[0] > 0.5 * WallClock().timed(aside)[0]
