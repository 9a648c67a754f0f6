"""The decoder: its law, its counts, its ends, and that rows keep to themselves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import engine
from reference.caching import Cache
from reference.decoder import acceptance_per_tested_token, autoregressive, generate
from reference.exposed import ReferenceDecoder, build, step_over
from reference.model import Transformer
from reference.noise import BatchNoise, Noise
from reference.processors import Processors
from reference.rules import RULES, rule_named
from reference.tables import CachedTable, table_pair
from specverify.subjects import DecoderLike, Emitted

PROMPTS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1], [5, 5, 6, 7], [0, 9, 8, 10]])


@dataclass
class Watched:
    """A model that notes where in each row every call began and how many tokens it read."""

    inner: Any
    calls: list[tuple[list[int], int]] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return int(self.inner.vocab_size)

    def start(self, capacity: int, rows: int) -> Cache:
        """Start as the model does."""
        cache: Cache = self.inner.start(capacity, rows)
        return cache

    def extend(self, tokens: Tensor, cache: Cache, counts: Tensor | None = None) -> Tensor:
        """Note the call, and extend as the model does."""
        self.calls.append((cache.lengths.tolist(), tokens.shape[1]))
        logits: Tensor = self.inner.extend(tokens, cache, counts)
        return logits


class WatchingRule:
    """Token rejection that keeps the laws it was given."""

    NAME, SOURCE = "watching", "none"

    def __init__(self) -> None:
        self.given: list[tuple[Tensor, Tensor]] = []

    def verify(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:
        """Keep the laws, and judge."""
        self.given.append((draft_probs.clone(), target_probs.clone()))
        return rule_named("token_rejection").verify(draft_tokens, draft_probs, target_probs, noise)


def test_it_is_a_decoder(main_model: Transformer, draft_model: Transformer) -> None:
    """The class satisfies specverify's protocol, over transformers and over tables."""
    assert isinstance(ReferenceDecoder(main_model, draft_model, 2), DecoderLike)
    assert isinstance(build(*table_pair(3, 0), 2), DecoderLike)


@pytest.mark.parametrize("rule", ["token_rejection", "sample_and_match"])
@pytest.mark.parametrize("eos_id", [None, 0])
def test_law_of_generated_tokens(rule: str, eos_id: int | None) -> None:
    """Four tokens over several rounds of K = 2 follow the target's joint law: 81 cells at 100 000 rows, TV below 0.021.

    E TV <= sqrt(80 / n) / 2 = 0.0142 and McDiarmid: P(TV > 0.021) <= exp(-2 n 0.0068^2) = 1e-4 per case.
    """
    rows, N, V = 100_000, 4, 3
    target, draft = table_pair(V, 7)
    decoder = build(target, draft, 2, eos_id, rule)
    prompt = torch.tensor([[1, 2]])
    found = decoder.generate(prompt.expand(rows, 2), N, seed=3).tokens
    texts = torch.tensor(list(itertools.product(range(V), repeat=N)))
    logs = decoder.target_log_probs(torch.cat([prompt.expand(len(texts), 2), texts], 1))[:, 1:-1]
    chosen = logs.gather(2, texts[..., None])[..., 0]
    if eos_id is not None:
        ends = (texts == eos_id).long()
        chosen = torch.where(ends.cumsum(1) - ends > 0, torch.where(texts == eos_id, 0.0, -torch.inf), chosen)
    expected = chosen.sum(1).exp()
    assert abs(float(expected.sum()) - 1) < 1e-12
    frequencies = torch.bincount(found @ V ** torch.arange(N - 1, -1, -1), minlength=V**N) / rows
    assert not (frequencies[expected == 0] > 0).any(), "a text of probability 0 was generated"
    assert (frequencies - expected).abs().sum() / 2 < 0.021


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("rule", RULES)
def test_greedy_equals_argmax_decoding(main_model: Transformer, draft_model: Transformer, rule: str, k: int) -> None:
    """At temperature 0 every rule gives the main model's own greedy text, cached or not."""
    greedy = Processors(temperature=0)
    found = ReferenceDecoder(main_model, draft_model, k, rule=rule, processors=greedy).generate(PROMPTS, 20, seed=0)
    for cached in (True, False):
        expected = autoregressive(main_model, PROMPTS, 20, process=greedy, noise=BatchNoise(), cached=cached)
        assert torch.equal(found.tokens, expected)


