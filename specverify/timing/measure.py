"""How long do runs and their phases take? Every repetition times every configuration, in a shuffled order.

A slow spell of the machine then hits baseline and speculation alike, and what is reported is the ratio within a
repetition. The first repetition warms up and is not counted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.randomness import derive
from specverify.subjects import Generated, Timeable
from specverify.timing.predict import Rounds

Clock = Callable[[], float]
T = TypeVar("T")

PHASES = ("target", "draft", "verify", "accept")
BASELINES = ("uncached", "cached")
CACHED_RUNS = 3
"""Cached baselines per repetition, of which the median counts, since every speed-up of the repetition rests on it."""
PHASE_CALLS = 8
"""Target steps, and rounds of the other phases, timed per configuration and repetition; the quickest counts."""


@dataclass(frozen=True)
class Sweep:
    """What to measure: K for every draft, ``batch`` rows of ``tokens`` new tokens, and how often."""

    drafts: tuple[str, ...]
    ks: tuple[int, ...]
    tokens: int = 128
    repetitions: int = 7
    batch: int = 1
    seed: int = 0

    @property
    def configurations(self) -> list[tuple[str, int]]:
        """Every (draft, K)."""
        return [(draft, k) for draft in self.drafts for k in self.ks]

    @property
    def steps(self) -> int:
        """Timed runs in all, warm-up included."""
        return (1 + self.repetitions) * (1 + CACHED_RUNS + len(self.configurations))


@dataclass(frozen=True)
class Run:
    """One run with speculation: its seconds and its accepted counts."""

    seconds: float
    accepted: Rounds


@dataclass
class Samples:
    """Everything measured; lists have one entry per repetition, so equal indices were measured side by side."""

    sweep: Sweep
    device: str = "cpu"
    baselines: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BASELINES})
    """Seconds of the baselines."""
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    phases: dict[tuple[str, int], list[dict[str, float]]] = field(default_factory=dict)
    """Seconds of one call of each phase."""


def synchronise() -> None:
    """Wait for the current CUDA device, if this process uses CUDA: its calls return before they are done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def timed(call: Callable[[], T], clock: Clock) -> tuple[float, T]:
    """Seconds of one call, and what it returned."""
    synchronise()
    began = clock()
    result = call()
    synchronise()
    return clock() - began, result


