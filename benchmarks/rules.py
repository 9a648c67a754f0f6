"""How far from its target does every lossless rule stray? The largest deviation over generated pairs, rule by rule.

    python benchmarks/rules.py --pairs 500

For each part of the reference that is judged by single rounds the exact law of one round is taken on that many pairs that
Hypothesis generates (zeros, certain laws, disjoint supports, p = q, p = q up to one ulp; V to 5 and K to 3, fewer where there
are too many trees of drafts), and completed by the target. Verifiers of float64 are run in float32 too. Deviations are printed
beside the rounding unit of the precision.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase

from specverify.checks.base import Round
from specverify.checks.single_step import measure
from specverify.errors import SpecverifyError
from specverify.loading import load_subject
from specverify.pairs import pair_for, pairs
from specverify.plan import parts_of
from specverify.subjects import Decoder, Step, Verifier
from specverify.tree_drafts import vocab_sizes
from specverify.trees import TreeVerifier

MOST_TREES = 300
"""Most trees of drafts of one pair."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23}


def sizes(part: Round) -> dict[str, int]:
    """Range of V and K for a part."""
    if isinstance(part, Verifier):
        return {"min_k": 1, "max_k": 3, "max_vocab": 5}
    if isinstance(part, TreeVerifier):
        few = vocab_sizes(part, MOST_TREES)
        return {"min_k": part.k, "max_k": part.k, "min_vocab": few[0], "max_vocab": min(few[-1], 5)}
    return {"min_k": part.k, "max_k": part.k, "max_vocab": 5 if part.k <= 2 else 4}


def strays(part: Round, examples: int) -> dict[str, Any]:
    """Largest deviation of a part over generated pairs, where it was, and how many paths were walked."""
    worst: dict[str, Any] = {"deviation": 0.0, "pair": None, "pairs": 0, "verdicts": {}}
    dtype = part.facts.dtype

    def visit(pair: Any) -> bool:
        judged = pair_for(part.facts.rule, pair)
        measurement, _ = measure(part, judged)
        verdict = measurement.judge(0).verdict
        worst["verdicts"][verdict] = worst["verdicts"].get(verdict, 0) + 1
        worst["pairs"] += 1
        if (deviation := measurement.deviation()[0]) >= worst["deviation"]:
            worst.update(deviation=deviation, pair=judged.to_json())
        return False

    settings = hypothesis.settings(
        max_examples=examples, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    try:
        hypothesis.find(pairs(dtype=dtype, **sizes(part)), visit, settings=settings, random=random.Random(0))
    except hypothesis.errors.NoSuchExample:
        pass
    except SpecverifyError as error:
        worst["stopped"] = str(error)
    return worst


def main() -> None:
    """Print a line per rule and precision, write JSON when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--only", default="", help="rules whose name contains this")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts: list[Round] = [p for p in parts_of(load_subject("reference")) if not isinstance(p, Decoder)]
    names = {p.name for p in parts}
    for part in list(parts):
        if isinstance(part, Verifier | TreeVerifier) and part.facts.dtype == "float64" and f"{part.name}.float32" not in names:
            parts.append(replace(part, name=f"{part.name}.float32", facts=replace(part.facts, dtype="float32")))
        if isinstance(part, Step) and part.facts.dtype == "float64":
            parts.append(replace(part, name=f"{part.name}.float32", facts=replace(part.facts, dtype="float32")))
    found = {}
    for part in parts:
        if options.only not in part.name:
            continue
        started = time.perf_counter()
        result = found[part.name] = strays(part, options.pairs)
        eps = EPS[part.facts.dtype]
        said = ", ".join(f"{n} {v}" for v, n in result["verdicts"].items())
        print(
            f"{part.name:<48} {result['pairs']:4d} pairs ({said})  largest deviation {result['deviation']:.1e} = "
            f"{result['deviation'] / eps:5.1f} eps of {part.facts.dtype}  {time.perf_counter() - started:5.0f} s"
            + (f"  STOPPED: {result['stopped']}" if "stopped" in result else ""),
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
