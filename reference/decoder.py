"""How to generate with speculation: tokens of the main model's law, each model reading each token once.

Rounds (:mod:`reference.step`) follow each other until every row has what it asked for. Rows accept different counts, so they
have different lengths, and leave when they are done.

Names of shapes: B rows, K drafted tokens, V vocabulary, N new tokens, R rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Cache
from reference.drafting import Drafter, Model
from reference.history import occurring, read_prompts
from reference.noise import Noise
from reference.processors import Process
from reference.step import plain_step, speculative_step, start
from specverify.subjects import Emitted, Generated


class Pace(Protocol):
    """How many tokens each round drafts, chosen from what earlier rounds accepted and nothing else."""

    largest: int

    def choose(self) -> int:
        """Tokens to draft in the next round; 0 leaves the round to the main model alone."""
        ...

    def observe(self, drafted: int, accepted: Tensor) -> None:
        """Hear how many of the drafted tokens each row accepted, (B,)."""
        ...


@dataclass(frozen=True)
class Round:
    """What one round added: the rows (R,) that took part, their tokens (R, K+1), how many of them count, (R,) (a stop or
    the end of the request cuts a block), and how many drafts were accepted, (R,).
    """

    rows: Tensor
    tokens: Tensor
    counts: Tensor
    accepted: Tensor


def rounds(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    max_new_tokens: int | Tensor,
    *,
    k: int | Pace,
    process: Process,
    rule: Any,
    noise: Noise,
    lengths: Tensor | None = None,
    stop: Sequence[int] = (),
) -> Iterator[Round]:
    """Yield what each round adds to prompts (B, T), until every row has its ``max_new_tokens`` (one number, or (B,)) or a
    token of ``stop``. Arguments and errors as for :func:`generate`.
    """
    lengths = _checked(prompts, lengths, max_new_tokens)
    pace = k if not isinstance(k, int) else None
    largest = k if isinstance(k, int) else k.largest
    if largest < 1:
        raise ValueError(f"k is {largest}; a round drafts at least one token")
    B = len(prompts)
    left = torch.as_tensor(max_new_tokens).expand(B)
    rows, ends = torch.arange(B), torch.tensor(list(stop), dtype=torch.int64)
    with torch.inference_mode():
        # A row may end K tokens past what was asked.
        state = start(main, draft, prompts, lengths, int(left.max()) + 2 * largest + 1, seen=process.reads_history)
    sure = 0  # every row lacks at least so many tokens; counting down saves looking
    going: Tensor | None = None
    while going is None or going.any():
        with torch.inference_mode():
            if going is not None and not going.all():
                kept = _filling_holes(going)
                state.keep_rows(kept)
                rows, left = rows[kept], left[kept]
                noise, process = noise.keep_rows(kept), process.keep_rows(kept)
            drafted = largest if pace is None else pace.choose()
            if drafted:
                emitted = speculative_step(main, state, drafted, process, rule, noise)
            else:
                emitted = plain_step(main, state, process, noise)
            accepted = emitted.counts - 1
            if pace is not None:
                pace.observe(drafted, accepted)
            sure -= emitted.tokens.shape[1]
            if sure > 0 and not len(ends):
                counts, left, going = emitted.counts, left - emitted.counts, None
            else:
                counts, stopped = _cut(emitted, left, ends)
                left = left - counts
                going = left > 0 if stopped is None else (left > 0) & ~stopped
                sure = int(left.min())
        yield Round(rows, emitted.tokens, counts, accepted)


def _filling_holes(going: Tensor) -> Tensor:
    """Return the rows that go on, (R,), such that few have to move: the last ones into the places of those that leave."""
    kept = going.nonzero()[:, 0]
    order = torch.arange(len(kept))
    order[~going[: len(kept)]] = kept[kept >= len(kept)]
    return order


def _cut(emitted: Emitted, left: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
    """How many tokens of each row's block count, (B,), and which rows met a stop, (B,); None where there are no stops."""
    counts = torch.minimum(emitted.counts, left)
    if not len(ends):
        return counts, None
    places = torch.arange(emitted.tokens.shape[1])
    met = torch.isin(emitted.tokens, ends) & (places < counts[:, None])
    first = torch.where(met, places, len(places)).amin(1)
    return torch.minimum(counts, first + 1), met.any(1)


