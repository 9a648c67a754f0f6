"""What speculation is worth: measured and printed. A speed is never asserted, only that the measurement is sound."""

import math

import pytest


def test_every_configuration_was_measured(timing):
    """The baselines and every draft at every K have a speed, and a prediction where phases are told, finite and positive."""
    drafts, ks = set(timing["best"]), {run["k"] for run in timing["runs"]}
    assert {(run["draft"], run["k"]) for run in timing["runs"]} == {(d, k) for d in drafts for k in ks}
    assert timing["base"] in timing["baselines"]
    speeds = [*timing["baselines"].values(), *(run[name] for run in timing["runs"] for name in ("tps", "speedup"))]
    numbers = [x for speed in speeds for x in (speed["low"], speed["median"], speed["high"])]
    foreseen = [run for run in timing["runs"] if run["costs"] is not None]
    numbers += [run["predicted_speedup"] for run in foreseen]
    numbers += [run["costs"][name] for run in foreseen for name in "cvo"]
    assert all(math.isfinite(x) and x > 0 for x in numbers)


def _counted(timing):
    runs = [run for run in timing["runs"] if run["tokens_per_round"] is not None]
    if not runs:
        pytest.skip("the subject reports no accepted counts")
    return runs


def test_acceptance_lies_within_its_limits(timing):
    """Rates lie in [0, 1], the one per drafted token not above the one per tested token, and E in [1, K + 1]."""
    for run in _counted(timing):
        assert 0 <= run["accepted_per_drafted"] <= run["accepted_per_tested"] <= 1, run
        assert 1 <= run["tokens_per_round"] <= run["k"] + 1, run


def test_tokens_per_round_follow_from_acceptance(timing):
    """A round emits its accepted tokens and one more: E = 1 + K accepted / drafted."""
    for run in _counted(timing):
        assert run["tokens_per_round"] == pytest.approx(1 + run["k"] * run["accepted_per_drafted"], rel=1e-4), run


def test_tokens_per_round_are_those_of_the_laws(timing):
    """Along the texts that were made, as many drafts are accepted as their laws say, within six Monte-Carlo errors."""
    known = [run for run in _counted(timing) if run["exact"] is not None]
    if not known:
        pytest.skip("the subject does not tell with which probability its drafts are accepted")
    for run in known:
        assert run["exact"]["possible"], run
        assert abs(run["exact"]["z"]) < 6, run


def test_the_best_draft_is_accepted_most(timing):
    """The draft named first, the aligned one, is accepted more often than the one named last."""
    drafts = list(timing["best"])
    if len(drafts) < 2:
        pytest.skip("the subject has a single draft")
    counted = _counted(timing)
    first, last = ([r["accepted_per_tested"] for r in counted if r["draft"] == d] for d in (drafts[0], drafts[-1]))
    assert sum(first) > sum(last)
