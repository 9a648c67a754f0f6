"""Where can the loop around a sound rule go wrong? A plain speculative decoder and four faults of it.

:class:`Loop` is a plain decode loop over models handed in: no cache, every prefix is computed again. Three functions
decide what is often got wrong around the rule, and a faulty decoder is a loop with one of them replaced:
``read_at`` (which target rows verify), ``keep`` (what a round adds to the text), ``cut`` (what an end of text does). A fourth,
``bonus``, is the model whose law the bonus token follows, when that is not the target; ``drafted`` is the law that drafts are
drawn from when it is not the one that the rule is told; ``noise`` and ``stream`` are the uniforms and the stream of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specverify.faults.chain import filtered
from specverify.faults.rounds import assemble, at, draw, residual, with_bonus
from specverify.subjects import DecoderLike, Generated, Model

ReadAt = Callable[[Tensor, int], Tensor]
Keep = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Cut = Callable[[Tensor, Tensor, int], Tensor]
Noise = Callable[[torch.Size, torch.dtype, torch.Generator], Tensor]


def at_row_ends(lengths: Tensor, prompt_length: int) -> Tensor:  # noqa: ARG001
    """Return the position that verifies first, one per row (B,): the last one of the row's text so far."""
    return lengths - 1


def at_prompt_end(lengths: Tensor, prompt_length: int) -> Tensor:
    """Return the last position of the prompt in every round; right in the first round only."""
    return torch.full_like(lengths, prompt_length - 1)


