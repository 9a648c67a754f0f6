"""Measuring, with a decoder whose clock is scripted."""

from __future__ import annotations

import pytest
import torch
from scripted import ACCEPTING, DRAFTING, SLOWNESS, Scripted, v

from specverify.errors import SubjectError
from specverify.subjects import Generated
from specverify.timing.clocks import CudaClock, WallClock
from specverify.timing.measure import Samples, Sweep, measure
from specverify.timing.record import machine_note, spread, timing_json
from specverify.timing.table import render

PROMPTS = torch.arange(12).reshape(4, 3) % 4
SWEEP = Sweep(("aligned", "mismatched"), (1, 3, 7), tokens=128, repetitions=3)


def _measured(timing: Scripted, sweep: Sweep = SWEEP) -> Samples:
    return measure(timing, PROMPTS, sweep, clock=WallClock(timing.clock))


@pytest.fixture(scope="module")
def record() -> dict:
    """Everything about the scripted decoder."""
    return timing_json(_measured(Scripted()), subject="scripted")


def _runs(record: dict, draft: str) -> dict[int, dict]:
    return {run["k"]: run for run in record["runs"] if run["draft"] == draft}


def test_speedups_are_ratios_within_a_repetition(record):
    """A machine whose speed changes between repetitions leaves the speed-up alone, quartiles included."""
    for k, run in _runs(record, "aligned").items():
        exact = (k + 1) / (v(k) + k * DRAFTING + ACCEPTING)
        assert run["speedup"] == pytest.approx({"median": exact, "low": exact, "high": exact}, rel=1e-5)
        assert run["tps"]["low"] < run["tps"]["median"] < run["tps"]["high"]


def test_rates_are_medians_with_quartiles_and_the_warm_up_is_left_out(record):
    """Repetitions at slowness 1, 2 and 0.5 make 1, 1/2 and 2 tokens per unit of time; the warm-up shows nowhere."""
    assert SLOWNESS == (50.0, 1.0, 2.0, 0.5)
    assert record["baselines"]["cached"] == {"median": 1.0, "low": 0.75, "high": 1.5}
    assert record["baselines"]["uncached"]["median"] == pytest.approx(1 / 3, rel=1e-5)


def test_costs_and_prediction_are_those_of_the_script(record):
    """c, v and o come out as scripted, nothing remains, and prediction equals measurement."""
    for run in record["runs"]:
        costs = {name: run["costs"][name] for name in "cvo"}
        assert costs == pytest.approx({"c": DRAFTING, "v": v(run["k"]), "o": ACCEPTING}, rel=1e-5)
        assert run["costs"]["parts"] == pytest.approx({"accept": ACCEPTING}, rel=1e-5)
        assert run["remainder"] == pytest.approx(0, abs=1e-4)
        assert run["predicted_speedup"] == pytest.approx(run["speedup"]["median"], rel=1e-4)


def test_a_mismatched_draft_is_reported_as_slower(record):
    """Nothing accepted is slower from K = 1, measured and predicted; all accepted never is, and K = 7 is best."""
    assert record["slower_from"] == record["predicted_slower_from"] == {"aligned": None, "mismatched": 1}
    assert [run["predicted_slower"] for run in record["runs"]] == [False] * 3 + [True] * 3
    assert (record["best"]["aligned"]["k"], record["best"]["aligned"]["predicted_k"]) == (7, 7)
    assert record["best"]["mismatched"]["k"] == 1
    assert {run["accepted_per_tested"] for run in record["runs"]} == {0.0, 1.0}


def test_every_repetition_runs_everything_in_an_order_of_its_own():
    """Each repetition times all configurations once and the cached baseline three times, shuffled anew."""
    timing = Scripted()
    _measured(timing)
    everything = sorted([*[("cached", 0)] * 3, ("uncached", 0), *SWEEP.configurations])
    orders = [[(n, k) for s, n, k in timing.calls if s == seed] for seed in timing.seeds]
    blocks = [timing.calls[i : i + len(everything)] for i in range(0, len(timing.calls), len(everything))]
    assert len(orders) == len(blocks) == 1 + SWEEP.repetitions
    assert all(sorted(order) == everything for order in orders)
    assert all(len({seed for seed, _, _ in block}) == 1 for block in blocks)
    assert len({tuple(order) for order in orders}) > 1


def test_the_seed_fixes_order_and_tokens():
    """The same seed repeats every call; another seed makes other ones."""
    calls = []
    for seed in (0, 0, 1):
        timing = Scripted()
        _measured(timing, Sweep(("aligned",), (1, 2), tokens=24, repetitions=2, seed=seed))
        calls.append(timing.calls)
    assert calls[0] == calls[1] != calls[2]


