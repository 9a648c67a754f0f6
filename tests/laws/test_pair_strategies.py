"""The strategies give valid, varied pairs that shrink to something a person can read."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from specverify.laws import Pair, TableModel, overlap, total_variation
from specverify.pairs import PRIME_SIZES, hardened, named_pair, one_ulp_off, pair_for, pairs, table_models, weight_rows
from specverify.theory import block_tail, first_overlap, token_rejection_tail

QUICK = settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@QUICK
@given(pairs())
def test_pairs_are_valid_and_as_they_say(pair: Pair) -> None:
    """Laws sum to 1, sizes and prompts are in range, and the name tells the relation of the two laws."""
    assert 2 <= pair.vocab_size <= 4
    assert 1 <= pair.k <= 3
    assert 0 <= pair.prompt[0] < pair.vocab_size
    for model in (pair.target, pair.draft):
        assert np.abs(model.laws.sum(1) - 1).max() < 1e-12
        assert model.size in PRIME_SIZES
    if pair.name == "equal":
        assert (pair.target.laws == pair.draft.laws).all()
    if pair.name == "disjoint":
        full = (pair.target.laws > 0).all(1)
        shared = np.minimum(pair.target.laws, pair.draft.laws).sum(1) > 0
        assert (full == shared).all()
    if pair.name == "ulp":
        assert 0 < np.abs(pair.target.laws - pair.draft.laws).max() < 1e-15
        assert (pair.target.laws != pair.draft.laws).any(1).all()
    assert Pair.from_json(pair.to_json()).to_json() == pair.to_json()


@QUICK
@given(pairs(max_k=3))
def test_acceptance_theory_is_ordered(pair: Pair) -> None:
    """Tails fall, lie in [0, 1] and start with the overlap; block verification is not below token rejection."""
    token, block = token_rejection_tail(pair), block_tail(pair)
    for tail in (token, block):
        assert tail.shape == (pair.k,)
        assert (np.diff(np.concatenate([[1.0], tail])) <= 1e-12).all()
        assert (tail >= 0).all()
    assert (block >= token - 1e-12).all()
    assert token[0] == pytest.approx(first_overlap(pair), abs=1e-12)
    if pair.name == "equal":
        assert token == pytest.approx(np.ones(pair.k), abs=1e-12)


def smallest(condition: Callable[[Pair], bool], strategy: st.SearchStrategy[Pair]) -> Pair:
    """Find the pair to which a failure of ``condition`` shrinks."""
    return find(strategy, condition, settings=settings(QUICK, max_examples=2000, phases=(Phase.generate, Phase.shrink)))


@pytest.mark.parametrize("relation", ["free", "equal", "disjoint", "ulp"])
def test_every_relation_occurs(relation: str) -> None:
    """Each of the relations is found, and without ``ulp`` it is not."""
    assert smallest(lambda pair: pair.name == relation, pairs()).name == relation


@pytest.mark.parametrize(
    "condition",
    [
        lambda pair: 0 < overlap(pair.target.laws[0], pair.draft.laws[0]) < 0.9,
        lambda pair: bool((pair.target.laws[0] == 0).any()) and not (pair.draft.laws[0] == 0).any(),
        lambda pair: bool((pair.draft.laws == 1).any()) and not (pair.target.laws == 1).any(),
        lambda pair: (
            pair.k == 3 and 0 < total_variation(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)) < 1
        ),
    ],
)
def test_counterexamples_shrink_to_small_fractions(condition: Callable[[Pair], bool]) -> None:
    """A failing pair shrinks to two tokens, one law each and weights of at most 2."""
    pair = smallest(condition, pairs())
    assert pair.vocab_size == 2
    assert pair.target.size == pair.draft.size == 1
    assert pair.target.weights is not None
    assert pair.draft.weights is not None
    assert max(pair.target.weights.max(), pair.draft.weights.max()) <= 2


@QUICK
@given(st.integers(1, 5).flatmap(table_models), st.sampled_from(["float32", "float64"]))
def test_one_ulp_off_is_off_by_one_ulp_in_every_row(model: TableModel, dtype: str) -> None:
    """In the precision named, exactly the largest entry of every row differs, by one unit in the last place."""
    kind = np.float32 if dtype == "float32" else np.float64
    before, after = model.laws.astype(kind), one_ulp_off(model.laws, dtype).astype(kind)
    changed = before != after
    assert (changed.sum(1) == 1).all()
    old, new = before[changed], after[changed]
    assert (np.nextafter(old, new) == new).all()
    assert ((new > old) == (old < 1)).all()
    assert (old == before.max(1)).all()


@QUICK
@given(st.integers(1, 6).flatmap(weight_rows))
def test_weights_are_small_and_never_all_zero(row: list[int]) -> None:
    """Between 0 and 6 with a positive one among them."""
    assert any(row)
    assert all(0 <= w <= 6 for w in row)


@QUICK
@given(pairs())
def test_hardened_targets_put_everything_on_the_first_largest_token(pair: Pair) -> None:
    """Temperature 0 of each law, ties to the lowest token; only greedy rules get this pair."""
    hard = hardened(pair)
    for soft, sharp in zip(pair.target.laws.tolist(), hard.target.laws.tolist(), strict=True):
        assert sharp == [float(i == soft.index(max(soft))) for i in range(len(soft))]
    assert hard.draft is pair.draft
    assert pair_for("greedy", pair).to_json() == hard.to_json()
    assert pair_for(None, pair) is pair


@pytest.mark.parametrize(("vocab_size", "k"), [(2, 1), (3, 3), (4, 3), (6, 2), (50, 4)])
def test_named_pairs_are_fixed_and_neither_easy_nor_hopeless(vocab_size: int, k: int) -> None:
    """The same every time, five laws each, acceptance neither rare nor certain at the first position."""
    pair = named_pair(vocab_size, k)
    assert pair.to_json() == named_pair(vocab_size, k).to_json()
    assert pair.target.size == pair.draft.size == 5
    assert 0.05 < first_overlap(pair) < 0.999
    assert pair.to_json() != named_pair(vocab_size, k, seed=1).to_json()
