"""Does speculation pay? The timing of a certificate as table, plots and one sentence; every field may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specverify.report.svg import Figure
from specverify.report.timing_plots import acceptance_plot, mismatch_plot, phase_plot, rate_plot, speedup_plot
from specverify.report.timing_runs import Run, Spread, by_draft, listed, mapping, real, run_of, spread_of
from specverify.report.wording import number, plural

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Timings:
    """What the page shows about speed."""

    sentence: str
    facts: tuple[tuple[str, str], ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: tuple[Figure, ...]


def _said(draft: str, runs: Sequence[Run], slower_from: float | None, base: str) -> str:
    """Say what was measured with one draft."""
    timed = [(r.speedup, r.k) for r in runs if r.speedup is not None]
    if not timed:
        return ""
    best, k = max(timed, key=lambda t: t[0].median)
    times = f"{best.median:.2f} times as fast as the {base} baseline"
    said = f"with the {draft} draft, speculation is at best {times} (K = {k}"
    said += ")" if best.low == best.high else f", spread {best.low:.2f} to {best.high:.2f})"
    if best.median < 1:
        return said + ", slower at every K measured"
    return said if slower_from is None else said + f" and slower from K = {int(slower_from)} on"


def timings_of(timing: Mapping[str, Any] | None) -> Timings | None:
    """Everything the page shows about speed, or None when nothing was timed."""
    if timing is None:
        return None
    runs = [run for run in map(run_of, listed(timing.get("runs"))) if run is not None]
    drafts = by_draft(runs)
    slower, base = mapping(timing.get("slower_from")), str(timing.get("base") or "cached")
    said = [s for draft, group in drafts.items() if (s := _said(draft, group, real(slower.get(draft)), base))]
    sentence = "; ".join(said) or "the run left no speed-up to compare"
    rates = {name: spread_of(value) for name, value in mapping(timing.get("baselines")).items()}
    baselines = {name: rate for name, rate in rates.items() if rate is not None}
    plots = (
        speedup_plot(drafts, base),
        acceptance_plot(drafts),
        mismatch_plot(drafts),
        phase_plot(drafts),
        rate_plot(baselines, drafts),
    )
    return Timings(
        sentence[:1].upper() + sentence[1:] + ".",
        (*_facts(timing, baselines), *_varied(timing), *_further(timing)),
        HEADS,
        tuple(map(_row, runs)),
        tuple(plot for plot in plots if plot is not None),
    )


HEADS = (
    "draft, K",
    "tokens per second",
    "speed-up",
    "predicted",
    "accepted per tested",
    "accepted per drafted",
    "tokens per round",
    "exact (error)",
    "z",
    "c",
    "v",
    "o",
)


def _row(run: Run) -> tuple[str, ...]:
    spreads = [(NOTHING if s is None else s.words()) for s in (run.rate, run.speedup)]
    rates = (run.predicted, run.per_tested, run.per_drafted, run.per_round)
    exact = NOTHING if run.exact is None else f"{run.exact:.3g}" + ("" if run.error is None else f" ({run.error:.2g})")
    return (
        f"{run.draft}, K = {run.k}",
        *spreads,
        *map(_short, rates),
        exact,
        NOTHING if run.z is None else f"{run.z:+.1f}",
        *map(_short, run.costs),
    )


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def _facts(timing: Mapping[str, Any], baselines: Mapping[str, Spread]) -> tuple[tuple[str, str], ...]:
    machine = mapping(timing.get("machine"))
    counts = [(real(machine.get(f"{word}s")), word) for word in ("core", "thread")]
    said = [plural(int(n), word) for n, word in counts if n is not None]
    named = [str(machine.get(name) or "") for name in ("device", "clock")]
    where = ", ".join(x for x in (*named, *said, str(machine.get("note") or "")) if x)
    facts = [("Machine", where)] if where else []
    facts += [("CUDA", str(machine["cuda"]))] if machine.get("cuda") else []
    facts += [("Models", str(timing["models"]))] if timing.get("models") else []
    facts += [(f"Baseline, {name}", f"{rate.words()} tokens per second") for name, rate in baselines.items()]
    for name, words in (("tokens", "Tokens per repetition"), ("repetitions", "Repetitions"), ("batch", "Rows")):
        value = real(timing.get(name))
        if value is not None:
            facts.append((words, number(value)))
    return tuple(facts)


def _varied(timing: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Say what became of the first draft's speed-up at other temperatures and in larger batches."""
    facts = []
    for name, key, words in (("temperatures", "temperature", "Temperature"), ("batches", "batch", "Batch")):
        for one in listed(mapping(timing.get(name)).get("at")):
            value = real(mapping(one).get(key))
            if value is not None:
                facts.append((f"{words} {value:g}", _best_words(mapping(one))))
    batches = mapping(timing.get("batches"))
    if listed(batches.get("at")):
        stops, foreseen = real(batches.get("stops_paying")), real(batches.get("predicted_stops_paying"))
        said = "pays up to the largest batch" if stops is None else f"stops paying at batch {stops:g}"
        facts.append(("Batches", f"speculation {said}" + ("" if foreseen is None else f"; predicted at {foreseen:g}")))
    return tuple(facts)


def _best_words(one: Mapping[str, Any]) -> str:
    if one.get("failed"):
        return f"not measured: {one['failed']}"
    said = []
    for draft, best in mapping(one.get("best")).items():
        speedup, k = real(mapping(best).get("speedup")), real(mapping(best).get("k"))
        if speedup is not None and k is not None:
            foreseen = real(mapping(best).get("predicted_speedup"))
            expected = "" if foreseen is None else f", predicted at best {foreseen:.2f}"
            said.append(f"{draft} draft {speedup:.2f} times as fast (K = {k:g}){expected}")
    return "; ".join(said) or "not known"


def _further(timing: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Memory by run and by cache, and the notes on what could not be measured."""
    memory = mapping(timing.get("memory"))
    facts = []
    for name, words in (("bytes", "Memory, peak"), ("caches", "Memory, caches")):
        sizes = {str(n): real(b) for n, b in mapping(memory.get(name)).items()}
        said = ", ".join(f"{n} {b / 2**20:.3g} MiB" for n, b in sizes.items() if b is not None)
        if said:
            how = f" ({memory['how']})" if name == "bytes" and memory.get("how") else ""
            facts.append((words, said + how))
    return (*facts, *(("Note", str(note)) for note in listed(timing.get("notes"))))