def generate(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    k: int | Pace,
    process: Process,
    rule: Any,
    noise: Noise,
    lengths: Tensor | None = None,
    eos_id: int | None = None,
    stop: Sequence[int] = (),
) -> Generated:
    """Exactly max_new_tokens (B, N) after prompts (B, T), and the accepted counts (B, R) of each row's rounds, then -1.

    draft: a drafter of :mod:`reference.drafting`, or a model that drafts by itself. Row b's prompt is its first
    ``lengths[b]`` tokens (default: all T). A row ends at ``eos_id`` or a token of ``stop``; what follows is that token
    again. k is a number or a :class:`Pace`. Every round drafts as many tokens as if the text went on, also the last, so a
    row's draws do not depend on how many tokens are asked for; what is too much is cut. Errors: ValueError for empty
    prompts, k < 1 or max_new_tokens < 1.
    """
    ends = [*stop, *([] if eos_id is None or eos_id in stop else [eos_id])]
    B = len(prompts)
    made = rounds(
        main, draft, prompts, max_new_tokens, k=k, process=process, rule=rule, noise=noise, lengths=lengths, stop=ends
    )
    collected = Collected(B, max_new_tokens)
    for one in made:
        collected.add(one)
    return collected.generated()


class Collected:
    """What rounds made of B rows, put together to N tokens each. Rounds are kept as they come and put together in the end."""

    def __init__(self, rows: int, max_new_tokens: int) -> None:
        self.shape = (rows, max_new_tokens)
        self.rounds: list[Round] = []

    def add(self, one: Round) -> None:
        """Keep a round."""
        self.rounds.append(one)

    def generated(self) -> Generated:
        """Return tokens (B, N), each row's last one repeated to the end, and accepted counts (B, R)."""
        B, N = self.shape
        output = torch.zeros(B, N, dtype=torch.int64)
        filled = torch.zeros(B, dtype=torch.int64)
        accepted = torch.full((len(self.rounds), B), -1)
        for first, last in _of_equal_rows(self.rounds):
            part = self.rounds[first:last]
            rows = part[0].rows
            counts = torch.stack([one.counts for one in part], 1)  # (R', rounds)
            width = max(one.tokens.shape[1] for one in part)
            padded = [functional.pad(one.tokens, (0, width - one.tokens.shape[1])) for one in part]
            real = torch.arange(width) < counts[..., None]  # (R', rounds, width)
            places = (filled[rows, None] + real.flatten(1).cumsum(1) - 1)[real.flatten(1)]
            owners = rows[:, None].expand(-1, real[0].numel())[real.flatten(1)]
            output[owners, places] = torch.stack(padded, 1)[real]
            filled[rows] += counts.sum(1)
            accepted[first:last, rows] = torch.stack([one.accepted for one in part])
        end = output.gather(1, (filled - 1)[:, None])
        return Generated(torch.where(torch.arange(N) < filled[:, None], output, end), accepted.t().contiguous())


def _of_equal_rows(made: Sequence[Round]) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of the stretches of rounds with the same rows, which is one and the same tensor."""
    first = 0
    for i in range(1, len(made) + 1):
        if i == len(made) or made[i].rows is not made[first].rows:
            yield first, i
            first = i


def stream(
    main: Model, draft: Drafter | Model, prompts: Tensor, max_new_tokens: int | Tensor, **settings: Any
) -> Iterator[list[tuple[int, list[int]]]]:
    """Yield after every round (row, its new tokens) of the rows that took part; arguments as for :func:`rounds`."""
    for one in rounds(main, draft, prompts, max_new_tokens, **settings):
        yield [
            (row, block[:count])
            for row, block, count in zip(one.rows.tolist(), one.tokens.tolist(), one.counts.tolist(), strict=True)
        ]


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
        cache: Cache | None = main.start(text.shape[1], len(prompts)) if cached else None
        if cache is not None and prompts.shape[1] > 1:
            main.extend(prompts[:, :-1], cache, lengths - 1)
        tokens: list[Tensor] = []
        seen = None
        if process.reads_history:
            seen = read_prompts(prompts, lengths, 0, main.vocab_size, seen=True).seen
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for i in range(max_new_tokens):
            if cache is not None:
                logits = main.extend(last, cache)[:, 0]
            else:
                length = prompts.shape[1] + i
                logits = main.extend(text[:, :length], main.start(length, len(prompts)))[rows, lengths + i - 1]
            last = noise.choose(process(logits, seen))[:, None]
            seen = None if seen is None else seen | occurring(last, main.vocab_size)[:, 0]
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


def _checked(prompts: Tensor, lengths: Tensor | None, max_new_tokens: int | Tensor) -> Tensor:
    B, T = prompts.shape
    lengths = torch.full((B,), T) if lengths is None else lengths
    if T < 1 or (lengths < 1).any() or (lengths > T).any():
        raise ValueError(f"prompt lengths are {lengths.tolist()} for prompts {(B, T)}; each must lie in 1..{T}")
    if (torch.as_tensor(max_new_tokens) < 1).any():
        raise ValueError(f"max_new_tokens is {max_new_tokens}; ask for at least one")
    return lengths