def keep_all_drafts(draft_tokens: Tensor, accepted: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the whole draft, rejected tokens included, and append the drawn token: (B, K+1), counts (B,)."""
    return torch.cat([draft_tokens, last[:, None]], dim=1), torch.full_like(accepted, draft_tokens.shape[1] + 1)


def keep_length(draft_tokens: Tensor, accepted: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Put the drawn token in its place but leave the drafts behind it, as when the length is not rolled back."""
    whole, counts = keep_all_drafts(draft_tokens, accepted, last)
    return whole.scatter(1, accepted[:, None], last[:, None]), counts


def cut_after_eos(tokens: Tensor, counts: Tensor, eos_id: int) -> Tensor:
    """Return counts (B,) that end with the first eos among a row's tokens (B, K+1), when it has one."""
    before = (tokens != eos_id).long().cumprod(1).sum(1)
    return torch.minimum(counts, before + 1)


def keep_past_eos(tokens: Tensor, counts: Tensor, eos_id: int) -> Tensor:  # noqa: ARG001
    """Leave the counts as they are: what a round emitted after an eos is returned too."""
    return counts


def fresh(shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return uniforms of a shape (B, K), each drawn for itself."""
    return torch.rand(shape, generator=generator, dtype=dtype)


def of_its_seed(seed: int) -> torch.Generator:
    """Return the stream that a request asks for."""
    return torch.Generator().manual_seed(seed)


def laws_from(model: Model, ids: Tensor, first: Tensor, number: int) -> Tensor:
    """Laws (B, number, V) of the tokens after positions first, first + 1, ... of each row; ids (B, T), first (B,)."""
    rows = torch.arange(len(ids))[:, None]
    return model(ids)[rows, first[:, None] + torch.arange(number)].softmax(-1)


class Processed:
    """A model with the processors of a request applied: temperature, then top-p."""

    def __init__(self, model: Model, temperature: float, top_p: float) -> None:
        self.model, self.temperature, self.top_p = model, temperature, top_p
        self.vocab_size = model.vocab_size

    def __call__(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) after the processors for ids (B, T); -inf outside the top-p set."""
        return filtered((self.model(ids) / self.temperature).softmax(-1), top_p=self.top_p).log()


@dataclass(eq=False)
class Loop:
    """Token rejection in rounds of ``k`` draft tokens over two models; a :class:`~specverify.subjects.DecoderLike`.

    Models must be causal: rows are padded on the right while they have different lengths.
    """

    target: Model
    draft: Model
    k: int
    eos_id: int | None = None
    read_at: ReadAt = at_row_ends
    keep: Keep = assemble
    cut: Cut = cut_after_eos
    bonus: Model | None = None
    drafted: Callable[[Tensor], Tensor] | None = None
    noise: Noise = fresh
    stream: Callable[[int], torch.Generator] = of_its_seed
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size = self.target.vocab_size

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) of the target; row t is the law of the token after ``ids[:, : t + 1]``."""
        return self.target(ids).log_softmax(-1)

    def draft_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) of the draft."""
        return self.draft(ids).log_softmax(-1)

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        """Generate (B, max_new_tokens) after prompts (B, T), all eos after an eos; accepted counts are (B, R)."""
        generator = self.stream(seed)
        rows, start = prompts.shape
        limit = start + max_new_tokens
        ids = torch.nn.functional.pad(prompts, (0, max_new_tokens + self.k + 1))
        lengths = torch.full((rows,), start)
        ended = torch.zeros(rows, dtype=torch.bool)
        accepted_by_round: list[Tensor] = []
        while (running := ~ended & (lengths < limit)).any():
            tokens, counts, accepted = self._round(ids, lengths, start, generator)
            if self.eos_id is not None:
                emitted = torch.arange(self.k + 1) < counts[:, None]
                ended |= running & ((tokens == self.eos_id) & emitted).any(1)
                counts = self.cut(tokens, counts, self.eos_id)
            self._append(ids, lengths, tokens, torch.where(running, counts, 0))
            lengths = torch.where(running, lengths + counts, lengths).clamp(max=limit)
            accepted_by_round.append(torch.where(running, accepted, -1))
        if self.eos_id is not None:
            ids = torch.where(torch.arange(ids.shape[1]) < lengths[:, None], ids, self.eos_id)
        reported = torch.stack(accepted_by_round, dim=1) if accepted_by_round else torch.zeros((rows, 0)).long()
        return Generated(ids[:, start:limit], reported)

    def _round(self, ids: Tensor, lengths: Tensor, start: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draft and verify once: tokens (B, K+1), counts (B,), accepted (B,); ``ids`` is only read."""
        drafted = ids.clone()
        rows = torch.arange(len(ids))
        laws = []
        for j in range(self.k):
            law = laws_from(self.draft, drafted, lengths + j - 1, 1)[:, 0]
            drafted[rows, lengths + j] = draw(law if self.drafted is None else self.drafted(law), generator)
            laws.append(law)
        draft_tokens = drafted[rows[:, None], lengths[:, None] + torch.arange(self.k)]
        q = torch.stack(laws, dim=1)
        first = self.read_at(lengths, start)
        p = laws_from(self.target, drafted, first, self.k + 1)
        if self.bonus is not None:
            p = torch.cat([p[:, :-1], laws_from(self.bonus, drafted, first + self.k, 1)], dim=1)
        ratio = at(p, draft_tokens) / at(q, draft_tokens)
        u = self.noise(ratio.shape, ratio.dtype, generator)
        accepted = (u < ratio.clamp(max=1)).long().cumprod(1).sum(1)
        last = draw(with_bonus(residual(q, p), p)[rows, accepted], generator)
        return *self.keep(draft_tokens, accepted, last), accepted

    def _append(self, ids: Tensor, lengths: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Write each row's first ``counts`` tokens behind its text, in place."""
        columns = torch.arange(tokens.shape[1])
        row, column = (columns < counts[:, None]).nonzero(as_tuple=True)
        ids[row, lengths[row] + column] = tokens[row, column]


def factory(read_at: ReadAt = at_row_ends, keep: Keep = assemble, cut: Cut = cut_after_eos) -> Callable[..., DecoderLike]:
    """Return ``build(target, draft, k, eos_id=None)``, which runs such a loop over the models handed in."""

    def build(target: Model, draft: Model, k: int, eos_id: int | None = None) -> DecoderLike:
        return Loop(target, draft, k, eos_id, read_at, keep, cut)

    return build
