"""How to generate with speculation: tokens of the main model's law, each model reading each token once.

A round: the draft proposes K tokens one by one; the main model reads the last emitted token and the K proposals in one
pass; the rule decides; both caches forget what was not accepted. Rows accept different counts, so they have different
lengths.

Names of shapes: B rows, K drafted tokens, V vocabulary, N new tokens, R rounds. Two invariants hold between rounds,
when a row has L tokens: the main cache holds L - 1, all but the last; the draft cache lacks that one too, and after K
acceptances also the token before it, its own last proposal, which it never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Cache, CachedModel
from reference.noise import Noise
from reference.rules import Rule
from specverify.subjects import Emitted, Generated

Model = CachedModel[Any]
Process = Callable[[Tensor], Tensor]


@dataclass
class State:
    """What a decode carries from round to round."""

    main: Cache
    draft: Cache
    missing: Tensor
    """(B, 2): the tokens that the draft cache lacks, first ``missing_counts`` of each row; the last of them the main
    cache lacks.
    """
    missing_counts: Tensor
    """(B,): 1 or 2."""

    @property
    def last(self) -> Tensor:
        """The last token (B, 1) of every row."""
        return self.missing.gather(1, self.missing_counts[:, None] - 1)


def start(main: Model, draft: Model, prompts: Tensor, lengths: Tensor, room: int) -> State:
    """Read prompts (B, T), of which row b has ``lengths[b]`` >= 1 tokens, leaving ``room`` tokens to come per row."""
    last = prompts.gather(1, lengths[:, None] - 1)
    return State(
        _read_all_but_last(main, prompts, lengths, room),
        _read_all_but_last(draft, prompts, lengths, room),
        functional.pad(last, (0, 1)),
        torch.ones_like(lengths),
    )


def _read_all_but_last(model: Model, prompts: Tensor, lengths: Tensor, room: int) -> Cache:
    B, T = prompts.shape
    cache: Cache = model.start(T + room, B)
    if T > 1:
        model.extend(prompts[:, :-1], cache, lengths - 1)
    return cache


def draft_propose(
    draft: Model, cache: Cache, missing: Tensor, missing_counts: Tensor, k: int, process: Process, noise: Noise
) -> tuple[Tensor, Tensor]:
    """Let the draft catch up on missing (B, 2) and propose: tokens (B, K) and the laws (B, K, V) they were drawn from.

    Afterwards the cache holds all but the last proposal.
    """
    if (missing_counts == 1).all():
        logits = draft.extend(missing[:, :1], cache)[:, 0]  # (B, V)
    else:
        both = draft.extend(missing, cache, missing_counts)
        logits = both[torch.arange(len(both)), missing_counts - 1]
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    for j in range(k):
        if j > 0:
            logits = draft.extend(tokens[-1][:, None], cache)[:, 0]
        laws.append(process(logits))
        tokens.append(noise.choose(laws[-1]))
    return torch.stack(tokens, 1), torch.stack(laws, 1)


def main_verify(
    main: Model, cache: Cache, last: Tensor, tokens: Tensor, laws: Tensor, process: Process, rule: Rule, noise: Noise
) -> Emitted:
    """One pass of the main model over last (B, 1) and the proposals (B, K), judged by the rule. The cache then holds
    them all.
    """
    target = process(main.extend(torch.cat([last, tokens], 1), cache))  # (B, K+1, V)
    return rule.verify(tokens, laws, target, noise)


def speculative_step(
    main: Model,
    draft: Model,
    state: State,
    k: int,
    process: Process,
    rule: Rule,
    noise: Noise,
    live: Tensor | None = None,
) -> Emitted:
    """One round on a state, which is carried on; rows that are not ``live`` (B,) stay where they were."""
    before, last, pending = state.main.lengths, state.last, (state.missing, state.missing_counts)
    draft_before = state.draft.lengths
    tokens, laws = draft_propose(draft, state.draft, *pending, k, process, noise)
    emitted = main_verify(main, state.main, last, tokens, laws, process, rule, noise)
    kept = before + emitted.counts  # all tokens but the last emitted, which neither model has read
    draft_kept = torch.minimum(kept, state.draft.lengths)
    # Accepting all K leaves the draft two tokens behind, its last proposal and the bonus; otherwise one.
    full = emitted.counts == k + 1
    final = emitted.tokens.gather(1, emitted.counts[:, None] - 1)
    state.missing = torch.where(full[:, None], emitted.tokens[:, -2:], final)
    state.missing_counts = 1 + full.long()
    if live is not None:
        kept = torch.where(live, kept, before)
        draft_kept = torch.where(live, draft_kept, draft_before)
        state.missing = torch.where(live[:, None], state.missing, pending[0])
        state.missing_counts = torch.where(live, state.missing_counts, pending[1])
    state.main.rollback(kept)
    state.draft.rollback(draft_kept)
    return emitted


def generate(
    main: Model,
    draft: Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    k: int,
    process: Process,
    rule: Rule,
    noise: Noise,
    lengths: Tensor | None = None,
    eos_id: int | None = None,
) -> Generated:
    """Exactly max_new_tokens (B, N) after prompts (B, T), and the accepted counts (B, R) of each row's rounds, then -1.

    Row b's prompt is its first ``lengths[b]`` tokens (default: all T). What follows an ``eos_id`` is ``eos_id``. Every
    round drafts K tokens, also the last, so a row's draws do not depend on how many tokens are asked for; what is too
    much is cut. Errors: ValueError for empty prompts, k < 1 or max_new_tokens < 1.
    """
    lengths = _checked(prompts, lengths, max_new_tokens)
    if k < 1:
        raise ValueError(f"k is {k}; a round drafts at least one token")
    B = len(prompts)
    with torch.inference_mode():
        # A row may end K tokens past what was asked, and then stands by while others read K + 1 more.
        state = start(main, draft, prompts, lengths, max_new_tokens + 2 * k + 1)
        output = torch.zeros(B, max_new_tokens + 2 * k + 1, dtype=torch.int64)
        filled = torch.zeros(B, dtype=torch.int64)
        live = torch.ones(B, dtype=torch.bool)
        places = torch.arange(k + 1)
        accepted = []
        everyone = True
        while True:
            emitted = speculative_step(main, draft, state, k, process, rule, noise, None if everyone else live)
            accepted.append(torch.where(live, emitted.counts - 1, -1))
            # A row's block is written whole: what lies past its count is overwritten by its next round, or cut below.
            output.scatter_(1, filled[:, None] + places, emitted.tokens)
            filled = filled + torch.where(live, emitted.counts, 0)
            live = live & (filled < max_new_tokens)
            if eos_id is not None:
                live = live & (emitted.tokens != eos_id).all(1)
            if not live.any():
                break
            everyone = everyone and bool(live.all())
        tokens = _after_end(output[:, :max_new_tokens], eos_id)
    return Generated(tokens.clone(), torch.stack(accepted, 1).clone())


def autoregressive(
    main: Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    process: Process,
    noise: Noise,
    cached: bool = True,
    lengths: Tensor | None = None,
    eos_id: int | None = None,
) -> Tensor:
    """Exactly max_new_tokens (B, N) after prompts (B, T) by the main model alone, one token per pass.

    Without ``cached`` every pass reads the whole text again. Other arguments and errors as for :func:`generate`.
    """
    lengths = _checked(prompts, lengths, max_new_tokens)
    rows = torch.arange(len(prompts))
    with torch.inference_mode():
        text = functional.pad(prompts, (0, max_new_tokens))
        last = text.gather(1, lengths[:, None] - 1)
        cache = _read_all_but_last(main, prompts, lengths, max_new_tokens) if cached else None
        tokens: list[Tensor] = []
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for i in range(max_new_tokens):
            if cache is not None:
                logits = main.extend(last, cache)[:, 0]
            else:
                length = prompts.shape[1] + i
                logits = main.extend(text[:, :length], main.start(length, len(prompts)))[rows, lengths + i - 1]
            last = noise.choose(process(logits))[:, None]
            text.scatter_(1, lengths[:, None] + i, last)
            tokens.append(last)
            if eos_id is not None:
                ended = ended | (last[:, 0] == eos_id)
                if ended.all():
                    break
        output = functional.pad(torch.cat(tokens, 1), (0, max_new_tokens - len(tokens)))
        output = _after_end(output, eos_id)
    return output.clone()


def acceptance_per_tested_token(accepted: Tensor, k: int) -> float:
    """Return accepted / (accepted + rejected) over rounds (B, R) of K drafts; entries of -1 are no rounds."""
    counts = accepted[accepted >= 0]
    return float(counts.sum() / (counts.sum() + (counts < k).sum()))


def _after_end(tokens: Tensor, eos_id: int | None) -> Tensor:
    """Tokens (B, N) with everything after a row's first ``eos_id`` replaced by it."""
    if eos_id is None:
        return tokens
    ends = (tokens == eos_id).long()
    return torch.where(ends.cumsum(1) - ends > 0, eos_id, tokens)


def _checked(prompts: Tensor, lengths: Tensor | None, max_new_tokens: int) -> Tensor:
    B, T = prompts.shape
    lengths = torch.full((B,), T) if lengths is None else lengths
    if T < 1 or (lengths < 1).any() or (lengths > T).any():
        raise ValueError(f"prompt lengths are {lengths.tolist()} for prompts {(B, T)}; each must lie in 1..{T}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; ask for at least one")
    return lengths
