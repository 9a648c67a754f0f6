"""The rules, each through the same tests: their law is the target's, and at the edges nothing impossible comes out."""

from __future__ import annotations

import itertools

import pytest
import torch
from fixed_noise import FixedNoise
from torch import Tensor

from reference.exposed import greedy_verifier, subject
from reference.noise import BatchNoise, Noise, RowNoise
from reference.rules import RULES, rule_named
from specverify.subjects import Verifier

COINS = ["token_rejection", "block_verification", "one_hot_draft"]
SAMPLED = ["sample_and_match", *COINS]
V, K = 3, 2


def laws(seed: int, *shape: int) -> Tensor:
    """Random laws along the last dimension, about a third of the entries exactly 0."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(*shape, generator=generator, dtype=torch.float64)
    weights = torch.where(torch.rand(*shape, generator=generator) < 0.3, 0.0, weights)
    weights[..., 0] += 0.05
    return weights / weights.sum(-1, keepdim=True)


def drafts(q: Tensor, rows: int, seed: int) -> Tensor:
    """Tokens (rows, K) drawn from q (K, V), place by place."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.multinomial(law, rows, replacement=True, generator=generator) for law in q], 1)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_file_says_what_it_is(name: str) -> None:
    """Every rule is found by its name, and cites a source with its number."""
    rule = rule_named(name)
    assert name == rule.NAME
    assert "arXiv" in rule.SOURCE
    assert rule.SOURCE.split(" (")[0].split(",")[0].split(" ")[0] in (rule.__doc__ or "")


def test_an_unknown_rule_lists_the_known() -> None:
    """Asking for a rule that is not there names those that are."""
    with pytest.raises(ValueError, match="token_rejection, sample_and_match, block_verification, one_hot_draft, greedy"):
        rule_named("typical")


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("seed", range(3))
def test_law_of_a_round_is_the_targets(name: str, seed: int) -> None:
    """Blocks completed from p have the law p x p x p: 27 cells at 200 000 rows, TV below 0.0105.

    With E TV <= sqrt(26 / n) / 2 = 0.0057 and McDiarmid (each row moves TV by at most 1 / n), P(TV > 0.0105) is at most
    exp(-2 n 0.0048^2) = 1e-4 per case under any law; the seed is fixed, so the outcome never changes.
    """
    rows = 200_000
    p, q = laws(2 * seed, K + 1, V), laws(2 * seed + 1, K, V)
    torch.manual_seed(seed)
    emitted = rule_named(name).verify(drafts(q, rows, seed), q.expand(rows, K, V), p.expand(rows, K + 1, V), BatchNoise())
    rest = torch.stack([torch.multinomial(law, rows, replacement=True) for law in p], 1)
    blocks = torch.where(emitted.tokens >= 0, emitted.tokens, rest)
    found = torch.bincount(blocks @ torch.tensor([V * V, V, 1]), minlength=V**3) / rows
    expected = torch.einsum("a,b,c->abc", *p).flatten()
    assert not (found[expected == 0] > 0).any(), "a token of probability 0 was emitted"
    assert (found - expected).abs().sum() / 2 < 0.0105


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_of_what_is_emitted(name: str, dtype: torch.dtype) -> None:
    """A block is the accepted drafted tokens, one more, and then -1; counts are accepted + 1."""
    p, q = laws(0, 50, K + 1, V).to(dtype), laws(1, 50, K, V).to(dtype)
    tokens = torch.randint(V, (50, K), generator=torch.Generator().manual_seed(0))
    found = rule_named(name).verify(tokens, q, p, BatchNoise(torch.Generator().manual_seed(1)))
    assert found.tokens.shape == (50, K + 1)
    assert found.tokens.dtype == found.counts.dtype == torch.int64
    assert found.accepted is not None
    for block, drafted, count, accepted in zip(
        found.tokens.tolist(), tokens.tolist(), found.counts.tolist(), found.accepted.tolist(), strict=True
    ):
        assert count == accepted + 1
        assert block[:accepted] == drafted[:accepted]
        assert 0 <= block[accepted] < V
        assert block[count:] == [-1] * (K + 1 - count)


@pytest.mark.parametrize("name", COINS)
@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_extreme_uniforms_never_emit_the_impossible(u: float, name: str) -> None:
    """At u = 0 and at the largest u, a rule that tosses coins emits no token with p = 0, for every drafted block."""
    p = torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]], dtype=torch.float64)
    blocks = torch.tensor(list(itertools.product(range(V), repeat=K)))
    B = len(blocks)
    found = rule_named(name).verify(blocks, q.expand(B, K, V), p.expand(B, K + 1, V), FixedNoise(u))
    for block in found.rows():
        assert all(p[j, token] > 0 for j, token in enumerate(block))


@pytest.mark.parametrize("name", COINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_laws_up_to_one_ulp(dtype: torch.dtype, name: str) -> None:
    """With q = p, and with q one ulp above p, even a forced rejection has no 0/0 and emits a possible token."""
    p = laws(5, 1, K + 1, V).to(dtype)
    for q in (p[:, :K], torch.nextafter(p[:, :K], torch.ones((), dtype=dtype))):
        tokens = torch.zeros(1, K, dtype=torch.int64)
        found = rule_named(name).verify(tokens, q, p, FixedNoise(1.0))
        assert all(p[0, j, token] > 0 for j, token in enumerate(found.rows()[0]))


@pytest.mark.parametrize("name", SAMPLED)
def test_a_rows_tokens_do_not_depend_on_its_mates(name: str) -> None:
    """With one seed per row, each row of a batch is what it is alone."""
    p, q = laws(0, 8, K + 1, V), laws(1, 8, K, V)
    tokens = torch.randint(V, (8, K), generator=torch.Generator().manual_seed(0))

    def judged(rows: slice, noise: Noise) -> list[tuple[int, ...]]:
        return [*rule_named(name).verify(tokens[rows], q[rows], p[rows], noise).rows()]

    together = judged(slice(None), RowNoise(range(8)))
    alone = [judged(slice(b, b + 1), RowNoise([b]))[0] for b in range(8)]
    assert together == alone


def test_one_seed_per_row_is_insisted_on() -> None:
    """Fewer seeds than rows are an error."""
    with pytest.raises(ValueError, match="2 seeds for 3 rows"):
        RowNoise([0, 1]).uniforms(3, 1, torch.float64)


def test_greedy_keeps_the_argmax() -> None:
    """On one-hot laws the greedy verifier emits the argmax up to the first mismatch and there."""
    p = torch.nn.functional.one_hot(torch.tensor([[1, 2, 0], [0, 2, 1], [2, 2, 2]]), V).double()
    tokens = torch.tensor([[1, 2], [1, 2], [2, 0]])
    found = greedy_verifier(tokens, p[:, :K], p)
    assert found.rows() == [(1, 2, 0), (0,), (2, 2)]


def test_parts_work_in_their_precision() -> None:
    """Every verifier among the subject's parts accepts what specverify hands it."""
    verifiers = [part for part in subject.parts if isinstance(part, Verifier)]
    assert {v.facts.dtype for v in verifiers} == {"float64", "float32"}
    for part in verifiers:
        torch.manual_seed(0)
        tokens = torch.zeros(4, K, dtype=torch.int64)
        assert part(tokens, laws(1, 4, K, V), laws(0, 4, K + 1, V)).tokens.shape == (4, K + 1)
