"""Is every family of drafters exact with every rule that fits it? Whole certificates of the reference decoder, one each.

    python benchmarks/families.py --workers 2

Each is a ``specverify certify`` with controls: exact laws of rounds and of whole decodes over table models, and sampled
tokens of the trained models. Typical acceptance is lossy by design and must be refuted; how far it is from the target's law
is printed. Results are appended to ``--out`` line by line; runs already there are not repeated. Exit code 1 when a verdict
is not the expected one.
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


def __getattr__(name: str) -> Decoder:
    """Make the subject ``family__rule``, so that each has a name by which it is found: benchmarks/families.py:NAME."""
    if name not in ALL:
        raise AttributeError(name)
    if name == "adaptive_k":
        return adaptive_k
    family, rule = name.split("__")
    return family_subject(family, rule)


def one_run(job: tuple[str, str, int]) -> dict[str, Any]:
    """Certify one subject; returns its verdict, what was not as expected, and what a lossy rule does."""
    import torch

    from specverify.certify import certify
    from specverify.checks.base import BUDGETS, Settings

    torch.set_num_threads(1)
    name, budget, seed = job
    started = time.perf_counter()
    certificate = certify(f"{Path(__file__)}:{name}", Settings(BUDGETS[budget], 1e-8, seed))
    own = [e for e in certificate.evidence if e.expected == "certified"]
    return {
        "name": name,
        "budget": budget,
        "seed": seed,
        "verdict": certificate.verdict,
        "tests": len(own),
        "not_certified": {e.test: e.verdict for e in own if e.verdict != "certified"},
        "missed_controls": [e.test for e in certificate.evidence if e.expected != "certified" and not e.as_expected],
        "sentence": certificate.sentence,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    """Run what is missing, print one line each, and say whether all is as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="smoke")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--out", type=Path, default=Path("reports/families.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["name"], row["budget"], row["seed"]) for row in rows}
    jobs = [
        (n, options.budget, options.seed) for n in ALL if options.only in n and (n, options.budget, options.seed) not in done
    ]
    with ProcessPoolExecutor(options.workers) as pool, options.out.open("a") as file:
        for row in pool.map(one_run, jobs):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            line = f"{row['name']:42} {row['verdict']:13} {row['tests']:3} tests {row['seconds']:7.1f} s"
            print(f"{line} {row['not_certified'] or ''}")
    wrong = [
        r["name"] for r in rows if r["verdict"] != ("refuted" if r["name"] in LOSSY else "certified") or r["missed_controls"]
    ]
    for row in rows:
        if row["name"] in LOSSY:
            print(f"\n{row['name']}: {row['sentence']}")
    print(f"\n{len(rows) - len(wrong)} of {len(rows)} as expected" + (f"; not: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