def test_cached_and_uncached_baselines_agree(main_model: Transformer) -> None:
    """With the same seed and prompts of unequal length, both baselines sample the same text."""
    texts = [
        autoregressive(
            main_model,
            PROMPTS,
            20,
            process=Processors(),
            noise=BatchNoise(torch.Generator().manual_seed(0)),
            cached=cached,
            lengths=torch.tensor([4, 1, 2, 3]),
        )
        for cached in (True, False)
    ]
    assert torch.equal(*texts)


@pytest.mark.parametrize("rule", ["token_rejection", "sample_and_match"])
@pytest.mark.parametrize("kind", ["transformer", "table"])
def test_a_row_does_not_depend_on_its_mates(main_model: Transformer, draft_model: Transformer, rule: str, kind: str) -> None:
    """With a seed per row, rows of unequal prompts and ends come out of a batch as they do alone, in any order."""
    if kind == "transformer":
        decoder = ReferenceDecoder(main_model, draft_model, 3, eos_id=4, rule=rule)
    else:
        decoder = build(*table_pair(8, 1), 3, 4, rule)
    prompts, lengths = PROMPTS % decoder.vocab_size, torch.tensor([4, 1, 3, 2])
    together = decoder.generate(prompts, 30, seeds=range(4), lengths=lengths)
    reversed_ = decoder.generate(prompts.flip(0), 30, seeds=[3, 2, 1, 0], lengths=lengths.flip(0))
    assert torch.equal(together.tokens, reversed_.tokens.flip(0))
    assert together.accepted is not None
    for row, n in enumerate(lengths.tolist()):
        alone = decoder.generate(prompts[row : row + 1, :n], 30, seeds=[row])
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert alone.accepted is not None
        rounds = alone.accepted.shape[1]
        assert torch.equal(alone.accepted[0], together.accepted[row, :rounds])
        assert (together.accepted[row, rounds:] == -1).all()


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("asked", [1, 2, 7, 16])
def test_exactly_what_was_asked_for(main_model: Transformer, draft_model: Transformer, asked: int, k: int) -> None:
    """Any number of tokens is met exactly, with legal ids, though rounds end elsewhere."""
    found = ReferenceDecoder(main_model, draft_model, k).generate(PROMPTS, asked, seed=1).tokens
    assert found.shape == (4, asked)
    assert ((found >= 0) & (found < 11)).all()


def test_asking_for_more_goes_on_with_the_same_text(main_model: Transformer, draft_model: Transformer) -> None:
    """With seeds per row, a longer request begins with the shorter one."""
    decoder = ReferenceDecoder(main_model, draft_model, 3)
    short, long = (decoder.generate(PROMPTS, n, seeds=range(4)).tokens for n in (5, 17))
    assert torch.equal(short, long[:, :5])


def test_eos_inside_a_block_ends_the_row() -> None:
    """When the draft is the target all K tokens are accepted, and what follows an end inside them is not text."""
    target, _ = table_pair(4, 5)
    found = build(target, target, 6, eos_id=2).generate(torch.ones(500, 1, dtype=torch.int64), 12, seed=0)
    assert found.accepted is not None
    assert (found.accepted[:, 0] == 6).all()
    ended_within = 0
    for row in found.tokens.tolist():
        if 2 in row:
            end = row.index(2)
            ended_within += end < 6
            assert set(row[end:]) == {2}
    assert ended_within > 100


