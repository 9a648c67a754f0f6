"""The closed-form laws of the catalogue are the laws of its rules, and every fault is a fault."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from fault_pairs import CORNERS, corner, plain_pair, random_pairs

from specverify import faults
from specverify.errors import UsageError
from specverify.exact import round_law
from specverify.faults.catalogue import CATALOGUE, STEP_K, Fault, fault
from specverify.laws import Array, Pair, total_variation
from specverify.loading import load_subject
from specverify.subjects import Step, Verifier

TOLERANCE = 1e-12
LONG_PAIRS = [*random_pairs(3, 2, (2, 3)), *random_pairs(2, 3, (2, 3)), corner("disjoint", 2), corner("equal", 2)]

every_fault = pytest.mark.parametrize("known", CATALOGUE.values(), ids=CATALOGUE)


def first_token(known: Fault, pair: Pair) -> Array:
    """Exact law (V,) of the first token that one round of the rule emits."""
    law = np.zeros(pair.vocab_size)
    for tokens, mass in round_law(known.make(pair.k), pair).items():
        law[tokens[0]] += mass
    return law


def closed_form(known: Fault, pair: Pair) -> Array:
    """Closed-form law (V,) of the first token after the pair's prompt."""
    return known.law(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt))


@every_fault
@pytest.mark.parametrize("pairs", [[corner(n) for n in CORNERS], random_pairs(60, 1)], ids=["corners", "random"])
def test_closed_form_is_the_exact_law_of_one_position(known: Fault, pairs: list[Pair]) -> None:
    """With one draft token the closed form equals the law found by walking every path of the rule."""
    for pair in pairs:
        gap = np.abs(first_token(known, pair) - closed_form(known, pair)).max()
        assert gap <= TOLERANCE, f"{known.name} on {pair.to_json()}: off by {gap:.3g}"


@every_fault
@pytest.mark.parametrize("pair", LONG_PAIRS, ids=lambda pair: f"{pair.name}, K = {pair.k}")
def test_closed_form_holds_for_longer_drafts(known: Fault, pair: Pair) -> None:
    """The first token of a round of K draft tokens follows the same closed form."""
    gap = np.abs(first_token(known, pair) - closed_form(known, pair)).max()
    assert gap <= TOLERANCE, f"off by {gap:.3g}"


@every_fault
def test_second_position_follows_the_closed_form(known: Fault) -> None:
    """Given the accepted first token, which is the context and nothing more, the second position has the same form."""
    pair = plain_pair(2)
    second: dict[int, Array] = {}
    for tokens, mass in round_law(known.make(2), pair).items():
        if len(tokens) > 1:
            second.setdefault(tokens[0], np.zeros(3))[tokens[1]] += mass
    assert second
    for first, masses in second.items():
        prompt = (*pair.prompt, first)
        y = known.law(pair.target.next_law(prompt), pair.draft.next_law(prompt))
        np.testing.assert_allclose(masses / masses.sum(), y, atol=TOLERANCE)


@every_fault
def test_bonus_token_is_right(known: Fault) -> None:
    """After K acceptances every rule draws the bonus token from the target, so only draft positions are wrong."""
    pair = plain_pair(2)
    full: dict[tuple[int, ...], Array] = {}
    for tokens, mass in round_law(known.make(2), pair).items():
        if len(tokens) == 3:
            full.setdefault(tokens[:2], np.zeros(3))[tokens[2]] += mass
    assert full
    for prefix, masses in full.items():
        right = pair.target.next_law((*pair.prompt, *prefix))
        np.testing.assert_allclose(masses / masses.sum(), right, atol=TOLERANCE)


@every_fault
def test_fault_changes_the_law(known: Fault) -> None:
    """On a stated pair each fault's law is not the target's, by more than one part in a hundred."""
    pair = plain_pair(1)
    assert total_variation(closed_form(known, pair), pair.target.next_law(pair.prompt)) > 0.01


