"""Verifiers that take their numbers as arguments have the laws of their rules, to rounding, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable

import given_subjects as given
import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.exact import Emission, round_law, verifier_emission
from specverify.faults import laws
from specverify.faults.catalogue import fault
from specverify.laws import Array, Pair, Tokens, complete, sequence_law
from specverify.pairs import named_pair, pairs
from specverify.subjects import Facts, Verifier
from specverify.theory import token_rejection_tail

TOLERANCE = 1e-12
LOSSLESS = [given.numpy_rejection, given.kernel, given.races, given.race_twin("shared_noise"), given.sample_and_match]


@pytest.fixture(autouse=True)
def _warnings_of_division():
    with np.errstate(all="ignore"):
        yield


def error(found: Emission, pair: Pair) -> float:
    """Largest deviation of the completed law from the target's."""
    law = complete(found.tokens, pair.target, pair.k + 1, pair.prompt)
    return float(np.abs(law - sequence_law(pair.target, pair.k + 1, pair.prompt)).max())


def gap(one: dict[Tokens, float], two: dict[Tokens, float]) -> float:
    """Largest difference between two laws of tuples."""
    return max(abs(one.get(k, 0.0) - two.get(k, 0.0)) for k in {*one, *two})


def first_token(found: dict[Tokens, float], vocab_size: int) -> Array:
    """Law (V,) of the first token emitted."""
    law = np.zeros(vocab_size)
    for tokens, mass in found.items():
        law[tokens[0]] += mass
    return law


@pytest.mark.parametrize("subject", LOSSLESS, ids=lambda s: s.name)
@pytest.mark.parametrize("size", [(2, 1), (3, 2), (2, 3)], ids=str)
def test_lossless_rules_have_the_target_law(subject: Verifier, size: tuple[int, int]) -> None:
    """Whatever the convention, the completed law is the target's to rounding, and all of the mass is found."""
    pair = named_pair(*size)
    found = verifier_emission(subject, pair)
    assert error(found, pair) < TOLERANCE
    assert sum(found.tokens.values()) == pytest.approx(1, abs=TOLERANCE)
    assert found.coupled is None


@pytest.mark.parametrize("subject", [given.numpy_rejection, given.races], ids=lambda s: s.name)
def test_five_tokens_and_three_drafts(subject: Verifier) -> None:
    """V = 5, K = 3 takes a few hundred calls for all drafts together, and acceptance follows the formula."""
    pair = named_pair(5, 3)
    found = verifier_emission(subject, pair)
    assert error(found, pair) < TOLERANCE
    tail = [sum(m for tokens, m in found.tokens.items() if len(tokens) > i) for i in range(1, 4)]
    assert tail == pytest.approx(token_rejection_tail(pair), abs=TOLERANCE)
    assert found.calls < 1000


@pytest.mark.parametrize("subject", [given.python_rejection, given.python_final_first], ids=lambda s: s.name)
def test_plain_python_row_by_row(subject: Verifier) -> None:
    """Lists and loops, one row per call, give the same law, wherever the number of the final draw stands."""
    pair = named_pair(3, 2, seed=2)
    found = verifier_emission(subject, pair)
    assert error(found, pair) < TOLERANCE
    assert gap(found.tokens, verifier_emission(given.numpy_rejection, pair).tokens) < TOLERANCE


ONE_POSITION: list[tuple[Verifier, Callable[[Array, Array], Array]]] = [
    (given.numpy_twin("inverted_ratio"), laws.inverted_ratio),
    (given.numpy_twin("absolute_residual"), laws.absolute_residual),
    (given.numpy_twin("resample_from_target"), laws.resample_from_target),
    (given.race_twin("absolute_residual"), laws.absolute_residual),
    (given.race_twin("resample_from_target"), laws.resample_from_target),
    (given.race_twin("softmax_residual"), laws.softmax_residual),
]


@pytest.mark.parametrize(("twin", "law"), ONE_POSITION, ids=lambda x: getattr(x, "name", ""))
@pytest.mark.parametrize("size", [(3, 1), (4, 2)], ids=str)
def test_wrong_twins_have_their_closed_form(
    twin: Verifier, law: Callable[[Array, Array], Array], size: tuple[int, int]
) -> None:
    """The first token follows the catalogue's law to rounding, and not the target's."""
    pair = named_pair(*size, zeros=0.0)
    found = first_token(verifier_emission(twin, pair).tokens, pair.vocab_size)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    assert np.abs(found - law(p, q)).max() < TOLERANCE
    assert np.abs(found - p).max() > 1e-3


def test_one_uniform_for_the_whole_block_has_the_law_of_the_catalogue() -> None:
    """The same number compared twice is followed exactly: the law is the one the symbolic engine finds for the same rule."""
    pair = named_pair(3, 3)
    found = verifier_emission(given.numpy_twin("one_uniform"), pair)
    assert gap(found.tokens, round_law(fault("one_uniform").make(3), pair)) < TOLERANCE
    assert error(found, pair) > 1e-3


def reused_coin(p: Array, q: Array) -> Array:
    """Law of one position when the rejected coin draws again: token y where u in [rho, 1) falls into its share of (p - q)+."""
    law = np.minimum(p, q)
    weights = np.maximum(p - q, 0)
    edges = np.concatenate([[0.0], weights.cumsum()]) / weights.sum()
    for x in np.flatnonzero(q > p):
        law = law + q[x] * np.diff(np.maximum(edges, p[x] / q[x]))
    return law


