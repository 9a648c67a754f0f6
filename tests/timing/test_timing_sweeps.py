"""Temperatures and batches: a sweep at each beside its own baseline, and where speculation stops paying."""

from __future__ import annotations

import pytest
import torch
from scripted import Scripted, Telling

from specverify.errors import SubjectError, UsageError
from specverify.timing.clocks import WallClock
from specverify.timing.measure import Sweep, measure
from specverify.timing.opening import Opened
from specverify.timing.record import timing_json
from specverify.timing.sweeps import read_batches, read_temperatures, sweep_batches, sweep_temperatures
from specverify.timing.table import render

PROMPTS = torch.arange(12).reshape(4, 3) % 4
SWEEP = Sweep(("aligned",), (2, 4), tokens=200, repetitions=2, uncached=False, base_runs=1, phase_calls=2)
STEADY = (1.0,)


def _opened(timing: Scripted, most: int | None = None) -> Opened:
    return Opened("scripted", timing, PROMPTS, most)


def _temperatures(timing: Scripted, temperatures=(0.0, 0.7, 1.0), heard=lambda _: None) -> dict:
    return sweep_temperatures(_opened(timing), temperatures, SWEEP, WallClock(timing.clock), heard)


def _batches(timing: Scripted, batches=(1, 2, 4, 8), most: int | None = None) -> dict:
    return sweep_batches(_opened(timing, most), batches, SWEEP, WallClock(timing.clock), lambda _: None)


def test_every_temperature_has_its_own_sweep():
    """A decoder that accepts a^T of its drafts is fastest at 0, where it accepts all, and every run is predicted."""
    heard: list[str] = []
    swept = _temperatures(Telling(slowness=STEADY), heard=heard.append)["at"]
    assert [one["temperature"] for one in swept] == [0.0, 0.7, 1.0]
    accepted = [one["runs"][0]["accepted_per_tested"] for one in swept]
    assert accepted == pytest.approx([1.0, 0.8**0.7, 0.8], abs=0.06)
    assert accepted[0] == 1.0
    best = [one["best"]["aligned"] for one in swept]
    assert best[0]["speedup"] > best[1]["speedup"] > best[2]["speedup"]
    assert all(abs(run["off"]) < 0.01 for one in swept for run in one["runs"])
    assert all(set(one["baselines"]) == {"cached"} for one in swept)
    assert len(heard) == 3 * SWEEP.steps()


def test_without_other_temperatures_it_is_said_what_to_add():
    """A decoder that has no at() is not an error: the record names what is missing, and so does the table."""
    found = _temperatures(Scripted(slowness=STEADY))
    assert "at(temperature)" in found["missing"]
    timing = Scripted()
    record = timing_json(
        measure(timing, PROMPTS, SWEEP, clock=WallClock(timing.clock)), subject="s", further={"temperatures": found}
    )
    assert "note: temperatures need timing.at(temperature)" in render(record)


def test_a_temperature_that_fails_leaves_the_others():
    """An error at one temperature is written down there."""

    class OnlyWarm(Telling):
        def at(self, temperature: float) -> Telling:
            if temperature == 0:
                raise ValueError("greedy is not supported")
            return super().at(temperature)

    cold, warm = _temperatures(OnlyWarm(slowness=STEADY), (0.0, 1.0))["at"]
    assert cold == {"temperature": 0.0, "failed": "ValueError: greedy is not supported"}
    assert warm["best"]["aligned"]["speedup"] > 1


def test_the_batch_from_which_speculation_stops_paying():
    """A round that costs 0.5 more for every further row pays up to 4 rows and not with 8: measured and predicted."""
    found = _batches(Telling(waiting=0.5, acceptance=(0.9, 0.1), slowness=STEADY))
    assert [one["batch"] for one in found["at"]] == [1, 2, 4, 8]
    speedups = list(found["best"].values())
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[2] > 1 > speedups[3]
    assert (found["stops_paying"], found["predicted_stops_paying"]) == (8, 8)


def test_where_every_batch_pays_none_is_named():
    """Without the further cost speculation pays at every size, and the sentence says up to which."""
    timing = Telling(acceptance=(0.9, 0.1), slowness=STEADY)
    found = _batches(timing, (1, 2, 4))
    assert (found["stops_paying"], found["predicted_stops_paying"]) == (None, None)
    record = timing_json(
        measure(timing, PROMPTS, SWEEP, clock=WallClock(timing.clock)), subject="s", further={"batches": found}
    )
    assert "speculation pays up to batch 4, the largest; predicted: pays up to batch 4, the largest" in render(record)


def test_batches_beyond_the_declared_one_are_left_out():
    """Sizes above max_batch are not run, and named."""
    found = _batches(Telling(slowness=STEADY), (1, 2, 4), most=2)
    assert [one["batch"] for one in found["at"]] == [1, 2]
    assert found["left_out"] == [4]


def test_a_batch_that_fails_is_no_judgement():
    """A size that cannot be run is written down, and where speculation stops paying is judged from the others."""

    class Single(Telling):
        def baseline(self, prompts, *a, **b):
            if len(prompts) > 2:
                raise SubjectError("one row at a time")
            return super().baseline(prompts, *a, **b)

    found = _batches(Single(slowness=STEADY), (1, 2, 4))
    assert "one row at a time" in found["at"][2]["failed"]
    assert set(found["best"]) == {"1", "2"}


@pytest.mark.parametrize("text", ["", "hot", "-1", "0,0", "nan", "1,,2"])
def test_temperatures_that_cannot_be_are_refused(text):
    """Only different numbers from 0 on are temperatures."""
    with pytest.raises(UsageError, match="--temperatures"):
        read_temperatures(text)
    assert read_temperatures("0,0.7,1") == (0.0, 0.7, 1.0)


@pytest.mark.parametrize("text", ["", "two", "0", "1.5"])
def test_batches_that_cannot_be_are_refused(text):
    """Only whole numbers from 1 on are batch sizes; they are sorted and each taken once."""
    with pytest.raises(UsageError, match="--batches"):
        read_batches(text)
    assert read_batches("8,1,2,2") == (1, 2, 8)
