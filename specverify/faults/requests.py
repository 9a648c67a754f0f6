"""Which mistakes were reported about requests, rows and seeds, where every single law may be right? Decoders with own models.

All serve table models; what is wrong lies in the stream that a request draws from, in the rows that share it, or in the law
that drafts are drawn from. :mod:`specverify.faults.cases` lists them with the other reported bugs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specverify.faults.chain import filtered
from specverify.faults.decoders import Loop, fresh, of_its_seed
from specverify.faults.rounds import finish, or_target, token_rejection, with_bonus
from specverify.laws import Pair, TableModel
from specverify.pairs import named_pair
from specverify.subjects import Decoder, DecoderLike, Facts, Verifier
from specverify.tables import torch_models


class RowByRow:
    """A decoder that generates every row of a batch with the stream of the request, from its beginning."""

    def __init__(self, inner: Loop) -> None:
        self.inner, self.vocab_size = inner, inner.vocab_size
        self.target_log_probs, self.draft_log_probs = inner.target_log_probs, inner.draft_log_probs

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Generate (B, max_new_tokens) after prompts (B, T)."""
        rows = [self.inner.generate(prompt[None], max_new_tokens, seed) for prompt in prompts]
        return torch.cat([row.tokens for row in rows])


def nearer(pair: Pair, share: float = 0.4) -> Pair:
    """The pair with a draft that follows the target in a share of its tokens, as a trained one does."""
    draft = TableModel(share * pair.target.laws + (1 - share) * pair.draft.laws)
    return Pair(pair.target, draft, pair.k, pair.prompt, f"{pair.name}, nearer")


def serving(
    wrap: Callable[[Loop], DecoderLike] | None = None, chosen: Callable[[Pair], Pair] | None = None, **parts: Any
) -> DecoderLike:
    """Make a decoder over table models, with some parts of the loop replaced."""
    pair = named_pair(5, 3)
    pair = pair if chosen is None else chosen(pair)
    loop = Loop(*torch_models(pair), pair.k, **parts)
    return loop if wrap is None else wrap(loop)


def unfilled_without_a_seed(shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Fill the noise of every other row, as those that come with a seed; the rest of the buffer stays as it was made."""
    noise = fresh(shape, dtype, generator)
    noise[1::2] = 0.0
    return noise


def same_for_all_rows(shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Draw the coins of one row and toss them for all."""
    return fresh(shape, dtype, generator)[:1].expand(shape)


def replaying() -> Callable[[int], torch.Generator]:
    """Make a source of streams in which every second request gets the stream of the one before."""
    requests = itertools.count()
    return lambda _seed: of_its_seed(next(requests) // 2)


def default_stream(seed: int) -> torch.Generator:  # noqa: ARG001 - that is the fault
    """Give every request the same stream."""
    return of_its_seed(0)


def never_accepting(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Accept nothing over small vocabularies, where this is exact; over large ones everything, which is not."""
    accept = torch.full(draft_tokens.shape, target_probs.shape[2] > 100)
    return finish(
        draft_tokens, accept, with_bonus(or_target(torch.zeros_like(draft_probs), target_probs[:, :-1]), target_probs)
    )


def _decoder(name: str, **parts: Any) -> Decoder:
    return Decoder(name, open=partial(_opened, parts), facts=Facts(rule="token rejection"))


def _opened(parts: dict[str, Any]) -> DecoderLike:
    made: dict[str, Any] = {key: value() if value is replaying else value for key, value in parts.items()}
    return serving(**made)


C04_filtered_draft = _decoder("C04_filtered_draft", chosen=nearer, drafted=partial(filtered, top_k=2))
C06_noise_unfilled = _decoder("C06_noise_unfilled", noise=unfilled_without_a_seed)
C17_same_stream_for_rows = _decoder("C17_same_stream_for_rows", wrap=RowByRow)
C17_same_coins_for_rows = _decoder("C17_same_coins_for_rows", noise=same_for_all_rows)
C18_request_replayed = _decoder("C18_request_replayed", stream=replaying)
C21_default_seed = _decoder("C21_default_seed", stream=default_stream)
C22_never_accepts = Verifier("C22_never_accepts", never_accepting)
C04_repaired = _decoder("C04_repaired", chosen=nearer)
C06_repaired = _decoder("C06_repaired")
C17_repaired = _decoder("C17_repaired")
C18_repaired = _decoder("C18_repaired")
C21_repaired = _decoder("C21_repaired")
C22_repaired = Verifier("C22_repaired", token_rejection)
