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
from typing import Any

import torch
from torch import Tensor

from reference.caching import Cache
from reference.decoder import Model, Process, State, autoregressive, generate, speculative_step
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import Rule, rule_named
from specverify.subjects import Emitted, Generated

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
    draft: Model,
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


class Timing:
    """The trained decoder as the timing suite sees it, a :class:`specverify.subjects.Timeable`. Weights load on first
    use.

    temperature: of the main model and of the drafts alike. The draft "adversarial" follows the negated logits of the aligned
    one, so that next to nothing is accepted.
    """

    drafts: tuple[str, ...] = ("aligned", "mismatched", "adversarial")
    max_k = 8

    def __init__(self, temperature: float = 1.0) -> None:
        self.process = Processors(temperature)

    def at(self, temperature: float) -> Timing:
        """Return the same decoder at another temperature. Errors: ValueError for a temperature below 0."""
        return Timing(temperature)

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, N) after prompts (B, T) by the main model alone, with or without a KV cache."""
        noise = BatchNoise(torch.Generator().manual_seed(seed))
        return autoregressive(_model("main"), prompts, max_new_tokens, process=self.process, noise=noise, cached=cached)

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Generate (B, N) after prompts (B, T) with K drafts per round, and the accepted counts."""
        noise, rule = BatchNoise(torch.Generator().manual_seed(seed)), rule_named("token_rejection")
        models = _model("main"), _model(draft)
        return generate(*models, prompts, max_new_tokens, k=k, process=self.process, rule=rule, noise=noise)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Return calls to time, each from the same state after prompts (B, T); steps sample their token, "verify" makes
        laws only, "cache" takes back what a round added to both caches, "loop" is a round over models and a rule that
        cost nothing.
        """
        main, drafting, process = _model("main"), _model(draft), self.process
        rows, noise = len(prompts), BatchNoise(torch.Generator().manual_seed(0))
        drafted = torch.zeros(rows, k, dtype=torch.int64)
        block = torch.zeros(rows, k + 1, dtype=torch.int64)

        def step_of(model: Model, tokens: Tensor, sample: bool) -> Callable[[], object]:
            with torch.inference_mode():
                cache = model.start(prompts.shape[1] + tokens.shape[1], rows)
                model.extend(prompts, cache)
            lengths = cache.lengths

            def call() -> object:
                with torch.inference_mode():
                    laws = process(model.extend(tokens, cache))
                    cache.rollback(lengths)
                    return noise.choose(laws[:, -1]) if sample else laws

            return call

        with torch.inference_mode():
            p = process(main.extend(block, main.start(k + 1, rows)))
            q = process(drafting.extend(drafted, drafting.start(k, rows)))

        def accept() -> object:
            with torch.inference_mode():
                return rule_named("token_rejection").verify(drafted, q, p, noise)

        return {
            "target": step_of(main, block[:, :1], sample=True),
            "draft": step_of(drafting, block[:, :1], sample=True),
            "verify": step_of(main, block, sample=False),
            "accept": accept,
            "cache": _taking_back(rows, k),
            "loop": _loop_alone(rows, k, main.vocab_size),
        }

    def memory(self, batch: int, length: int) -> dict[str, int]:
        """Bytes of the KV caches of ``batch`` rows of ``length`` tokens, by model."""

        def size(name: str) -> int:
            cache = _model(name).start(length, batch)
            return sum(layer.nbytes for layer in cache.layers)

        return {name: size(name) for name in ("main", "aligned")}


class _Negated:
    """A model whose law is turned upside down: what the other finds likely is unlikely here."""

    def __init__(self, model: Model) -> None:
        self.model, self.vocab_size = model, model.vocab_size

    def start(self, capacity: int, rows: int) -> Cache:
        """Return an empty cache of the other model."""
        cache: Cache = self.model.start(capacity, rows)
        return cache

    def extend(self, tokens: Tensor, cache: Cache, counts: Tensor | None = None) -> Tensor:
        """Return the negated logits (B, n, V) of the other model."""
        return -self.model.extend(tokens, cache, counts)


def _taking_back(rows: int, k: int) -> Callable[[], object]:
    """Return a call that takes back K tokens from two caches, as the end of a round does."""
    caches = Cache(k + 1, rows), Cache(k + 1, rows)
    counts = torch.ones(rows, dtype=torch.int64)

    def call() -> object:
        with torch.inference_mode():
            kept = torch.zeros(rows, dtype=torch.int64) + counts
            for cache in caches:
                cache.lengths = torch.full((rows,), k + 1)
                cache.rollback(torch.minimum(kept, cache.lengths))
        return caches

    return call


class _Free:
    """A model, a rule and noise that cost nothing: everything they return was made before."""

    def __init__(self, rows: int, k: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.logits = {n: torch.zeros(rows, n, vocab_size) for n in (1, 2, k + 1)}
        self.chosen = torch.zeros(rows, dtype=torch.int64)
        tokens = torch.full((rows, k + 1), -1)
        tokens[:, 0] = 0
        self.emitted = Emitted(tokens, torch.ones(rows, dtype=torch.int64))

    def extend(self, tokens: Tensor, cache: Cache, counts: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return self.logits[tokens.shape[1]]

    def verify(self, *_: object) -> Emitted:
        return self.emitted

    def choose(self, *_: object) -> Tensor:
        return self.chosen


class _NoCache(Cache):
    def rollback(self, lengths: Tensor) -> None:
        """Keep the lengths, so that every round begins where the one before it did."""


def _loop_alone(rows: int, k: int, vocab_size: int) -> Callable[[], object]:
    """Return a call that does what one turn of the loop in :func:`reference.decoder.generate` does around its models."""
    free: Any = _Free(rows, k, vocab_size)
    one = torch.ones(rows, dtype=torch.int64)
    state = State(_NoCache(k + 1, rows), _NoCache(k + 1, rows), torch.zeros(rows, 2, dtype=torch.int64), one)
    output, places = torch.zeros(rows, 2 * k + 2, dtype=torch.int64), torch.arange(k + 1)
    live = torch.ones(rows, dtype=torch.bool)

    def call() -> object:
        with torch.inference_mode():
            emitted = speculative_step(free, free, state, k, lambda logits: logits, free, free)
            accepted = torch.where(live, emitted.counts - 1, -1)
            output.scatter_(1, torch.zeros_like(one)[:, None] + places, emitted.tokens)
            filled = torch.where(live, emitted.counts, 0)
            going_on = live & (filled < k)
            return bool(going_on.any()), bool(going_on.all()), accepted

    return call


def _model(name: str) -> Model:
    from reference.weights import trained

    return _Negated(trained("aligned")) if name == "adversarial" else trained(name)


def main() -> None:
    """Print tokens per second of the baselines and of both drafts at K = 1..8, for one row and 256 tokens."""
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