@pytest.mark.parametrize("twin", [given.numpy_twin("reused_coin"), given.kernel_coin_kept], ids=lambda s: s.name)
@pytest.mark.parametrize("v", [3, 4])
def test_a_coin_used_again_for_the_final_draw_comes_out_as_its_law(twin: Verifier, v: int) -> None:
    """The coin that rejected lies above the ratio: what it then draws has the truncated law, in numpy and in the kernel."""
    pair = named_pair(v, 1, zeros=0.0)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    found = first_token(verifier_emission(twin, pair).tokens, v)
    assert np.abs(found - reused_coin(p, q)).max() < TOLERANCE
    assert np.abs(found - p).max() > 1e-3


def test_weights_that_are_not_normalised_give_the_last_token_the_rest() -> None:
    """An inverse distribution function over weights of sum TV < 1 leaves 1 - TV to the token that the index is clipped to."""
    pair = named_pair(4, 1, zeros=0.0)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    r = np.maximum(p - q, 0)
    expected = np.minimum(p, q) + (1 - np.minimum(p, q).sum()) * (r + (1 - r.sum()) * np.eye(4)[3])
    found = first_token(verifier_emission(given.numpy_twin("not_normalised"), pair).tokens, 4)
    assert np.abs(found - expected).max() < TOLERANCE
    assert np.abs(found - p).max() > 1e-3


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 53), ("float32", 24)])
def test_a_coin_of_exactly_zero_has_its_own_mass(dtype: str, bits: int) -> None:
    """``u q <= p`` accepts a token with p = 0 when u is 0: one grid point, 2**-53 or 2**-24; ``u q < p`` never does."""
    target, draft = [[0, 1]], [[1, 1]]
    pair = Pair(type(named_pair(2, 1).target).from_weights(target), type(named_pair(2, 1).target).from_weights(draft), 1)
    for name, mass in (("at_most", 2.0**-bits), ("", 0.0)):
        found = verifier_emission(given.numpy_twin(name, dtype=dtype) if name else given.numpy_twin("none", dtype=dtype), pair)
        assert sum(m for tokens, m in found.tokens.items() if tokens[0] == 0) == mass / 2


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 0.1)])
def test_low_precision_is_followed_on_its_own_grid(dtype: str, allowed: float) -> None:
    """In a coarse dtype the law is off by rounding, not at all equal, and its mass is still 1."""
    pair = named_pair(3, 2)
    subjects = [given.races, given.kernel] if dtype == "bfloat16" else [given.races, given.numpy_rejection]
    for subject in subjects:
        low = Verifier(subject.name, subject.verify, Facts(dtype=dtype), subject.given)  # type: ignore[arg-type]
        found = verifier_emission(low, pair)
        assert 0 < error(found, pair) < allowed
        assert sum(found.tokens.values()) == pytest.approx(1, abs=allowed)


def torch_rule(x: Tensor, q: Tensor, p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Token rejection in torch, followed by either engine."""
    K = x.shape[1]
    px, qx = p[:, :K].gather(2, x[..., None])[..., 0], q.gather(2, x[..., None])[..., 0]
    accepted = (u[:, :K] < px / qx).long().cumprod(1).sum(1)
    rows = torch.arange(len(x))
    residual = (p[:, :K] - q).clamp(min=0)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p[:, :K])
    weights = torch.cat([residual, p[:, K:]], 1)[rows, accepted]
    edges = weights.cumsum(1) / weights.sum(1, keepdim=True)
    last = torch.searchsorted(edges.contiguous(), u[:, K:].contiguous(), right=True).clamp(max=p.shape[2] - 1)
    return torch.cat([x, x[:, :1]], 1).scatter(1, accepted[:, None], last), accepted + 1


def one_coin_rule(x: Tensor, q: Tensor, p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The same with the first uniform for the whole block: wrong."""
    return torch_rule(x, q, p, torch.cat([u[:, :1].expand(x.shape), u[:, -1:]], 1))


@pytest.mark.parametrize("rule", [torch_rule, one_coin_rule], ids=lambda r: r.__name__)
@hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)
@hypothesis.given(pair=pairs(max_vocab=4, max_k=2))
def test_both_engines_agree(rule: Callable[..., object], pair: Pair) -> None:
    """A torch rule has one law, whether its given numbers are bisected or drawn inside and followed symbolically."""

    def draws(x: Tensor, q: Tensor, p: Tensor) -> object:
        return rule(x, q, p, torch.rand(len(x), x.shape[1] + 1, dtype=p.dtype))

    symbolic = round_law(Verifier("draws", draws), pair)
    bisected = round_law(Verifier("given", rule, given=given.numpy_rejection.given), pair)
    assert gap(symbolic, bisected) < TOLERANCE


def test_both_engines_are_asked_through_the_same_subject() -> None:
    """Walked over several rounds, a torch verifier with given uniforms is followed symbolically: the law is the target's."""
    from specverify.exact import verifier_rounds

    pair = named_pair(2, 2, seed=3)
    found = verifier_rounds(Verifier("given", torch_rule, given=given.numpy_rejection.given), pair, 4)
    law = complete(found.tokens, pair.target, 4, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, 4, pair.prompt)).max() < TOLERANCE


@hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)
@hypothesis.given(pair=pairs(max_vocab=4, max_k=2))
def test_races_and_coins_are_lossless_on_generated_pairs(pair: Pair) -> None:
    """Zeros, one-hots, disjoint and equal laws: the racing rule keeps the target law, its twin has the catalogue's."""
    assert error(verifier_emission(given.races, pair), pair) < TOLERANCE
    found = first_token(verifier_emission(given.race_twin("absolute_residual"), pair).tokens, pair.vocab_size)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    assert np.abs(found - laws.absolute_residual(p, q)).max() < TOLERANCE
