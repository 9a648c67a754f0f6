"""The faults of a whole round follow the laws that are stated for them, and show from the stated number of drafts on."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from fault_pairs import CORNERS, corner, plain_pair, random_pairs, two_token_pair

from specverify import faults
from specverify.exact import round_law
from specverify.faults import MORE_FAULTS, RoundFault, block, chain, fault, laws
from specverify.laws import Array, Pair, TableModel, Tokens, complete, sequence_law, total_variation
from specverify.loading import load_subject
from specverify.pairs import named_pair
from specverify.subjects import Step, Verifier

TOLERANCE = 1e-12
WITH_LAW = {name: known for name, known in MORE_FAULTS.items() if known.law is not None}
LONG_PAIRS = [*random_pairs(3, 2, (2, 3)), *random_pairs(2, 3, (2, 3)), corner("disjoint", 2), corner("equal", 2)]
BLOCK_PAIRS = [plain_pair(2), plain_pair(3), corner("disjoint", 2), corner("equal", 3), *random_pairs(6, 3, (2, 3))]
BLOCK_FAULTS = ["block_early_stop", "block_token_residual", "block_last_product"]

every_fault = pytest.mark.parametrize("known", MORE_FAULTS.values(), ids=MORE_FAULTS)
every_law = pytest.mark.parametrize("known", WITH_LAW.values(), ids=WITH_LAW)
pairs_named = partial(pytest.mark.parametrize, "pair", ids=lambda pair: f"{pair.name}, K = {pair.k}")


def first_token(subject: Verifier | Step, pair: Pair) -> Array:
    """Exact law (V,) of the first token that one round emits."""
    law = np.zeros(pair.vocab_size)
    for tokens, mass in round_law(subject, pair).items():
        law[tokens[0]] += mass
    return law


def round_error(subject: Verifier | Step, pair: Pair) -> float:
    """Total variation between the completed law of a round and the target's law."""
    length = pair.k + 1
    law = complete(round_law(subject, pair), pair.target, length, pair.prompt)
    return total_variation(law, sequence_law(pair.target, length, pair.prompt))


def assert_same(found: dict[Tokens, float], expected: dict[Tokens, float]) -> None:
    """Both laws agree on every outcome."""
    for tokens in {*found, *expected}:
        assert found.get(tokens, 0.0) == pytest.approx(float(expected.get(tokens, 0.0)), abs=TOLERANCE), tokens


@every_law
@pytest.mark.parametrize(
    "pairs", [[corner(n) for n in CORNERS], random_pairs(60, 1), LONG_PAIRS], ids=["corners", "K=1", "K>1"]
)
def test_closed_form_is_the_exact_law_of_the_first_position(known: RoundFault, pairs: list[Pair]) -> None:
    """The closed form equals the law found by walking every path of the rule."""
    assert known.law is not None
    for pair in pairs:
        y = known.law(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt))
        gap = np.abs(first_token(known.make(pair.k), pair) - y).max()
        assert gap <= TOLERANCE, f"{known.name} on {pair.to_json()}: off by {gap:.3g}"


@every_law
def test_second_position_and_bonus_follow_their_laws(known: RoundFault) -> None:
    """Given accepted tokens the second position has the closed form too, and the bonus the law stated for it."""
    assert known.law is not None
    pair = plain_pair(2)
    after: dict[Tokens, Array] = {}
    for tokens, mass in round_law(known.make(2), pair).items():
        for n in range(1, len(tokens)):
            after.setdefault(tokens[:n], np.zeros(3))[tokens[n]] += mass
    assert {len(prefix) for prefix in after} == {1, 2}
    for prefix, masses in after.items():
        p, q = (model.next_law((*pair.prompt, *prefix)) for model in (pair.target, pair.draft))
        if len(prefix) == 1:
            expected = known.law(p, q)
        elif known.bonus is None:
            expected = p
        else:
            expected = known.bonus(p, pair.target.next_law((*pair.prompt, *prefix[:-1])))
        np.testing.assert_allclose(masses / masses.sum(), expected, atol=TOLERANCE)


@pytest.mark.parametrize(("top_k", "top_p"), [(None, 0.61), (3, 0.71), (1, 1.0), (None, 1.0)])
def test_filtered_drafts_follow_the_law_of_any_filter(top_k: int | None, top_p: float) -> None:
    """Top-k, top-p and both give the closed form; no filter at all gives the target."""
    step = Step("filtered", partial(chain.draft_filtered, k=1, top_k=top_k, top_p=top_p), 1)
    for pair in [*random_pairs(30, 1), *(corner(n) for n in CORNERS)]:
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        y = laws.draft_filtered(p, q, top_k, top_p)
        np.testing.assert_allclose(first_token(step, pair), y, atol=TOLERANCE)
        if top_k is None and top_p == 1:
            np.testing.assert_allclose(y, p, atol=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["draft_temperature", "target_unwarped", "bonus_unwarped"])
