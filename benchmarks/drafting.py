"""What is each family of drafters worth? Speed over the cached baseline by K, and emitted tokens against their exact value.

    python benchmarks/drafting.py

One interleaved run on one thread with the committed weights: every repetition makes the same number of tokens with the
baseline and with every family at every K, in a shuffled order, and what is printed are medians of the ratios within a
repetition, with quartiles. "E" is emitted tokens per round; "exact" what the laws along the same texts give (see
reference.acceptance), "z" their difference in standard errors; trees have no such value place by place. "adaptive" lets K
follow what is accepted: its goal is never to be slower than 0.95 of the baseline, with the mismatched draft too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from reference import weights
from reference.acceptance import deviation, exact_acceptance
from reference.adaptive import AdaptiveK, measured_costs
from reference.decoder import autoregressive, generate
from reference.families import FAMILIES
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.rules.trees import TREE_RULES, tree_rule_named
from reference.text import prompts
from specverify.subjects import Generated

ADAPTIVE = ("aligned", "mismatched")


def cases(ks: list[int], families: list[str]) -> list[tuple[str, int]]:
    """Every family at every K, trees at their depth alone; K = 0 stands for an adaptive one."""
    found: list[tuple[str, int]] = []
    for name in families:
        tree = name.startswith("medusa_")
        found += [(name, 3)] if tree else [(name, k) for k in ks]
    return [*found, *((name, 0) for name in ADAPTIVE if name in families)]


def runs_of(
    process: Processors, tokens: int, todo: list[tuple[str, int]]
) -> dict[tuple[str, int], Callable[[Tensor, int], Any]]:
    """A call (prompts, seed) for the baseline, ("", 0), and for every case."""
    main = weights.trained("main")

    def noise(seed: int) -> BatchNoise:
        return BatchNoise(torch.Generator().manual_seed(seed))

    def baseline(prompt: Tensor, seed: int) -> Tensor:
        return autoregressive(main, prompt, tokens, process=process, noise=noise(seed))

    def case(name: str, k: int) -> Callable[[Tensor, int], Generated]:
        drafter, rule_name = FAMILIES[name].trained(weights.FOLDER), FAMILIES[name].rules[0]
        rule: Any = tree_rule_named(rule_name) if rule_name in TREE_RULES else rule_named(rule_name)
        costs = None if k else measured_costs(main, drafter, prompts(1, 48))

        def run(prompt: Tensor, seed: int) -> Generated:
            pace = AdaptiveK(costs) if costs is not None else k
            return generate(main, drafter, prompt, tokens, k=pace, process=process, rule=rule, noise=noise(seed))

        return run

    return {("", 0): baseline} | {(name, k): case(name, k) for name, k in todo}


def measured(options: argparse.Namespace, process: Processors) -> list[dict[str, Any]]:
    """Time all cases in turn, and compare what was emitted with what should have been."""
    todo = cases(options.ks, options.families)
    runs = runs_of(process, options.tokens, todo)
    texts = prompts(options.repetitions, 48)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    made: dict[tuple[str, int], list[tuple[Tensor, Generated]]] = {key: [] for key in todo}
    with tqdm(total=(options.repetitions + 1) * len(runs), leave=False, disable=not sys.stderr.isatty()) as bar:
        for repetition in range(-1, options.repetitions):
            order = list(runs)
            random.Random(repetition).shuffle(order)
            prompt = texts[max(repetition, 0)][None]
            for key in order:
                began = time.perf_counter()
                result = runs[key](prompt, repetition + 1)
                elapsed = time.perf_counter() - began
                if repetition >= 0:
                    seconds[key].append(elapsed)
                    if key[0]:
                        made[key].append((prompt, result))
                bar.update()
    base = seconds["", 0]
    return [row(key, base, seconds[key], made[key], process) for key in todo]


def row(
    key: tuple[str, int], base: list[float], seconds: list[float], made: list[tuple[Tensor, Generated]], process: Processors
) -> dict[str, Any]:
    """Everything about one case."""
    name, k = key
    ratios = sorted(b / s for b, s in zip(base, seconds, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    accepted = [a for _, result in made for a in result.accepted[0].tolist()]  # type: ignore[index]
    found: dict[str, Any] = {"family": name, "k": k, "speedup": middle, "low": low, "high": high}
    found["tokens_per_round"] = 1 + statistics.mean(accepted)
    if k and not name.startswith("medusa_") and process.temperature > 0:
        main, drafter = weights.trained("main"), FAMILIES[name].trained(weights.FOLDER)
        excess = variance = rounds = 0.0
        for prompt, result in made:
            chances = exact_acceptance(main, drafter, prompt, result, k=k, process=process)
            assert result.accepted is not None
            more, error = deviation(result.accepted, chances)
            excess, variance = excess + more, variance + error**2
            rounds += float((~chances.isnan().all(-1)).sum())
        found |= {"excess_per_round": excess / rounds, "error": variance**0.5 / rounds, "z": excess / max(variance**0.5, 1e-9)}
    return found


def printed(rows: list[dict[str, Any]], temperature: float) -> str:
    """The table of one temperature."""
    lines = [f"temperature {temperature:g}", f"{'family':20} {'K':>8} {'speed-up (quartiles)':>22} {'E':>6} {'z':>6}"]
    for r in rows:
        speed = f"{r['speedup']:.2f} ({r['low']:.2f}-{r['high']:.2f})"
        z = f"{r['z']:6.2f}" if "z" in r else "     -"
        lines.append(f"{r['family']:20} {r['k'] or 'adaptive':>8} {speed:>22} {r['tokens_per_round']:>6.2f} {z}")
    best = max((r for r in rows if r["k"]), key=lambda r: r["speedup"])
    return "\n".join([*lines, f"    best: {best['family']}, K = {best['k']}, x{best['speedup']:.2f}"])


def main() -> int:
    """Measure and print; exit code 1 when emitted tokens lie more than 5 standard errors from their exact value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ks", type=lambda text: [int(k) for k in text.split(",")], default=list(range(1, 9)))
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES))
    parser.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[1.0, 0.0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for temperature in options.temperatures:
        found[temperature] = measured(options, Processors(temperature))
        print(printed(found[temperature], temperature), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    off = [(r["family"], r["k"]) for rows in found.values() for r in rows if abs(r.get("z", 0)) > 5]
    if off:
        print(f"emitted tokens are not what the laws give: {off}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
