"""The exact laws of the rules: what a round emits is the target's law, and as much is accepted as the theory says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from reference.exposed import subject
from specverify.exact import round_law
from specverify.laws import Array, Pair, Tokens, complete, overlap, sequence_law
from specverify.pairs import named_pair, pairs
from specverify.subjects import Verifier
from specverify.theory import block_tail, token_rejection_tail

TOLERANCE = 1e-12
VERIFIERS = {part.facts.rule: part for part in subject.parts if isinstance(part, Verifier) and part.facts.dtype == "float64"}
some_pairs = settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def tail(law: dict[Tokens, float], k: int) -> Array:
    """P(tau >= i) for i = 1..K of what a round emitted."""
    return np.array([sum(mass for tokens, mass in law.items() if len(tokens) > i) for i in range(1, k + 1)])


@pytest.mark.parametrize("rule", VERIFIERS)
@some_pairs
@given(pair=pairs(max_vocab=3))
def test_round_is_exact(rule: str, pair: Pair) -> None:
    """On a hundred generated pairs the completed law of a round is the target's law to 1e-12."""
    length = pair.k + 1
    law = complete(round_law(VERIFIERS[rule], pair), pair.target, length, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, length, pair.prompt)).max() <= TOLERANCE


@some_pairs
@given(pair=pairs(max_vocab=3))
def test_block_verification_accepts_what_the_theory_says(pair: Pair) -> None:
    """P(tau >= i) is E_q min_k prod_{k<j<=i} rho_j, and never less than token rejection's."""
    found = tail(round_law(VERIFIERS["block_verification"], pair), pair.k)
    assert np.abs(found - block_tail(pair)).max() <= TOLERANCE
    assert (found >= token_rejection_tail(pair) - TOLERANCE).all()


@pytest.mark.parametrize(("v", "k"), [(4, 3), (3, 4)])
def test_block_verification_on_longer_blocks(v: int, k: int) -> None:
    """At K = 3 with four tokens and at K = 4: exact, as accepted as the theory says, and more than token rejection."""
    pair = named_pair(v, k)
    law = round_law(VERIFIERS["block_verification"], pair)
    completed = complete(law, pair.target, k + 1, pair.prompt)
    assert np.abs(completed - sequence_law(pair.target, k + 1, pair.prompt)).max() <= TOLERANCE
    assert np.abs(tail(law, k) - block_tail(pair)).max() <= TOLERANCE
    assert tail(law, k).sum() > token_rejection_tail(pair).sum() + 0.01


def test_one_hot_draft_accepts_less_than_the_soft_rule() -> None:
    """A sampled draft treated as certain is accepted with probability sum p q, below sum min(p, q)."""
    pair = named_pair(4, 1)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    (accepted,) = tail(round_law(VERIFIERS["one_hot_draft"], pair), 1)
    assert accepted == pytest.approx((p * q).sum(), abs=TOLERANCE)
    assert accepted < overlap(p, q)
