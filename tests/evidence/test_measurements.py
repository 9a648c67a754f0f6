"""Measurements: judged from their numbers alone, and the same after a trip through JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest

from specverify.errors import CertificateError, UsageError
from specverify.evidence import (
    BoundMeasurement,
    CellGroup,
    CellMeasurement,
    CoverageMeasurement,
    LawMeasurement,
    Ledger,
    OutcomeMeasurement,
    RateMeasurement,
    ViolationMeasurement,
    worst,
)
from specverify.evidence.measurements import from_json
from specverify.evidence.multinomial import fit_test
from specverify.laws import Pair, TableModel, sequence_law
from specverify.pairs import named_pair

PAIR = Pair(TableModel.from_weights([[1, 2]]), TableModel.from_weights([[1, 1]]), 1)
RIGHT = {(0,): 1 / 6, (0, 0): 1 / 18, (0, 1): 1 / 9, (1, 0): 2 / 9, (1, 1): 4 / 9}

CASES = [
    (LawMeasurement(PAIR, 1, {(0,): 1 / 3, (1,): 2 / 3}), "certified"),
    (LawMeasurement(PAIR, 2, RIGHT), "certified"),
    (LawMeasurement(PAIR, 1, {(0,): 0.5, (1,): 0.5}), "refuted"),
    (LawMeasurement(PAIR, 1, {(0,): 1 / 3 + 1e-9, (1,): 2 / 3 - 1e-9}), "refuted"),
    (LawMeasurement(PAIR, 1, {(0,): 1 / 3 + 1e-9, (1,): 2 / 3 - 1e-9}, "float32"), "certified"),
    (LawMeasurement(PAIR, 1, {(0,): 1 / 3}), "error"),
    (CellMeasurement("x", (CellGroup("g", (50, 50), (0.5, 0.5)),)), "certified"),
    (CellMeasurement("x", (CellGroup("g", (100, 0), (0.5, 0.5)),)), "refuted"),
    (CellMeasurement("x", (CellGroup("g", (50, 50), (0.5, 0.5)),), 1, "token 3"), "refuted"),
    (CellMeasurement("x", ()), "skipped"),
    (RateMeasurement("x", 5, 10, 0.5), "certified"),
    (RateMeasurement("x", 100, 100, 0.5), "refuted"),
    (BoundMeasurement("x", 0.5, 0.5, 1e-12), "certified"),
    (BoundMeasurement("x", 0.6, 0.5, 1e-12), "refuted"),
    (ViolationMeasurement("x", 0, 10), "certified"),
    (ViolationMeasurement("x", 1, 10, "e"), "refuted"),
    (ViolationMeasurement("x", 0, 0), "inconclusive"),
    (CoverageMeasurement({"accepted": 100}, 20), "certified"),
    (CoverageMeasurement({"accepted": 3}, 20), "inconclusive"),
    (CoverageMeasurement({}, 20, known=False), "certified"),
    (OutcomeMeasurement("error", "boom", "again"), "error"),
    (OutcomeMeasurement("skipped", "opaque"), "skipped"),
]


@pytest.mark.parametrize(("measurement", "verdict"), CASES, ids=lambda c: getattr(c, "kind", c))
def test_the_verdict_follows_from_the_numbers(measurement, verdict):
    """Each measurement is judged as stated, before and after a trip through JSON."""
    assert measurement.judge(1e-9).verdict == verdict
    again = from_json(json.loads(json.dumps(measurement.to_json())))
    assert again.judge(1e-9) == measurement.judge(1e-9)


def test_unknown_or_broken_measurements_are_named():
    """A measurement that cannot be read says so, with its kind."""
    with pytest.raises(CertificateError, match="unknown kind"):
        from_json({"kind": "wish"})
    with pytest.raises(CertificateError, match="rate"):
        from_json({"kind": "rate", "successes": 1})


def test_a_refutation_outweighs_everything():
    """Refuted before error before inconclusive before certified; skips decide nothing."""
    assert worst(["certified", "error", "refuted", "inconclusive"]) == "refuted"
    assert worst(["certified", "error", "inconclusive"]) == "error"
    assert worst(["certified", "skipped"]) == "certified"
    assert worst([]) == "skipped"


def test_the_ledger_sums_to_its_total():
    """Shares are equal, positive and sum to alpha; exact tests have none."""
    ledger = Ledger.split(1e-8, [f"t{i}" for i in range(7)])
    assert ledger.spent == pytest.approx(1e-8, rel=1e-12)
    assert ledger.share("t3") == pytest.approx(1e-8 / 7)
    assert ledger.share("exact") == 0
    for alpha in (0, -1, 0.6, 1e-300, float("nan")):
        with pytest.raises(UsageError, match="alpha"):
            Ledger.split(alpha, ["a"])


def part_of_a_law(unexplored, moved=0.0):
    """A measurement (V = 2, K = 1) of all but ``unexplored`` of the right law, with ``moved`` of it on the wrong token."""
    pair = named_pair(2, 1)
    right = sequence_law(pair.target, 2, pair.prompt)
    emitted = {(i, j): float(right[i, j]) for i in range(2) for j in range(2)}
    last = max(emitted, key=emitted.__getitem__)
    other = min(emitted, key=emitted.__getitem__)
    emitted[last] -= unexplored + moved
    emitted[other] += moved
    return LawMeasurement(pair, 2, emitted, unexplored=unexplored)


def test_a_part_of_the_right_law_is_inconclusive_with_the_largest_deviation_left():
    """What was not explored may fall anywhere: nothing is off for sure, and nothing by more than that."""
    measurement = part_of_a_law(0.01)
    least, most = measurement.deviation()
    assert (least, most) == pytest.approx((0.0, 0.01), abs=1e-12)
    judgement = measurement.judge(0)
    assert judgement.verdict == "inconclusive"
    assert "0.990000 of the probability was explored" in judgement.reason


@pytest.mark.parametrize(("moved", "verdict"), [(0.005, "refuted"), (0.0, "inconclusive")])
def test_a_part_of_a_wrong_law_is_refuted_when_the_rest_cannot_mend_it(moved, verdict):
    """Mass on a token beyond its right probability stays there whatever the other paths return."""
    measurement = part_of_a_law(0.01, moved)
    judgement = measurement.judge(0)
    assert judgement.verdict == verdict
    assert judgement.numbers["deviation"] == pytest.approx(moved, abs=1e-12)
    assert from_json(measurement.to_json()).judge(0) == judgement


def test_bounds_of_a_part_hold_for_every_rest():
    """However the mass that is left falls, the largest deviation lies between the bounds."""
    measurement = part_of_a_law(0.02, 0.003)
    least, most = measurement.deviation()
    ours, right = measurement.laws()
    rng = np.random.default_rng(1)
    for share in (*np.eye(4), *rng.dirichlet(np.ones(4), 50)):
        deviation = np.abs(ours + 0.02 * share.reshape(2, 2) - right).max()
        assert least - 1e-12 <= deviation <= most + 1e-12


def test_a_part_whose_mass_does_not_add_up_is_an_error():
    """What was explored and what was not make 1."""
    measurement = replace(part_of_a_law(0.01), unexplored=0.5)
    assert measurement.judge(0).verdict == "error"


def test_declared_rounding_is_paid_for_with_every_draw():
    """Evidence is lowered by the widening times the draws, also where p alone would have been rounded to 0."""
    groups = (CellGroup("g", (5_600, 4_400), (0.5, 0.5)), CellGroup("h", (90_000, 10_000), (0.5, 0.5)))
    strict = CellMeasurement("x", groups)
    log_e = fit_test(groups).log_e
    assert log_e > 10_000
    assert strict.judge(1e-8).numbers["p"] == 0
    for widened, verdict in ((log_e / 110_000 - 1e-3, "refuted"), (log_e / 110_000 - 1e-5, "certified")):
        lowered = CellMeasurement("x", groups, widened=widened)
        assert lowered.judge(1e-8).verdict == verdict
        assert from_json(lowered.to_json()) == lowered
    assert CellMeasurement("x", groups, 1, "token 3", 1.0).judge(1e-8).verdict == "refuted"
