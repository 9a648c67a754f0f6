"""Arithmetic of speculation, against hand-worked numbers and against exact laws."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from specverify.laws import Pair, TableModel
from specverify.pairs import named_pair
from specverify.subjects import Generated
from specverify.theory import token_rejection_tail
from specverify.timing.predict import Costs, acceptance_rates, best_k, expected_tokens, slower_from, unbiased_rounds


def test_rates_of_accepted_counts_by_hand():
    """Rounds of K = 3 that accept 3, 0 and 2 test 3 + 1 + 3 tokens of 9 drafted and emit 8."""
    rates = acceptance_rates([[[3, 0, 2]]], tokens=1000, k=3)
    assert rates.per_tested == pytest.approx(5 / 7)
    assert rates.per_drafted == pytest.approx(5 / 9)
    assert rates.tokens_per_round == pytest.approx(8 / 3)
    assert rates.rounds == 3


def test_rates_pool_rows_and_runs():
    """Counts of all rows of all runs stand in one sum, however many rounds each has."""
    rates = acceptance_rates([[[2, 2], [0]], [[1]]], tokens=1000, k=2)
    assert (rates.rounds, rates.per_drafted, rates.per_tested) == (4, 5 / 8, 5 / 7)


def test_rounds_that_may_have_been_cut_do_not_count():
    """With 12 tokens and K = 3 the first rounds begin with 12 and 8 to go and count; the one with 4 to go does not."""
    assert unbiased_rounds([3, 3, 0, 2], tokens=12, k=3) == [3, 3]
    assert unbiased_rounds([3, 3], tokens=1000, k=3) == [3, 3]


def test_too_short_a_text_has_no_rates():
    """Without a round that surely was whole there is no rate, and the message says what to do."""
    with pytest.raises(ValueError, match="generate more than 4 tokens"):
        acceptance_rates([[[3]]], tokens=4, k=3)


def _expectation(law: list[Fraction], row: tuple[int, ...], tokens: int, keep) -> tuple[Fraction, Fraction]:
    """Exact (E[tokens of kept rounds], E[kept rounds]) over everything a row of ``tokens`` tokens can accept."""
    if sum(row) + len(row) >= tokens:
        kept = keep(row)
        return Fraction(sum(kept) + len(kept)), Fraction(len(kept))
    below = [_expectation(law, (*row, a), tokens, keep) for a in range(len(law))]
    return tuple(sum(p * b[i] for p, b in zip(law, below, strict=True)) for i in (0, 1))


def test_counted_rounds_are_unbiased_and_dropping_the_last_is_not():
    """Over all runs, counted rounds emit exactly E each; rounds without the last one of a text emit less."""
    law = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]  # of accepted counts, K = 2: E = 1 + 3/4
    emitted, rounds = _expectation(law, (), 8, lambda row: unbiased_rounds(row, 8, 2))
    assert emitted / rounds == Fraction(7, 4)
    emitted, rounds = _expectation(law, (), 8, lambda row: row[:-1])
    assert emitted / rounds < Fraction(7, 4)


def _memoryless(k: int) -> Pair:
    return Pair(TableModel.from_weights([[1, 2, 3, 4]]), TableModel.from_weights([[4, 3, 2, 1]]), k)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_expected_tokens_is_exact_without_context(k):
    """Where p and q are the same everywhere, E is the exact one of token rejection: 1 + sum P(tau >= i)."""
    tail = token_rejection_tail(_memoryless(k))
    assert tail[0] == pytest.approx(0.6)
    assert expected_tokens(0.6, k) == pytest.approx(1 + tail.sum(), rel=1e-12)


def test_expected_tokens_differs_with_context():
    """With laws that depend on context the acceptance at the first place does not give E: it is a comparison only."""
    tail = token_rejection_tail(named_pair(4, 3))
    assert abs(expected_tokens(float(tail[0]), 3) - (1 + tail.sum())) > 1e-3


def test_measured_tokens_per_round_agree_with_theory():
    """The reference decoder over tables without context emits 1 + sum P(tau >= i) tokens per round, within 5 sigma."""
    from reference.exposed import build

    pair, k, tokens = _memoryless(3), 3, 400
    target, draft = (_Table(model) for model in (pair.target, pair.draft))
    made = [build(target, draft, k).generate(torch.zeros(8, 1, dtype=torch.int64), tokens, seed=s) for s in range(3)]
    rates = acceptance_rates([_rows(one) for one in made], tokens, k)
    exact = 1 + token_rejection_tail(pair).sum()
    sigma = (k / 2) / rates.rounds**0.5  # a count in 0..K has a standard deviation of at most K / 2
    assert abs(rates.tokens_per_round - exact) < 5 * sigma
    assert rates.per_tested == pytest.approx(0.6, abs=5 * 0.5 / (0.6 * rates.rounds) ** 0.5)


class _Table:
    def __init__(self, model: TableModel) -> None:
        self.vocab_size = model.vocab_size
        self.logits = torch.from_numpy(model.laws[0]).log()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*ids.shape, -1)


def _rows(made: Generated) -> list[list[int]]:
    assert made.accepted is not None
    return [[a for a in row if a >= 0] for row in made.accepted.tolist()]


def test_speedup_and_slow_down_by_hand():
    """E = 3 at K = 4 with c = 0.1, v = 1.2, o = 0.2 is 3 / 1.8; speculation loses exactly when E < 1.8."""
    costs = Costs(c=0.1, v=1.2, o=0.2)
    assert costs.of_round(4) == pytest.approx(1.8)
    assert costs.speedup(3, 4) == pytest.approx(5 / 3)
    assert [costs.slower(e, 4) for e in (1.7, 1.9)] == [True, False]
    assert costs.speedup(1.7, 4) < 1 < costs.speedup(1.9, 4)


def test_best_k_prefers_the_smaller_of_equals():
    """The largest speed-up wins; of two equal ones, the smaller K."""
    assert best_k({1: 1.2, 2: 1.5, 4: 1.5, 8: 1.1}) == 2


@pytest.mark.parametrize(
    ("speedups", "from_k"),
    [
        ({1: 1.2, 2: 1.1, 4: 0.9, 8: 0.7}, 4),
        ({1: 0.9, 2: 0.8}, 1),
        ({1: 0.9, 2: 1.1}, None),
        ({1: 0.9, 2: 1.1, 4: 0.95, 8: 1.01}, None),
        ({1: 1.0}, None),
    ],
)
def test_slower_from_means_from_there_on(speedups, from_k):
    """A K counts only if every larger measured K loses too; a tie with the baseline is no loss."""
    assert slower_from(speedups) == from_k
