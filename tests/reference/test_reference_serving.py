"""Requests that the reference serves side by side get what each would get alone, and the check of mixed batches passes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from reference.exposed import ReferenceDecoder, build, open_trained, subject
from reference.noise import RowNoise
from reference.processors import Processors, RowProcessors
from reference.tables import CachedTable, table_pair
from specverify.checks import rows
from specverify.checks.base import BUDGETS, Context, Planned, Settings
from specverify.exact import induced_law
from specverify.laws import TableModel, sequence_law
from specverify.pairs import named_pair
from specverify.requests import Request, until_end, wrong_length
from specverify.subjects import Decoder
from specverify.tables import torch_models

MIXED = [
    Request((1, 2, 3, 0), 9, seed=5),
    Request((2,), 4),
    Request((0, 0, 3), 12, seed=6, temperature=0.0),
    Request((3, 1), 1, seed=7, temperature=0.5),
    Request((1, 1, 2, 2, 3, 0, 1), 7, temperature=1.3),
    Request((2, 3), 11, seed=8),
]


def over_tables(eos_id: int | None = None, **settings: float) -> ReferenceDecoder:
    """Make the decoder over table models whose laws depend on the whole prefix."""
    target, draft = table_pair(4, 3)
    return ReferenceDecoder(CachedTable(target, 4), CachedTable(draft, 4), 3, eos_id=eos_id, processors=Processors(**settings))


@pytest.mark.parametrize("eos_id", [None, 3])
def test_a_seeded_row_gets_what_generate_gives_it(eos_id: int | None) -> None:
    """The same seed, alone, by ``generate`` at the row's temperature, cut at the row's number of tokens and its end."""
    served = over_tables(eos_id).serve(MIXED)
    for request, row in zip(MIXED, served, strict=True):
        assert wrong_length(tuple(row), request, eos_id) == ""
        if request.seed is not None:
            alone = over_tables(eos_id, temperature=1.0 if request.temperature is None else request.temperature)
            tokens = alone.generate(torch.tensor([request.prompt]), request.max_new_tokens, seeds=[request.seed]).tokens
            assert row == list(until_end(tuple(tokens[0].tolist()), eos_id))


def test_batch_mates_change_nothing_for_a_seeded_row() -> None:
    """In another order, with other rows and alone: the same tokens."""
    of, served = over_tables(), over_tables().serve(MIXED)
    for place, request in enumerate(MIXED):
        if request.seed is not None:
            assert of.serve([request]) == [served[place]]
            assert of.serve([MIXED[4], *MIXED[:2][::-1], request, MIXED[1]])[3] == served[place]


def test_rows_without_a_seed_are_samples_of_their_own() -> None:
    """Equal requests differ, within a batch and from call to call."""
    of, request = over_tables(), Request((1, 2), 40)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rows_ = [*of.serve([request, request]), *of.serve([request, request])]
    assert len({tuple(row) for row in rows_}) == 4


def test_a_greedy_row_takes_the_likeliest_token_beside_sampling_ones() -> None:
    """Token by token the largest log-probability of the law it is served from."""
    of = over_tables()
    row = of.serve(MIXED)[2]
    ids = torch.tensor([[*MIXED[2].prompt, *row]])
    start = len(MIXED[2].prompt) - 1
    assert of.target_log_probs(ids)[0, start:-1].argmax(-1).tolist() == row


def test_the_law_of_served_rows_is_exact() -> None:
    """Two rows without a seed, of different prompts and temperatures: the product of their target laws, to rounding."""
    pair = named_pair(2, 1)
    of = build(*torch_models(pair), 1)
    asked = [Request((0,), 1, temperature=0.5), Request((1, 0), 1)]
    law = induced_law(lambda: tuple(row[0] for row in of.serve(asked)))
    warm = pair.target.laws**2
    cool = sequence_law(TableModel(warm / warm.sum(1, keepdims=True)), 1, (0,))
    own = sequence_law(pair.target, 1, (1, 0))
    assert law.mass == pytest.approx(1, abs=1e-12)
    for a in range(2):
        for b in range(2):
            assert law.pmf.get((a, b), 0.0) == pytest.approx(cool[a] * own[b], abs=1e-12)


def test_the_law_at_another_temperature_keeps_the_other_processors() -> None:
    """Logits are divided by it before top-k cuts; 0 is one-hot; the decoder's own gives its own law."""
    of = over_tables(temperature=0.8, top_k=2)
    ids = torch.tensor([[0, 1, 2, 3]])
    for temperature in (0.0, 0.7, 1.3):
        cut = over_tables(temperature=temperature, top_k=2).target_log_probs(ids)
        assert torch.equal(of.target_log_probs_at(ids, temperature), cut)
    assert torch.equal(of.target_log_probs_at(ids, 0.8), of.target_log_probs(ids))


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 5)])
def test_settings_of_a_row_apply_to_it_alone(shape: tuple[int, ...]) -> None:
    """Each row comes out as its own settings alone would have it."""
    settings = [Processors(0.5), Processors(0.0), Processors(1.2, top_k=2)]
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    together = RowProcessors(settings)(logits)
    for own, law, row in zip(settings, together, logits, strict=True):
        assert torch.equal(law, own(row[None])[0])
    assert torch.equal(RowProcessors(settings[:1] * 3)(logits), settings[0](logits))


