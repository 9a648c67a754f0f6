"""How many tokens per second the decoder makes, with and without speculation, and what a round is made of.

``python -m reference.speed`` prints the rates of one interleaved run on one thread. An end of document is ignored when
timing, so that every run makes the same number of tokens.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.decoder import autoregressive, generate
from reference.drafting import Drafter, Model
from reference.noise import BatchNoise
from reference.processors import Process, Processors
from reference.rules import Rule, rule_named
from reference.timing import Timing
from specverify.subjects import Generated

PLAIN = Processors()


@dataclass(frozen=True)
class Speed:
    """Tokens per second: the median of the repetitions, and their lowest and highest."""

    median: float
    lowest: float
    highest: float


def interleaved(
    runs: Mapping[str, Callable[[int], object]], tokens: int, *, repeats: int = 5, warm_up: int = 1
) -> dict[str, Speed]:
    """Time runs that each make ``tokens`` tokens, one of each per repetition so that a slow spell hits all alike.

    A run gets the number of the repetition, to seed with; the first ``warm_up`` repetitions are not counted.
    """
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(warm_up + repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run(repetition)
            if repetition >= warm_up:
                rates[name].append(tokens / (time.perf_counter() - began))
    return {name: Speed(statistics.median(r), min(r), max(r)) for name, r in rates.items()}


def measure_tokens_per_second(
    main: Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    cached: bool = True,
    process: Process = PLAIN,
    repeats: int = 5,
) -> Speed:
    """Measure the speed of the main model alone on prompts (B, T), counting the tokens of all rows."""

    def run(seed: int) -> Tensor:
        noise = BatchNoise(torch.Generator().manual_seed(seed))
        return autoregressive(main, prompts, max_new_tokens, process=process, noise=noise, cached=cached)

    return interleaved({"": run}, prompts.shape[0] * max_new_tokens, repeats=repeats)[""]


def measure_speculative_tps(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    k: int,
    rule: Rule | None = None,
    process: Process = PLAIN,
    repeats: int = 5,
) -> Speed:
    """Measure the speed with speculation on prompts (B, T), counting the tokens of all rows."""

    def run(seed: int) -> Generated:
        noise = BatchNoise(torch.Generator().manual_seed(seed))
        judge = rule or rule_named("token_rejection")
        return generate(main, draft, prompts, max_new_tokens, k=k, process=process, rule=judge, noise=noise)

    return interleaved({"": run}, prompts.shape[0] * max_new_tokens, repeats=repeats)[""]


def main() -> None:
    """Print tokens per second of the baselines and of all drafts at K = 1..8, for one row and 256 tokens."""
    from reference.text import prompts

    torch.set_num_threads(1)
    timing, prompt, N = Timing(), prompts(1, 48), 256

    def alone(cached: bool) -> Callable[[int], object]:
        return lambda seed: timing.baseline(prompt, N, cached=cached, seed=seed)

    def with_draft(draft: str, k: int) -> Callable[[int], object]:
        return lambda seed: timing.speculative(prompt, N, draft=draft, k=k, seed=seed)

    runs = {"cached": alone(True), "uncached": alone(False)}
    runs |= {f"{d} K={k}": with_draft(d, k) for d in timing.drafts for k in range(1, timing.max_k + 1)}
    speeds = interleaved(runs, N)
    for name, speed in speeds.items():
        ratio = speed.median / speeds["cached"].median
        span = f"({speed.lowest:.0f} to {speed.highest:.0f})"
        sys.stdout.write(f"{name:16}{speed.median:8.0f} tokens/s {span:16} x{ratio:.2f}\n")


if __name__ == "__main__":
    main()
