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
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from reference.drafting import Drafter, Model
from reference.drafting.separate import as_drafter
from reference.timing import Models, Timing


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
    tokens of acceptance ``hope``. Little is staked before anything is known: the first round drafts at most two tokens, and
    each round of which more than half was accepted doubles what the next may draft. Without drafts for ``patience`` rounds a
    single one is tried; each time that it still does not pay the wait doubles. Errors: ValueError for a largest K that the
    costs do not cover.
    """

    def __init__(
        self,
        costs: RoundCosts = TYPICAL,
        largest: int = 8,
        *,
        hope: float = 0.8,
        prior: float = 2.0,
        memory: float = 64.0,
        patience: int = 32,
    ) -> None:
        if not 1 <= largest < len(costs.verify):
            raise ValueError(f"largest is {largest}; the costs cover K = 1 to {len(costs.verify) - 1}")
        self.costs, self.largest = costs, largest
        self.hope, self.prior, self.keep = hope, prior, 1 - 1 / memory
        self.accepted = self.tested = 0.0
        self.waited, self.patience = 0, patience
        self.most = min(2, largest)
        self.best = self._best()

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
        if self.best:
            return self.best
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
        if 2 * sum(counts) > drafted * len(counts):
            self.most = min(2 * self.most, self.largest)
        fade = self.keep**tested
        self.accepted = fade * self.accepted + sum(counts)
        self.tested = fade * self.tested + tested
        self.best = self._best()

    def _best(self) -> int:
        """The K of the largest gain, as far as it may go yet."""
        return max(range(self.most + 1), key=self.gain)


def measured_costs(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    largest: int = 8,
    *,
    calls: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> RoundCosts:
    """Measure what rounds of token rejection cost on this machine after prompts (B, T): medians over ``calls`` turns.

    In every turn a step of the main model stands beside each phase, so that a slow spell hits both. The clock is the
    processor's, which other programs do not advance; for models and prompts on an accelerator pass one that waits for it.
    """
    timing = Timing(Models(main, {"draft": as_drafter(draft)}, str(prompts.device)))
    ks = range(1, largest + 1)
    phases = {k: timing.phases(prompts, draft="draft", k=k) for k in ks}
    drafts: list[float] = []
    rests: list[float] = []
    passes: dict[int, list[float]] = {k: [] for k in ks}
    for turn in range(-1, calls):
        for k in ks:
            calls_of = phases[k]
            unit = statistics.fmean(_seconds(calls_of["target"], clock) for _ in range(2))
            drafted = sum(_seconds(calls_of["draft"], clock) for _ in ks[:k]) / k
            verified = _seconds(calls_of["verify"], clock)
            rest = sum(_seconds(calls_of[name], clock) for name in ("accept", "cache", "loop"))
            if turn >= 0:  # the first turn warms up
                passes[k].append(verified / unit)
                drafts.append(drafted / unit)
                rests.append(rest / unit)
    verify = (1.0, *(statistics.median(passes[k]) for k in ks))
    return RoundCosts(statistics.median(drafts), verify, statistics.median(rests))


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    call()
    return clock() - began