@every_fault
def test_law_is_a_law_of_every_row(known: Fault) -> None:
    """Laws are not negative, sum to 1, take (..., V) arrays row by row and leave their arguments alone."""
    pairs = [p for p in random_pairs(60, 1) if p.vocab_size == 3]
    p, q = np.stack([x.target.laws for x in pairs]), np.stack([x.draft.laws for x in pairs])
    before = p.copy(), q.copy()
    y = known.law(p, q)
    assert y.shape == p.shape
    assert (y >= 0).all()
    np.testing.assert_allclose(y.sum(-1), 1, atol=TOLERANCE)
    np.testing.assert_array_equal(y[3, 2], known.law(p[3, 2], q[3, 2]))
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(q, before[1])


def test_no_two_faults_have_the_same_law() -> None:
    """Any two closed forms differ in some context of one stated pair, so that a diagnosis can tell them apart."""
    pair = plain_pair(1)
    found = {name: known.law(pair.target.laws, pair.draft.laws) for name, known in CATALOGUE.items()}
    for (a, y), (b, z) in combinations(found.items(), 2):
        assert max(total_variation(one, other) for one, other in zip(y, z, strict=True)) > 0.01, (a, b)


@every_fault
def test_rule_follows_its_law_with_real_random_numbers(known: Fault) -> None:
    """Twenty thousand rows drawn at once agree with the closed form within five standard deviations."""
    pair, rows = plain_pair(3), 20_000
    prefix = torch.tensor([pair.prompt]).repeat(rows, 1)
    target, draft = torch.from_numpy(pair.target.laws), torch.from_numpy(pair.draft.laws)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        subject = known.make(3)
        if isinstance(subject, Step):
            from specverify.tables import torch_models

            emitted = subject(*torch_models(pair), prefix)
        else:
            q, p, ids = [], [], prefix
            for j in range(4):
                at = torch.from_numpy(pair.target.contexts_along(ids.numpy())[:, -1])
                p.append(target[at])
                if j < 3:
                    q.append(draft[at])
                    ids = torch.cat([ids, torch.multinomial(draft[at], 1)], 1)
            emitted = subject(ids[:, 1:], torch.stack(q, 1), torch.stack(p, 1))
    seen = np.bincount(emitted.tokens[:, 0].numpy(), minlength=3) / rows
    y = closed_form(known, pair)
    assert (np.abs(seen - y) <= 5 * np.sqrt(y * (1 - y) / rows) + 1e-12).all(), (seen, y)


def test_catalogue_is_in_the_stated_order_and_documented() -> None:
    """The catalogue lists the sixteen single-draft faults in their order, each with one-sentence descriptions."""
    assert list(CATALOGUE) == [
        "resample_from_target",
        "resample_excluding",
        "absolute_residual",
        "argmax_residual",
        "softmax_residual",
        "inverted_ratio",
        "accept_always",
        "accept_if_likelier",
        "accept_if_likelier_else_target",
        "naive_accept",
        "naive_accept_resample",
        "match_then_redraw",
        "match_with_residual",
        "lenience",
        "typical",
        "greedy_draft",
    ]
    for name, known in CATALOGUE.items():
        assert known.name == name
        assert known.summary.endswith(".")
        assert known.advice.endswith(".")
        assert known.source
    assert [n for n, known in CATALOGUE.items() if known.lossy_by_design] == ["lenience", "typical"]


@every_fault
def test_rule_can_be_loaded_by_name(known: Fault) -> None:
    """``specverify.faults:<name>`` is a subject that says whether it is lossy by design."""
    found = load_subject(f"specverify.faults:{known.name}")
    assert found is getattr(faults, known.name)
    assert isinstance(found, (Verifier, Step))
    assert found.name == known.name
    assert found.facts.lossy == known.lossy_by_design
    if isinstance(found, Step):
        assert found.k == STEP_K


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    """A name that is not in the catalogue gives an error that lists the names."""
    with pytest.raises(UsageError, match=r"no fault is called 'naive'; known are resample_from_target, .*greedy_draft"):
        fault("naive")
    with pytest.raises(AttributeError, match="naive_accept"):
        _ = faults.nothing_of_the_kind
    assert "naive_accept" in dir(faults)


def test_catalogue_is_light_to_import() -> None:
    """Importing the catalogue does not import torch."""
    code = "import sys, specverify.faults; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
