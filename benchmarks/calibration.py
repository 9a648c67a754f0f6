"""Does a correct subject ever get refuted? Whole runs of an exact verifier under different seeds, counted.

    python benchmarks/calibration.py --runs 200 --workers 2

Each run is a whole ``specverify certify`` with the smoke budget, controls included. The expected number of refutations at the
default budget is 200 * 1e-8; a single one is a defect of specverify. With ``--alpha`` the budget is raised, so that the share
of refuted runs can be compared with it: at 0.05 about 10 of 200 are allowed, and the finite-sample bounds give far fewer.
Results are appended to ``--out`` line by line; runs already there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm


def one_run(job: tuple[str, int, float]) -> dict[str, Any]:
    """Certify the subject under one seed; returns the verdicts and the smallest p-value over its share."""
    import torch

    from specverify.certify import certify
    from specverify.checks.base import BUDGETS, Settings

    torch.set_num_threads(1)
    spec, seed, alpha = job
    started = time.perf_counter()
    certificate = certify(spec, Settings(BUDGETS["smoke"], alpha, seed))
    own = [e for e in certificate.evidence if e.expected == "certified"]
    smallest = min((j.numbers["p"] for e in own for j in e.judgements() if "p" in j.numbers), default=1.0)
    return {
        "spec": spec,
        "seed": seed,
        "alpha": alpha,
        "verdict": certificate.verdict,
        "refuted": [e.test for e in own if e.verdict == "refuted"],
        "missed_controls": [e.test for e in certificate.evidence if not e.as_expected],
        "smallest_p": smallest,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> int:
    """Run, resume, count; exit 1 when anything was refuted or a control was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subject", default="specverify.faults.cases:C10_repaired", help="an exact verifier")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alpha", type=float, default=1e-8)
    parser.add_argument("--out", type=Path, default=Path("reports/calibration.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines() if line.endswith("}")]
    rows = [r for r in rows if (r["spec"], r["alpha"]) == (options.subject, options.alpha) and r["seed"] < options.runs]
    done = {r["seed"] for r in rows}
    jobs = [(options.subject, seed, options.alpha) for seed in range(options.runs) if seed not in done]
    with ProcessPoolExecutor(options.workers) as pool, options.out.open("a") as stream:
        for row in tqdm(pool.map(one_run, jobs), total=len(jobs), unit="run", disable=not sys.stderr.isatty()):
            rows.append(row)
            stream.write(json.dumps(row) + "\n")
            stream.flush()
    refuted = [r for r in rows if r["refuted"]]
    missed = [r for r in rows if r["missed_controls"]]
    verdicts = {v: sum(r["verdict"] == v for r in rows) for v in sorted({r["verdict"] for r in rows})}
    print(
        f"{len(rows)} whole smoke runs of {options.subject} at a false-alarm budget of {options.alpha:g}: verdicts {verdicts}"
    )
    print(
        f"refuted runs: {len(refuted)} (expected at most {options.alpha * len(rows):g})"
        f"; runs with a missed control: {len(missed)}"
    )
    print(f"smallest p-value bound seen: {min(r['smallest_p'] for r in rows):.3g}")
    return 1 if refuted or missed else 0


if __name__ == "__main__":
    sys.exit(main())
