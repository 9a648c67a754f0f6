"""Does speculation pay? The timing of a certificate as table, plots and one sentence; every field may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specverify.report.svg import WIDTH, Figure, bar, line, marker, path, svg, text
from specverify.report.wording import clipped, number, plural

NOTHING = "\N{EN DASH}"
SHAPES = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Spread:
    """A median with the low and high ends of its spread."""

    median: float
    low: float
    high: float

    def words(self) -> str:
        """``1.62 (1.55 to 1.70)``."""
        if self.low == self.high:
            return f"{self.median:.3g}"
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Run:
    """One timed setting: a draft and K."""

    draft: str
    k: int
    rate: Spread | None
    speedup: Spread | None
    predicted: float | None
    per_tested: float | None
    per_drafted: float | None
    per_round: float | None
    costs: tuple[float | None, ...]


@dataclass(frozen=True)
class Timings:
    """What the page shows about speed."""

    sentence: str
    facts: tuple[tuple[str, str], ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: tuple[Figure, ...]


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _spread(value: Any) -> Spread | None:
    parts = _mapping(value) if isinstance(value, Mapping) else {"median": value}
    median = _real(parts.get("median"))
    if median is None:
        return None
    low, high = _real(parts.get("low")), _real(parts.get("high"))
    return Spread(median, median if low is None else low, median if high is None else high)


def _run(value: Any) -> Run | None:
    run = _mapping(value)
    k = _real(run.get("k"))
    if k is None:
        return None
    costs = _mapping(run.get("costs"))
    return Run(
        str(run.get("draft", "draft")),
        int(k),
        _spread(run.get("tps")),
        _spread(run.get("speedup")),
        _real(run.get("predicted_speedup")),
        _real(run.get("accepted_per_tested")),
        _real(run.get("accepted_per_drafted")),
        _real(run.get("tokens_per_round")),
        tuple(_real(costs.get(name)) for name in ("c", "v", "o")),
    )


def _drafts(runs: Sequence[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda r: r.k):
        grouped.setdefault(run.draft, []).append(run)
    return grouped


def _said(draft: str, runs: Sequence[Run], slower_from: float | None) -> str:
    """Say what was measured with one draft."""
    timed = [(r.speedup, r.k) for r in runs if r.speedup is not None]
    if not timed:
        return ""
    best, k = max(timed, key=lambda t: t[0].median)
    times = f"{best.median:.2f} times as fast as the cached baseline"
    said = f"with the {draft} draft, speculation is at best {times} (K = {k}"
    said += ")" if best.low == best.high else f", spread {best.low:.2f} to {best.high:.2f})"
    if best.median < 1:
        return said + ", slower at every K measured"
    return said if slower_from is None else said + f" and slower from K = {int(slower_from)} on"


def timings_of(timing: Mapping[str, Any] | None) -> Timings | None:
    """Everything the page shows about speed, or None when nothing was timed."""
    if timing is None:
        return None
    listed = timing.get("runs")
    runs = [run for run in map(_run, listed if isinstance(listed, list) else []) if run is not None]
    drafts = _drafts(runs)
    slower = _mapping(timing.get("slower_from"))
    said = [s for draft, group in drafts.items() if (s := _said(draft, group, _real(slower.get(draft))))]
    sentence = "; ".join(said) or "the run left no speed-up to compare"
    rates = {name: _spread(value) for name, value in _mapping(timing.get("baselines")).items()}
    baselines = {name: rate for name, rate in rates.items() if rate is not None}
    plots = [plot for plot in (speedup_plot(drafts), rate_plot(baselines, drafts)) if plot is not None]
    return Timings(
        sentence[:1].upper() + sentence[1:] + ".",
        _facts(timing, baselines),
        HEADS,
        tuple(map(_row, runs)),
        tuple(plots),
    )


HEADS = (
    "draft, K",
    "tokens per second",
    "speed-up",
    "predicted",
    "accepted per tested",
    "accepted per drafted",
    "tokens per round",
    "c",
    "v",
    "o",
)


def _row(run: Run) -> tuple[str, ...]:
    spreads = [(NOTHING if s is None else s.words()) for s in (run.rate, run.speedup)]
    reals = (run.predicted, run.per_tested, run.per_drafted, run.per_round, *run.costs)
    return (f"{run.draft}, K = {run.k}", *spreads, *((NOTHING if x is None else f"{x:.3g}") for x in reals))


def _facts(timing: Mapping[str, Any], baselines: Mapping[str, Spread]) -> tuple[tuple[str, str], ...]:
    machine = _mapping(timing.get("machine"))
    counts = [(_real(machine.get(f"{word}s")), word) for word in ("core", "thread")]
    said = [plural(int(n), word) for n, word in counts if n is not None]
    where = ", ".join(x for x in (str(machine.get("device") or ""), *said, str(machine.get("note") or "")) if x)
    facts = [("Machine", where)] if where else []
    facts += [(f"Baseline, {name}", f"{rate.words()} tokens per second") for name, rate in baselines.items()]
    for name, words in (("tokens", "Tokens per repetition"), ("repetitions", "Repetitions")):
        value = _real(timing.get(name))
        if value is not None:
            facts.append((words, number(value)))
    return tuple(facts)


def _nice_step(top: float) -> float:
    rough = top / 5
    base = 10.0 ** math.floor(math.log10(rough))
    return next(base * m for m in (1, 2, 5, 10) if base * m >= rough)


def speedup_plot(drafts: Mapping[str, Sequence[Run]]) -> Figure | None:
    """Speed-up against K, one line per draft, spread as whiskers, the prediction dashed, and a line at 1."""
    shown = {d: [r for r in runs if r.speedup is not None or r.predicted is not None] for d, runs in drafts.items()}
    shown = {d: runs for d, runs in shown.items() if runs}
    if not shown:
        return None
    ks = sorted({r.k for runs in shown.values() for r in runs})
    flat = [r for runs in shown.values() for r in runs]
    top = 1.12 * max(1.0, *(r.predicted or 0 for r in flat), *(r.speedup.high if r.speedup else 0 for r in flat))
    left, right, head = 34.0, WIDTH - 12.0, 14 + 16.0 * len(shown)
    floor = head + 190

    def x_of(k: int) -> float:
        return left + (right - left) * (ks.index(k) + 0.5) / len(ks)

    def y_of(value: float) -> float:
        return floor - (floor - head) * min(max(value, 0), top) / top

    step = _nice_step(top)
    body = []
    for tick in (i * step for i in range(int(top / step) + 1)):
        body += [
            line(left, y_of(tick), right, y_of(tick), "grid"),
            text(left - 5, y_of(tick) + 4, f"{tick:g}", "small", "end"),
        ]
    body += [line(left, y_of(1), right, y_of(1), "one"), text(right, y_of(1) - 4, "cached baseline", "small", "end")]
    body += [text(x_of(k), floor + 15, str(k), "small", "middle") for k in ks]
    body.append(text((left + right) / 2, floor + 31, "K, drafted tokens per round", "small", "middle"))
    for index, (draft, runs) in enumerate(shown.items()):
        style, shift = f"series-{index % 4}", 5.0 * (index - (len(shown) - 1) / 2)
        y = 12 + 16.0 * index
        body += [
            marker(12, y - 4, SHAPES[index % 4], "dot " + style),
            text(24, y, clipped(draft, 20) + ": measured; dashed: predicted", "small"),
        ]
        expected = [(x_of(r.k) + shift, y_of(r.predicted)) for r in runs if r.predicted is not None]
        body.append(path(expected, "predicted " + style) if expected else "")
        timed = [(x_of(r.k) + shift, r.speedup) for r in runs if r.speedup is not None]
        body.append(path([(x, y_of(s.median)) for x, s in timed], "series " + style) if timed else "")
        for x, s in timed:
            body += [
                line(x, y_of(s.low), x, y_of(s.high), "whisker " + style),
                marker(x, y_of(s.median), SHAPES[index % 4], "dot " + style),
            ]
    said = "; ".join(
        f"{d} " + ", ".join(f"K = {r.k}: {r.speedup.median:.2f}" for r in runs if r.speedup) for d, runs in shown.items()
    )
    return svg(floor + 38, "Speed-up over the cached baseline against K", f"Measured medians. {said}.", body)


def rate_plot(baselines: Mapping[str, Spread], drafts: Mapping[str, Sequence[Run]]) -> Figure | None:
    """Tokens per second of the baselines and of every draft at its fastest K."""
    rows = list(baselines.items())
    for draft, runs in drafts.items():
        timed = [(r.rate, r.k) for r in runs if r.rate is not None]
        if timed:
            rate, k = max(timed, key=lambda t: t[0].median)
            rows.append((f"{draft} draft, K = {k}", rate))
    top = max((rate.high for _, rate in rows), default=0.0)
    if top <= 0:
        return None
    room, body = WIDTH - 64.0, []
    for index, (name, rate) in enumerate(rows):
        y = 4 + 40.0 * index
        body += [
            text(0, y + 12, clipped(name, 40)),
            bar(0, y + 17, room * rate.median / top, 12, "came"),
            line(room * rate.low / top, y + 23, room * rate.high / top, y + 23, "spread"),
            text(room * rate.high / top + 6, y + 28, f"{rate.median:.4g}"),
        ]
    said = "; ".join(f"{name}: {rate.median:.4g}" for name, rate in rows)
    return svg(8 + 40 * len(rows), "Tokens per second: baselines, and each draft at its fastest K", said, body)