def test_temperature_faults_are_none_at_temperature_one(name: str, temperature: float) -> None:
    """A forgotten temperature shows on either side of 1, as stated, and not at 1."""
    subject = Verifier(name, partial(getattr(chain, name), temperature=temperature))
    assert (round_error(subject, plain_pair(2)) <= TOLERANCE) == (temperature == 1)
    if name != "bonus_unwarped":
        pair = plain_pair(1)
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        y = getattr(laws, name)(p, q, temperature)
        np.testing.assert_allclose(first_token(subject, pair), y, atol=TOLERANCE)


def blocks(pair: Pair) -> list[tuple[Tokens, Fraction, list[list[Fraction]], list[list[Fraction]]]]:
    """Every draft, its probability, and the laws p_1 .. p_{K+1} and q_1 .. q_K along it, as exact fractions."""
    found = []
    for draft in itertools.product(range(pair.vocab_size), repeat=pair.k):
        prefixes = [(*pair.prompt, *draft[:j]) for j in range(pair.k + 1)]
        p = [list(pair.target.fractions(x)) for x in prefixes]
        q = [list(pair.draft.fractions(x)) for x in prefixes[:-1]]
        mass = math.prod((q[j][x] for j, x in enumerate(draft)), start=Fraction(1))
        if mass:
            found.append((draft, mass, p, q))
    return found


def normalised(weights: list[Fraction], otherwise: list[Fraction]) -> list[Fraction]:
    """Weights divided by their sum, or another law where the sum is 0."""
    total = sum(weights, Fraction(0))
    return [w / total for w in weights] if total else otherwise


def block_law(pair: Pair, *, early: bool = False, token_residual: bool = False, product: bool = False) -> dict[Tokens, float]:
    """Law of what a round of the block rule emits, in exact fractions straight from its definition; wrong where asked."""
    law: dict[Tokens, Fraction] = {}
    for draft, mass, p, q in blocks(pair):
        K = pair.k
        rho = [p[j][x] / q[j][x] for j, x in enumerate(draft)]
        P = [Fraction(1)]
        for ratio in rho:
            P.append(min(Fraction(1), P[-1] * ratio))
        left = [[max(P[i] * a - b, Fraction(0)) for a, b in zip(p[i], q[i], strict=True)] for i in range(K)]
        h = []
        for i in range(1, K):
            S = sum(left[i])
            h.append(Fraction(1) if S == 0 and P[i] == 1 else S / (S + 1 - P[i]))
        h.append(min(Fraction(1), math.prod(rho, start=Fraction(1))) if product else P[K])
        for passed in itertools.product([False, True], repeat=K):
            weight = mass * math.prod((a if yes else 1 - a for a, yes in zip(h, passed, strict=True)), start=Fraction(1))
            if not weight:
                continue
            if early:
                tau = passed.index(False) if False in passed else K
            else:
                tau = max((i + 1 for i, yes in enumerate(passed) if yes), default=0)
            if tau == K:
                last = p[K]
            elif token_residual:
                last = normalised([max(a - b, Fraction(0)) for a, b in zip(p[tau], q[tau], strict=True)], p[tau])
            else:
                last = normalised(left[tau], p[tau])
            for token, chance in enumerate(last):
                if chance:
                    emitted = (*draft[:tau], token)
                    law[emitted] = law.get(emitted, Fraction(0)) + weight * chance
    return {tokens: float(mass) for tokens, mass in law.items()}


@pairs_named(BLOCK_PAIRS)
def test_block_verification_is_exact(pair: Pair) -> None:
    """The sound block rule follows its definition in fractions, and emits the target's law."""
    sound = Verifier("block_verification", block.block_verification)
    assert_same(round_law(sound, pair), block_law(pair))
    assert round_error(sound, pair) <= TOLERANCE


@pairs_named(BLOCK_PAIRS)
@pytest.mark.parametrize("name", BLOCK_FAULTS)
def test_block_faults_follow_their_definition(name: str, pair: Pair) -> None:
    """Each block fault emits what its definition gives in exact fractions."""
    wrong = dict(zip(BLOCK_FAULTS, ("early", "token_residual", "product"), strict=True))[name]
    assert_same(round_law(fault(name).make(pair.k), pair), block_law(pair, **{wrong: True}))