def measure(
    timing: Timeable,
    prompts: Tensor,
    sweep: Sweep,
    *,
    clock: Clock = time.perf_counter,
    on_done: Callable[[str], None] = lambda _: None,
) -> Samples:
    """Time a sweep over prompts (N, T), which the repetitions take in turn; ``on_done`` hears of every run.

    Errors: SubjectError when a run crashes, does not make exactly the tokens asked for, or reports no accepted counts.
    """
    samples = Samples(sweep, runs={c: [] for c in sweep.configurations}, phases={c: [] for c in sweep.configurations})
    plan = [("uncached", 0), *[("cached", 0)] * CACHED_RUNS, *sweep.configurations]
    context = prompts
    for repetition in range(-1, sweep.repetitions):
        seed = derive(sweep.seed, "timing", repetition)
        places = torch.arange(sweep.batch) + max(repetition, 0) * sweep.batch
        rows = prompts[places % len(prompts)]
        random.Random(seed).shuffle(plan)
        base: dict[str, list[float]] = {name: [] for name in BASELINES}
        for name, k in plan:
            label = f"{name} K={k}" if k else f"{name} baseline"
            try:
                if k == 0:
                    seconds, tokens = _baseline(timing, rows, sweep, name == "cached", seed, clock)
                    if repetition < 0:
                        # Phases are timed half-way through a text, where a step costs what it costs on average.
                        context = torch.cat([rows, tokens[:, : sweep.tokens // 2].to(rows)], 1)
                        samples.device = tokens.device.type
                    base[name].append(seconds)
                else:
                    run = _speculative(timing, rows, sweep, name, k, seed, clock)
                    if repetition >= 0:
                        samples.runs[name, k].append(run)
                        samples.phases[name, k].append(_phases(timing, context, name, k, clock))
            except SubjectError as error:
                raise SubjectError(f"{label}: {error}") from error
            except Exception as error:
                raise SubjectError(f"{label} failed while being timed: {type(error).__name__}: {error}") from error
            on_done(label)
        if repetition >= 0:
            for name, values in base.items():
                samples.baselines[name].append(statistics.median(values))
    return samples


def _baseline(timing: Timeable, rows: Tensor, sweep: Sweep, cached: bool, seed: int, clock: Clock) -> tuple[float, Tensor]:
    seconds, tokens = timed(lambda: timing.baseline(rows, sweep.tokens, cached=cached, seed=seed), clock)
    _insist_on_length(tokens, sweep)
    return seconds, tokens


def _speculative(timing: Timeable, rows: Tensor, sweep: Sweep, draft: str, k: int, seed: int, clock: Clock) -> Run:
    seconds, made = timed(lambda: timing.speculative(rows, sweep.tokens, draft=draft, k=k, seed=seed), clock)
    return Run(seconds, _accepted_rows(made, sweep, k))


def _accepted_rows(made: Generated, sweep: Sweep, k: int) -> list[list[int]]:
    """Return accepted counts of every row, without padding, after checking that the run did what it was timed for."""
    _insist_on_length(made.tokens, sweep)
    if made.accepted is None:
        raise SubjectError("returned no accepted counts; timing needs Generated(tokens, accepted)")
    rows = [[a for a in row if a >= 0] for row in made.accepted.tolist()]
    if len(rows) != sweep.batch or any(a > k for row in rows for a in row):
        raise SubjectError(f"reported accepted counts {rows[:2]} for {sweep.batch} rows of {k} drafts per round")
    for row in rows:
        if sum(row) + len(row) < sweep.tokens - 1:
            raise SubjectError(
                f"rounds emitted {sum(row) + len(row)} of {sweep.tokens} tokens; while timing, ignore an end of text"
            )
    return rows


def _insist_on_length(tokens: Tensor, sweep: Sweep) -> None:
    if tuple(tokens.shape) != (sweep.batch, sweep.tokens) or bool((tokens < 0).any()):
        raise SubjectError(
            f"returned {tuple(tokens.shape)} tokens, or padding among them; a timed run must make exactly "
            f"({sweep.batch}, {sweep.tokens})"
        )


def _phases(timing: Timeable, context: Tensor, draft: str, k: int, clock: Clock) -> dict[str, float]:
    """Seconds of the quickest call of each phase after context (B, T): what it takes when nothing else interferes.

    Calls follow each other as they do in earnest, since what ran before decides what is in the processor's caches:
    target steps in a row, as in the baseline, and rounds of K draft steps, a verify pass and the accept phase.
    """
    calls = timing.phases(context, draft=draft, k=k)
    lacking = [name for name in PHASES if name not in calls]
    if lacking:
        raise SubjectError(f"phases() lacks {', '.join(lacking)}")
    seconds: dict[str, list[float]] = {name: [] for name in PHASES}

    def target_steps() -> None:
        timed(calls["target"], clock)
        seconds["target"] += [timed(calls["target"], clock)[0] for _ in range(PHASE_CALLS // 2)]

    target_steps()
    for turn in range(-1, PHASE_CALLS):
        drafting = sum(timed(calls["draft"], clock)[0] for _ in range(k)) / k
        verifying, accepting = (timed(calls[name], clock)[0] for name in ("verify", "accept"))
        if turn >= 0:  # the first round warms up
            for name, elapsed in (("draft", drafting), ("verify", verifying), ("accept", accepting)):
                seconds[name].append(elapsed)
    target_steps()
    return {name: min(values) for name, values in seconds.items()}
