"""What do the samples say? The timing JSON: medians and quartiles, rates, costs, predictions, best and losing K."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specverify.timing.measure import PHASES, Samples
from specverify.timing.predict import Costs, acceptance_rates, best_k, expected_tokens, slower_from

FEW_CORES = 4
NOISY = 0.1
"""Quartiles of the cached baseline further apart than this share of its median make a machine noisy."""

DEFINITIONS = {
    "accepted_per_tested": "accepted / (accepted + rejected); drafts after a rejection are not tested",
    "accepted_per_drafted": "accepted / (rounds K), as engines report it",
    "tokens_per_round": "E: accepted + 1 per round, over rounds that began with at least K + 2 tokens to go",
    "speedup": "cached baseline seconds / seconds with speculation, both of the same repetition",
    "c": "one cached draft step / one cached target step",
    "v": "one target pass over K + 1 tokens / one cached target step",
    "o": "the accept phase alone / one cached target step; the rest of a round is given as remainder and not predicted",
    "remainder": "measured round / token of the cached baseline - (v + K c + o): bookkeeping, reading the prompt",
    "predicted_speedup": "E / (v + K c + o)",
    "tokens_per_round_iid": "E if every tested token were accepted independently at accepted_per_tested",
}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
    return {"median": _short(median), "low": _short(low), "high": _short(high)}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def machine_note(available: int, load: float | None, baseline: Mapping[str, float]) -> str:
    """Say how far to trust the numbers: few cores, ``load`` processes at the start, spread of the baseline."""
    apart = (baseline["high"] - baseline["low"]) / baseline["median"]
    causes = []
    if available <= FEW_CORES:
        causes.append(f"{available} core{'s' if available > 1 else ''}")
    if load is not None and load > available / 2:
        causes.append(f"a load of {load:.1f} when the run began")
    if apart > NOISY:
        causes.append(f"quartiles of the cached baseline {apart:.0%} apart")
    if not causes:
        return f"quiet: quartiles of the cached baseline {apart:.0%} apart"
    kind = "a small, noisy machine" if available <= FEW_CORES else "a noisy machine"
    return f"{kind} ({', '.join(causes)}): trust ratios, not tokens per second"


def timing_json(samples: Samples, *, subject: str, load: float | None = None) -> dict[str, Any]:
    """Everything measured and predicted, ready for JSON."""
    sweep = samples.sweep
    made = sweep.batch * sweep.tokens
    baselines = {name: spread([made / s for s in seconds]) for name, seconds in samples.baselines.items()}
    costs = _costs(samples)
    runs = [_run_json(samples, draft, k, costs[draft, k]) for draft, k in sweep.configurations]
    available = cores()
    predicted: dict[str, dict[int, float]] = {d: {} for d in sweep.drafts}
    measured: dict[str, dict[int, float]] = {d: {} for d in sweep.drafts}
    for run in runs:
        predicted[run["draft"]][run["k"]] = run["predicted_speedup"]
        measured[run["draft"]][run["k"]] = run["speedup"]["median"]
    found = {draft: best_k(measured[draft]) for draft in sweep.drafts}
    foreseen = {draft: best_k(predicted[draft]) for draft in sweep.drafts}
    return {
        "subject": subject,
        "machine": {
            "cores": available,
            "threads": torch.get_num_threads(),
            "device": samples.device,
            "note": machine_note(available, load, baselines["cached"]),
        },
        "tokens": sweep.tokens,
        "repetitions": sweep.repetitions,
        "batch": sweep.batch,
        "seed": sweep.seed,
        "baselines": baselines,
        "runs": runs,
        "best": {
            d: {
                "k": found[d],
                "speedup": measured[d][found[d]],
                "predicted_k": foreseen[d],
                "predicted_speedup": predicted[d][foreseen[d]],
            }
            for d in sweep.drafts
        },
        "slower_from": {d: slower_from(measured[d]) for d in sweep.drafts},
        "predicted_slower_from": {d: slower_from(predicted[d]) for d in sweep.drafts},
        "phases": _phases_json(samples),
        "definitions": DEFINITIONS,
    }


def _ratios(samples: Samples, keys: Sequence[tuple[str, int]], phase: str) -> float:
    """Median over repetitions of a phase in target steps, pooled over the configurations that share it."""
    return statistics.median(p[phase] / p["target"] for key in keys for p in samples.phases[key])


def _costs(samples: Samples) -> dict[tuple[str, int], Costs]:
    """Costs of every configuration: c is common to a draft, v and o to a K, so each is pooled over what shares it."""
    keys = samples.sweep.configurations
    c = {d: _ratios(samples, [key for key in keys if key[0] == d], "draft") for d in samples.sweep.drafts}
    v = {k: _ratios(samples, [key for key in keys if key[1] == k], "verify") for k in samples.sweep.ks}
    o = {k: _ratios(samples, [key for key in keys if key[1] == k], "accept") for k in samples.sweep.ks}
    return {(d, k): Costs(c[d], v[k], o[k]) for d, k in keys}


def _run_json(samples: Samples, draft: str, k: int, costs: Costs) -> dict[str, Any]:
    sweep, runs = samples.sweep, samples.runs[draft, k]
    rates = acceptance_rates([run.accepted for run in runs], sweep.tokens, k)
    cached = samples.baselines["cached"]
    # A batch goes on until its last row is done, so the rounds of the engine are those of its longest row.
    rounds = [max(len(row) for row in run.accepted) for run in runs]
    per_token = [seconds / sweep.tokens for seconds in cached]
    round_cost = statistics.median(r.seconds / n / unit for r, n, unit in zip(runs, rounds, per_token, strict=True))
    return {
        "draft": draft,
        "k": k,
        "tps": spread([sweep.batch * sweep.tokens / run.seconds for run in runs]),
        "speedup": spread([base / run.seconds for base, run in zip(cached, runs, strict=True)]),
        "accepted_per_tested": _short(rates.per_tested),
        "accepted_per_drafted": _short(rates.per_drafted),
        "tokens_per_round": _short(rates.tokens_per_round),
        "tokens_per_round_iid": _short(expected_tokens(rates.per_tested, k)),
        "rounds": rates.rounds,
        "predicted_speedup": _short(costs.speedup(rates.tokens_per_round, k)),
        "predicted_slower": costs.slower(rates.tokens_per_round, k),
        "costs": {"c": _short(costs.c), "v": _short(costs.v), "o": _short(costs.o)},
        "round": _short(round_cost),
        "remainder": _short(round_cost - costs.of_round(k)),
    }


def _phases_json(samples: Samples) -> dict[str, Any]:
    """Milliseconds of one call of each phase, by draft and K."""
    by_draft: dict[str, Any] = {}
    for (draft, k), timed in samples.phases.items():
        by_draft.setdefault(draft, {})[str(k)] = {phase: spread([1000 * p[phase] for p in timed]) for phase in PHASES}
    return {"unit": "ms", **by_draft}
