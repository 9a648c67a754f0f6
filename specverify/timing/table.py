"""How does a person read the timing JSON? One table per draft, a sentence on what pays, short tables of what was varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = {"K": 3, "tok/s": 8, "speed-up (quartiles)": 21, "predicted": 10, "off": 5, "E": 6, "exact E (error, z)": 19}
RATES = {"per tested": 11, "per drafted": 12}
COSTS = ("c", "v", "o", "rest")
HEAD = " ".join([*(f"{name:>{width}}" for name, width in {**COLUMNS, **RATES}.items()), *(f"{name:>6}" for name in COSTS)])
SHORT = f"{'':<16}{'baseline tok/s':>15}{'best K':>8}{'speed-up':>10}{'predicted K':>13}{'speed-up':>10}   by K"
LEGEND = (
    "predicted: E of the same texts / (v + K c + o), nothing fitted. E: tokens per round. exact E: the same if drafts were",
    "accepted exactly as often as their laws say, along the same texts. In steps of the baseline: c a draft step, v a verify",
    "pass over K + 1 tokens, o the rule, taking tokens back and the loop, rest what a measured round takes beyond v + K c + o.",
)
SUSPICIOUS = 4.0
"""Errors between measured and exact tokens per round beyond which the two do not agree."""


def render(timing: Mapping[str, Any]) -> str:
    """Write the whole record as text."""
    machine = timing["machine"]
    rows = "1 row" if timing["batch"] == 1 else f"{timing['batch']} rows"
    models = "" if timing["models"] == "its own" else f", {timing['models']} models"
    lines = [
        f"{timing['subject']}{models}: {rows} of {timing['tokens']} tokens, {timing['repetitions']} interleaved repetitions",
        f"{machine['device']} by {machine['clock']}, {machine['threads']} of {machine['cores']} cores: {machine['note']}",
        machine["cuda"],
        "",
        *(_baseline(name, tps) for name, tps in timing["baselines"].items()),
    ]
    for draft in timing["best"]:
        lines += ["", f"draft {draft}", HEAD]
        lines += [_run(run) for run in timing["runs"] if run["draft"] == draft]
        lines += [_conclusion(timing, draft)]
    lines += _phases(timing)
    lines += _varied("temperature", timing.get("temperatures"))
    lines += _varied("batch", timing.get("batches"))
    lines += _memory(timing.get("memory"))
    lines += ["", *(f"note: {note}" for note in timing["notes"])] if timing["notes"] else []
    lines += [
        "",
        f"speed-up: decoding against the {timing['base']} baseline, without reading the prompt, median over repetitions.",
        *LEGEND,
    ]
    return "\n".join(lines)


def _baseline(name: str, tps: Mapping[str, float]) -> str:
    return f"{name + ' baseline':<18}{tps['median']:>8.1f} tokens/s ({tps['low']:.1f} to {tps['high']:.1f})"


def _real(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _exact(exact: Mapping[str, Any] | None) -> str:
    if exact is None:
        return "-"
    z = _real(exact["z"], "+.1f") if exact["possible"] else "impossible"
    return f"{exact['tokens_per_round']:.2f} ({exact['error']:.2f}, {z})"


def _run(run: Mapping[str, Any]) -> str:
    speed, costs = run["speedup"], run["costs"] or dict.fromkeys(("c", "v", "o"))
    measured = f"{speed['median']:.2f} ({speed['low']:.2f}-{speed['high']:.2f})"
    off = "-" if run["off"] is None else f"{run['off']:+.0%}"
    return (
        f"{run['k']:>3} {run['tps']['median']:>8.1f} {measured:>21} {_real(run['predicted_speedup'], '.2f'):>10} {off:>5} "
        f"{_real(run['tokens_per_round'], '.2f'):>6} {_exact(run['exact']):>19} {_real(run['accepted_per_tested'], '.3f'):>11} "
        f"{_real(run['accepted_per_drafted'], '.3f'):>12} {_real(costs['c'], '.3f'):>6} {_real(costs['v'], '.3f'):>6} "
        f"{_real(costs['o'], '.3f'):>6} {_real(run['remainder'], '.2f'):>6}"
    )


def _conclusion(timing: Mapping[str, Any], draft: str) -> str:
    best, slower, foreseen = timing["best"][draft], timing["slower_from"][draft], timing["predicted_slower_from"][draft]
    found = f"best K = {best['k']} (x{best['speedup']:.2f})"
    measured = "not slower at the largest K" if slower is None else f"slower from K = {slower}"
    if best["predicted_k"] is None:
        return f"    {found}; {measured}; nothing predicted{_disagreeing(timing, draft)}"
    found += f", predicted K = {best['predicted_k']} (x{best['predicted_speedup']:.2f})"
    expected = "not slower at the largest K" if foreseen is None else f"slower from K = {foreseen} (E < v + K c + o)"
    return f"    {found}; {measured}; predicted {expected}{_disagreeing(timing, draft)}"


def _disagreeing(timing: Mapping[str, Any], draft: str) -> str:
    """Name every K whose tokens per round do not agree with the exact value."""
    apart = [
        run["k"]
        for run in timing["runs"]
        if run["draft"] == draft
        and (exact := run["exact"]) is not None
        and (not exact["possible"] or abs(exact["z"]) > SUSPICIOUS)
    ]
    where = ", ".join(map(str, apart))
    return f"\n    E is not the exact one at K = {where}: drafts are not accepted as often as their laws say" if apart else ""


def _phases(timing: Mapping[str, Any]) -> list[str]:
    """Write the share of every phase in a round of the first draft."""
    draft = next(iter(timing["best"]))
    runs = [run for run in timing["runs"] if run["draft"] == draft and run["costs"] is not None]
    if not runs:
        return []
    names = list(runs[0]["costs"]["parts"])
    heads = ["draft", "verify", *names, "rest", "round"]
    lines = ["", f"phases of a round in steps of the baseline, draft {draft}", f"{'K':>3} " + "".join(f"{h:>8}" for h in heads)]
    for run in runs:
        costs = run["costs"]
        values = [run["k"] * costs["c"], costs["v"], *(costs["parts"][n] for n in names), run["remainder"], run["round"]]
        lines.append(f"{run['k']:>3} " + "".join(f"{_real(value, '.3f'):>8}" for value in values))
    return lines


def _varied(what: str, swept: Mapping[str, Any] | None) -> list[str]:
    if swept is None:
        return []
    if "missing" in swept:
        return ["", f"note: {swept['missing']}"]
    lines = ["", SHORT]
    for one in swept["at"]:
        label = f"{what} {one[what]:g}"
        if "failed" in one:
            lines.append(f"{label:<16}not measured: {one['failed']}")
            continue
        for draft, best in one["best"].items():
            name = label if len(one["best"]) == 1 else f"{label}, {draft}"
            lines.append(f"{name:<16}{_short(one, draft, best)}")
    if what == "batch":
        lines += [f"    {_where_it_stops(swept)}"]
        if swept["left_out"]:
            lines.append(f"    left out, above max_batch: {', '.join(map(str, swept['left_out']))}")
    return lines


def _short(one: Mapping[str, Any], draft: str, best: Mapping[str, Any]) -> str:
    by_k = "  ".join(f"{r['k']}: {r['speedup']['median']:.2f}" for r in one["runs"] if r["draft"] == draft)
    foreseen = f"{_real(best['predicted_k'], 'd'):>13}{_real(best['predicted_speedup'], '.2f'):>10}"
    rate = one["baselines"][one["base"]]["median"]
    return f"{rate:>15.1f}{best['k']:>8}{best['speedup']:>10.2f}{foreseen}   {by_k}"


def _where_it_stops(swept: Mapping[str, Any]) -> str:
    """Say from which batch size speculation stops paying, measured and predicted."""

    def words(stops: int | None, sizes: Sequence[int]) -> str:
        return f"pays up to batch {max(sizes)}, the largest" if stops is None else f"stops paying at batch {stops}"

    measured = [one["batch"] for one in swept["at"] if "failed" not in one]
    if not measured:
        return "no batch size was measured"
    said = f"speculation {words(swept['stops_paying'], measured)}"
    if all(
        best["predicted_speedup"] is not None for one in swept["at"] if "failed" not in one for best in one["best"].values()
    ):
        said += f"; predicted: {words(swept['predicted_stops_paying'], measured)}"
    return said


def _memory(memory: Mapping[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    if "failed" in memory:
        return ["", f"note: memory was not measured: {memory['failed']}"]
    peaks = ", ".join(f"{name} {_bytes(count)}" for name, count in memory["bytes"].items())
    lines = ["", f"memory: {peaks} ({memory['how']})"]
    if memory["caches"] is None:
        return [*lines, "    caches: not told; give timing.memory(batch, length), bytes by name"]
    return [*lines, "    caches: " + ", ".join(f"{name} {_bytes(count)}" for name, count in memory["caches"].items())]


def _bytes(count: int | None) -> str:
    if count is None:
        return "not read"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