def test_rounds_stop_when_every_row_has_ended() -> None:
    """After the end of every row nothing more is computed, however much was asked for."""
    target, draft = table_pair(2, 0)
    found = build(target, draft, 2, eos_id=1).generate(torch.zeros(3, 1, dtype=torch.int64), 5000, seed=0)
    assert found.accepted is not None
    assert found.accepted.shape[1] < 200
    assert found.tokens.shape == (3, 5000)


def test_each_model_reads_each_token_once(main_model: Transformer, draft_model: Transformer) -> None:
    """The main model reads K + 1 tokens a round in one pass; the draft catches up on one or two; none is read twice."""
    main, draft, k = Watched(main_model), Watched(draft_model), 3
    found = generate(
        main,
        draft,
        PROMPTS[:1],
        60,
        k=k,
        process=Processors(temperature=2.0),
        rule=rule_named("token_rejection"),
        noise=BatchNoise(torch.Generator().manual_seed(4)),
    )
    assert found.accepted is not None
    accepted = found.accepted[0].tolist()
    assert {0, k} <= set(accepted)
    assert [n for _, n in main.calls] == [3] + [k + 1] * len(accepted)
    length = 4  # tokens of the text when a round begins
    behind, calls = 1, iter(draft.calls[1:])
    for (starts, _), count in zip(main.calls[1:], accepted, strict=True):
        assert starts == [length - 1]
        expected = [(length - behind, behind)] + [(length + j, 1) for j in range(k - 1)]
        assert [(start[0], n) for start, n in itertools.islice(calls, k)] == expected
        length += count + 1
        behind = 2 if count == k else 1
    assert next(calls, None) is None


@pytest.mark.parametrize(
    ("processors", "support"),
    [(Processors(0.7), 11), (Processors(1.3, top_k=3), 3), (Processors(0.8, top_p=0.6), 10), (Processors(0), 1)],
)
def test_processors_apply_to_both_models(
    main_model: Transformer, draft_model: Transformer, processors: Processors, support: int
) -> None:
    """The rule gets processed laws of both models at all places, the bonus included, and these are those reported."""
    rule, k = WatchingRule(), 3
    found = generate(
        main_model,
        draft_model,
        PROMPTS,
        k + 1,
        k=k,
        process=processors,
        rule=rule,
        noise=BatchNoise(torch.Generator().manual_seed(0)),
    )
    q, p = rule.given[0]
    assert q.shape == (4, k, 11)
    assert p.shape == (4, k + 1, 11)
    for laws in (q, p):
        assert ((laws > 0).sum(-1) <= support).all()
        assert torch.allclose(laws.sum(-1), torch.ones(()), atol=1e-5)
    decoder = ReferenceDecoder(main_model, draft_model, k, processors=processors)
    ids = torch.cat([PROMPTS, found.tokens[:, :-1]], 1)
    for row, n in enumerate(rule_counts(found.accepted)):
        reported_p = decoder.target_log_probs(ids[row : row + 1]).exp()[0, 3:]
        reported_q = decoder.draft_log_probs(ids[row : row + 1]).exp()[0, 3:]
        assert torch.allclose(reported_p[: n + 1], p[row, : n + 1], atol=1e-5)
        assert torch.allclose(reported_q[:n], q[row, :n], atol=1e-5)


def rule_counts(accepted: Tensor | None) -> list[int]:
    """List the accepted counts of the first round."""
    assert accepted is not None
    return [int(n) for n in accepted[:, 0]]


