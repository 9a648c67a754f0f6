"""Costs by phase and what they predict: the prompt left out, taking back and the loop in o, batches that wait for a row."""

from __future__ import annotations

import pytest
import torch
from scripted import ACCEPTING, DRAFTING, LOOP, TAKING_BACK, Scripted, Telling, v

from specverify.errors import SubjectError
from specverify.timing.clocks import WallClock
from specverify.timing.costs import impossible, round_seconds, tokens_per_pass
from specverify.timing.measure import Run, Sweep, measure
from specverify.timing.phases import Difference
from specverify.timing.record import timing_json
from specverify.timing.table import render

PROMPTS = torch.arange(12).reshape(4, 3) % 4


def _record(timing: Scripted, *, batch: int = 1, ks: tuple[int, ...] = (1, 3, 7)) -> dict:
    sweep = Sweep(timing.drafts, ks, tokens=128, repetitions=3, batch=batch)
    return timing_json(measure(timing, PROMPTS, sweep, clock=WallClock(timing.clock)), subject="scripted")


def test_reading_the_prompt_is_left_out_on_both_sides():
    """A prompt that costs 40 steps changes the speed-up of whole runs, not that of decoding, nor costs and prediction."""
    with_prompt, without = _record(Scripted(prompt_cost=40.0)), _record(Scripted())
    assert with_prompt["prompt_ms"] == pytest.approx(40_000)
    for one, other in zip(with_prompt["runs"], without["runs"], strict=True):
        assert one["speedup"] == pytest.approx(other["speedup"], rel=1e-5)
        assert one["costs"]["v"] == pytest.approx(other["costs"]["v"], rel=1e-5)
        assert one["remainder"] == pytest.approx(0, abs=1e-4)
        assert abs(one["off"]) < 1e-4
        assert one["whole_speedup"]["median"] != pytest.approx(other["whole_speedup"]["median"], rel=0.01)


def test_taking_back_and_the_loop_are_parts_of_o():
    """Further phases come on top of the rule, and nothing of the round remains."""
    record = _record(Telling())
    for run in record["runs"]:
        assert run["costs"]["parts"] == pytest.approx({"accept": ACCEPTING, "cache": TAKING_BACK, "loop": LOOP}, rel=1e-5)
        assert run["costs"]["o"] == pytest.approx(ACCEPTING + TAKING_BACK + LOOP, rel=1e-5)
        assert run["round"] == pytest.approx(v(run["k"]) + run["k"] * DRAFTING + run["costs"]["o"], rel=1e-4)
        assert run["remainder"] == pytest.approx(0, abs=1e-4)
    assert set(record["phases"]["aligned"]["3"]) == {"target", "draft", "verify", "accept", "cache", "loop"}
    assert "cache" in render(record)


def test_work_that_no_phase_shows_is_a_remainder_and_not_predicted():
    """A decoder that does more in a round than its phases show is slower than predicted by just that."""

    class Hiding(Telling):
        def phases(self, *a, **b):
            return Scripted.phases(self, *a, **b)

    for run in _record(Hiding())["runs"]:
        assert run["remainder"] == pytest.approx(TAKING_BACK + LOOP, abs=1e-4)
        assert run["off"] < -0.02


def test_a_batch_is_predicted_with_the_rounds_of_its_slowest_row():
    """In a batch rounds go on for the slowest row: fewer tokens per pass than per round, and prediction equals measurement."""
    for run in _record(Telling(acceptance=(0.7, 0.2)), batch=4)["runs"]:
        assert run["tokens_per_pass"] < run["tokens_per_round"]
        assert abs(run["off"]) < 1e-3


def test_without_phases_nothing_is_predicted():
    """A decoder that cannot tell its phases apart is measured all the same, and the table says that nothing is predicted."""

    class Opaque(Scripted):
        def phases(self, *a, **b):
            return {}

    record, other = _record(Opaque()), _record(Scripted())
    assert record["phases"] is None
    for run, same in zip(record["runs"], other["runs"], strict=True):
        assert (run["costs"], run["predicted_speedup"], run["off"], run["predicted_slower"]) == (None, None, None, None)
        assert run["speedup"] == same["speedup"]
    assert record["best"]["aligned"]["predicted_k"] is None
    assert "nothing predicted" in render(record)
    assert "nothing predicted" not in render(other)


def test_a_decoder_without_a_cache_is_compared_with_its_uncached_baseline():
    """Only the uncached baseline is asked for, and speed-ups are over it."""

    class Cacheless(Scripted):
        has_cache = False

    timing = Cacheless()
    record = _record(timing)
    assert (record["base"], set(record["baselines"])) == ("uncached", {"uncached"})
    assert "cached" not in {name for _, name, _ in timing.calls}
    assert record["runs"][0]["speedup"]["median"] == pytest.approx(3 * _record(Scripted())["runs"][0]["speedup"]["median"])
    assert "against the uncached baseline" in render(record)


def test_a_token_made_while_reading_the_prompt_is_none_of_the_rounds():
    """Where a run of one token takes no round, the rounds of a longer one made one token less."""
    run = Run(11.0, 9, [[3, 3]], first_seconds=1.0, first_rounds=0)
    assert tokens_per_pass(run, 9) == 4
    assert round_seconds(run) == 5
    assert tokens_per_pass(Run(11.0, 8, [[3, 3]], first_seconds=6.0, first_rounds=1), 8) == 4


def test_a_clock_too_coarse_for_the_run_is_said():
    """When a whole run takes no longer than a token there is no speed-up, and the message says what to do."""

    class Instant(Scripted):
        def _advance(self, cost: float) -> None:
            pass

    with pytest.raises(SubjectError, match="ask for more --tokens"):
        _record(Instant())


def test_a_phase_may_be_the_difference_of_two_calls():
    """A loop that is only seen from outside: nine rounds and a start of 7, less one round and the start, over eight."""

    class Outside(Telling):
        def phases(self, *a, **b):
            inside = super().phases(*a, **b)
            return {**inside, "loop": Difference(self.taking(7 + 9 * LOOP), self.taking(7 + LOOP), 8)}

    for run in _record(Outside())["runs"]:
        assert run["costs"]["parts"]["loop"] == pytest.approx(LOOP, rel=1e-5)
        assert run["remainder"] == pytest.approx(0, abs=1e-4)


def test_costs_that_cannot_be_are_named():
    """A verifying pass measured at half a step is said to be wrong; what costs what it should is not."""

    class Cheap(Telling):
        def phases(self, *a, **b):
            calls = super().phases(*a, **b)
            return {**calls, "verify": calls["accept"]}

    def samples_of(timing):
        return measure(timing, PROMPTS, Sweep(timing.drafts, (1, 3), tokens=64, repetitions=2), clock=WallClock(timing.clock))

    (said,) = impossible(samples_of(Cheap()))
    assert "at K = 1, 3 a pass" in said
    assert "do not trust the predictions" in said
    assert impossible(samples_of(Telling())) == []
