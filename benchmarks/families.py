"""Is every family of drafters exact with every rule that fits it? Every test that applies to the reference decoder with each.

    python benchmarks/families.py --workers 2

The tests are those of ``specverify certify``, without the controls, which ``pytest suites/`` runs: exact laws of rounds and of
whole decodes over table models with every rule, and sampled tokens of the trained models with the first rule of a family,
or with every one (``--all``). Typical acceptance is lossy by design and must be refuted; what the refuting tests say is
printed. Results are appended to ``--out`` line by line; runs already there are not repeated. Exit code 1 when a verdict is
not the expected one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from reference.exposed import adaptive_k, family_subject
from reference.families import FAMILIES
from specverify.subjects import Decoder

LOSSY = ("medusa__typical_acceptance",)
NAMES = [f"{family}__{rule}" for family, of in FAMILIES.items() if family != "mismatched" for rule in of.rules]
ALL = [*NAMES, "adaptive_k", *LOSSY]
FIRST = {*(f"{family}__{of.rules[0]}" for family, of in FAMILIES.items()), "adaptive_k", *LOSSY}


def __getattr__(name: str) -> Decoder:
    """Make the subject ``family__rule``, so that each has a name by which it is found: benchmarks/families.py:NAME."""
    if name not in ALL:
        raise AttributeError(name)
    if name == "adaptive_k":
        return adaptive_k
    family, rule = name.split("__")
    return family_subject(family, rule)


def one_run(job: tuple[str, str, int, bool]) -> dict[str, Any]:
    """Run the tests of one subject; returns its verdict, what is not certified, and the largest deviation or evidence."""
    import torch

    from specverify.certify import OWN_MODELS, Runner
    from specverify.checks.base import BUDGETS, Settings
    from specverify.plan import plan_for

    torch.set_num_threads(1)
    name, budget, seed, own_models = job
    started = time.perf_counter()
    plan = plan_for(__getattr__(name), name, Settings(BUDGETS[budget], 1e-8, seed))
    runner = Runner(plan)
    tests = [p for p in plan.tests if p.expected == "certified" and (own_models or not p.variant.startswith(OWN_MODELS))]
    found = {planned.test: runner.run(planned) for planned in tests}
    verdicts = {test: e.verdict for test, e in found.items() if e.verdict not in ("certified", "skipped")}
    worst = next((v for v in ("error", "refuted", "inconclusive") if v in verdicts.values()), "certified")
    reasons = {test: [j.reason for j in e.judgements() if j.reason][:1] for test, e in found.items() if test in verdicts}
    return {
        "name": name,
        "budget": budget,
        "seed": seed,
        "own_models": own_models,
        "verdict": worst,
        "tests": len(tests),
        "not_certified": reasons,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    """Run what is missing, print one line each, and say whether all is as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="smoke")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="the trained models with every rule")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--out", type=Path, default=Path("reports/families.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["name"], row["budget"], row["seed"]) for row in rows}
    jobs = [
        (n, options.budget, options.seed, options.all or n in FIRST)
        for n in ALL
        if options.only in n and (n, options.budget, options.seed) not in done
    ]
    with ProcessPoolExecutor(options.workers) as pool, options.out.open("a") as file:
        for row in pool.map(one_run, jobs):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            where = "tables and trained models" if row["own_models"] else "tables"
            print(f"{row['name']:42} {row['verdict']:13} {row['tests']:3} tests {row['seconds']:7.1f} s  {where}", flush=True)
    wrong = [r["name"] for r in rows if r["verdict"] != ("refuted" if r["name"] in LOSSY else "certified")]
    for row in rows:
        for test, reasons in row["not_certified"].items():
            print(f"  {test}: {reasons[0] if reasons else ''}")
    print(f"\n{len(rows) - len(wrong)} of {len(rows)} as expected" + (f"; not: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
