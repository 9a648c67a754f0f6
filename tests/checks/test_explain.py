"""Counterexamples say what a person must look at."""

from specverify.checks.explain import counterexample_from
from specverify.checks.single_step import measure
from specverify.faults.cases import C20_residual_never_empty
from specverify.laws import Pair, TableModel


def test_a_token_that_cannot_come_out_is_the_one_that_is_shown():
    """Where mass moved from a sure token to an impossible one, the impossible one is named, with its probability."""
    pair = Pair(TableModel.from_weights([[0, 1]]), TableModel.from_weights([[1, 0]]), 1)
    measurement, _ = measure(C20_residual_never_empty, pair)
    shown = counterexample_from(measurement, "x", "part")
    assert shown is not None
    assert (shown.token, shown.right) == (0, 0.0)
    assert 0 < shown.got < 1e-8
    assert "instead of 0" in shown.lines[-1]
