"""How long do runs and their phases take? Every repetition times every configuration, in a shuffled order.

A slow spell of the machine then hits baseline and speculation alike, and what is reported is the ratio within a
repetition. The first repetition warms up and is not counted. Beside each run stands one that makes a single token: what is
left when it is subtracted is decoding, without reading the prompt.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.randomness import derive
from specverify.subjects import Generated, Timeable
from specverify.timing.clocks import Clock, CudaClock, WallClock
from specverify.timing.exact import Places, places_of
from specverify.timing.phases import phase_seconds
from specverify.timing.predict import Rounds
from specverify.timing.reading import accepted_rows, insist_on_length

FIRST_RUNS = 3
"""Runs of one token beside each run, the median counts: an interruption of so short a run would weigh much."""


def shortest(k: int) -> int:
    """Return the fewest tokens of a row that leave a round of K drafts to count, see :func:`unbiased_rounds`."""
    return 2 * (k + 2)


@dataclass(frozen=True)
class Sweep:
    """What to measure: K for every draft, ``batch`` rows of ``tokens`` new tokens, and how often."""

    drafts: tuple[str, ...]
    ks: tuple[int, ...]
    tokens: int = 128
    repetitions: int = 7
    batch: int = 1
    seed: int = 0
    uncached: bool = True
    """Whether the baseline without a KV cache is timed beside the one with it."""
    base_runs: int = 3
    """Runs per repetition of the baseline that speculation is compared with, of which the median counts, since every speed-up
    of the repetition rests on it."""
    phase_calls: int = 8
    """Target steps, and rounds of the other phases, timed per configuration and repetition."""

    @property
    def configurations(self) -> list[tuple[str, int]]:
        """Every (draft, K)."""
        return [(draft, k) for draft in self.drafts for k in self.ks]

    def plan(self, cached: bool) -> list[tuple[str, int]]:
        """What a repetition runs, (name, K); K is 0 for baselines. cached: whether the decoder has a KV cache."""
        base = [("cached" if cached else "uncached", 0)] * self.base_runs
        return [*base, *([("uncached", 0)] if cached and self.uncached else []), *self.configurations]

    def steps(self, cached: bool = True) -> int:
        """Timed runs in all, warm-up included."""
        return (1 + self.repetitions) * len(self.plan(cached))


@dataclass(frozen=True)
class Run:
    """One run with speculation: its seconds, tokens made in all rows, accepted counts (None where not reported), and the
    seconds and rounds of the run beside it that makes one token (None where that was not asked for).
    """

    seconds: float
    made: int
    accepted: Rounds | None
    first_seconds: float | None = None
    first_rounds: int = 0

    @property
    def rounds(self) -> int:
        """Rounds of the engine: a batch goes on until its last row is done."""
        return max(map(len, self.accepted or [[]]))


@dataclass(frozen=True)
class Base:
    """A baseline in one repetition: seconds of the whole run, and of one that makes a single token."""

    seconds: float
    first_seconds: float

    def step(self, tokens: int) -> float:
        """Seconds per token of a row without reading the prompt, of a run of ``tokens`` tokens per row."""
        return (self.seconds - self.first_seconds) / (tokens - 1)


@dataclass
class Samples:
    """Everything measured; lists have one entry per repetition, so equal indices were measured side by side."""

    sweep: Sweep
    base: str = "cached"
    """Name of the baseline that speculation is compared with: cached, or uncached for a decoder without a KV cache."""
    device: str = "cpu"
    clock: str = ""
    share: float | None = None
    """Processor seconds of this process per second of the runs and thread of torch; None where that says nothing."""
    baselines: dict[str, list[Base]] = field(default_factory=dict)
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    phases: dict[tuple[str, int], list[dict[str, float]]] = field(default_factory=dict)
    """Seconds of one call of each phase; nothing where the decoder offers no phases."""
    places: dict[tuple[str, int], list[Places]] = field(default_factory=dict)
    """Acceptance by position; nothing where accepted counts are not reported."""


def measure(
    timing: Timeable,
    prompts: Tensor,
    sweep: Sweep,
    *,
    clock: Clock | None = None,
    on_done: Callable[[str], None] = lambda _: None,
) -> Samples:
    """Time a sweep over prompts (N, T), which the repetitions take in turn; ``on_done`` hears of every run.

    Errors: SubjectError when a run crashes, does not make exactly the tokens asked for, or reports no accepted counts.
    """
    return _Measurement(timing, prompts, sweep, clock or WallClock()).run(on_done)


class _Measurement:
    def __init__(self, timing: Timeable, prompts: Tensor, sweep: Sweep, clock: Clock) -> None:
        self.timing, self.prompts, self.sweep, self.clock = timing, prompts, sweep, clock
        self.cached = bool(getattr(timing, "has_cache", True))
        self.whole_only = bool(getattr(timing, "whole_only", False))
        self.context = prompts
        self.spent = self.worked = 0.0
        self.samples = Samples(sweep, "cached" if self.cached else "uncached", clock=clock.kind)
        for configuration in sweep.configurations:
            self.samples.runs[configuration] = []
            self.samples.phases[configuration] = []
            self.samples.places[configuration] = []

    def run(self, on_done: Callable[[str], None]) -> Samples:
        plan = self.sweep.plan(self.cached)
        for repetition in range(-1, self.sweep.repetitions):
            seed = derive(self.sweep.seed, "timing", repetition)
            places = torch.arange(self.sweep.batch) + max(repetition, 0) * self.sweep.batch
            rows = self.prompts[places % len(self.prompts)]
            random.Random(seed).shuffle(plan)
            base: dict[str, list[Base]] = {}
            for name, k in plan:
                label = f"{name} K={k}" if k else f"{name} baseline"
                try:
                    if k == 0:
                        base.setdefault(name, []).append(self._baseline(rows, name, seed, repetition))
                    else:
                        self._speculative(rows, name, k, seed, repetition)
                except SubjectError as error:
                    raise SubjectError(f"{label}: {error}") from error
                except Exception as error:
                    raise SubjectError(f"{label} failed while being timed: {type(error).__name__}: {error}") from error
                on_done(label)
            if repetition >= 0:
                for name, values in base.items():
                    seconds, first = (statistics.median(getattr(v, f) for v in values) for f in ("seconds", "first_seconds"))
                    self.samples.baselines.setdefault(name, []).append(Base(seconds, first))
        on_wall = getattr(self.clock, "now", None) is time.perf_counter and self.clock.kind != CudaClock.kind
        if on_wall and self.samples.device == "cpu" and self.spent > 0:
            self.samples.share = self.worked / self.spent / torch.get_num_threads()
        return self.samples

    def _baseline(self, rows: Tensor, name: str, seed: int, repetition: int) -> Base:
        def run(tokens: int) -> tuple[float, Tensor]:
            call = self.timing.baseline
            seconds, made = self.clock.timed(lambda: call(rows, tokens, cached=name == "cached", seed=seed))
            insist_on_length(made, len(rows), tokens)
            return seconds, made

        seconds, made = run(self.sweep.tokens)
        if repetition < 0:
            # Phases are timed half-way through a text, where a step costs what it costs on average.
            self.context = torch.cat([rows, made[:, : self.sweep.tokens // 2].to(rows)], 1)
            self.samples.device = made.device.type
        return Base(seconds, statistics.median(run(1)[0] for _ in range(FIRST_RUNS)))

    def _speculative(self, rows: Tensor, draft: str, k: int, seed: int, repetition: int) -> None:
        def run(tokens: int) -> tuple[float, Generated]:
            call = self.timing.speculative
            return self.clock.timed(lambda: call(rows, tokens, draft=draft, k=k, seed=seed))

        tokens = self.sweep.tokens if repetition >= 0 else min(self.sweep.tokens, shortest(k))  # to warm up, a little will do
        began = time.process_time()
        seconds, made = run(tokens)
        self.worked, self.spent = self.worked + time.process_time() - began, self.spent + seconds
        if self.whole_only:
            reported = None if made.accepted is None else [[a for a in row if a >= 0] for row in made.accepted.tolist()]
            found = Run(seconds, int((made.tokens >= 0).sum()), reported)
        else:
            counts = accepted_rows(made, len(rows), tokens, k)
            firsts = [run(1) for _ in range(FIRST_RUNS)]
            first_rounds = max(map(len, accepted_rows(firsts[0][1], len(rows), 1, k)))
            first_seconds = statistics.median(elapsed for elapsed, _ in firsts)
            found = Run(seconds, made.tokens.numel(), counts, first_seconds, first_rounds)
        if repetition < 0:
            return
        self.samples.runs[draft, k].append(found)
        phases = phase_seconds(self.timing, self.context, draft, k, self.clock, self.sweep.phase_calls)
        if phases:
            self.samples.phases[draft, k].append(phases)
        if found.accepted is not None:
            exact = getattr(self.timing, "exact_acceptance", None)
            betas = None if exact is None else exact(rows, made, draft=draft, k=k)
            self.samples.places[draft, k].append(places_of(found.accepted, self.sweep.tokens, k, betas))