def test_acceptance_of_batches_is_pooled_over_rows():
    """Rows that end at different rounds are all counted, and a draft accepted with 0.7 shows that rate."""
    timing = Scripted(acceptance=(0.7, 0.1))
    record = timing_json(_measured(timing, Sweep(timing.drafts, (2, 4), tokens=200, batch=4)), subject="scripted")
    for run in record["runs"]:
        wanted = {"aligned": 0.7, "mismatched": 0.1}[run["draft"]]
        assert run["accepted_per_tested"] == pytest.approx(wanted, abs=0.03)
        assert run["tokens_per_round_iid"] == pytest.approx(run["tokens_per_round"], rel=0.03)
        assert run["remainder"] == pytest.approx(0, abs=1e-4)  # the rounds of a batch are those of its longest row


def test_the_table_names_what_was_found(record):
    """The printed table has a line for every K, the best K, and where speculation starts to lose."""
    text = render(record)
    assert "best K = 7 (x3.56), predicted K = 7 (x3.56); not slower at the largest K" in text
    assert "slower from K = 1; predicted slower from K = 1 (E < v + K c + o)" in text
    assert sum(line.startswith(("  1 ", "  3 ", "  7 ")) for line in text.splitlines()) == 6 + 3  # and what a round is made of


def test_spread_is_median_and_quartiles():
    """Of 1, 2, 3, 4, 10 the median is 3 and the quartiles are 2 and 4."""
    assert spread([10, 1, 4, 2, 3]) == {"median": 3.0, "low": 2.0, "high": 4.0}


def test_the_machine_is_named_as_what_it_is():
    """Few cores, a load or scattered repetitions make a machine noisy; otherwise it is quiet."""
    steady, scattered = ({"median": 100.0, "low": 99.0, "high": h} for h in (101.0, 140.0))
    assert machine_note(16, 0.3, steady, 0.99) == "quiet: quartiles of the baseline 2% apart"
    assert machine_note(2, 0.0, steady).startswith("a small machine (2 cores)")
    assert machine_note(2, 0.0, scattered).startswith("a small, noisy machine (2 cores, quartiles")
    assert "other processes took 30% of the time; --clock cpu leaves them out" in machine_note(16, 0.0, steady, 0.7)
    assert "a load of 12.0 when the run began" in machine_note(16, 12.0, steady)
    assert "41% apart" in machine_note(16, None, scattered)


class _Events(CudaClock):
    def timed(self, call):
        return WallClock().timed(call)


def test_the_share_of_the_processor_is_told_by_the_wall_clock_alone():
    """Where a device is timed its ids may stand on the host, and what the processor did meanwhile says nothing."""
    few = Sweep(("aligned",), (1,), tokens=24, repetitions=1)
    assert measure(Scripted(), PROMPTS, few).share > 0
    assert measure(Scripted(), PROMPTS, few, clock=_Events()).share is None


class _Silent(Scripted):
    def speculative(self, *a, **b) -> Generated:
        return Generated(super().speculative(*a, **b).tokens)


class _Short(Scripted):
    def baseline(self, *a, **b) -> torch.Tensor:
        return super().baseline(*a, **b)[:, :-1]


class _Stopped(Scripted):
    def speculative(self, *a, **b) -> Generated:
        made = super().speculative(*a, **b)
        return Generated(made.tokens, made.accepted[:, :1])


class _Crashing(Scripted):
    def phases(self, *a, **b) -> dict:
        raise RuntimeError("no cache")


class _Partial(Scripted):
    def phases(self, *a, **b) -> dict:
        return {"target": lambda: None}


@pytest.mark.parametrize(
    ("timing", "message"),
    [
        (_Silent(), "K=1: returned no accepted counts"),
        (_Short(), "a timed run must make exactly"),
        (_Stopped(), "K=1: rounds emitted . of 6 tokens; while timing, ignore an end of text"),
        (_Crashing(), "K=1 failed while being timed: RuntimeError: no cache"),
        (_Partial(), r"K=1: phases\(\) lacks draft, verify, accept"),
    ],
)
def test_a_run_that_cannot_be_timed_says_why(timing, message):
    """What a timing got wrong is named with the configuration it happened in."""
    with pytest.raises(SubjectError, match=message):
        _measured(timing, Sweep(timing.drafts, (1,), tokens=24, repetitions=1))
