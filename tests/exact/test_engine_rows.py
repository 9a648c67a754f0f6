"""Walking one path per row gives the law of a row alone, also for rules that do not keep rows apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, SpecverifyError, SubjectError
from specverify.exact import (
    Emission,
    emission,
    round_law,
    step_emission,
    step_rounds,
    verifier_emission,
    verifier_rounds,
)
from specverify.laws import Pair, TableModel, all_sequences, complete, sequence_law
from specverify.pairs import named_pair
from specverify.subjects import Emitted, Facts, Step, Verifier
from specverify.theory import block_tail, first_overlap, token_rejection_tail

Rule = Callable[[Tensor, Tensor, Tensor], object]


def _finish(x: Tensor, p: Tensor, q: Tensor, accepted: Tensor) -> Emitted:
    """Emit the accepted tokens and one drawn from the residual, or from the bonus law after K."""
    B, K = x.shape
    rows = torch.arange(B)
    law = p[rows, accepted]
    residual = (law - torch.cat([q, torch.zeros_like(q[:, :1])], 1)[rows, accepted]).clamp(min=0)
    law = torch.where((accepted == K)[:, None], law, residual)
    tokens = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    tokens[rows, accepted] = torch.multinomial(torch.where(law.sum(1, keepdim=True) > 0, law, p[rows, accepted]), 1)[:, 0]
    return Emitted(tokens, accepted + 1, accepted)


def _ratio(x: Tensor, q: Tensor, p: Tensor) -> Tensor:
    return p[:, :-1].gather(2, x[..., None])[..., 0] / q.gather(2, x[..., None])[..., 0]


def _accept(u: Tensor, x: Tensor, q: Tensor, p: Tensor) -> Emitted:
    return _finish(x, p, q, (u < _ratio(x, q, p)).long().cumprod(1).sum(1))


def batched(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Token rejection on whole batches."""
    return _accept(torch.rand(x.shape, dtype=p.dtype), x, q, p)


