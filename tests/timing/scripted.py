"""A decoder whose speed is written down: its clock moves only when it works, by exactly what its costs say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specverify.subjects import Decoder, Generated

DRAFTING, ACCEPTING = 0.1, 0.15
SLOWNESS = (50.0, 1.0, 2.0, 0.5)
"""How slow the machine is in each repetition; the first is the warm-up."""


def v(k: int) -> float:
    """Cost of a verify pass."""
    return 1 + 0.05 * (k + 1)


class Scripted:
    """Accepts all drafts of "aligned" and none of "mismatched", or each with a given probability."""

    drafts = ("aligned", "mismatched")
    max_k = 8

    def __init__(self, acceptance: tuple[float, float] = (1.0, 0.0), slowness: tuple[float, ...] = SLOWNESS) -> None:
        self.acceptance = dict(zip(self.drafts, acceptance, strict=True))
        self.slowness = slowness
        self.now = 0.0
        self.calls: list[tuple[int, str, int]] = []
        self.seeds: list[int] = []

    def clock(self) -> float:
        """Say what time it is."""
        return self.now

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """One unit of time per token with a cache, three without."""
        self._work(max_new_tokens * (1 if cached else 3), seed, "cached" if cached else "uncached", 0)
        return torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64)

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Every round costs v + K c + o, also when some rows are done already."""
        rng = np.random.default_rng([seed, k])
        rows: list[list[int]] = []
        for _ in prompts:
            row: list[int] = []
            while sum(row) + len(row) < max_new_tokens:
                row.append(int((rng.random(k) < self.acceptance[draft]).cumprod().sum()))
            rows.append(row)
        rounds = max(map(len, rows))
        self._work(rounds * (v(k) + k * DRAFTING + ACCEPTING), seed, draft, k)
        accepted = torch.tensor([row + [-1] * (rounds - len(row)) for row in rows])
        return Generated(torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64), accepted)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Each phase takes its cost, at the slowness of the moment."""

        def taking(cost: float) -> Callable[[], object]:
            return lambda: self._advance(cost)

        return {"target": taking(1.0), "draft": taking(DRAFTING), "verify": taking(v(k)), "accept": taking(ACCEPTING)}

    def _work(self, cost: float, seed: int, name: str, k: int) -> None:
        if seed not in self.seeds:
            self.seeds.append(seed)
        self.calls.append((seed, name, k))
        self._advance(cost)

    def _advance(self, cost: float) -> None:
        self.now += cost * self.slowness[(len(self.seeds) - 1) % len(self.slowness)]


class ScriptedDecoder:
    """As little of a decoder as timing needs, around a timing."""

    vocab_size = 4
    prompts = torch.arange(12).reshape(4, 3) % 4

    def __init__(self, timing: object | None) -> None:
        if timing is not None:
            self.timing = timing

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Return nothing but token 0."""
        return torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64)

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Return uniform laws."""
        return torch.full((*ids.shape, 4), 0.25).log()


def open_scripted() -> ScriptedDecoder:
    """Open the decoder that can be timed."""
    return ScriptedDecoder(Scripted())


def open_untimed() -> ScriptedDecoder:
    """Open the decoder that cannot."""
    return ScriptedDecoder(None)


subject = Decoder("scripted", open=open_scripted)
untimed = Decoder("untimed", open=open_untimed)
