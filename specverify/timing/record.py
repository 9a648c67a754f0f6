"""What do the samples say? The timing JSON: medians and quartiles, rates, costs, predictions, best and losing K."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specverify.timing.costs import costs_of, decoding_speedup, insist_on_time, round_seconds, step_over_target, tokens_per_pass
from specverify.timing.exact import against_exact, pooled, rates_by_position
from specverify.timing.measure import Samples
from specverify.timing.phases import FURTHER, PHASES
from specverify.timing.predict import Costs, acceptance_rates, best_k, expected_tokens, slower_from

FEW_CORES = 4
NOISY = 0.1
"""Quartiles of the baseline further apart than this share of its median make a machine noisy."""

DEFINITIONS = {
    "accepted_per_tested": "accepted / (accepted + rejected); drafts after a rejection are not tested",
    "accepted_per_drafted": "accepted / (rounds K), as engines report it",
    "tokens_per_round": "E: accepted + 1 per round and row, over rounds that began with at least K + 2 tokens to go",
    "tokens_per_pass": "E of a whole run: tokens of a row / rounds of the engine, cut at the end, waiting for the slowest row",
    "exact": "E if each tested draft were accepted with exactly the probability its laws give, along the same texts; error: "
    "standard error of the measured E; z: their difference in such errors, near 0 up to 4 for an exact rule",
    "by_position": "of the drafts tested at position j of a round: how many, the share accepted, and the exact mean",
    "speedup": "baseline / speculation in seconds per token, reading the prompt left out on both sides, per repetition",
    "whole_speedup": "the same for whole runs, reading the prompt included",
    "c": "one draft step / one step of the baseline",
    "v": "one target pass over K + 1 tokens / one step of the baseline",
    "o": "the rest of a round / one step of the baseline: the sum of its parts, each timed on its own: accept (the rule), and "
    "where the decoder tells, cache (taking tokens back) and loop (bookkeeping)",
    "round": "a measured round in steps of the baseline",
    "remainder": "round - (v + K c + o): what the timed phases leave unexplained",
    "predicted_speedup": "tokens_per_pass of the repetition / (v + K c + o), median over repetitions; nothing is fitted",
    "off": "speedup / predicted_speedup - 1",
    "predicted_slower": "whether E < v + K c + o",
    "tokens_per_round_iid": "E if every tested token were accepted independently at accepted_per_tested",
    "step_over_target": "seconds per token of the baseline / the phase target: what the loop around a step costs",
}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
    return {"median": short(median), "low": short(low), "high": short(high)}


def short(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def machine_note(available: int, load: float | None, baseline: Mapping[str, float], share: float | None = None) -> str:
    """Say how far to trust the numbers: few cores, ``load`` processes at the start, spread of the baseline, and the ``share``
    of its threads' time that the process was given a core for.
    """
    apart = (baseline["high"] - baseline["low"]) / baseline["median"]
    causes = []
    if available <= FEW_CORES:
        causes.append(f"{available} core{'s' if available > 1 else ''}")
    if load is not None and load > available / 2:
        causes.append(f"a load of {load:.1f} when the run began")
    if share is not None and share < 1 - NOISY:
        causes.append(f"other processes took {1 - share:.0%} of the time; --clock cpu leaves them out")
    if apart > NOISY:
        causes.append(f"quartiles of the baseline {apart:.0%} apart")
    if not causes:
        return f"quiet: quartiles of the baseline {apart:.0%} apart"
    kind = "a noisy machine" if available > FEW_CORES else "a small machine" if len(causes) == 1 else "a small, noisy machine"
    return f"{kind} ({', '.join(causes)}): trust ratios, not tokens per second"


def cuda_note(device: str) -> str:
    """Say whether CUDA was used, and if not what it takes."""
    if torch.device(device).type == "cuda":
        return f"run on {torch.cuda.get_device_name(device)}" if torch.cuda.is_available() else "run on cuda"
    return "not run on cuda; on a machine that has it: --device cuda"


def timing_json(
    samples: Samples,
    *,
    subject: str,
    load: float | None = None,
    models: str = "its own",
    notes: Sequence[str] = (),
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything measured and predicted, ready for JSON.

    models: whose models were timed. notes: what could not be measured, and what to add. further: the sweeps over temperatures
    and batches and the memory, when measured.
    """
    swept = sweep_json(samples)
    available = cores()
    return {
        "subject": subject,
        "models": models,
        "machine": {
            "cores": available,
            "threads": torch.get_num_threads(),
            "device": samples.device,
            "clock": samples.clock,
            "cuda": cuda_note(samples.device),
            "share": _short_or_none(samples.share),
            "note": machine_note(available, load, swept["baselines"][samples.base], samples.share),
        },
        "seed": samples.sweep.seed,
        **swept,
        **(further or {}),
        "notes": list(notes),
        "definitions": DEFINITIONS,
    }


