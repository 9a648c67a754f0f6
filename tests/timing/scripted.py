"""A decoder whose speed is written down: its clock moves only when it works, by exactly what its costs say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.subjects import Decoder, Generated
from specverify.timing.clocks import WallClock

DRAFTING, ACCEPTING, TAKING_BACK, LOOP = 0.1, 0.15, 0.05, 0.1
SLOWNESS = (50.0, 1.0, 2.0, 0.5)
"""How slow the machine is in each repetition; the first is the warm-up."""


def v(k: int) -> float:
    """Cost of a verify pass."""
    return 1 + 0.05 * (k + 1)


class Scripted:
    """Accepts all drafts of "aligned" and none of "mismatched", or each with a given probability.

    prompt_cost: what reading the prompt takes the target; a draft reads it too, at the cost of a draft step to a step.
    """

    drafts = ("aligned", "mismatched")
    max_k = 8

    def __init__(
        self,
        acceptance: tuple[float, float] = (1.0, 0.0),
        slowness: tuple[float, ...] = SLOWNESS,
        prompt_cost: float = 0.0,
    ) -> None:
        self.acceptance = dict(zip(self.drafts, acceptance, strict=True))
        self.slowness = slowness
        self.prompt_cost = prompt_cost
        self.now = 0.0
        self.calls: list[tuple[int, str, int]] = []
        self.seeds: list[int] = []

    def clock(self) -> float:
        """Say what time it is."""
        return self.now

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """One unit of time per token with a cache, three without."""
        cost = self.prompt_cost + max_new_tokens * (1 if cached else 3)
        self._work(cost, seed, "cached" if cached else "uncached", 0, max_new_tokens)
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
        cost = self.prompt_cost * (1 + DRAFTING) + rounds * self.round_cost(k, len(prompts))
        self._work(cost, seed, draft, k, max_new_tokens)
        accepted = torch.tensor([row + [-1] * (rounds - len(row)) for row in rows])
        return Generated(torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64), accepted)

    def round_cost(self, k: int, rows: int) -> float:
        """What a round costs."""
        return v(k) + k * DRAFTING + ACCEPTING

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Each phase takes its cost, at the slowness of the moment."""
        costs = {"target": 1.0, "draft": DRAFTING, "verify": v(k), "accept": ACCEPTING}
        return {name: self.taking(cost) for name, cost in costs.items()}

    def taking(self, cost: float) -> Callable[[], object]:
        """Return a call that takes a cost."""
        return lambda: self._advance(cost)

    def _work(self, cost: float, seed: int, name: str, k: int, tokens: int) -> None:
        if seed not in self.seeds:
            self.seeds.append(seed)
        if tokens > 1:
            self.calls.append((seed, name, k))
        self._advance(cost)

    def _advance(self, cost: float) -> None:
        self.now += cost * self.slowness[(len(self.seeds) - 1) % len(self.slowness)]


class Telling(Scripted):
    """Offers all that a timeable may offer: temperatures, exact acceptance, memory, and phases for cache and loop.

    At temperature T a draft is accepted with the T-th power of its probability. wrong: added to the true acceptance. waiting:
    what a round costs more for every further row.
    """

    def __init__(
        self,
        acceptance: tuple[float, float] = (0.8, 0.2),
        *,
        wrong: float = 0.0,
        waiting: float = 0.0,
        told: dict[str, int] | None = None,
        slowness: tuple[float, ...] = SLOWNESS,
    ) -> None:
        super().__init__(acceptance, slowness)
        self.wrong = wrong
        self.waiting = waiting
        self.told = {"target": 4096} if told is None else told

    def at(self, temperature: float) -> Telling:
        """Return one whose drafts are accepted more or less often, on the same clock."""
        heated = Telling(tuple(a**temperature for a in self.acceptance.values()), wrong=self.wrong, slowness=self.slowness)
        heated._advance = self._advance
        heated.seeds = self.seeds
        return heated

    def exact_acceptance(self, prompts: Tensor, made: Generated, *, draft: str, k: int) -> Tensor:
        """Return the same probability wherever a draft was tested, NaN elsewhere."""
        tested = torch.arange(k) <= made.accepted[..., None]
        beta = min(max(self.acceptance[draft] + self.wrong, 0.0), 1.0)
        return torch.where(tested & (made.accepted[..., None] >= 0), beta, torch.nan)

    def memory(self, batch: int, length: int) -> dict[str, int]:
        """Return what was said for one row."""
        return {name: batch * size for name, size in self.told.items()}

    def round_cost(self, k: int, rows: int) -> float:
        """What a round costs, taking back and the loop included."""
        return super().round_cost(k, rows) + TAKING_BACK + LOOP + self.waiting * (rows - 1)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Return the phases of the other, and two more."""
        more = {"cache": self.taking(TAKING_BACK), "loop": self.taking(LOOP)}
        verify = v(k) + self.waiting * (len(prompts) - 1)
        return {**super().phases(prompts, draft=draft, k=k), **more, "verify": self.taking(verify)}


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


OPENED: list[Scripted] = []
"""The scripted timing that was opened last, whose clock is read."""


def opened_clock() -> WallClock:
    """Return the clock of the timing that was opened last, or a real one where none was."""
    return WallClock(lambda: OPENED[0].now) if OPENED else WallClock()


def _opened(timing: Scripted) -> ScriptedDecoder:
    OPENED[:] = [timing]
    return ScriptedDecoder(timing)


def open_scripted() -> ScriptedDecoder:
    """Open the decoder that can be timed."""
    return _opened(Scripted())


def open_telling() -> ScriptedDecoder:
    """Open the decoder that tells everything."""
    return _opened(Telling())


def open_untimed() -> ScriptedDecoder:
    """Open the decoder that has no timing."""
    return ScriptedDecoder(None)


def build_plainly(target: Any, draft: Any, k: int, eos_id: int | None = None) -> Any:
    """Build the decoder of tests/timing/plainly.py."""
    from plainly import PlainDecoder

    return PlainDecoder(target, draft, k)


subject = Decoder("scripted", open=open_scripted)
telling = Decoder("telling", open=open_telling)
untimed = Decoder("untimed", open=open_untimed)
built = Decoder("built", build=build_plainly)


def open_generating() -> Any:
    """Open a decoder that only generates, over small models."""
    from plainly import PlainDecoder

    from specverify.timing.supplied import Size, SuppliedModel

    size = Size(32, 2, 64)
    return PlainDecoder(SuppliedModel(0, size, depth=True), SuppliedModel(0, size, depth=False), 3)


generating = Decoder("generating", open=open_generating)
