"""What speculation is worth: measured and printed. A speed is never asserted, only that the measurement is sound."""

import math

import pytest


def test_every_configuration_was_measured(timing):
    """Both baselines and every draft at every K have a speed and a prediction, finite and positive."""
    drafts, ks = set(timing["best"]), {run["k"] for run in timing["runs"]}
    assert {(run["draft"], run["k"]) for run in timing["runs"]} == {(d, k) for d in drafts for k in ks}
    speeds = [timing["baselines"]["cached"], timing["baselines"]["uncached"]]
    speeds += [run[name] for run in timing["runs"] for name in ("tps", "speedup")]
    numbers = [x for speed in speeds for x in (speed["low"], speed["median"], speed["high"])]
    numbers += [run["predicted_speedup"] for run in timing["runs"]]
    numbers += [cost for run in timing["runs"] for cost in run["costs"].values()]
    assert all(math.isfinite(x) and x > 0 for x in numbers)


def test_acceptance_lies_within_its_limits(timing):
    """Rates lie in [0, 1], the one per drafted token not above the one per tested token, and E in [1, K + 1]."""
    for run in timing["runs"]:
        assert 0 <= run["accepted_per_drafted"] <= run["accepted_per_tested"] <= 1, run
        assert 1 <= run["tokens_per_round"] <= run["k"] + 1, run


def test_tokens_per_round_follow_from_acceptance(timing):
    """A round emits its accepted tokens and one more: E = 1 + K accepted / drafted."""
    for run in timing["runs"]:
        assert run["tokens_per_round"] == pytest.approx(1 + run["k"] * run["accepted_per_drafted"], rel=1e-4), run


def test_the_best_draft_is_accepted_most(timing):
    """The draft named first, the aligned one, is accepted more often than the one named last."""
    drafts = list(timing["best"])
    if len(drafts) < 2:
        pytest.skip("the subject has a single draft")
    first, last = ([r["accepted_per_tested"] for r in timing["runs"] if r["draft"] == d] for d in (drafts[0], drafts[-1]))
    assert sum(first) > sum(last)
