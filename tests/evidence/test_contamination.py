"""Does a pass mean what it says? Coverage of the bounds on contamination, and power that comes as announced."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specverify.evidence.contamination import (
    SHARES,
    Growth,
    growths,
    largest_share,
    log_likelihood,
    ratios_of,
    seen_by_now,
    share_on_grid,
)
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.watch import TableWatch
from specverify.laws import Array, Ints

P = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
Q = np.array([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])


def counted(law: Array, n: int, rng: np.random.Generator) -> Ints:
    """Counts (C, V) of n tokens in each context."""
    return rng.multinomial(n, law)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_the_bound_covers_the_true_share(share: float) -> None:
    """At alpha = 0.2, of 300 streams looked at ten times each, at most 0.2 plus three standard errors ever exclude it."""
    rows = Rows(P, Q)
    ratios = ratios_of(rows, "accept_always")
    law = (1 - share) * P + share * FAULT_LAWS["accept_always"](At.everywhere(rows))
    missed = 0
    for run in range(300):
        rng = np.random.default_rng(run)
        counts = np.zeros(P.shape, np.int64)
        wrong = False
        for _ in range(10):
            counts += counted(law, 30, rng)
            wrong |= largest_share(counts, ratios, 0.2) < share
        missed += wrong
    assert missed / 300 <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 300)


def test_the_bound_shrinks_with_the_tokens() -> None:
    """From nothing known to a small share of an exact stream, in the inverse of the root of the tokens or faster."""
    rng = np.random.default_rng(0)
    ratios = ratios_of(Rows(P, Q), "accept_always")
    none = largest_share(np.zeros(P.shape, np.int64), ratios, 0.01)
    few, many = (largest_share(counted(P, n, rng), ratios, 0.01) for n in (1_000, 100_000))
    assert none == 1.0
    assert many < few / 5 < 0.2


def test_a_stream_of_the_fault_excludes_nothing_of_it() -> None:
    """Where all tokens follow the fault its share may be 1."""
    rng = np.random.default_rng(1)
    rows = Rows(P, Q)
    y = FAULT_LAWS["accept_always"](At.everywhere(rows))
    assert largest_share(counted(y, 5_000, rng), ratios_of(rows, "accept_always"), 0.01) == 1.0


def test_likelihood_is_concave_and_the_grid_is_coarser_than_the_bound() -> None:
    """The bound from levels lies at or above that from all shares, at the next level up."""
    rng = np.random.default_rng(2)
    ratios = ratios_of(Rows(P, Q), "resample_from_target")
    counts = counted(P, 20_000, rng)
    values = [log_likelihood(share / 50, counts, ratios) for share in range(51)]
    assert np.all(np.diff(values, 2) <= 1e-9)
    levels = np.array(SHARES[1:])
    coarse = share_on_grid(levels, np.array([log_likelihood(level, counts, ratios) for level in levels]), 0.01)
    fine = largest_share(counts, ratios, 0.01)
    assert fine <= coarse
    assert levels[levels < coarse].max() <= fine
    assert share_on_grid(levels, np.zeros(len(levels)), 0.01) == 1.0


@pytest.mark.parametrize("name", ["accept_always", "lenience", "resample_from_target", "match_with_residual"])
def test_power_comes_as_announced(name: str) -> None:
    """Of 40 streams of the fault at least 36 are refuted within the tokens that are said to suffice for 99 of 100."""
    rows = Rows(P, Q)
    y = FAULT_LAWS[name](At.everywhere(rows))
    growth = growths(rows, np.array([0.5, 0.5]), with_q=True)[name]
    refuted = 0
    for run in range(40):
        rng = np.random.default_rng(run)
        watch = TableWatch(P, Q, seed=run)
        weight = next(a.weight for a in watch.process.alternatives if (a.name, a.level) == (name, 1.0))
        needed = math.ceil(growth.tokens(1e-4, weight))
        contexts = rng.integers(0, 2, (1, needed))
        tokens = (y.cumsum(1)[contexts] <= rng.random(contexts.shape)[..., None]).sum(-1)
        watch.add(contexts, np.minimum(tokens, 2))
        refuted += watch.process.refutes(1e-4)
        assert seen_by_now(growth, needed, 1e-4, weight)
        assert not seen_by_now(growth, needed // 2, 1e-4, weight)
    assert refuted >= 36


def test_growth_of_what_cannot_be_told_apart_and_of_the_impossible() -> None:
    """Where p = q no rule errs and no number of tokens suffices; a fault that emits what p never does needs one such token."""
    same = growths(Rows(P, P), np.array([0.5, 0.5]), with_q=True)
    assert math.isinf(same["accept_always"].tokens(0.01, 1.0))
    p = np.array([[0.5, 0.5, 0.0]])
    other = growths(Rows(p, Q[:1]), np.array([1.0]), with_q=True)
    assert other["accept_always"].impossible == pytest.approx(0.3)
    assert other["accept_always"].tokens(0.01, 1.0) <= math.log(100) / 0.3
    assert Growth(0.0, 0.0, 0.5).tokens(1e-9, 1e-3) == pytest.approx(math.log(100) / 0.5)
    assert set(growths(Rows(P, P), np.array([0.5, 0.5]), with_q=False)) == {"naive_accept", "target_unwarped"}
