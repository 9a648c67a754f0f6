"""How many tokens to draft, when acceptance is only learned on the way: a choice from the past alone.

A round that drafts K tokens and finds each acceptable with probability a emits E = 1 + a + .. + a^K tokens on average, and
costs v(K) + K c + o steps of the main model (Leviathan et al. 2023, arXiv 2211.17192, section 3.3). The best K for the
acceptance seen so far is taken; where no K pays, the main model goes on alone, and drafting is tried again now and then.

This is exact: which K a round has is settled before anything in it is drawn, by what earlier rounds emitted and accepted. A
round of every K continues any text by the main model's law, hence so does a round whose K depends on that text and on
numbers drawn before it. Choosing K by looking at the tokens just drafted would not do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference.caching import Cache
from reference.drafting import Drafter, Model
from reference.drafting.separate import as_drafter
from reference.noise import BatchNoise
from reference.processors import Processors


@dataclass(frozen=True)
class RoundCosts:
    """What a round costs in steps of the main model: a step of the draft, the verifying pass by K (0..largest), the rest."""

    draft: float
    verify: tuple[float, ...]
    rest: float

    def of_round(self, k: int) -> float:
        """Cost of a round that drafts k tokens; 1 without drafts."""
        return self.verify[k] + k * self.draft + self.rest if k else 1.0


TYPICAL = RoundCosts(0.12, (1.0, *(1.2 + 0.06 * k for k in range(1, 9))), 0.25)
"""Costs of the trained models on one thread of an ordinary processor, for where nothing was measured."""


class AdaptiveK:
    """Chooses K from 0 to ``largest`` for each round; a new one for every decode.

    The acceptance is the mean over tested tokens, older ones fading with a memory of ``memory`` tokens, beside ``prior``
    tokens of acceptance ``hope``. Without drafts for ``patience`` rounds a single one is tried; each time that it still does
    not pay the wait doubles. Errors: ValueError for a largest K that the costs do not cover.
    """

    def __init__(
        self,
        costs: RoundCosts = TYPICAL,
        largest: int = 8,
        *,
        hope: float = 0.7,
        prior: float = 5.0,
        memory: float = 64.0,
        patience: int = 32,
    ) -> None:
        if not 1 <= largest < len(costs.verify):
            raise ValueError(f"largest is {largest}; the costs cover K = 1 to {len(costs.verify) - 1}")
        self.costs, self.largest = costs, largest
        self.hope, self.prior, self.keep = hope, prior, 1 - 1 / memory
        self.accepted = self.tested = 0.0
        self.waited, self.patience = 0, patience

    @property
    def acceptance(self) -> float:
        """The acceptance per tested token that is expected of the next round."""
        return (self.accepted + self.hope * self.prior) / (self.tested + self.prior)

    def gain(self, k: int) -> float:
        """Expected speed-up of a round that drafts k tokens."""
        a = self.acceptance
        return sum(a**i for i in range(k + 1)) / self.costs.of_round(k)

    def choose(self) -> int:
        """Tokens to draft in the next round."""
        best = max(range(self.largest + 1), key=self.gain)
        if best:
            return best
        self.waited += 1
        if self.waited <= self.patience:
            return 0
        self.waited, self.patience = 0, 2 * self.patience
        return 1

    def observe(self, drafted: int, accepted: Tensor) -> None:
        """Learn from a round: how many of the drafted tokens each row accepted, (B,)."""
        if drafted == 0:
            return
        counts = accepted.tolist()
        tested = sum(min(n + 1, drafted) for n in counts)
        fade = self.keep**tested
        self.accepted = fade * self.accepted + sum(counts)
        self.tested = fade * self.tested + tested


@torch.inference_mode()
def measured_costs(
    main: Model, draft: Drafter | Model, prompts: Tensor, largest: int = 8, *, rule: Any, calls: int = 7
) -> RoundCosts:
    """Measure what rounds cost on this machine after prompts (B, T): medians of ``calls`` calls each.

    The rest is what a whole round takes beyond its passes: the rule, and keeping account.
    """
    from reference import decoder

    process, noise, B = Processors(), BatchNoise(torch.Generator().manual_seed(0)), len(prompts)
    lengths = torch.full((B,), prompts.shape[1])
    block = torch.zeros(B, largest + 1, dtype=torch.int64)
    cache: Cache = main.start(prompts.shape[1] + largest + 1, B)
    main.extend(prompts, cache)
    held = cache.lengths

    def read(n: int) -> Callable[[], object]:
        def call() -> object:
            cache.rollback(torch.minimum(held, cache.lengths))
            return process(main.extend(block[:, :n], cache))

        return call

    def a_round(k: int) -> Callable[[], object]:
        def call() -> object:
            state = decoder.start(main, draft, prompts[:, -2:], torch.full((B,), 2), 2 * largest)
            began = time.perf_counter()
            decoder.speculative_step(main, state, k, process, rule, noise)
            return time.perf_counter() - began

        return call

    def step() -> object:
        cache.rollback(torch.minimum(held, cache.lengths))
        return noise.choose(process(main.extend(block[:, :1], cache)[:, 0]))

    drafter = as_drafter(draft)
    state = decoder.start(main, drafter, prompts, lengths, 2 * largest)

    def propose(k: int) -> Callable[[], object]:
        def call() -> object:
            state.drafting.propose(state.text, k, process, noise)
            state.drafting.settle(state.text)
            return None

        return call

    unit = _median(step, calls)
    one, many = _median(propose(1), calls), _median(propose(largest), calls)
    draft_cost = max(many - one, 0.0) / max(largest - 1, 1) / unit
    verify = tuple(_median(read(k + 1), calls) / unit for k in range(largest + 1))
    whole = statistics.median(float(a_round(2)()) for _ in range(calls)) / unit  # type: ignore[arg-type]
    return RoundCosts(draft_cost, (1.0, *verify[1:]), max(whole - verify[2] - 2 * draft_cost, 0.0))


def _median(call: Callable[[], object], calls: int) -> float:
    seconds: Sequence[float] = [_seconds(call) for _ in range(calls + 2)][2:]
    return statistics.median(seconds)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