def sweep_json(samples: Samples) -> dict[str, Any]:
    """What one sweep over drafts and K measured: baselines, runs, best and losing K, phases.

    Errors: SubjectError when runs took no time.
    """
    insist_on_time(samples)
    sweep = samples.sweep
    made = sweep.batch * sweep.tokens
    costs = costs_of(samples)
    runs = [_run_json(samples, draft, k, costs.get((draft, k))) for draft, k in sweep.configurations]
    measured = {d: {r["k"]: r["speedup"]["median"] for r in runs if r["draft"] == d} for d in sweep.drafts}
    predicted = {d: {r["k"]: r["predicted_speedup"] for r in runs if r["draft"] == d} for d in sweep.drafts}
    foreseen = {d: p for d, p in predicted.items() if None not in p.values()}
    return {
        "tokens": sweep.tokens,
        "repetitions": sweep.repetitions,
        "batch": sweep.batch,
        "base": samples.base,
        "baselines": {n: spread([made / base.seconds for base in bases]) for n, bases in samples.baselines.items()},
        "prompt_ms": _short_or_none(_prompt_seconds(samples), 1000),
        "step_over_target": short(step_over_target(samples)) if costs else None,
        "runs": runs,
        "best": {d: _best(measured[d], foreseen.get(d)) for d in sweep.drafts},
        "slower_from": {d: slower_from(measured[d]) for d in sweep.drafts},
        "predicted_slower_from": {d: slower_from(foreseen[d]) if d in foreseen else None for d in sweep.drafts},
        "phases": _phases_json(samples),
    }


def _best(measured: Mapping[int, float], predicted: Mapping[int, float] | None) -> dict[str, Any]:
    found = best_k(measured)
    foreseen = None if predicted is None else best_k(predicted)
    return {
        "k": found,
        "speedup": measured[found],
        "predicted_k": foreseen,
        "predicted_speedup": None if predicted is None or foreseen is None else predicted[foreseen],
    }


def _prompt_seconds(samples: Samples) -> float:
    """What reading the prompt takes the baseline: a run of one token without the step it makes."""
    bases = samples.baselines[samples.base]
    return statistics.median(max(base.first_seconds - base.step(samples.sweep.tokens), 0) for base in bases)


def _short_or_none(value: float | None, scale: float = 1) -> float | None:
    return None if value is None or not math.isfinite(value) else short(scale * value)


def _run_json(samples: Samples, draft: str, k: int, costs: Costs | None) -> dict[str, Any]:
    sweep, runs, bases = samples.sweep, samples.runs[draft, k], samples.baselines[samples.base]
    pairs = list(zip(bases, runs, strict=True))
    made = sweep.batch * sweep.tokens
    whole = [base.seconds / made * run.made / run.seconds for base, run in pairs]
    found: dict[str, Any] = {
        "draft": draft,
        "k": k,
        "tps": spread([run.made / run.seconds for run in runs]),
        "whole_speedup": spread(whole),
        "costs": None if costs is None else _costs_json(costs),
    }
    timed_rounds = all(run.accepted is not None and run.first_seconds is not None for run in runs)
    speedups = [decoding_speedup(base, run, sweep.tokens) for base, run in pairs] if timed_rounds else whole
    found["speedup"] = spread(speedups)
    found |= _acceptance_json(samples, draft, k)
    cost = None if costs is None else costs.of_round(k)
    rounds = [round_seconds(run) / base.step(sweep.tokens) for base, run in pairs] if timed_rounds else []
    predicted = None
    if timed_rounds and cost is not None:
        predicted = statistics.median(tokens_per_pass(run, sweep.tokens) / cost for run in runs)
    found["tokens_per_pass"] = (
        short(statistics.median(tokens_per_pass(run, sweep.tokens) for run in runs)) if timed_rounds else None
    )
    found["predicted_speedup"] = _short_or_none(predicted)
    found["off"] = None if predicted is None else short(statistics.median(speedups) / predicted - 1)
    per_round = found["tokens_per_round"]
    found["predicted_slower"] = None if costs is None or per_round is None else costs.slower(per_round, k)
    found["round"] = short(statistics.median(rounds)) if rounds else None
    found["remainder"] = short(statistics.median(rounds) - cost) if rounds and cost is not None else None
    return found


def _costs_json(costs: Costs) -> dict[str, Any]:
    parts = {name: short(cost) for name, cost in costs.parts.items()}
    return {"c": short(costs.c), "v": short(costs.v), "o": short(costs.o), "parts": parts}


def _acceptance_json(samples: Samples, draft: str, k: int) -> dict[str, Any]:
    """Rates, tokens per round beside their exact value, and acceptance by position; None where counts are not reported."""
    places = samples.places[draft, k]
    counted = [run.accepted for run in samples.runs[draft, k] if run.accepted is not None]
    try:
        rates = acceptance_rates(counted, samples.sweep.tokens, k)
    except ValueError:
        names = ("accepted_per_tested", "accepted_per_drafted", "tokens_per_round", "tokens_per_round_iid", "rounds")
        return {**dict.fromkeys(names), "exact": None, "by_position": []}
    together = pooled(places)
    exact = against_exact(together)
    return {
        "accepted_per_tested": short(rates.per_tested),
        "accepted_per_drafted": short(rates.per_drafted),
        "tokens_per_round": short(rates.tokens_per_round),
        "tokens_per_round_iid": short(expected_tokens(rates.per_tested, k)),
        "rounds": rates.rounds,
        "exact": None
        if exact is None
        else {
            "tokens_per_round": short(exact.exact),
            "error": short(exact.error),
            "z": _short_or_none(exact.z),
            "possible": math.isfinite(exact.z),
        },
        "by_position": [
            {"tested": tested, "accepted": _short_or_none(rate), "exact": _short_or_none(beta)}
            for tested, rate, beta in rates_by_position(together)
        ],
    }


def _phases_json(samples: Samples) -> dict[str, Any] | None:
    """Milliseconds of one call of each phase, by draft and K; None where none were timed."""
    by_draft: dict[str, Any] = {}
    for (draft, k), timed in samples.phases.items():
        names = [name for name in (*PHASES, *FURTHER) if timed and name in timed[0]]
        if names:
            by_draft.setdefault(draft, {})[str(k)] = {name: spread([1000 * p[name] for p in timed]) for name in names}
    return {"unit": "ms", **by_draft} if by_draft else None
