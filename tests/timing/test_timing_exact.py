"""Tokens per round against their exact value along the texts, with rules that accept as they should and others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scripted import Telling

from specverify.errors import SubjectError
from specverify.timing.clocks import WallClock
from specverify.timing.exact import against_exact, places_of, pooled, rates_by_position
from specverify.timing.measure import Sweep, measure
from specverify.timing.record import timing_json
from specverify.timing.table import render

PROMPTS = torch.arange(12).reshape(4, 3) % 4


def _betas(*rounds: list[float]) -> torch.Tensor:
    return torch.tensor([rounds], dtype=torch.float64)


def test_sums_over_tested_places_by_hand():
    """K = 2: a round that accepts both tests both, one that rejects the first tests one; what was not tested may be NaN."""
    places = places_of([[2, 0]], 100, 2, _betas([0.5, 0.9], [0.4, math.nan]))
    assert (places.rounds, places.tested.tolist(), places.accepted.tolist()) == (2, [2, 1], [1, 1])
    assert places.beta == pytest.approx([0.9, 0.9])
    assert places.variance == pytest.approx([0.25 + 0.24, 0.09])
    found = against_exact(places)
    assert (found.measured, found.exact) == pytest.approx((2.0, 1.9))
    assert found.error == pytest.approx(math.sqrt(0.58) / 2)
    assert found.z == pytest.approx(0.2 / math.sqrt(0.58))
    assert rates_by_position(places) == [(2, 0.5, pytest.approx(0.45)), (1, 1.0, pytest.approx(0.9))]


def test_rounds_that_may_have_been_cut_are_left_out():
    """Only rounds that count for E count here: with 8 tokens and K = 3 the second of these begins with 4 to go."""
    places = places_of([[3, 3]], 8, 3, torch.full((1, 2, 3), 0.5))
    assert (places.rounds, places.tested.tolist()) == (1, [1, 1, 1])


def test_positions_never_reached_have_no_rate():
    """Where no draft was tested there is neither a share accepted nor an exact mean."""
    assert rates_by_position(places_of([[0, 0]], 100, 2, torch.full((1, 2, 2), 0.5)))[1] == (0, None, None)


def test_without_exact_probabilities_only_rates_are_known():
    """No exact value, no error and no z, but the shares accepted by position."""
    places = places_of([[1, 0]], 100, 2)
    assert against_exact(places) is None
    assert rates_by_position(places) == [(2, 0.5, None), (1, 0.0, None)]


@pytest.mark.parametrize(("accepted", "z"), [([2, 2], 0.0), ([2, 1], -math.inf)])
def test_where_nothing_is_left_to_chance_another_outcome_is_impossible(accepted, z):
    """With every acceptance certain, all accepted is as it should be, and one rejection cannot be."""
    assert against_exact(places_of([accepted], 100, 2, torch.ones(1, 2, 2))).z == z


@pytest.mark.parametrize(
    ("betas", "message"),
    [
        (torch.full((1, 1, 2), math.nan), "gave .nan, nan. for the drafts tested in row 0, round 1"),
        (torch.full((1, 1, 2), 1.5), "for the drafts tested in row 0, round 1; give the probability"),
        (torch.ones(1, 1, 3), r"gave \(1, 1, 3\) for 1 rows; expected \(B, R, 2\)"),
        (torch.ones(1, 0, 2), "fewer rounds than the 1 that were run"),
        ([[0.5]], "gave list for 1 rows"),
    ],
)
def test_probabilities_that_cannot_be_are_refused(betas, message):
    """What exact_acceptance got wrong is said with the place."""
    with pytest.raises(SubjectError, match=message):
        places_of([[1]], 100, 2, betas)


def test_the_score_is_standard_normal_for_an_exact_rule_and_not_for_a_wrong_one():
    """Over 400 texts whose acceptance depends on what came before, z has mean 0 and variance 1; five points more show."""
    rng = np.random.default_rng(5)
    exact, wrong = [], []
    for _ in range(400):
        counts, betas, level = [], [], 0.5
        for _ in range(60):
            row = [float(np.clip(level + 0.1 * j, 0.05, 0.95)) for j in range(3)]
            taken = int((rng.random(3) < row).cumprod().sum())
            counts.append(taken)
            betas.append(row)
            level = 0.2 + 0.2 * taken  # the next round depends on this one
        exact.append(against_exact(places_of([counts], 10**6, 3, _betas(*betas))).z)
        lower = [[b - 0.05 for b in row] for row in betas]
        wrong.append(places_of([counts], 10**6, 3, _betas(*lower)))
    assert abs(np.mean(exact)) < 5 / math.sqrt(400)
    assert np.var(exact) == pytest.approx(1, abs=5 * math.sqrt(2 / 400))
    assert against_exact(pooled(wrong)).z > 10


def _record(timing: Telling) -> dict:
    sweep = Sweep(timing.drafts, (1, 4), tokens=400, repetitions=3, batch=2)
    return timing_json(measure(timing, PROMPTS, sweep, clock=WallClock(timing.clock)), subject="scripted")


def test_the_record_holds_measured_and_exact_tokens_per_round():
    """A decoder that tells its exact acceptance has E, exact E, error and z for every run, and they agree."""
    for run in _record(Telling())["runs"]:
        exact = run["exact"]
        assert exact["possible"]
        assert abs(exact["z"]) < 5
        assert run["tokens_per_round"] - exact["tokens_per_round"] == pytest.approx(exact["z"] * exact["error"], abs=1e-4)
        assert len(run["by_position"]) == run["k"]
        assert run["by_position"][0]["exact"] == pytest.approx({"aligned": 0.8, "mismatched": 0.2}[run["draft"]])


def test_a_rule_that_accepts_too_often_is_named_in_the_table():
    """Acceptance of ten points above what the laws say lies beyond the error, and the table says where."""
    record = _record(Telling(wrong=-0.1))
    assert all(run["exact"]["z"] > 4 for run in record["runs"])
    assert "E is not the exact one at K = 1, 4" in render(record)
    assert "E is not the exact one" not in render(_record(Telling()))
