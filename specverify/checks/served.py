"""Which requests make a mixed batch, what came of them, and under which laws? Prompts, requests, rows and their laws."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from specverify.checks.own_tokens import decoder_prompts
from specverify.laws import Array
from specverify.requests import Request, Row, Serving, read_served, until_end, wrong_length
from specverify.subjects import DecoderLike, checked_log_probs, naming_inputs

SHORTEST, LONGEST = 12, 64
"""The longest prompt of a batch is as long as the decoder's own prompts, within these."""
MOST_NEW, TWIN_NEW = 12, 16
"""Most new tokens of a row, and of each of two rows that share a prompt: enough to be rare as a whole."""
HOT = (0.7, 1.3)
"""Temperatures of rows that have one of their own, where the law there is known."""
BLOCK = 4_000_000
"""Probabilities that are worked on at once."""
ROUNDINGS = {torch.float64: 256.0, torch.float32: 256.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""Rounding of a logit in units of eps times the largest one. Summing n products in another order changes the sum by about
sqrt(n) eps of its size: 256 allows for n = 65,536 per logit. Half precision is summed in float32 and rounded once per layer.
"""
MASKED = -100.0
"""Log-probabilities below this are masks, whose size says nothing about rounding: engines write -1e4, -1e9 or the like."""


@dataclass(frozen=True)
class Served:
    """A request, the tokens that it got, cut where they should have ended, and what is wrong with their number.

    greedy: whether the likeliest token is asked for everywhere.
    """

    request: Request
    tokens: Row
    wrong: str
    greedy: bool


class Server:
    """A decoder that serves, as the check talks to it: batches of requests in, rows and laws out.

    greedy_only: the decoder's own setting is greedy and no other temperature may be asked for.
    """

    def __init__(self, decoder: DecoderLike, serving: Serving | None, name: str, *, greedy_only: bool = False) -> None:
        self.decoder, self.serving, self.name, self.greedy_only = decoder, serving, name, greedy_only
        self.vocab_size = decoder.vocab_size
        eos = getattr(decoder, "eos_id", None)
        self.eos = None if eos is None else int(eos)
        self.log_probs_at: Callable[[torch.Tensor, float], torch.Tensor] | None = getattr(decoder, "target_log_probs_at", None)

    def serve(self, requests: Sequence[Request]) -> list[Served]:
        """Serve one batch. Errors: SubjectError with the requests, when it raises or its answer cannot be read."""
        assert self.serving is not None
        with naming_inputs(f"{self.name}.serve", requests=list(requests)):
            rows = read_served(self.serving.serve(list(requests)), requests, self.vocab_size, self.name)
        out = []
        for request, row in zip(requests, rows, strict=True):
            said = until_end(row, self.eos)[: request.max_new_tokens]
            said = said[: said.index(-1)] if -1 in said else said
            greedy = self.greedy_only or request.temperature == 0
            out.append(Served(request, said, wrong_length(row, request, self.eos), greedy))
        return out

    def _logs(self, rows: Sequence[Served], temperature: float | None) -> tuple[torch.Tensor, float]:
        """Log-laws (R, T, V) along prompts and tokens padded on the right, and how far rounding moves one, relatively."""
        width = max(len(r.request.prompt) + len(r.tokens) for r in rows)
        ids = torch.zeros((len(rows), width), dtype=torch.int64)
        for row, r in zip(ids, rows, strict=True):
            row[: len(r.request.prompt) + len(r.tokens)] = torch.tensor([*r.request.prompt, *r.tokens])
        if temperature is None:
            raw, what = self.decoder.target_log_probs(ids), "target_log_probs"
        else:
            assert self.log_probs_at is not None
            raw, what = self.log_probs_at(ids, temperature), "target_log_probs_at"
        logs = checked_log_probs(raw, ids, self.vocab_size, f"{self.name}.{what}")
        return logs, ROUNDINGS.get(raw.dtype, 256.0) * torch.finfo(raw.dtype).eps

    def _blocks(self, rows: Sequence[Served]) -> Iterator[tuple[Sequence[Served], float | None, list[int]]]:
        """Rows that can be asked about at once, with their temperature and their places."""
        for temperature in dict.fromkeys(r.request.temperature for r in rows):
            places = [i for i, r in enumerate(rows) if r.request.temperature == temperature]
            width = max(len(rows[i].request.prompt) + len(rows[i].tokens) for i in places)
            most = max(1, BLOCK // (width * self.vocab_size))
            for first in range(0, len(places), most):
                block = places[first : first + most]
                yield [rows[i] for i in block], temperature, block

    def laws(self, rows: Sequence[Served]) -> list[Array]:
        """Laws (n, V) that governed the n tokens of each row, at the row's own temperature."""
        out: list[Array] = [np.zeros((0, self.vocab_size))] * len(rows)
        for block, temperature, places in self._blocks(rows):
            logs, _ = self._logs(block, temperature)
            for i, r, along in zip(places, block, logs, strict=True):
                out[i] = _after_prompt(along, r).exp().numpy()
        return out

    def impossible(self, row: Served, law: Array) -> int | None:
        """Place of the first token of probability 0, asked again for this row alone; None without one."""
        for place in np.flatnonzero(law[np.arange(len(row.tokens)), list(row.tokens)] <= 0):
            # A token at the edge of top-k or top-p may enter or leave with the last bit of a batched product: ask alone.
            alone = self.laws([replace(row, tokens=row.tokens[: place + 1])])[0]
            if alone[place, row.tokens[place]] <= 0:
                return int(place)
        return None

    def below_best(self, row: Served, tolerance: float) -> tuple[Array, Array]:
        """How far the log-probability of each token lies below the largest there, and the margin that rounding allows.

        The law is that of temperature 1 where it is known, else the decoder's own, for the likeliest token is the same.
        """
        logs, rounding = self._logs([row], None if self.log_probs_at is None else 1.0)
        along = _after_prompt(logs[0], row)
        gaps = along.max(-1).values - along[torch.arange(len(along)), list(row.tokens)]
        largest = torch.where(along > MASKED, along.abs(), 0.0).max(-1).values.clamp(min=1.0)
        return gaps.numpy(), (2 * tolerance + rounding * largest).numpy()


def _after_prompt(along: torch.Tensor, row: Served) -> torch.Tensor:
    """Rows (n, V) of the log-laws (T, V) that governed the n tokens after a prompt."""
    start = len(row.request.prompt) - 1
    return along[start : start + len(row.tokens)]


@dataclass(frozen=True)
class Mixer:
    """Makes mixed batches: prompts of different length, rows with and without a seed, greedy rows beside sampling ones.

    texts: ids that prompts begin with, (N, T), or None for random ones. eos: never part of a random prompt.
    """

    vocab_size: int
    texts: tuple[Row, ...] | None
    eos: int | None
    hot: tuple[float, ...]

    @classmethod
    def of(cls, server: Server) -> Mixer:
        """Prompts from the decoder's own where it has some."""
        own = getattr(server.decoder, "prompts", None)
        texts = None if own is None else tuple(map(tuple, decoder_prompts(server.decoder, 0, most=8).tolist()))
        return cls(
            server.vocab_size, texts, server.eos, HOT if server.log_probs_at is not None and not server.greedy_only else ()
        )

    def _longest(self) -> int:
        length = SHORTEST if self.texts is None else len(self.texts[0])
        return min(max(length, SHORTEST), LONGEST)

    def _prompt(self, length: int, rng: np.random.Generator) -> Row:
        """A prompt of that length: the beginning of one of the texts and those after it, or random ids."""
        if self.texts is None:
            ids = [i for i in range(self.vocab_size) if i != self.eos] or [0]
            return tuple(ids[i] for i in rng.integers(0, len(ids), length))
        first = int(rng.integers(len(self.texts)))
        ordered = [self.texts[(first + i) % len(self.texts)] for i in range(length)]
        return tuple(itertools.chain.from_iterable(ordered))[:length]

    def batch(self, call: int, rng: np.random.Generator) -> list[list[Request]]:
        """Requests of one call, in random order: ten rows, of which two pairs share a prompt and stand side by side.

        All prompts but those of a pair are of different length, one of a single token; all seeds are new.
        """
        longest = self._longest()
        lengths = rng.permutation([1, longest, *(2 + rng.permutation(longest - 2)[:6])])
        prompts = [self._prompt(int(n), rng) for n in lengths]
        asked = 1 + rng.permutation(MOST_NEW)[:6]
        hot = self.hot[call % len(self.hot)] if self.hot else None
        kinds = [(seeded, temperature) for temperature in (0.0, None, hot) for seeded in (True, False)]
        units = [
            [Request(prompt, int(n), self._seed(rng) if seeded else None, temperature)]
            for prompt, n, (seeded, temperature) in zip(prompts[:6], asked, kinds, strict=True)
        ]
        units.append([Request(prompts[6], TWIN_NEW)] * 2)
        units.append([Request(prompts[7], TWIN_NEW, self._seed(rng)) for _ in range(2)])
        return [units[i] for i in rng.permutation(len(units))]

    def _seed(self, rng: np.random.Generator) -> int:
        return int(rng.integers(2**31))
