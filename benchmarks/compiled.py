"""Does torch.compile help the decode loop? The main model's pass for one row, eager and compiled, in one interleaved run.

    python benchmarks/compiled.py

A pass over n tokens is compiled as one graph with the used span and the place of the new tokens dynamic. Printed are medians of
the ratios eager / compiled within a repetition, how long compiling took, and how far the logits lie apart. A C++ compiler
is needed; without one the program says so and exits with 3.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from reference import weights
from reference.kv_cache import KVCache, Weights
from reference.model import Transformer
from reference.text import prompts

Tensors = list[Tensor]


def one_pass(
    ids: Tensor, keys: Tensors, values: Tensors, bias: Tensor, start: int, embed: Tensor, head: Tensor, matrices: list[Weights]
) -> Tensor:
    """Logits (n, V) of n tokens that go to ``start`` and the places after it; keys and values (H, C, D) of every layer."""
    H, _, D = keys[0].shape
    E, n = H * D, len(ids)
    span = start + n
    x = functional.embedding(ids, embed)
    for (mix, gather, widen, narrow), key, value in zip(matrices, keys, values, strict=True):
        mixed = torch.mm(functional.layer_norm(x, (E,)), mix).view(n, 3 * H, D).transpose(0, 1)
        key[:, start:span] = mixed[H : 2 * H]
        value[:, start:span] = mixed[2 * H :]
        scores = torch.baddbmm(bias, mixed[:H], key[:, :span].transpose(1, 2), alpha=1 / math.sqrt(D))
        seen = torch.bmm(scores.softmax(-1), value[:, :span]).transpose(0, 1).reshape(n, E)
        x = torch.addmm(x, seen, gather)
        wide = functional.gelu(torch.mm(functional.layer_norm(x, (E,)), widen), approximate="tanh")
        x = torch.addmm(x, wide, narrow)
    return functional.linear(functional.layer_norm(x, (E,)), head)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def compare(model: Transformer, n: int, repetitions: int) -> str:
    """One line: a pass over n tokens after 100 to 200 tokens of text."""
    cache: KVCache = model.start(400, 1)
    model.extend(prompts(1, 100), cache)
    matrices = list(cache.weights)
    # Storage of its own for every layer: written in place within one tensor, a compiled graph would copy all of it each time.
    keys, values = ([layer.clone() for layer in kept] for kept in (cache.keys, cache.values))

    def run(function: Callable[..., Tensor], start: int) -> Tensor:
        bias = cache.windows[:, cache.capacity - start - n + 1 : cache.capacity - start + 1, : start + n].flip(1)
        return function(ids, keys, values, bias, start, model.embed.weight, model.head.weight, matrices)

    ids = torch.arange(n) + 5
    compiled = torch.compile(one_pass, dynamic=True)
    seconds = timed(lambda: [run(compiled, start) for start in (100, 101, 140)])
    apart = max(float((run(compiled, s) - run(one_pass, s)).abs().max()) for s in (100, 150))
    ratios = []
    for repetition in range(repetitions):
        start = 100 + repetition % 100
        pair = [(one_pass, []), (compiled, [])]
        for function, spent in pair if repetition % 2 else pair[::-1]:
            run(function, start)
            spent += [timed(lambda f=function, s=start: run(f, s)) for _ in range(3)]  # type: ignore[misc]
        ratios.append(statistics.median(pair[0][1]) / statistics.median(pair[1][1]))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{n:>3} {middle:>8.2f} ({low:.2f}-{high:.2f}) {seconds:>12.0f} s {apart:>12.1e}"


def main() -> int:
    """Compare passes of one token and of a verification."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=60)
    options = parser.parse_args()
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        sys.stderr.write("torch.compile needs a C++ compiler, and neither g++ nor clang++ is there\n")
        return 3
    torch.set_num_threads(1)
    print(f"{'n':>3} {'eager / compiled (quartiles)':>22} {'compiling':>14} {'logits apart':>12}")
    with torch.inference_mode():
        for n in (1, 5, 8):
            print(compare(weights.trained("main"), n, options.repetitions), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
