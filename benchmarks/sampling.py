"""How fast is the reference row by row, many rows at once, and beside transformers? Tokens per second of one interleaved run.

    python benchmarks/sampling.py --rows 1024

One thread, the committed weights, main with aligned, K = 4, temperature 1, every token sampled from the whole law. "one row"
decodes a row at a time, "batched" all rows in chunks, "assisted" is ``generate(assistant_model=...)`` of transformers on the
same weights (``transformers_twin.py``), which takes one row at a time. "products" are the matrix products of "batched" alone
(``matrix_products.py``), also those for rows that have ended and wait for others: the time that no arrangement of the rest can
save. Prompts are passages of held-out documentation; an end of document is not heeded, so that every run makes the same number
of tokens. Ratios are taken within a repetition; of rates and ratios the median and the quartiles are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matrix_products import Replay, recorded
from torch import Tensor

from reference.decoder import generate
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.text import as_stream, documentation
from reference.weights import trained

K = 4
PROMPT = 48
SINGLE_ROWS = 16
"""Rows of one repetition that are decoded one after another, so that a slow moment weighs little."""
LEAST_GAIN = 5.0
"""Goal: batched over assisted, tokens per second."""
MOST_OVERHEAD = 2.0
"""Goal: time of batched over time of its matrix products alone."""


def passages(rows: int) -> Tensor:
    """Return prompts (rows, PROMPT), evenly spread over the held-out documentation."""
    stream = as_stream(documentation()[1])
    starts = torch.linspace(0, len(stream) - PROMPT, rows).long()
    return stream[starts[:, None] + torch.arange(PROMPT)]


def decode(prompts: Tensor, tokens: int, seed: int) -> None:
    """Generate with the reference's own decoder."""
    noise, rule = BatchNoise(torch.Generator().manual_seed(seed)), rule_named("token_rejection")
    generate(trained("main"), trained("aligned"), prompts, tokens, k=K, process=Processors(), rule=rule, noise=noise)


def assisted(tokens: int) -> Callable[[Tensor, int], None] | None:
    """Return how to generate with transformers, or None where it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    from transformers_twin import assist, sampling, twin

    transformers.logging.set_verbosity_error()
    target, draft, settings = twin(trained("main")), assist(twin(trained("aligned")), K), sampling(tokens)

    def run(prompt: Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        with torch.inference_mode():
            mask = torch.ones_like(prompt)
            out = target.generate(prompt, attention_mask=mask, generation_config=settings, assistant_model=draft)
        assert out.shape[1] == prompt.shape[1] + tokens

    return run


def runs(rows: int, tokens: int, chunk: int) -> dict[str, tuple[int, Callable[[int], None]]]:
    """Return what is timed: how many tokens it stands for, and a call that takes the number of the repetition."""
    prompts = passages(rows)
    chunks = prompts.split(chunk)
    # The chunks' seeds are fixed, so that the products below are those of every repetition.
    replays = [Replay(recorded(lambda c=c, i=i: decode(c, tokens, i))) for i, c in enumerate(chunks)]

    def batched(_: int) -> None:
        for i, c in enumerate(chunks):
            decode(c, tokens, i)

    def products(*, attention: bool) -> Callable[[int], None]:
        def run(_: int) -> None:
            with torch.inference_mode():
                for replay in replays:
                    replay.run(attention=attention)

        return run

    def singly(call: Callable[[Tensor, int], None]) -> Callable[[int], None]:
        def run(repetition: int) -> None:
            for i in range(SINGLE_ROWS):
                call(prompts[(repetition * SINGLE_ROWS + i) % rows][None], repetition * SINGLE_ROWS + i)

        return run

    timed = {"one row": (SINGLE_ROWS * tokens, singly(lambda prompt, seed: decode(prompt, tokens, seed)))}
    timed["batched"] = (rows * tokens, batched)
    released = assisted(tokens)
    if released is not None:
        timed["assisted"] = (SINGLE_ROWS * tokens, singly(released))
    timed["products"] = (rows * tokens, products(attention=True))
    timed["linear layers"] = (rows * tokens, products(attention=False))
    return timed


def measured(timed: dict[str, tuple[int, Callable[[int], None]]], repetitions: int) -> dict[str, list[float]]:
    """Return tokens per second of every repetition after a first one that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in timed}
    for repetition in range(repetitions + 1):
        for name, (tokens, run) in timed.items():
            began = time.perf_counter()
            run(repetition)
            if repetition > 0:
                rates[name].append(tokens / (time.perf_counter() - began))
        print(f"repetition {repetition} of {repetitions}", file=sys.stderr, flush=True)
    return rates


def summary(values: list[float]) -> dict[str, float]:
    """Return median and quartiles; of a single value, that value."""
    low, middle, high = statistics.quantiles(values, method="inclusive") if len(values) > 1 else values * 3
    return {"median": middle, "lower quartile": low, "upper quartile": high}


def ratios(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the ratios of each repetition, by what they compare; the goals are set for the first two."""
    pairs = {
        "batched / assisted, tokens per second": ("batched", "assisted"),
        "batched / its products, time": ("products", "batched"),
        "batched / one row, tokens per second": ("batched", "one row"),
        "one row / assisted, tokens per second": ("one row", "assisted"),
    }
    return {
        name: [a / b for a, b in zip(rates[above], rates[below], strict=True)]
        for name, (above, below) in pairs.items()
        if above in rates and below in rates
    }


def main() -> None:
    """Print the rates and the ratios, write JSON when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=64, help="rows that are decoded together")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates = measured(runs(options.rows, options.tokens, options.chunk), options.repetitions)
    found = {name: summary(values) for name, values in rates.items()}
    compared = {name: summary(values) for name, values in ratios(rates).items()}
    print(f"{options.rows} rows of {options.tokens} tokens in chunks of {options.chunk}, {options.repetitions} repetitions\n")
    print("| tokens per second | median | quartiles |\n|---|---|---|")
    for name, s in found.items():
        print(f"| {name} | {s['median']:.0f} | {s['lower quartile']:.0f} to {s['upper quartile']:.0f} |")
    print("\n| ratio | median | quartiles | goal |\n|---|---|---|---|")
    goals = [f">= {LEAST_GAIN:g}", f"<= {MOST_OVERHEAD:g}"]
    for name, s in compared.items():
        goal = goals[0] if name.startswith("batched / assisted") else goals[1] if "products" in name else ""
        print(f"| {name} | {s['median']:.2f} | {s['lower quartile']:.2f} to {s['upper quartile']:.2f} | {goal} |")
    if "assisted" not in rates:
        print("\ntransformers is not installed, so nothing is compared with it: pip install specverify[transformers]")
    if options.json is not None:
        settings = {name: getattr(options, name) for name in ("rows", "chunk", "tokens", "repetitions")}
        written = {"settings": settings, "rates": found, "ratios": compared}
        options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