def test_what_cannot_be_served_is_an_error() -> None:
    """No requests, settings for other rows than there are, and sampling by the greedy rule."""
    with pytest.raises(ValueError, match="no requests"):
        over_tables().serve([])
    with pytest.raises(ValueError, match="settings for 2 rows and logits for 3"):
        RowProcessors([Processors()] * 2)(torch.zeros(3, 4))
    target, draft = (CachedTable(table, 4) for table in table_pair(4, 3))
    greedy = ReferenceDecoder(target, draft, 3, rule="greedy", processors=Processors(0.0))
    assert greedy.serve([Request((1,), 3)]) == greedy.serve([Request((1,), 3, temperature=0.0)])
    with pytest.raises(ValueError, match="temperature 0 only"):
        greedy.serve([Request((1,), 3, temperature=0.7)])


def test_rows_without_a_seed_share_the_global_stream() -> None:
    """A row without a seed draws from torch's global stream, a seeded one does not touch it."""
    noise = RowNoise([None, 3, None])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        mixed = noise.uniforms(3, 2, torch.float64)
        torch.manual_seed(1)
        assert torch.equal(mixed[[0, 2]], torch.rand(2, 2, dtype=torch.float64))
    assert torch.equal(mixed[1], torch.rand(2, generator=torch.Generator().manual_seed(3), dtype=torch.float64))


class PaddedOnTheLeft(ReferenceDecoder):
    """The reference with its trained models, but shorter prompts are padded on the left, and the padding is attended to."""

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve prompts of equal length, made so by newlines before them."""
        width = max(len(r.prompt) for r in requests)
        return super().serve([replace(r, prompt=(1,) * (width - len(r.prompt)) + r.prompt) for r in requests])


def trained(kind: type[ReferenceDecoder]) -> ReferenceDecoder:
    """Make a decoder of that kind with the trained models."""
    right = open_trained()
    return kind(right.main, right.drafter, right.k, eos_id=right.eos_id, prompts=right.prompts)


def verdicts(kind: type[ReferenceDecoder], calls: int) -> dict[str, str]:
    """Verdict of every measurement of the check of mixed batches, from that many."""
    part = Decoder("trained", open=functools.partial(trained, kind), facts=subject.facts)
    planned = Planned("rows", "trained", "mixed batch", True, {"calls": calls})
    found = rows.run(planned, Context(part, "x", Settings(BUDGETS["smoke"]), 0, 1e-10, trained(kind)))
    return {getattr(m, "label", m.kind): m.judge(1e-10).verdict for m in found.measurements}


def test_the_trained_reference_passes_the_check_of_mixed_batches() -> None:
    """No measurement refutes it on a part of the smoke budget."""
    assert set(verdicts(ReferenceDecoder, 12).values()) == {"certified"}


def test_padding_that_is_attended_to_is_refuted_with_trained_models() -> None:
    """Left padding without a mask (C19) is seen in the greedy choices on a part of the smoke budget."""
    found = verdicts(PaddedOnTheLeft, 12)
    refuting = {label for label, verdict in found.items() if verdict == "refuted"}
    assert refuting == {
        "greedy rows take the likeliest token, up to rounding",
        "a greedy row is the same in other company, up to ties",
    }