def noise_by_position(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same, one fresh draw per position."""
    return _accept(torch.stack([torch.rand(len(x), dtype=p.dtype) for _ in range(x.shape[1])], 1), x, q, p)


def transposed(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same, with the noise laid out by position first."""
    return _accept(torch.rand(x.shape[::-1], dtype=p.dtype).T, x, q, p)


def early_break(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same, leaving the loop once every row was rejected."""
    alive = torch.ones(len(x), dtype=torch.bool)
    accepted = torch.zeros(len(x), dtype=torch.int64)
    for j in range(x.shape[1]):
        alive &= torch.rand(len(x), dtype=p.dtype) < _ratio(x, q, p)[:, j]
        accepted += alive
        if not alive.any():
            break
    return _finish(x, p, q, accepted)


def live_rows_only(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same, drawing for the rows still alive only."""
    alive = torch.arange(len(x))
    accepted = torch.zeros(len(x), dtype=torch.int64)
    for j in range(x.shape[1]):
        alive = alive[torch.rand(len(alive), dtype=p.dtype) < _ratio(x, q, p)[alive, j]]
        accepted[alive] += 1
    return _finish(x, p, q, accepted)


def row_by_row(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same in a loop over rows, as ragged lists."""
    out: list[list[int]] = []
    for b in range(len(x)):
        out += [r[: r.index(-1)] if -1 in r else r for r in _emitted_rows(x[b : b + 1], q[b : b + 1], p[b : b + 1])]
    return out


def _emitted_rows(x: Tensor, q: Tensor, p: Tensor) -> list[list[int]]:
    return [list(r) for r in _accept(torch.rand(x.shape[1], dtype=p.dtype)[None], x, q, p).rows()]


def scalar_loop(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same with numbers taken out of tensors, one call of torch.rand per token."""
    rho = _ratio(x, q, p)
    accepted = []
    for b in range(len(x)):
        n = 0
        while n < x.shape[1] and torch.rand(()).item() <= rho[b, n].item():
            n += 1
        accepted.append(n)
    return _finish(x, p, q, torch.tensor(accepted))


def generator_per_row(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Do the same with a generator for every row, visited from the last to the first."""
    generators = [torch.Generator().manual_seed(b) for b in range(len(x))]
    accepted = torch.zeros(len(x), dtype=torch.int64)
    for b in reversed(range(len(x))):
        u = torch.rand(x.shape[1], dtype=p.dtype, generator=generators[b])
        accepted[b] = (u < _ratio(x, q, p)[b]).long().cumprod(0).sum()
    return _finish(x, p, q, accepted)


LOSSLESS: tuple[Rule, ...] = (
    batched,
    noise_by_position,
    transposed,
    early_break,
    live_rows_only,
    row_by_row,
    scalar_loop,
    generator_per_row,
)


def shared_over_rows(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: the same noise for every row."""
    return _accept(torch.rand(1, x.shape[1], dtype=p.dtype).expand(x.shape), x, q, p)


def shared_over_positions(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Wrong for a row alone: one number for the whole block."""
    return _accept(torch.rand(len(x), 1, dtype=p.dtype).expand(x.shape), x, q, p)


def noise_of_k(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: K numbers shared by all rows, also when there are K rows."""
    u = torch.rand(x.shape[1], dtype=p.dtype)
    return _accept(u[None].repeat(len(x), 1), x, q, p)


def batch_statistics(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: the noise is scaled by a number over its mean in the batch, which other rows shift."""
    scale = (1 + p[:, -1, 0]).mean() / (1 + p[:, -1, 0])
    return _accept(torch.rand(x.shape, dtype=p.dtype) * scale[:, None], x, q, p)


def other_rows_token(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: emits the row before's tokens."""
    e = batched(x, q, p)
    assert isinstance(e, Emitted)
    return Emitted(e.tokens.roll(1, 0), e.counts.roll(1, 0))


def reversed_rows(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: returns the rows in reverse."""
    e = batched(x, q, p)
    assert isinstance(e, Emitted)
    return Emitted(e.tokens.flip(0), e.counts.flip(0))


def all_or_nothing(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Right for a row alone: a batch accepts as many tokens as its least lucky row."""
    u = torch.rand(x.shape, dtype=p.dtype)
    accepted = (u < _ratio(x, q, p)).long().cumprod(1).sum(1)
    return _finish(x, p, q, accepted.min().expand(len(x)).clone()) if len(x) > 1 else _finish(x, p, q, accepted)


RIGHT_ALONE: tuple[Rule, ...] = (
    shared_over_rows,
    noise_of_k,
    batch_statistics,
    other_rows_token,
    reversed_rows,
    all_or_nothing,
)
PAIRS = [named_pair(3, 2), named_pair(2, 3, seed=1)]


@pytest.fixture(autouse=True)
def _warnings_of_division() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def alone(rule: Rule, pair: Pair) -> Emission:
    """Find the exact law with one row per call, where rows cannot meet."""
    return verifier_emission(Verifier(rule.__name__, rule, Facts(max_batch=1)), pair)


def gap(one: dict[tuple[int, ...], float], two: dict[tuple[int, ...], float]) -> float:
    """Largest difference between two laws of tuples."""
    return max(abs(one.get(k, 0.0) - two.get(k, 0.0)) for k in {*one, *two})


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.__name__)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_ways_of_writing_token_rejection_have_one_law(rule: Rule, pair: Pair) -> None:
    """However rows are walked, the completed law is the target's and accepted counts follow the formula."""
    found = verifier_emission(Verifier(rule.__name__, rule), pair)
    assert gap(found.tokens, alone(batched, pair).tokens) < 1e-12
    law = complete(found.tokens, pair.target, pair.k + 1, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, pair.k + 1, pair.prompt)).max() < 1e-12
    tail = [sum(p for tokens, p in found.tokens.items() if len(tokens) > i) for i in range(1, pair.k + 1)]
    assert tail == pytest.approx(token_rejection_tail(pair), abs=1e-12)
    assert sum(found.reported.values()) == pytest.approx(1.0 if found.reported else 0.0, abs=1e-12)
    assert all(accepted == emitted for accepted, emitted in found.reported)


@pytest.mark.parametrize("rule", RIGHT_ALONE, ids=lambda r: r.__name__)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_rules_that_couple_rows_are_noticed_and_walked_alone(rule: Rule, pair: Pair) -> None:
    """A rule whose rows meet falls back to one row per call, says why, and has the law of a row alone."""
    found = verifier_emission(Verifier(rule.__name__, rule), pair)
    assert gap(found.tokens, alone(rule, pair).tokens) < 1e-12
    assert gap(found.tokens, alone(batched, pair).tokens) < 1e-12
    assert found.coupled


def test_one_number_for_a_whole_block_has_the_law_of_the_catalogue() -> None:
    """Position 2 then accepts with min(1, a2/a1): the rule is walked by rows and differs from the target."""
    pair = PAIRS[0]
    found = verifier_emission(Verifier("shared", shared_over_positions), pair)
    assert found.coupled is None
    expected = 0.0
    drafts = all_sequences(pair.vocab_size, 2)
    for x in drafts:
        q = pair.draft.laws_along(np.array([[*pair.prompt, *x]]))[0]
        p = pair.target.laws_along(np.array([[*pair.prompt, *x]]))[0]
        weight = q[1][x[0]] * q[2][x[1]]
        if weight > 0:
            expected += weight * min(1.0, p[1][x[0]] / q[1][x[0]], p[2][x[1]] / q[2][x[1]])
    assert sum(m for t, m in found.tokens.items() if len(t) == 3) == pytest.approx(expected, abs=1e-12)


def test_an_exact_law_agrees_with_a_hundred_thousand_real_runs() -> None:
    """Every outcome's share lies within 6 standard deviations plus 1/n (false alarm below 1e-6 over 40 cells)."""
    pair, n = PAIRS[0], 100_000
    law = round_law(Verifier("early", early_break), pair)
    torch.manual_seed(5)
    prefix = torch.tensor([pair.prompt]).repeat(n, 1)
    laws_q, laws_p = torch.from_numpy(pair.draft.laws), torch.from_numpy(pair.target.laws)
    ids = prefix
    for _ in range(pair.k):
        q = laws_q[torch.from_numpy(pair.draft.contexts_along(ids.numpy())[:, -1])]
        ids = torch.cat([ids, torch.multinomial(q, 1)], 1)
    q = laws_q[torch.from_numpy(pair.draft.contexts_along(ids.numpy())[:, 1:-1])]
    p = laws_p[torch.from_numpy(pair.target.contexts_along(ids.numpy())[:, 1:])]
    seen = Counter(Verifier("early", early_break)(ids[:, 1:], q, p).rows())
    assert set(seen) <= set(law)
    for outcome, mass in law.items():
        assert abs(seen[outcome] / n - mass) < 6 * math.sqrt(mass * (1 - mass) / n) + 1 / n


def block(x: Tensor, q: Tensor, p: Tensor) -> object:
    """Block verification (Sun et al. 2024), one row."""
    assert len(x) == 1
    K, rho = x.shape[1], _ratio(x, q, p)[0]
    P = [torch.ones((), dtype=p.dtype)]
    for j in range(K):
        P.append((P[-1] * rho[j]).clamp(max=1.0))
    tau = 0
    for i in range(1, K + 1):
        h = P[K]
        if i < K:
            S = (P[i] * p[0, i] - q[0, i]).clamp(min=0).sum()
            h = torch.ones_like(S) if S == 0 and P[i] == 1 else S / (S + 1 - P[i])
        if torch.rand((), dtype=p.dtype) <= h:
            tau = i
    law = p[0, K] if tau == K else (P[tau] * p[0, tau] - q[0, tau]).clamp(min=0)
    return [[*x[0, :tau].tolist(), int(torch.multinomial(law, 1))]]


@pytest.mark.parametrize("pair", [*PAIRS, named_pair(3, 3, seed=4)], ids=lambda p: p.name)
def test_block_verification_is_lossless_and_its_tail_is_the_published_one(pair: Pair) -> None:
    """P(tau >= i) is E_q of the least partial product, never below token rejection, and the law is the target's."""
    found = verifier_emission(Verifier("block", block, Facts(max_batch=1)), pair)
    tail = [sum(p for tokens, p in found.tokens.items() if len(tokens) > i) for i in range(1, pair.k + 1)]
    assert tail == pytest.approx(block_tail(pair), abs=1e-12)
    assert sum(block_tail(pair)) >= sum(token_rejection_tail(pair)) - 1e-12
    assert token_rejection_tail(pair)[0] == pytest.approx(first_overlap(pair), abs=1e-12)
    law = complete(found.tokens, pair.target, pair.k + 1, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, pair.k + 1, pair.prompt)).max() < 1e-12


def _step_of(rule: Rule, pair: Pair, **facts: int) -> Step:
    def run(target: Callable[[Tensor], Tensor], draft: Callable[[Tensor], Tensor], prefix: Tensor) -> object:
        start = prefix.shape[1]
        for _ in range(pair.k):
            prefix = torch.cat([prefix, torch.multinomial(draft(prefix)[:, -1].exp(), 1)], 1)
        return rule(prefix[:, start:], draft(prefix)[:, start - 1 : -1].exp(), target(prefix)[:, start - 1 :].exp())

    return Step(rule.__name__, run, pair.k, Facts(**facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [batched, early_break, reversed_rows, shared_over_rows], ids=lambda r: r.__name__)
def test_steps_that_draft_inside_have_the_law_of_their_rule(rule: Rule) -> None:
    """Drafting inside or outside, in batches or alone, one round emits the same law."""
    pair = named_pair(2, 2, seed=3)
    want = alone(rule, pair).tokens
    assert gap(step_emission(_step_of(rule, pair), pair).tokens, want) < 1e-12
    assert gap(emission(_step_of(rule, pair, max_batch=1), pair).tokens, want) < 1e-12


@pytest.mark.parametrize("rule", [batched, early_break, scalar_loop, other_rows_token], ids=lambda r: r.__name__)
def test_several_rounds_follow_the_target(rule: Rule) -> None:
    """Round after round from ragged prefixes, the first tokens have the target's joint law."""
    pair, length = named_pair(2, 2, seed=3), 4
    want = sequence_law(pair.target, length, pair.prompt)
    for found in (
        verifier_rounds(Verifier(rule.__name__, rule), pair, length),
        step_rounds(_step_of(rule, pair), pair, length),
    ):
        law = complete(found.tokens, pair.target, length, pair.prompt)
        assert all(len(tokens) == length for tokens in found.tokens)
        assert np.abs(law - want).max() < 1e-12


def _keeps_noise(x: Tensor, q: Tensor, p: Tensor, kept: list[Tensor]) -> object:
    if not kept:
        kept.append(torch.rand(4096, x.shape[1], dtype=p.dtype))
    return _accept(kept[0][: len(x)], x, q, p)


@pytest.mark.parametrize("max_batch", [None, 1])
def test_noise_kept_between_calls_is_refused(max_batch: int | None) -> None:
    """A buffer of numbers filled once gives no law of one call."""
    kept: list[Tensor] = []
    with pytest.raises(OpaqueRandomness):
        verifier_emission(Verifier("keeps", lambda x, q, p: _keeps_noise(x, q, p, kept), Facts(max_batch=max_batch)), PAIRS[0])


def test_a_verifier_that_fails_on_some_paths_says_on_which() -> None:
    """Exceptions come back as errors of the subject, with the inputs, whatever the number of rows."""

    def fails(x: Tensor, q: Tensor, p: Tensor) -> object:
        if bool((torch.rand(len(x)) > 0.5).any()):
            raise KeyError("lost")
        return batched(x, q, p)

    for facts in (Facts(), Facts(max_batch=1)):
        with pytest.raises(SubjectError, match="lost"):
            verifier_emission(Verifier("fails", fails, facts), PAIRS[0])
    partial = verifier_emission(Verifier("many", batched), named_pair(3, 3), max_paths=50)
    assert partial.paths == 50
    assert 0 < partial.unexplored < 1
    assert sum(partial.tokens.values()) + partial.unexplored == pytest.approx(1, abs=1e-12)


def test_inputs_changed_in_place_do_not_reach_the_next_call() -> None:
    """A verifier that destroys its inputs still has the law of its rule."""

    def destroys(x: Tensor, q: Tensor, p: Tensor) -> object:
        out = batched(x, q, p)
        x.fill_(0), q.fill_(0), p.fill_(0)
        return out

    assert gap(round_law(Verifier("destroys", destroys), PAIRS[0]), alone(batched, PAIRS[0]).tokens) < 1e-12


def test_float32_verifiers_are_as_exact_as_their_inputs() -> None:
    """In float32 the law differs from the target by rounding of the probabilities only."""
    pair = PAIRS[0]
    law = complete(round_law(Verifier("f32", batched, Facts(dtype="float32")), pair), pair.target, 3, pair.prompt)
    assert 0 < np.abs(law - sequence_law(pair.target, 3, pair.prompt)).max() < 1e-6


def test_a_pair_of_certain_laws_needs_one_path() -> None:
    """Where p and q put everything on one token, nothing is left to decide."""
    model = TableModel.from_weights([[0, 1]])
    found = verifier_emission(Verifier("batched", batched), Pair(model, model, 2))
    assert found.tokens == {(1, 1, 1): 1.0}
    assert found.paths == 1


def test_errors_of_the_engine_are_of_one_family() -> None:
    """A verifier that uses numbers in an unknown way is refused whatever the rows."""
    for facts in (Facts(), Facts(max_batch=1)):
        with pytest.raises(SpecverifyError) as found:
            verifier_emission(
                Verifier("sorts", lambda x, q, p: _accept(torch.rand(x.shape).sort(1).values, x, q, p), facts), PAIRS[0]
            )
        assert isinstance(found.value, OpaqueRandomness)
