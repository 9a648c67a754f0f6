"""Tests of fit: the stated guarantee under the null, and the power the twin promises."""

import itertools
import math

import numpy as np
import pytest

from specverify.evidence.multinomial import CellGroup, detectable_tv, draws_to_refute, fit_test, log_evidence, pool_small
from specverify.evidence.rates import rate_above, rate_off, trials_to_refute


def outcomes(n: int, k: int):
    """All ways to put n draws into k cells."""
    for cuts in itertools.combinations(range(n + k - 1), k - 1):
        edges = (-1, *cuts, n + k - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


def multinomial_mass(counts: tuple[int, ...], probs: tuple[float, ...]) -> float:
    """Probability of the counts."""
    n = sum(counts)
    log = (
        math.lgamma(n + 1)
        - sum(math.lgamma(c + 1) for c in counts)
        + sum(c * math.log(p) for c, p in zip(counts, probs, strict=True))
    )
    return math.exp(log)


@pytest.mark.parametrize("probs", [(0.5, 0.5), (0.999, 0.001), (0.2, 0.3, 0.5), (0.98, 0.01, 0.01), (0.7, 0.1, 0.1, 0.1)])
@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_the_bound_holds_for_every_outcome(probs, n):
    """The exact probability that the bound comes out at most alpha is at most alpha, for every attainable alpha."""
    rows = []
    for counts in outcomes(n, len(probs)):
        test = fit_test([CellGroup("all", counts, probs)])
        rows.append((test.p, multinomial_mass(counts, probs)))
    rows.sort()
    reached = 0.0
    for position, (p, mass) in enumerate(rows):
        reached += mass
        if position + 1 == len(rows) or rows[position + 1][0] > p * (1 + 1e-12):
            assert reached <= p * (1 + 1e-9) + 1e-15, (probs, n, p, reached)


def test_the_bound_holds_for_groups_together():
    """The bound for two groups at once is met by exact enumeration of both."""
    p1, p2, n1, n2 = (0.9, 0.1), (0.3, 0.3, 0.4), 6, 5
    rows = []
    for a in outcomes(n1, 2):
        for b in outcomes(n2, 3):
            test = fit_test([CellGroup("a", a, p1), CellGroup("b", b, p2)])
            rows.append((test.p, multinomial_mass(a, p1) * multinomial_mass(b, p2)))
    rows.sort()
    reached = 0.0
    for position, (p, mass) in enumerate(rows):
        reached += mass
        if position + 1 == len(rows) or rows[position + 1][0] > p * (1 + 1e-12):
            assert reached <= p * (1 + 1e-9) + 1e-15


def test_the_classical_chi_square_would_not_keep_the_promise():
    """Negative control: the chi-square approximation breaks its promise far in the tail, which is why it decides nothing."""
    probs, n = (0.99, 0.01), 30
    alpha = 1e-8
    chi = sum(
        multinomial_mass(c, probs) for c in outcomes(n, 2) if fit_test([CellGroup("all", c, probs)]).chi_square_p <= alpha
    )
    bound = sum(multinomial_mass(c, probs) for c in outcomes(n, 2) if fit_test([CellGroup("all", c, probs)]).p <= alpha)
    assert chi > alpha
    assert bound <= alpha


def test_a_wrong_law_is_refuted_after_the_draws_the_twin_names():
    """With 1.5 times the draws that the twin names, a wrong law is refuted in nearly every run."""
    rng = np.random.default_rng(1)
    right, wrong, alpha = np.array([0.25, 0.25, 0.25, 0.25]), np.array([0.30, 0.25, 0.25, 0.20]), 1e-10
    divergence = float(np.sum(wrong * np.log(wrong / right)))
    n = int(1.5 * draws_to_refute(divergence, 3, alpha))
    caught = sum(
        fit_test([CellGroup("all", tuple(map(int, rng.multinomial(n, wrong))), tuple(right))]).p <= alpha for _ in range(40)
    )
    assert caught >= 38
    few = int(0.3 * draws_to_refute(divergence, 3, alpha))
    assert (
        sum(
            fit_test([CellGroup("all", tuple(map(int, rng.multinomial(few, wrong))), tuple(right))]).p <= alpha
            for _ in range(40)
        )
        <= 2
    )


@pytest.mark.parametrize("probs", [(0.5, 0.5), (0.97, 0.03), (0.2, 0.3, 0.5)])
def test_the_evidence_has_mean_one_under_the_null(probs):
    """Enumerated over all outcomes, the likelihood ratio averages to exactly 1, for one group and for a product of two."""
    one = sum(multinomial_mass(c, probs) * math.exp(log_evidence([CellGroup("a", c, probs)])) for c in outcomes(9, len(probs)))
    assert one == pytest.approx(1, abs=1e-10)
    two = sum(
        multinomial_mass(a, probs)
        * multinomial_mass(b, (0.6, 0.4))
        * math.exp(log_evidence([CellGroup("a", a, probs), CellGroup("b", b, (0.6, 0.4))]))
        for a in outcomes(6, len(probs))
        for b in outcomes(4, 2)
    )
    assert two == pytest.approx(1, abs=1e-10)


def test_many_cells_cost_what_the_twin_says():
    """With 200 cells a spread-out deviation is refuted near the number of draws that the twin names, and seldom far below."""
    rng = np.random.default_rng(3)
    right = np.full(200, 1 / 200)
    wrong = right * (1 + 0.3 * np.where(np.arange(200) % 2, 1, -1))
    divergence, alpha = float(np.sum(wrong * np.log(wrong / right))), 1e-10
    need = draws_to_refute(divergence, 199, alpha)

    def caught(n: int) -> int:
        return sum(
            fit_test([CellGroup("all", tuple(map(int, rng.multinomial(n, wrong))), tuple(right))]).p <= alpha for _ in range(30)
        )

    assert caught(round(1.3 * need)) >= 28
    assert caught(round(0.6 * need)) <= 2
    assert detectable_tv(round(need), 199, alpha) == pytest.approx(math.sqrt(divergence / 2), rel=0.01)


def test_small_cells_are_pooled_and_nothing_is_lost():
    """Pooling keeps the sum of counts and of probabilities, and leaves no two small cells."""
    group = pool_small("g", [50, 3, 1, 46], [0.5, 0.02, 0.01, 0.47], "abcd")
    assert group.counts == (50, 46, 4)
    assert group.names == ("a", "d", "the rest")
    assert sum(group.probs) == pytest.approx(1)
    assert pool_small("g", [50, 3, 47], [0.5, 0.02, 0.48], "abc").names == ("a", "c", "b")


@pytest.mark.parametrize(
    ("counts", "probs"), [((1, 2), (0.5,)), ((1, 2), (1.0, 0.0)), ((1, -1), (0.5, 0.5)), ((1, 2), (0.5, 0.6))]
)
def test_impossible_cells_are_refused(counts, probs):
    """Cells that are no law are refused when they are made."""
    with pytest.raises(ValueError, match=r"cells|counts"):
        CellGroup("bad", counts, probs)


@pytest.mark.parametrize("bound", [0.0, 0.1, 0.5])
def test_the_binomial_tail_is_exact(bound):
    """The rate test's p-value equals the enumerated binomial tail."""
    for successes in range(8):
        exact = sum(math.comb(7, x) * bound**x * (1 - bound) ** (7 - x) for x in range(successes, 8))
        assert rate_above(successes, 7, bound) == pytest.approx(exact, abs=1e-14)


def test_rates_know_their_sample_size():
    """The twin of the rate test grows as the rates come closer, and is infinite within the bound."""
    assert trials_to_refute(0.5, 0.6, 1e-6) == math.inf
    assert trials_to_refute(0.7, 0.6, 1e-6) > trials_to_refute(0.9, 0.6, 1e-6)
    n = math.ceil(1.3 * trials_to_refute(0.8, 0.5, 1e-6))
    assert rate_above(round(0.8 * n), n, 0.5) <= 1e-6
    assert 0 < rate_off(3, 10, 0.5) <= 1
