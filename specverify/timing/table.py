"""How does a person read the timing JSON? As one table per draft, and a sentence on what pays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = {"K": 3, "tok/s": 8, "speed-up (quartiles)": 21, "predicted": 10, "E": 6, "per tested": 11, "per drafted": 12}
COSTS = ("c", "v", "o", "rest")
HEAD = " ".join([*(f"{name:>{width}}" for name, width in COLUMNS.items()), *(f"{name:>6}" for name in COSTS)])


def render(timing: Mapping[str, Any]) -> str:
    """Write the whole record as text."""
    machine = timing["machine"]
    rows = "1 row" if timing["batch"] == 1 else f"{timing['batch']} rows"
    lines = [
        f"{timing['subject']}: {rows} of {timing['tokens']} tokens, {timing['repetitions']} interleaved repetitions",
        f"{machine['device']}, {machine['threads']} of {machine['cores']} cores: {machine['note']}",
        "",
        *(_baseline(name, timing["baselines"][name]) for name in ("uncached", "cached")),
    ]
    for draft in timing["best"]:
        lines += ["", f"draft {draft}", HEAD]
        lines += [_run(run) for run in timing["runs"] if run["draft"] == draft]
        lines += [_conclusion(timing, draft)]
    lines += [
        "",
        "speed-up: over the cached baseline, median of the ratios within a repetition. predicted: E / (v + K c + o).",
        "E: tokens emitted per round. In cached target steps: c a draft step, v a verify pass over K + 1 tokens, o the",
        "accept phase alone, rest what a measured round takes beyond v + K c + o (bookkeeping, prompt, other work).",
    ]
    return "\n".join(lines)


def _baseline(name: str, tps: Mapping[str, float]) -> str:
    return f"{name + ' baseline':<18}{tps['median']:>8.1f} tokens/s ({tps['low']:.1f} to {tps['high']:.1f})"


def _run(run: Mapping[str, Any]) -> str:
    speed, costs = run["speedup"], run["costs"]
    measured = f"{speed['median']:.2f} ({speed['low']:.2f}-{speed['high']:.2f})"
    return (
        f"{run['k']:>3} {run['tps']['median']:>8.1f} {measured:>21} {run['predicted_speedup']:>10.2f} "
        f"{run['tokens_per_round']:>6.2f} {run['accepted_per_tested']:>11.3f} {run['accepted_per_drafted']:>12.3f} "
        f"{costs['c']:>6.3f} {costs['v']:>6.3f} {costs['o']:>6.3f} {run['remainder']:>6.2f}"
    )


def _conclusion(timing: Mapping[str, Any], draft: str) -> str:
    best, slower, foreseen = timing["best"][draft], timing["slower_from"][draft], timing["predicted_slower_from"][draft]
    found = f"best K = {best['k']} (x{best['speedup']:.2f})"
    found += f", predicted K = {best['predicted_k']} (x{best['predicted_speedup']:.2f})"
    measured = "not slower at the largest K" if slower is None else f"slower from K = {slower}"
    expected = "not slower at the largest K" if foreseen is None else f"slower from K = {foreseen} (E < v + K c + o)"
    return f"    {found}; {measured}; predicted {expected}"
