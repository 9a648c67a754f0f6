"""Where can a batch of requests that differ go wrong, though each request alone is right? A plain server and its faults.

:class:`BatchLoop` serves requests side by side. One function, ``arrange``, decides what every row of the loop gets from the
requests of the batch: its padded prompt, how many tokens, temperature, stream, whether its noise is filled. A faulty server
is the same loop with another ``arrange``, which goes wrong only where the requests of a batch differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from specverify.faults.decoders import Loop, laws_from
from specverify.faults.rounds import assemble, at, residual, with_bonus
from specverify.pairs import named_pair
from specverify.requests import Request
from specverify.subjects import Decoder, DecoderLike, Facts
from specverify.tables import torch_models


@dataclass(frozen=True)
class Line:
    """What the loop does for one row: prompt, number of tokens, temperature, stream (None: torch's global one).

    filled: whether the noise that accepts drafts is drawn, or stays 0 as the buffer was made.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    stream: torch.Generator | None
    filled: bool = True


Arrange = Callable[[Sequence[Request]], list[Line]]


def stream_of(seed: int | None) -> torch.Generator | None:
    """Return the stream of a seeded request; requests without a seed share torch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def each_its_own(requests: Sequence[Request]) -> list[Line]:
    """Give every row what its own request says."""
    return [
        Line(r.prompt, r.max_new_tokens, 1.0 if r.temperature is None else r.temperature, stream_of(r.seed)) for r in requests
    ]


def unfilled_beside_seeds(requests: Sequence[Request]) -> list[Line]:
    """Fill the noise of seeded rows only, as soon as the batch has one; without any, one call fills the whole buffer."""
    mixed = any(r.seed is not None for r in requests)
    return [
        replace(line, filled=not mixed or r.seed is not None) for line, r in zip(each_its_own(requests), requests, strict=True)
    ]


def padded_on_the_left(requests: Sequence[Request]) -> list[Line]:
    """Pad prompts with token 0 on the left to the longest, without a mask: the padding is attended to."""
    width = max(len(r.prompt) for r in requests)
    return [
        replace(line, prompt=(0,) * (width - len(r.prompt)) + r.prompt)
        for line, r in zip(each_its_own(requests), requests, strict=True)
    ]


def never_greedy_in_company(requests: Sequence[Request]) -> list[Line]:
    """Sample greedy rows at temperature 1 when others of the batch sample."""
    lines = each_its_own(requests)
    sampling = any(line.temperature > 0 for line in lines)
    return [replace(line, temperature=1.0) if sampling and line.temperature == 0 else line for line in lines]


def temperature_of_the_neighbour(requests: Sequence[Request]) -> list[Line]:
    """Take the temperature of the row before, the last one's for the first row."""
    lines = each_its_own(requests)
    return [replace(line, temperature=lines[i - 1].temperature) for i, line in enumerate(lines)]


def length_of_the_neighbour(requests: Sequence[Request]) -> list[Line]:
    """Stop a row where the row before should stop, if that is earlier."""
    lines = each_its_own(requests)
    return [replace(line, max_new_tokens=min(line.max_new_tokens, lines[i - 1].max_new_tokens)) for i, line in enumerate(lines)]


def seed_and_place(requests: Sequence[Request]) -> list[Line]:
    """Seed the stream of a row with its seed and its place in the batch; alone, and in the first place, that is its seed."""
    return [
        replace(line, stream=stream_of(None if r.seed is None else r.seed + i))
        for i, (line, r) in enumerate(zip(each_its_own(requests), requests, strict=True))
    ]


def one_stream_without_seeds(requests: Sequence[Request]) -> list[Line]:
    """Give all rows without a seed the numbers of one stream from its beginning, another one in every batch."""
    seed = int(torch.randint(2**31, ()))
    return [
        replace(line, stream=stream_of(seed if r.seed is None else r.seed))
        for line, r in zip(each_its_own(requests), requests, strict=True)
    ]


def tempered(log_laws: Tensor, temperatures: Tensor) -> Tensor:
    """Laws (B, n, V) of log-laws (B, n, V) at temperatures (B,); 0 is one-hot at the first of the likeliest tokens."""
    best = torch.zeros_like(log_laws).scatter(-1, log_laws.argmax(-1, keepdim=True), 1.0)
    t = temperatures[:, None, None]
    return torch.where(t == 0, best, (log_laws / torch.where(t == 0, 1.0, t)).softmax(-1))


def clocks(lines: Sequence[Line], n: int, vocab_size: int) -> Tensor:
    """Exponentials (B, n, V), each row's from its own stream: argmax law / clock is a draw from the law."""
    empty = [torch.empty((n, vocab_size), dtype=torch.float64) for _ in lines]
    return torch.stack([row.exponential_(generator=line.stream) for row, line in zip(empty, lines, strict=True)])


@dataclass(eq=False)
class BatchLoop(Loop):
    """Token rejection over rows that differ; a :class:`~specverify.requests.Serving`.

    Prompts are padded on the right while rows have different lengths, so models must be causal.
    """

    arrange: Arrange = field(default=each_its_own, kw_only=True)

    def target_log_probs_at(self, ids: Tensor, temperature: float) -> Tensor:
        """Log-laws (B, T, V) of the target at a temperature."""
        return tempered(self.target(ids), torch.full((len(ids),), temperature, dtype=torch.float64)).log()

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """New tokens of every request, in their order."""
        lines = self.arrange(requests)
        starts = torch.tensor([len(line.prompt) for line in lines])
        limits = starts + torch.tensor([line.max_new_tokens for line in lines])
        ids = torch.zeros((len(lines), int(limits.max()) + 2 * self.k + 1), dtype=torch.int64)
        for row, line in zip(ids, lines, strict=True):
            row[: len(line.prompt)] = torch.tensor(line.prompt)
        lengths, running = starts.clone(), torch.ones(len(lines), dtype=torch.bool)
        while running.any():
            tokens, counts = self._one_round(ids, lengths, lines)
            counts = torch.where(running, counts, 0)
            if self.eos_id is not None:
                running &= ~((tokens == self.eos_id) & (torch.arange(self.k + 1) < counts[:, None])).any(1)
            self._append(ids, lengths, tokens, counts)
            lengths = lengths + counts
            running &= lengths < limits
        out = [row[a:b].tolist() for row, a, b in zip(ids, starts, torch.minimum(lengths, limits), strict=True)]
        return [row[: row.index(self.eos_id) + 1] if self.eos_id in row else row for row in out]

    def _one_round(self, ids: Tensor, lengths: Tensor, lines: Sequence[Line]) -> tuple[Tensor, Tensor]:
        """Draft and verify once: tokens (B, K+1), counts (B,)."""
        temperatures = torch.tensor([line.temperature for line in lines], dtype=torch.float64)
        text, rows, laws = ids.clone(), torch.arange(len(lines)), []
        race = clocks(lines, self.k + 1, self.vocab_size)
        for j in range(self.k):
            laws.append(tempered(laws_from(self.draft, text, lengths + j - 1, 1).log(), temperatures)[:, 0])
            text[rows, lengths + j] = (laws[-1] / race[:, j]).argmax(-1)
        drafts, q = text[rows[:, None], lengths[:, None] + torch.arange(self.k)], torch.stack(laws, 1)
        p = tempered(laws_from(self.target, text, lengths - 1, self.k + 1).log(), temperatures)
        u = torch.zeros(drafts.shape, dtype=p.dtype)
        for row, line in zip(u, lines, strict=True):
            if line.filled:
                row.copy_(torch.rand(self.k, dtype=p.dtype, generator=line.stream))
        accepted = (u < (at(p, drafts) / at(q, drafts)).clamp(max=1)).long().cumprod(1).sum(1)
        last = with_bonus(residual(q, p), p)[rows, accepted] / race[:, self.k]
        return assemble(drafts, accepted, last.argmax(-1))


class Attentive:
    """Laws that depend on far context: a token's law leans towards what all tokens up to it, alike attended to, vote for.

    Two seeded tables (V, V): what the last token asks for, and what every earlier one votes for.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.asks = torch.randn((vocab_size, vocab_size), generator=generator, dtype=torch.float64)
        self.votes = 4 * torch.randn((vocab_size, vocab_size), generator=generator, dtype=torch.float64)

    def __call__(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) for ids (B, T); row t follows ``ids[:, : t + 1]``."""
        seen = torch.arange(1, ids.shape[1] + 1, dtype=torch.float64)[:, None]
        return (self.asks[ids] + self.votes[ids].cumsum(1) / seen).log_softmax(-1)


def over_tables(arrange: Arrange = each_its_own, eos_id: int | None = None) -> DecoderLike:
    """Make a server over table models."""
    pair = named_pair(5, 3)
    return BatchLoop(*torch_models(pair), pair.k, eos_id, arrange=arrange)


def over_far_context(arrange: Arrange = each_its_own) -> DecoderLike:
    """Make a server over models that attend to all of the context."""
    return BatchLoop(Attentive(5, 0), Attentive(5, 1), 3, arrange=arrange)


def _server(name: str, arrange: Arrange = each_its_own, opened: Callable[[Arrange], DecoderLike] = over_tables) -> Decoder:
    return Decoder(name, open=partial(opened, arrange), facts=Facts(rule="token rejection"), serves=True)


C06_unfilled_beside_seeds = _server("C06_unfilled_beside_seeds", unfilled_beside_seeds)
C06_served_repaired = _server("C06_served_repaired")
C19_padding_attended = _server("C19_padding_attended", padded_on_the_left, over_far_context)
C19_repaired = _server("C19_repaired", opened=over_far_context)

SERVER_FAULTS: dict[str, Decoder] = {
    function.__name__: _server(function.__name__, function)
    for function in (
        never_greedy_in_company,
        temperature_of_the_neighbour,
        length_of_the_neighbour,
        seed_and_place,
        one_stream_without_seeds,
    )
}
"""Further faults of a server, by name; their repaired twin is ``C06_served_repaired``."""
