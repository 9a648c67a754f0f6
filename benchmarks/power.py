"""How many tokens does it take to refute each fault, and how often is an exact decoder refuted? Against the limit of any test.

    python benchmarks/power.py --out reports/power

Four tables, written as JSON and Markdown with a plot: false alarms of exact streams stopped at their worst moment; tokens to
refute every catalogued fault beside ln(1/alpha)/KL; defects that no catalogue holds, or that are taken out of it while they are
tried, in whole decoders run round after round; and what published criteria of other projects, re-implemented from their
description, say of the same defects. Tokens per second of the evidence itself are measured last.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from criteria import BASELINES
from defects import DEFECTS, Defect, K, positive
from limits import divergence

from specverify.checks.sampling import sample_verifier
from specverify.evidence.bets import divergences
from specverify.evidence.eprocess import information_limit
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.laws import Array, Ints, Pair
from specverify.pairs import named_pair
from specverify.randomness import stream
from specverify.subjects import Verifier

ALPHA = 1e-6
V, LENGTH = 8, 8
BUDGET = 2_000_000
"""Tokens of the budget called certify."""


def draw(law: Array, contexts: Ints, rng: np.random.Generator) -> Ints:
    """Tokens of contexts."""
    below = law.cumsum(1)[contexts] <= rng.random(contexts.shape)[..., None]
    tokens: Ints = np.minimum(below.sum(-1), law.shape[1] - 1)
    return tokens


def false_alarms(runs: int, alpha: float = 0.01) -> dict[str, float]:
    """Share of exact streams, looked at after every call, whose wealth ever reaches 1 / alpha."""
    pair = positive(named_pair(V, K))
    alarms = 0
    for run in range(runs):
        rng = stream(run, "null")
        watch = TableWatch(pair.target.laws, pair.draft.laws, seed=run)
        for _ in range(60):
            contexts = rng.integers(0, pair.target.size, (4, 8))
            watch.add(contexts, draw(pair.target.laws, contexts, rng))
        alarms += watch.process.refutes(alpha)
    return {"alpha": alpha, "runs": runs, "alarms": alarms, "allowed": alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)}


DECISIVE = 0.99
"""Share of the wealth at which a fault is named; two faults of one law count together."""


def leading(watch: TableWatch) -> tuple[float, str]:
    """The alternative with the most wealth, and its share; that of others with the same logarithms goes with it."""
    (first, *rest) = watch.process.posterior().items()
    together = first[1] + sum(share for _, share in rest if abs(share - first[1]) < 1e-6 * first[1])
    return together, first[0][1]


def catalogued(repetitions: int) -> list[dict[str, Any]]:
    """Tokens to refute every catalogued fault at alpha = 1e-6, and whether it is named rightly once the wealth is decisive."""
    pair = positive(named_pair(V, K))
    rows = Rows(pair.target.laws, pair.draft.laws)
    laws = {name: law(At.everywhere(rows)) for name, law in FAULT_LAWS.items()}
    found = []
    for name, kl in divergences(rows, with_q=True).items():
        limit = information_limit(float(kl.mean()), ALPHA)
        tokens, right, tried, named = [], 0, 0, []
        for repetition in range(repetitions):
            rng = stream(repetition, "fault", name)
            watch = TableWatch(rows.p, rows.q, seed=repetition)
            while not watch.process.refutes(ALPHA) and watch.process.tokens < 20 * limit:
                contexts = rng.integers(0, len(rows.p), (1, max(1, int(limit / 60))))
                watch.add(contexts, draw(laws[name], contexts, rng))
            tokens.append(watch.process.tokens if watch.process.refutes(ALPHA) else math.inf)
            if kl.mean() > 0 and 0.5 * np.abs(laws[name] - rows.p).sum(1).mean() > 0.01:
                share, best = leading(watch)
                while share < DECISIVE and watch.process.tokens < 60 * limit:
                    contexts = rng.integers(0, len(rows.p), (1, max(1, int(limit / 10))))
                    watch.add(contexts, draw(laws[name], contexts, rng))
                    share, best = leading(watch)
                right += best == name or (best in laws and bool(np.allclose(laws[best], laws[name])))
                tried += 1
                named.append(watch.process.tokens)
        found.append(
            {
                "fault": name,
                "kl": float(kl.mean()),
                "limit": limit,
                "tokens": statistics.mean(tokens),
                "ratio": statistics.mean(tokens) / limit,
                "right": right,
                "tried": tried,
                "tokens_to_name": statistics.mean(named) if named else None,
            }
        )
        line = "  {fault:<32} KL {kl:.4g}  limit {limit:9.1f}  tokens {tokens:9.1f}  ratio {ratio:.2f}  named {right}/{tried}"
        print(line.format(**found[-1]))
    return found


def watch_without(names: Sequence[str], pair: Pair, seed: int) -> TableWatch:
    """All bets but those on some faults, whose weight the others keep."""
    watch = TableWatch(pair.target.laws, pair.draft.laws, seed=seed)
    out = [i for i, a in enumerate(watch.process.alternatives) if a.name in names]
    watch.process.log_weights[out] = -np.inf
    return watch


def run_defect(defect: Defect, pair: Pair, seed: int, most: int, rows: int = 64) -> int | None:
    """Tokens until refuted at alpha = 1e-6; None when ``most`` did not suffice."""
    watch = watch_without(defect.without, pair, seed)
    call = 0
    while watch.process.tokens < most:
        grown = rows if call < 40 else 4096
        with torch.random.fork_rng(devices=[]):
            sample = sample_verifier(Verifier(defect.name, defect), pair, grown, LENGTH, 1_000_003 * seed + call)
        tokens = np.array(sample.sequences, np.int64)
        ids = np.concatenate([np.tile(np.asarray(pair.prompt, np.int64), (len(tokens), 1)), tokens], axis=1)
        watch.add(pair.target.contexts_along(ids)[:, len(pair.prompt) : -1], tokens)
        if watch.process.refutes(ALPHA):
            return watch.process.tokens
        call += 1
    return None


NONE = Defect("none (token rejection)")


def _run_numbered(number: int, seed: int, most: int) -> int | None:
    torch.set_num_threads(1)
    return run_defect((*DEFECTS, NONE)[number], positive(named_pair(V, K)), seed, most)


def left_out(runs: int, most: int, workers: int) -> list[dict[str, Any]]:
    """How many runs refute each defect within ``most`` tokens, or 3 ln(1/alpha)/KL where any test needs more than ``most``."""
    pair = positive(named_pair(V, K))
    found = []
    with ProcessPoolExecutor(workers) as pool:
        for number, defect in enumerate((*DEFECTS, NONE)):
            kl = divergence(defect, pair, LENGTH, stream(0, "limit", defect.name))
            limit = None if kl is None or kl[0] <= 0 else information_limit(kl[0], ALPHA)
            allowed = most if limit is None or limit <= most else math.ceil(3 * limit)
            if defect is NONE:
                allowed = min(most, 200_000)
            tokens = list(pool.map(partial(_run_numbered, number, most=allowed), range(runs)))
            refuted = [t for t in tokens if t is not None]
            middle = statistics.median(refuted) if refuted else None
            row = {"runs": runs, "refuted": len(refuted), "median_tokens": middle, "allowed": allowed, "limit": limit}
            found.append({"defect": defect.name, **row})
            print(
                f"  {defect.name:<52} refuted {len(refuted)}/{runs}  median tokens {middle}  of {allowed}  limit "
                + ("unknown" if limit is None else f"{limit:.0f}"),
                flush=True,
            )
    return found


def baselines(runs: int) -> list[dict[str, Any]]:
    """How many runs of each criterion fail a defect; the last row is an exact decoder."""
    found = []
    for defect in (*DEFECTS, NONE):
        row: dict[str, Any] = {"defect": defect.name}
        for name, passes in BASELINES.items():
            row[name] = sum(not passes(defect, seed) for seed in range(runs))
        found.append(row)
        print(f"  {defect.name:<52} " + "  ".join(f"{name}: {row[name]}/{runs}" for name in BASELINES))
    return found


def throughput() -> dict[str, float]:
    """Tokens per second of the evidence alone, one core: table models at V = 8; 32,000 tokens with q, laws given."""
    pair, rng = positive(named_pair(V, K)), stream(0, "throughput")
    rates = []
    for _ in range(7):
        contexts = rng.integers(0, pair.target.size, (4096, 16))
        tokens = draw(pair.target.laws, contexts, rng)
        watch = TableWatch(pair.target.laws, pair.draft.laws)
        started = time.perf_counter()
        for _ in range(5):
            watch.add(contexts, tokens)
        rates.append(5 * tokens.size / (time.perf_counter() - started))
    logits = rng.normal(size=(2, 4, 8, 32_000))
    p, q = (np.exp(2 * x) / np.exp(2 * x).sum(-1, keepdims=True) for x in logits)
    x = rng.integers(0, 32_000, (4, 8))
    large = []
    for _ in range(3):
        stream_watch = StreamWatch(True, 32_000)
        started = time.perf_counter()
        stream_watch.add(p, q, x)
        large.append(x.size / (time.perf_counter() - started))
    return {"table, V = 8": statistics.median(rates), "stream, V = 32,000 with q": statistics.median(large)}


def as_markdown(result: dict[str, Any]) -> str:
    """The tables for people."""
    alarms, runs = result["false_alarms"], result["left_out"][0]["runs"]
    lines = [
        "# How many tokens does it take?",
        "",
        f"What `python benchmarks/power.py --runs {runs}` printed. How to read it: [method.md](method.md).",
        "",
        f"{alarms['alarms']} of {alarms['runs']} exact streams reached 1/alpha at some moment, alpha = {alarms['alpha']:g}.",
        "",
        f"## Catalogued faults, alpha = {ALPHA:g}",
        "",
        "| fault | KL per token | ln(1/alpha)/KL | tokens to refute | ratio | tokens to name | named rightly |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["catalogued"]:
        to_name = f"{row['tokens_to_name']:,.0f}" if row["tokens_to_name"] else ""
        lines.append(
            f"| {row['fault']} | {row['kl']:.3g} | {row['limit']:,.0f} | {row['tokens']:,.0f} | {row['ratio']:.2f} | "
            f"{to_name} | {row['right']} of {row['tried']} |"
        )
    names = list(BASELINES)
    lines += [
        "",
        "![Tokens to refute each catalogued fault beside ln(1/alpha)/KL, on a logarithmic scale](power.svg)",
        "",
        "## Defects that were left out of the catalogue",
        "",
        f"Runs refuted within the tokens allowed, then runs of {result['baseline_runs']} that a published criterion fails;",
        "the last row is an exact decoder. ln(1/alpha)/KL is that of the joint law of a sequence; it is left out where rows or",
        "rounds act together. Where it exceeds the budget, three times as many tokens are allowed.",
        "",
        f"| defect | refuted | tokens allowed | median tokens | ln(1/alpha)/KL | {' | '.join(names)} |",
        "| --- " * (5 + len(names)) + "|",
    ]
    for left, base in zip(result["left_out"], result["baselines"], strict=True):
        tokens, limit = ("" if left[key] is None else f"{left[key]:,.0f}" for key in ("median_tokens", "limit"))
        lines.append(
            f"| {left['defect']} | {left['refuted']} of {left['runs']} | {left['allowed']:,} | {tokens} | {limit} | "
            f"{' | '.join(str(base[n]) for n in names)} |"
        )
    rates = ", ".join(f"{name}: {rate:,.0f}" for name, rate in result["throughput"].items())
    return "\n".join([*lines, "", f"Tokens of evidence per second on one core: {rates}.", ""])


def as_plot(rows: list[dict[str, Any]]) -> str:
    """Tokens to refute beside the limit, on a logarithmic scale, as an image of its own."""
    from specverify.report.plots import Paired, paired_bars

    drawn = [Paired(r["fault"], math.log10(r["limit"]), math.log10(r["tokens"])) for r in rows]
    figure = paired_bars("Tokens to refute", drawn, ("ln(1/alpha)/KL", "tokens"), lambda x: f"{10**x:,.0f}")
    style = "<style>text{font:11px sans-serif}.should{fill:none;stroke:#1f5f99}.came{fill:#b85c1a}.axis{stroke:#888}</style>"
    image = str(figure.image).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, rest = image.split(">", 1)
    return f"{head}>{style}{rest}\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="runs per defect")
    parser.add_argument("--null-runs", type=int, default=2_000)
    parser.add_argument("--repetitions", type=int, default=40, help="streams per catalogued fault")
    parser.add_argument("--baseline-runs", type=int, default=10)
    parser.add_argument("--most", type=int, default=BUDGET, help="tokens allowed per defect")
    parser.add_argument("--workers", type=int, default=1, help="processes for the runs of defects")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    print("tokens per second")
    result["throughput"] = throughput()
    print("  " + ", ".join(f"{name}: {rate:,.0f}" for name, rate in result["throughput"].items()))
    print(f"false alarms of {options.null_runs} exact streams at their worst moment")
    result["false_alarms"] = false_alarms(options.null_runs)
    print(f"  {result['false_alarms']}")
    print(f"catalogued faults, alpha = {ALPHA:g}")
    result["catalogued"] = catalogued(options.repetitions)
    ratios = [row["ratio"] for row in result["catalogued"]]
    print(f"  tokens over the limit: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")
    print("defects left out of the catalogue")
    result["left_out"] = left_out(options.runs, options.most, options.workers)
    print("published criteria: runs that fail")
    result["baselines"] = baselines(options.baseline_runs)
    result["baseline_runs"] = options.baseline_runs
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "power.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "power.md").write_text(as_markdown(result))
        (options.out / "power.svg").write_text(as_plot(result["catalogued"]))


if __name__ == "__main__":
    main()