def test_top_k_and_top_p_by_hand() -> None:
    """Top-p comes after top-k, on laws made whole again; ties are cut at the higher id; -inf stays impossible."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64).log()
    assert torch.allclose(Processors(top_k=2)(logits)[:3], torch.tensor([4 / 7, 3 / 7, 0], dtype=torch.float64))
    assert torch.allclose(Processors(top_p=0.7)(logits)[:3], torch.tensor([4 / 7, 3 / 7, 0], dtype=torch.float64))
    assert Processors(top_k=2, top_p=0.5)(logits).tolist() == [1, 0, 0, 0, 0]
    assert Processors(top_k=2)(torch.zeros(4)).tolist() == [0.5, 0.5, 0, 0]
    assert Processors(0.0)(torch.zeros(4)).tolist() == [1, 0, 0, 0]
    assert Processors(0.5)(logits)[4] == 0
    assert Processors(top_p=0.5)(logits.half()).dtype == torch.float32


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    """Settings outside their range are an error that names the setting."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        Processors(**settings)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_step_follows_the_prefix(k: int) -> None:
    """One round over table models emits one to K + 1 tokens, none of probability 0 after the tokens before it."""
    target, draft = table_pair(3, 2)
    prefix = torch.tensor([[1, 0, 2]]).expand(200, 3)
    torch.manual_seed(0)
    emitted = step_over(target, draft, prefix, k)
    assert set(emitted.counts.tolist()) == set(range(1, k + 2))
    for block in emitted.rows():
        laws = target(torch.tensor([[1, 0, 2, *block]])).exp()[0, 2:-1]
        assert all(laws[j, token] > 0 for j, token in enumerate(block))


def test_same_seed_same_text(main_model: Transformer, draft_model: Transformer) -> None:
    """A seed fixes the text, another seed gives another, and the global stream is left alone."""
    decoder = ReferenceDecoder(main_model, draft_model, 3)
    before = torch.get_rng_state()
    one, again, other = (decoder.generate(PROMPTS, 20, seed).tokens for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_many_rows_are_decoded_in_parts(
    main_model: Transformer, draft_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that do not fit side by side come one part after the other: with seeds per row the same tokens and counts, with one
    seed each part draws on.
    """
    decoder = ReferenceDecoder(main_model, draft_model, 3, eos_id=4)
    prompts, lengths = PROMPTS.repeat(3, 1), torch.tensor([4, 1, 3, 2]).repeat(3)
    whole = decoder.generate(prompts, 20, seeds=range(12), lengths=lengths)
    per_row = 3 * 24 * 2 * 4 * 24
    monkeypatch.setattr(engine, "AT_ONCE", 5 * per_row)
    parts = decoder.generate(prompts, 20, seeds=range(12), lengths=lengths)
    assert torch.equal(whole.tokens, parts.tokens)
    assert whole.accepted is not None
    assert parts.accepted is not None
    assert torch.equal(whole.accepted, parts.accepted)
    same = decoder.generate(PROMPTS[:1].expand(10, -1), 20, seed=1).tokens
    assert not torch.equal(same[:5], same[5:])


def test_acceptance_per_tested_token() -> None:
    """Three rounds of K = 2 that accept 2, 0 and 1 test five tokens and accept three."""
    assert acceptance_per_tested_token(torch.tensor([[2, 0, -1], [1, -1, -1]]), 2) == pytest.approx(3 / 5)


def test_bad_requests_are_refused(main_model: Transformer, draft_model: Transformer) -> None:
    """No drafts, no tokens, empty prompts, and greedy at another temperature are errors that say what to do."""
    decoder = ReferenceDecoder(main_model, draft_model, 1)
    with pytest.raises(ValueError, match="at least one token"):
        ReferenceDecoder(main_model, draft_model, 0)
    with pytest.raises(ValueError, match="temperature 0 only"):
        ReferenceDecoder(main_model, draft_model, 1, rule="greedy")
    with pytest.raises(ValueError, match="at least one"):
        decoder.generate(PROMPTS, 0)
    with pytest.raises(ValueError, match=r"lie in 1\.\.4"):
        decoder.generate(PROMPTS, 1, lengths=torch.tensor([0, 1, 2, 5]))


def test_tables_in_any_wrapping_are_models() -> None:
    """A wrapped table answers in float64 what the bare table answers."""
    table = table_pair(3, 0)[0]
    ids = torch.tensor([[0, 1, 2, 2]])
    wrapped = CachedTable(table, 3)
    assert torch.equal(wrapped.extend(ids, wrapped.start(4, 1)), table(ids))
    assert table(ids).dtype == torch.float64
