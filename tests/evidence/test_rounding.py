"""Is the price of a tolerance what it must be? Never too low under any law within it, and no higher than the worst of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from odd_laws import laws_of

from specverify.evidence.bets import payoffs
from specverify.evidence.contamination import growths
from specverify.evidence.eprocess import EProcess
from specverify.evidence.passing import power
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.rounding import fault_price, largest_mean, prices
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.evidence.wealth import measured
from specverify.laws import Array

RNG = np.random.default_rng(0)


def moved(p: Array, tolerance: float, rng: np.random.Generator) -> Array:
    """A law whose logits are off by the tolerance, each one way or the other, or by less."""
    off = rng.choice([-1.0, 1.0], p.shape) * tolerance * rng.choice([1.0, 1.0, rng.random()])
    law: Array = p * np.exp(off)
    return law / law.sum(-1, keepdims=True)


@pytest.mark.parametrize("tolerance", [0.01, 0.2, 1.0])
def test_the_largest_mean_is_the_best_threshold(tolerance: float) -> None:
    """Found over all thresholds of the payoff, which is where a maximum of a ratio of linear functions lies."""
    p = RNG.dirichlet(np.ones(6), size=20)
    g = RNG.normal(size=(3, 20, 6))
    best = np.full((3, 20), -np.inf)
    for threshold in np.unique(g):
        weights = p * np.where(g >= threshold, math.exp(tolerance), math.exp(-tolerance))
        best = np.maximum(best, (weights * g).sum(-1) / weights.sum(-1))
    np.testing.assert_allclose(largest_mean(p, g, tolerance), best, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(largest_mean(p, g, 0.0), (p * g).sum(-1))


@pytest.mark.parametrize("tolerance", [0.005, 0.1, 0.7])
def test_no_bet_gains_under_any_law_within_the_tolerance(tolerance: float) -> None:
    """Every bet on a fault or a direction, divided by its price, has mean 1 at most under 200 moved laws, by enumeration."""
    p, q = laws_of(40, 5, 3)
    rows = Rows(p, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        faults, tilts = (np.where(p > 0, one, 0.0) for one in payoffs(rows, At.everywhere(rows), with_q=True))
    price, made = prices(p, faults, tilts, tolerance)
    watch = TableWatch(p, q, logit_tolerance=tolerance)
    pays = np.exp(watch._logs.reshape(len(watch._logs), *p.shape) - price[..., None])
    worst = 0.0
    for _ in range(200):
        worst = max(worst, float((pays * moved(p, tolerance, RNG)).sum(-1).max()))
    assert worst <= 1 + 1e-9
    assert worst > 1 - tolerance
    assert (pays[~made] == 1).all()


def test_tables_and_streams_pay_the_same() -> None:
    """With a tolerance every bet has the same wealth either way, and the same evidence without it."""
    p, q = (RNG.dirichlet(np.ones(5), size=4) for _ in range(2))
    table, stream = TableWatch(p, q, seed=1, logit_tolerance=0.1), StreamWatch(True, 5, seed=1, logit_tolerance=0.1)
    for _ in range(3):
        contexts = RNG.integers(0, 4, (6, 8))
        tokens = np.minimum((p.cumsum(1)[contexts] <= RNG.random((6, 8, 1))).sum(-1), 4)
        table.add(contexts, tokens)
        stream.add(p[contexts], q[contexts], tokens)
    np.testing.assert_allclose(table.process.logs, stream.process.logs, atol=1e-9)
    assert table.log_e_strict == pytest.approx(stream.log_e_strict)
    plain = TableWatch(p, q, seed=1)
    assert plain.log_e_strict == plain.log_e
    assert isinstance(plain.process, EProcess)


@pytest.mark.parametrize(("name", "tolerance"), [("accept_always", 0.1), ("resample_from_target", 0.02), ("lenience", 0.05)])
def test_a_fault_that_is_larger_than_the_tolerance_is_refuted_with_it(name: str, tolerance: float) -> None:
    """Though its bets pay; and it is not called hidden."""
    p, q = (RNG.dirichlet(np.ones(4), size=3) for _ in range(2))
    rows = Rows(p, q)
    y = FAULT_LAWS[name](At.everywhere(rows))
    growth = growths(rows, np.full(3, 1 / 3), with_q=True, tolerance=tolerance)[name]
    assert growth.spread > tolerance
    assert growth.mean > 0
    watch = TableWatch(p, q, logit_tolerance=tolerance)
    for _ in range(200):
        contexts = RNG.integers(0, 3, (50, 10))
        watch.add(contexts, np.minimum((y.cumsum(1)[contexts] <= RNG.random((50, 10, 1))).sum(-1), 3))
        if watch.process.refutes(1e-8):
            break
    assert watch.process.refutes(1e-8)
    assert measured("x", watch).judge(1e-8).verdict == "refuted"


def test_a_fault_within_the_tolerance_is_hidden_and_one_beyond_that_no_bet_shows_is_left() -> None:
    """The first is no fault at that tolerance; the second keeps a run from passing."""
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.49, 0.31, 0.2]])
    rows, shares = Rows(p, q), np.ones(1)
    growing = growths(rows, shares, with_q=True, tolerance=0.1)
    assert growing["accept_always"].spread == pytest.approx((math.log(0.31 / 0.3) - math.log(0.49 / 0.5)) / 2)
    bets = [one for one, _ in measured("x", TableWatch(p, q, logit_tolerance=0.1)).bets]
    found = power(growing, bets, 1.0, 0.1, 10**9, 1e-8)
    assert "accept_always" in found.hidden
    assert "naive_accept" in found.seen
    tight = power({"accept_always": growing["accept_always"]}, bets, 1.0, 0.001, 10**9, 1e-8)
    assert math.isinf(tight.needed["accept_always"])


def test_the_price_of_a_fault_is_nothing_without_a_tolerance() -> None:
    """And grows with it."""
    p, q = (RNG.dirichlet(np.ones(4), size=3) for _ in range(2))
    payoff = FAULT_LAWS["lenience"](At.everywhere(Rows(p, q))) / p - 1
    free, little, much = (fault_price(p, payoff[None], 1.0, d)[0] for d in (0.0, 0.02, 0.1))
    np.testing.assert_allclose(free, 0.0, atol=1e-12)
    assert (little > free).all()
    assert (much > little).all()
    price, made = fault_price(p, payoff[None], 1.0, 5.0)
    assert not made.any()
    assert (price == 0).all()