@pairs_named(BLOCK_PAIRS)
def test_one_uniform_couples_the_places_of_a_block(pair: Pair) -> None:
    """P(tau >= i) is the least of the first i ratios, so position 2 accepts with min(1, a_2 / a_1); position 1 is right."""
    law: dict[Tokens, float] = {}
    for draft, mass, p, q in blocks(pair):
        reach = [Fraction(1)]
        for j, x in enumerate(draft):
            reach.append(min(reach[-1], p[j][x] / q[j][x]))
        for tau in range(pair.k + 1):
            weight = reach[tau] - (reach[tau + 1] if tau < pair.k else 0)
            if tau < pair.k:
                last = normalised([max(a - b, Fraction(0)) for a, b in zip(p[tau], q[tau], strict=True)], p[tau])
            else:
                last = p[tau]
            for token, chance in enumerate(last):
                emitted = (*draft[:tau], token)
                law[emitted] = law.get(emitted, 0.0) + float(mass * weight * chance)
    subject = fault("one_uniform").make(pair.k)
    assert_same(round_law(subject, pair), law)
    np.testing.assert_allclose(first_token(subject, pair), pair.target.next_law(pair.prompt), atol=TOLERANCE)


@every_fault
def test_fault_shows_from_the_stated_k(known: RoundFault) -> None:
    """With fewer drafts than stated the round is exact on every pair tried; from there on one of two pairs shows it."""
    for k in range(1, known.shows_from):
        assert all(round_error(known.make(k), pair) <= TOLERANCE for pair in random_pairs(20, k))
    for k in (known.shows_from, 3):
        assert max(round_error(known.make(k), pair) for pair in (plain_pair(k), named_pair(4, k))) > 0.001


def test_token_residual_needs_three_tokens_to_show() -> None:
    """Over two tokens both residuals have one token wherever they are drawn from, so the fault is none."""
    for pair in (two_token_pair(3), *random_pairs(10, 3, (2,))):
        assert round_error(fault("block_token_residual").make(3), pair) <= TOLERANCE


def test_products_of_uniforms_follow_their_law() -> None:
    """C14 at K = 2: tau = 2 with R (1 - ln R), R = rho_1 rho_2 < 1, and tau = 1 with a - R - R ln(a / R), a = min(1, rho_1).

    Forty thousand rows agree with that within five standard deviations; where R >= 1 the block is always accepted.
    """
    rows = 40_000
    for weights in ([2, 1, 3], [1, 2, 1]):
        p = torch.tensor([weights, [1, 1, 2], [1, 1, 1]], dtype=torch.float64)
        p = p / p.sum(1, keepdim=True)
        q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], dtype=torch.float64)
        for draft in itertools.product(range(3), repeat=2):
            first, second = (float(p[j, x] / q[j, x]) for j, x in enumerate(draft))
            a, R = min(1.0, first), first * second
            whole = 1.0 if R >= 1 else R * (1 - math.log(R))
            one = a - R - R * math.log(a / R) if a > R else 0.0
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(2)
                _, counts = block.products_of_uniforms(
                    torch.tensor([draft]).expand(rows, 2), q.expand(rows, 2, 3), p.expand(rows, 3, 3)
                )
            for tau, expected in ((2, whole), (1, one)):
                seen = float((counts == tau + 1).double().mean())
                assert abs(seen - expected) <= 5 * math.sqrt(expected * (1 - min(expected, 1.0)) / rows) + 1e-9


@every_fault
def test_rule_can_be_loaded_by_name(known: RoundFault) -> None:
    """``specverify.faults:<name>`` is a subject, its entry says in sentences what it does and what helps."""
    found = load_subject(f"specverify.faults:{known.name}")
    assert found is getattr(faults, known.name)
    assert isinstance(found, (Verifier, Step))
    assert found.name == known.name
    assert fault(known.name) is known
    assert known.summary.endswith(".")
    assert known.advice.endswith(".")
    assert known.source


def test_tables_share_no_name() -> None:
    """A name means one fault, and all tables are known together."""
    names = [*faults.CATALOGUE, *MORE_FAULTS, *faults.TREE_FAULTS, *faults.NOISE_FAULTS]
    assert len(set(names)) == len(names)
    assert list(faults.all_faults()) == names
    assert set(names) <= set(dir(faults))


def test_filter_keeps_the_lower_ids_among_equals() -> None:
    """Ties at the border are cut the same way for the rule and its closed form."""
    q = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.4, 0.1]], dtype=torch.float64)
    kept = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0]]
    torch.testing.assert_close(chain.filtered(q, 2), torch.tensor(kept, dtype=torch.float64))
    even = TableModel.from_weights([[1, 1, 1, 1]])
    pair = Pair(TableModel.from_weights([[1, 2, 3, 4]]), even, 1)
    y = laws.draft_filtered(pair.target.next_law((0,)), even.next_law((0,)), 2)
    np.testing.assert_allclose(first_token(fault("draft_filtered").make(1), pair), y, atol=TOLERANCE)
