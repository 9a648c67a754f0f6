"""Is every bet fair under exactness? All payoffs by enumeration, for all kinds of laws."""

from __future__ import annotations

import numpy as np
import pytest
from odd_laws import laws_of

from specverify.evidence.bets import DIRECTIONS, FAULT_LEVELS, TILTS, alternatives, divergences, payoffs
from specverify.evidence.dependence import KINDS, LEVELS, Drawn, dependence_alternatives, log_payoffs, pair_payoffs
from specverify.evidence.eprocess import Alternative, EProcess
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.ranks import CELLS, CONCENTRATIONS, Ranks, lower, lower_at, rank_alternatives
from specverify.laws import Array, kl_divergence


@pytest.mark.parametrize("v", [2, 3, 5, 40])
def test_no_bet_on_one_token_gains_under_exactness(v: int) -> None:
    """Payoffs are at least -1 and have mean 0 under p, or less where a fault emits what p never does."""
    p, q = laws_of(60, v, 4)
    rows = Rows(p, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        faults, tilts = payoffs(rows, At.everywhere(rows), with_q=True)
    there = p > 0
    means = (np.where(there, faults, 0.0) * p).sum(-1)
    lost = np.stack([np.where(there, 0.0, law(At.everywhere(rows))).sum(-1) for law in FAULT_LAWS.values()])
    np.testing.assert_allclose(means, -lost, atol=1e-12)
    np.testing.assert_allclose((np.where(there, tilts, 0.0) * p).sum(-1), 0, atol=1e-12)
    assert np.where(there, faults, 0.0).min() >= -1 - 1e-12
    assert np.abs(np.where(there, tilts, 0.0)).max() <= 1 + 1e-12
    assert max(abs(t) for t in TILTS) < 1


def test_alternatives_stand_in_the_order_of_their_payoffs() -> None:
    """One per fault and level, then one per direction and tilt; fewer where the draft is not known."""
    for with_q in (True, False):
        p, q = laws_of(8, 4, 5)
        rows = Rows(p, q)
        with np.errstate(divide="ignore", invalid="ignore"):
            faults, tilts = payoffs(rows, At.everywhere(rows), with_q)
        names = [a.name for a in alternatives(with_q)]
        assert len(names) == len(FAULT_LEVELS) * len(faults) + len(TILTS) * len(tilts)
        assert list(dict.fromkeys(names))[: len(faults)] == [n for n in FAULT_LAWS if n in names]
        assert list(dict.fromkeys(names))[len(faults) :] == [n for n in DIRECTIONS if n in names]


def test_divergences_are_those_of_the_laws() -> None:
    """KL(y || p) by its definition, infinite where the fault emits what p never does."""
    p, q = laws_of(20, 4, 6)
    found = divergences(Rows(p, q), with_q=True)
    for name, law in FAULT_LAWS.items():
        y = law(At.everywhere(Rows(p, q)))
        for i in range(20):
            assert found[name][i] == pytest.approx(kl_divergence(y[i], p[i]), abs=1e-12), name


def pairs_of(p: Array, first: int, second: int) -> tuple[Array, Array]:
    """Payoffs (3, V, V) of two tokens of two rows of p, and the probabilities of the first tokens."""
    low = lower(p, None)[0]
    v = p.shape[1]
    x, y = np.arange(v)[:, None], np.arange(v)[None]
    one, two = Drawn(low[first, x], p[first, x]), Drawn(low[second, y], p[second, y])
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = pair_payoffs(one, two, (x == y) * 1.0, p[second, x])
    return paid, p[first]


def test_no_bet_on_pairs_gains_under_independence() -> None:
    """Given any first token that can come payoffs have mean 0, and logarithms are those of 1 + l payoff."""
    p, _ = laws_of(30, 5, 7)
    for first, second in ((4, 5), (5, 4), (6, 6), (7, 20)):
        paid, law = pairs_of(p, first, second)
        for x in np.flatnonzero(law > 0):
            there = p[second] > 0
            np.testing.assert_allclose((paid[:, x, there] * p[second, there]).sum(-1), 0, atol=1e-12)
            assert paid[:, x, there].min() >= -1 - 1e-12
            logs = log_payoffs(paid[:, x, there])
            np.testing.assert_allclose((np.exp(logs) * p[second, there]).sum(-1), 1, atol=1e-12)
    bets = len(LEVELS) * (len(KINDS) + 1)
    assert len(dependence_alternatives()) == 8 * bets


def test_the_same_uniform_is_the_law_of_inverting_it_twice() -> None:
    """The bet at level 1 is exactly the law of the second token when both invert one uniform."""
    p, _ = laws_of(30, 5, 8)
    paid, law = pairs_of(p, 9, 10)
    grid = (np.arange(200_000) + 0.5) / 200_000
    one, two = (np.searchsorted(p[row].cumsum(), grid * p[row].sum()) for row in (9, 10))
    joint = np.zeros((5, 5))
    np.add.at(joint, (one, two), 1 / len(grid))
    there = (law[:, None] > 0) & (p[10][None] > 0)
    said = np.where(there, (paid[0] + 1) * law[:, None] * p[10][None], 0.0)
    np.testing.assert_allclose(said, joint, atol=3e-5)


def test_lower_ends_at_single_tokens_are_those_of_the_whole_law() -> None:
    """Sorting and comparing agree, ties included, in every order."""
    p, q = laws_of(60, 6, 9)
    whole = lower(p, q)
    for x in range(6):
        there = p[:, x] > 0
        found = lower_at(p, q, np.full(60, x))
        np.testing.assert_allclose(found[:, there], whole[:, there, x], atol=1e-12)


def test_evidence_of_ranks_is_a_fair_mixture() -> None:
    """Summed over everything that two draws can do, the mixture has mean 1 (a Dirichlet-multinomial against the even law)."""
    total = np.zeros(len(CONCENTRATIONS))
    for second in range(CELLS):
        ranks = Ranks(1)
        rng = np.random.default_rng(0)
        at = np.array([[(0 + 0.25) / CELLS], [(second + 0.25) / CELLS]])
        logs = sum(ranks.add(low[None], np.array([0.5 / CELLS]), rng) for low in at)
        total += np.exp(logs) / CELLS
    np.testing.assert_allclose(total, 1, atol=1e-9)
    assert len(rank_alternatives(True)) == 3 * len(CONCENTRATIONS)


def test_no_bet_pays_less_than_nothing_where_rounding_leaves_a_law_below_zero() -> None:
    """Sharp laws: every payoff is a number, and none lies below -1."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 28)) * 12
    p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (logits, logits + 12 * rng.normal(size=logits.shape)))
    rows = Rows(p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True))
    assert any((law(At.everywhere(rows)) < 0).any() for law in FAULT_LAWS.values())
    faults, tilts = payoffs(rows, At.everywhere(rows), with_q=True)
    assert faults.min() >= -1
    assert np.isfinite(faults).all()
    assert np.isfinite(tilts).all()


def test_a_payoff_that_is_no_number_is_an_error() -> None:
    """Not a wealth that never refutes again."""
    process = EProcess([Alternative("fault", "lenience", 1.0, 1.0)])
    with pytest.raises(ValueError, match="bets on lenience"):
        process.add(np.array([np.nan]), 1)
