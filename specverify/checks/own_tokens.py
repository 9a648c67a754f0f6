"""What do tokens of a decoder's own models show? Its laws along prompts, all bets on its tokens, and the ranks of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.checks.sampling import Sample, in_order
from specverify.evidence.cells import NextLaws
from specverify.evidence.contamination import Growth, GrowthMeter
from specverify.evidence.measurements import CellMeasurement
from specverify.evidence.multinomial import CellGroup
from specverify.evidence.pointwise import Rows
from specverify.evidence.ranks import CELLS, ORDERS
from specverify.evidence.watch import StreamWatch
from specverify.evidence.wealth import WealthMeasurement, measured
from specverify.laws import Array, Ints
from specverify.randomness import derive, stream
from specverify.subjects import DecoderLike, checked_log_probs


def decoder_prompts(decoder: DecoderLike, seed: int, most: int = 3) -> torch.Tensor:
    """A few prompts (P, T): the decoder's own where it has some, else random ids."""
    own = getattr(decoder, "prompts", None)
    if own is not None:
        return torch.as_tensor(own).long()[:most]
    ids = stream(seed, "prompts").integers(0, decoder.vocab_size, (most, 4))
    return torch.from_numpy(ids)


def decoder_laws(decoder: DecoderLike, prompt: torch.Tensor, name: str) -> NextLaws:
    """Next-token laws of a decoder's target model after a prompt (T,)."""

    def laws(prefixes: Ints) -> Array:
        parts = []
        for block in np.array_split(prefixes, max(1, -(-len(prefixes) // 2048))):
            ids = torch.cat([prompt.repeat(len(block), 1), torch.from_numpy(block)], dim=1)
            logs = checked_log_probs(decoder.target_log_probs(ids), ids, decoder.vocab_size, f"{name}.target_log_probs")
            parts.append(logs[:, -1].exp().numpy())
        return np.concatenate(parts)

    return laws


MOST_PROBABILITIES = 100_000_000
"""Tokens times vocabulary that are bet on with a decoder's own models."""


AT_ONCE = 4_000_000
"""Probabilities of one call that are held at once; a larger call is seen in parts."""
GROWN, FEWEST_LAWS = 90_000, 48
"""Probabilities of each call from which the growth of faults is measured, 21 passes over each; but this many laws at least."""
ASKED_ALONE = 20
"""Tokens of probability 0 that are asked about alone before the rest is left."""


class OwnTokens:
    """A watch over tokens of a decoder's own models. level: share of tokens at which the growth of faults is measured."""

    def __init__(
        self,
        decoder: DecoderLike,
        prompts: torch.Tensor,
        name: str,
        seed: int,
        tolerance: float = 0.0,
        level: float | None = None,
    ) -> None:
        self.decoder, self.prompts, self.name = decoder, prompts, name
        self._draft = getattr(decoder, "draft_log_probs", None)
        self._eos = getattr(decoder, "eos_id", None)
        self.with_q = self._draft is not None
        self.watch = StreamWatch(self.with_q, decoder.vocab_size, seed=derive(seed, "ranks"), logit_tolerance=tolerance)
        self._meter = None if level is None else GrowthMeter(self.with_q, level=level, tolerance=tolerance)
        self.probabilities = 0
        self.impossible: list[str] = []
        """Tokens that have probability 0 also when their law is asked for alone; no more than the first few are asked about."""
        self._asked = 0

    def growths(self) -> dict[str, Growth]:
        """Growth of the faults over the laws that came so far."""
        assert self._meter is not None
        return self._meter.growths()

    def _laws(self, of: Callable[..., torch.Tensor], ids: torch.Tensor, what: str) -> Array:
        start = self.prompts.shape[1]
        logs = checked_log_probs(of(ids), ids, self.decoder.vocab_size, f"{self.name}.{what}")[:, start - 1 : -1]
        law = logs.exp().double()
        normalised: Array = (law / law.sum(-1, keepdim=True)).numpy()
        return normalised

    def see(self, samples: list[Sample], most: float = math.inf) -> None:
        """Let the watch see samples, one per prompt, up to ``most`` probabilities in all.

        Calls come as they were made, rows in their order: so the row before and the request before are what they are called.
        """
        v = self.decoder.vocab_size
        for tokens, kinds in in_order(samples):
            rows = math.floor(min(float(len(tokens)), max(0.0, (most - self.probabilities) / (tokens.shape[1] * v))))
            for part in np.array_split(np.arange(rows), max(1, rows * tokens.shape[1] * v // AT_ONCE)):
                if len(part):
                    self._see(self.prompts[kinds[part]], tokens[part])

    def _see(self, prompts: torch.Tensor, part: Ints) -> None:
        eos = self._eos
        ids = torch.cat([prompts, torch.from_numpy(part).clamp(min=0)], 1)
        ended = np.cumsum(part == eos, axis=1) - (part == eos) > 0 if eos is not None else np.zeros(part.shape, bool)
        p = self._laws(self.decoder.target_log_probs, ids, "target_log_probs")
        q = None if self._draft is None else self._laws(self._draft, ids, "draft_log_probs")
        live = ~ended & (part >= 0)
        self._confirm(prompts, part, live & (np.take_along_axis(p, np.maximum(part, 0)[..., None], -1)[..., 0] <= 0))
        self.watch.add(p, q, np.where(live, part, -1))
        if self._meter is not None and live.any():
            places = np.argwhere(live)
            few = max(FEWEST_LAWS, GROWN // p.shape[2])
            chosen = tuple(places[np.linspace(0, len(places) - 1, min(few, len(places))).astype(int)].T)
            laws = p[chosen]
            weights = np.full(len(laws), len(places) / len(laws))
            self._meter.add(Rows(laws, laws if q is None else q[chosen]), weights)
        self.probabilities += part.size * p.shape[2]

    def _confirm(self, prompts: torch.Tensor, part: Ints, wrong: NDArray[np.bool_]) -> None:
        """Ask alone about tokens of probability 0: at the edge of top-k or top-p one may enter or leave with the last bit of a
        batched product, and is then excused.
        """
        for row, place in np.argwhere(wrong):
            if self.impossible or self._asked >= ASKED_ALONE:
                return
            self._asked += 1
            before = part[row, :place]
            law = decoder_laws(self.decoder, prompts[row], self.name)(before[None])
            if law[0, part[row, place]] <= 0:
                self.impossible.append(f"token {part[row, place]} after {before.tolist()}")

    def wealth(self) -> WealthMeasurement:
        """All bets, and whether a token came that is impossible also when it is asked about alone."""
        return replace(measured("all bets together", self.watch), impossible=len(self.impossible))

    def rank_cells(self) -> list[CellMeasurement]:
        """Where tokens lie in the law that governed them: few cells over all prompts and positions, so much power.

        With tokens ordered by id (which shows a lost part of the vocabulary), by p and, where the draft's laws are known, by
        q/p, the number F(before x) + W p(x), W uniform, is uniform and independent of the prefix under exactness. Tokens of
        probability 0 are left to the support check.
        """
        ranks, names = self.watch.ranks, tuple(f"{b / CELLS:.2f}" for b in range(CELLS))
        even = tuple([1 / CELLS] * CELLS)
        return [
            CellMeasurement(
                f"rank of tokens ordered by {order}",
                (CellGroup("ranks", tuple(map(int, counts)), even, names),),
                widened=2 * self.watch.logit_tolerance,
            )
            for order, counts in zip(ORDERS, ranks.counts, strict=False)
        ]
