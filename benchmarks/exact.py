"""What does an exact law cost? Paths per second, and overhead per path against the plain call of the same function.

    python benchmarks/exact.py

Every repetition times the plain call and the exact walk of each rule once, in shuffled order, in one run; ratios are medians
over repetitions with quartiles. *Overhead per path* is the time of a walk divided by its paths, over the time of one plain
call; where a call carries many rows, one path per row, it falls below 1. Growth in V and K and peak memory follow.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specverify.exact import verifier_emission
from specverify.laws import Pair
from specverify.loading import load_subject
from specverify.pairs import named_pair
from specverify.subjects import Facts, Verifier

LOOP = "plain token rule, one row"
PACKED = "vectorised batch rule"
ALONE = "the same, one path per call"


def loop_rule(draft_tokens: Any, draft_probs: Any, target_probs: Any) -> list[list[int]]:
    """Token rejection as a plain loop over one row."""
    tokens: list[int] = []
    for j, x in enumerate(draft_tokens[0].tolist()):
        p, q = target_probs[0, j], draft_probs[0, j]
        if torch.rand((), dtype=p.dtype) * q[x] < p[x]:
            tokens.append(x)
        else:
            return [[*tokens, int(torch.multinomial((p - q).clamp(min=0), 1))]]
    return [[*tokens, int(torch.multinomial(target_probs[0, -1], 1))]]


def rules() -> dict[str, Verifier]:
    """The rules that are timed; transformers' only where it is installed."""
    vectorised = load_subject("specverify.faults.cases:C10_repaired")
    assert isinstance(vectorised, Verifier)
    found: dict[str, Any] = {
        LOOP: Verifier("loop", loop_rule, Facts(max_batch=1)),
        PACKED: vectorised,
        ALONE: replace(vectorised, facts=replace(vectorised.facts, max_batch=1)),
    }
    try:
        found["transformers step"] = load_subject("specverify.adapters.transformers:step")
        plain_seconds(found["transformers step"], named_pair(3, 2), 1)
    except Exception as error:
        found.pop("transformers step", None)
        print(f"transformers step left out: {error}")
    return found


def plain_seconds(rule: Verifier, pair: Pair, calls: int) -> float:
    """Seconds of one plain call on one row of the pair."""
    ids = torch.zeros((1, pair.k), dtype=torch.int64)
    laws = torch.from_numpy(pair.target.laws_along(torch.zeros((1, pair.k), dtype=torch.int64).numpy()))
    q = torch.from_numpy(pair.draft.laws_along(ids.numpy()))[:, : pair.k]
    q = (q + 0.1) / (q + 0.1).sum(-1, keepdim=True)
    started = time.perf_counter()
    for _ in range(calls):
        rule(ids, q, laws)
    return (time.perf_counter() - started) / calls


def walk(rule: Verifier, pair: Pair) -> tuple[float, int, int]:
    """Seconds, paths and calls of one exact walk."""
    started = time.perf_counter()
    found = verifier_emission(rule, pair)
    return time.perf_counter() - started, found.paths, found.calls


def quartiles(values: list[float]) -> dict[str, float]:
    """Median with spread."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


def main() -> None:
    """Measure, print a table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pair = named_pair(5, 3)
    table: dict[str, dict[str, list[float]]] = {}
    subjects = rules()
    jobs: list[tuple[str, Callable[[], None]]] = []

    def one(name: str, rule: Verifier) -> None:
        plain = plain_seconds(rule, pair, 50)
        seconds, paths, calls = walk(rule, pair)
        row = table.setdefault(name, {"overhead": [], "per_second": [], "paths": [], "calls": []})
        for key, value in (
            ("overhead", seconds / paths / plain),
            ("per_second", paths / seconds),
            ("paths", paths),
            ("calls", calls),
        ):
            row[key].append(value)

    for name, rule in subjects.items():
        one(name, rule)  # warm-up
        table.pop(name)
        jobs += [(name, lambda name=name, rule=rule: one(name, rule))] * options.repetitions  # type: ignore[misc]
    random.Random(0).shuffle(jobs)
    for _, job in jobs:
        job()
    print(f"{pair.name}, {options.repetitions} interleaved repetitions, median (quartiles)")
    summary: dict[str, Any] = {}
    for name, row in table.items():
        summary[name] = {key: quartiles(values) for key, values in row.items()}
        rate, cost = summary[name]["per_second"], summary[name]["overhead"]
        print(
            f"{name:<28} {row['paths'][0]:6.0f} paths in {row['calls'][0]:5.0f} calls  "
            f"{rate['median']:9,.0f} paths/s ({rate['low']:,.0f} to {rate['high']:,.0f})  "
            f"{cost['median']:6.2f} plain calls per path ({cost['low']:.2f} to {cost['high']:.2f})"
        )
    for other in (ALONE, LOOP):
        gain = summary[PACKED]["per_second"]["median"] / summary[other]["per_second"]["median"]
        print(f"{PACKED}: {gain:.1f} times the paths per second of {other!r}")
    print("growth of the vectorised rule, and its gain over one path per call, median of 3 interleaved:")
    growth = []
    for vocab_size, k in ((2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (4, 3), (5, 3), (6, 3), (6, 4)):
        sized = named_pair(vocab_size, k)
        both = [(walk(subjects[PACKED], sized), walk(subjects[ALONE], sized)) for _ in range(3)]
        seconds, gain = (statistics.median(x) for x in ([p[0] for p, _ in both], [a[0] / p[0] for p, a in both]))
        (_, paths, calls), _ = both[0]
        growth.append({"v": vocab_size, "k": k, "paths": paths, "calls": calls, "seconds": seconds, "gain": gain})
        print(f"  V = {vocab_size}, K = {k}: {paths:6d} paths, {calls:3d} calls, {seconds:6.3f} s, gain {gain:5.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the whole process: {peak:.0f} MiB")
    if options.json is not None:
        options.json.write_text(json.dumps({"rules": summary, "growth": growth, "peak_mib": peak}, indent=1) + "\n")


if __name__ == "__main__":
    main()
