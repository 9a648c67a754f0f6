"""How does speculation pay, and where does the time go? Speed-up, acceptance, the mismatch tax, and what a round is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specverify.report.axes import LEFT, RIGHT, SHAPES, Axes, head_of, legend, nice_step
from specverify.report.svg import WIDTH, Figure, bar, line, marker, path, svg, text
from specverify.report.timing_runs import Run, Spread
from specverify.report.wording import clipped

Drafts = Mapping[str, Sequence[Run]]
FEW = 10
ACROSS = "K, drafted tokens per round"


def speedup_plot(drafts: Drafts, base: str = "cached") -> Figure | None:
    """Speed-up against K, one line per draft, spread as whiskers, the prediction dashed, and a line at 1."""
    shown = {d: [r for r in runs if r.speedup is not None or r.predicted is not None] for d, runs in drafts.items()}
    shown = {d: runs for d, runs in shown.items() if runs}
    if not shown:
        return None
    flat = [r for runs in shown.values() for r in runs]
    top = 1.12 * max(1.0, *(r.predicted or 0 for r in flat), *(r.speedup.high if r.speedup else 0 for r in flat))
    axes = Axes(sorted({r.k for r in flat}), 0, top, head_of(len(shown)))
    body = axes.drawn(ACROSS)
    body += [line(LEFT, axes.y(1), RIGHT, axes.y(1), "one"), _named_where_it_is_free(axes, flat, f"{base} baseline")]
    for index, (draft, runs) in enumerate(shown.items()):
        style, shift = f"series-{index % 4}", 5.0 * (index - (len(shown) - 1) / 2)
        body += legend(index, clipped(draft, 20) + ": measured; dashed: predicted")
        expected = [(axes.x(r.k) + shift, axes.y(r.predicted)) for r in runs if r.predicted is not None]
        body.append(path(expected, "predicted " + style) if expected else "")
        timed = [(axes.x(r.k) + shift, r.speedup) for r in runs if r.speedup is not None]
        body.append(path([(x, axes.y(s.median)) for x, s in timed], "series " + style) if timed else "")
        for x, s in timed:
            body += [
                line(x, axes.y(s.low), x, axes.y(s.high), "whisker " + style),
                marker(x, axes.y(s.median), SHAPES[index % 4], "dot " + style),
            ]
    said = "; ".join(
        f"{d} " + ", ".join(f"K = {r.k}: {r.speedup.median:.2f}" for r in runs if r.speedup) for d, runs in shown.items()
    )
    title = f"Speed-up over the {base} baseline against K"
    return svg(axes.height, title, f"Measured medians. {said}.", body, name="speed-up")


def _named_where_it_is_free(axes: Axes, runs: Sequence[Run], words: str) -> str:
    """The name of the line at 1, at the end of it that no point of the smallest or largest K lies close to."""

    def nearest(k: int) -> float:
        points = [v for r in runs if r.k == k for v in (r.predicted, r.speedup.median if r.speedup else None) if v is not None]
        return min(abs(v - 1) for v in points)

    ks = [r.k for r in runs]
    if nearest(min(ks)) > nearest(max(ks)):
        return text(LEFT + 4, axes.y(1) - 4, words, "small")
    return text(RIGHT, axes.y(1) - 4, words, "small", "end")


def acceptance_plot(drafts: Drafts) -> Figure | None:
    """Share of the tested drafts that was accepted at each position of a round, at the largest K, beside its exact mean.

    Positions that were tested fewer than ``FEW`` times are left out: a share of so few says nothing.
    """
    largest = {d: max(runs, key=lambda r: r.k) for d, runs in drafts.items()}
    places = {d: [(j, a, e) for j, (n, a, e) in enumerate(run.by_position, 1) if n >= FEW] for d, run in largest.items()}
    shown = {d: run for d, run in largest.items() if places[d]}
    if not shown:
        return None
    most = max(len(run.by_position) for run in shown.values())
    axes = Axes(range(1, most + 1), 0, 1, head_of(len(shown)))
    body = axes.drawn("position of the draft in its round")
    for index, (draft, run) in enumerate(shown.items()):
        style = f"series-{index % 4}"
        got = [(axes.x(j), axes.y(a)) for j, a, _ in places[draft] if a is not None]
        exact = [(axes.x(j), axes.y(e)) for j, _, e in places[draft] if e is not None]
        body += legend(index, f"{clipped(draft, 20)}, K = {run.k}" + ("; dashed: exact along the texts" if exact else ""))
        body += [path(exact, "predicted " + style)] if exact else []
        body += [path(got, "series " + style), *(marker(x, y, SHAPES[index % 4], "dot " + style) for x, y in got)]
    said = "; ".join(f"{d} " + ", ".join(f"{j}: {a:.2f}" for j, a, _ in places[d] if a is not None) for d in shown)
    note = (
        "Of the drafts that were tested: those whose predecessors in the round were all accepted. Positions tested fewer than "
    )
    note += f"{FEW} times are left out."
    title = "Share of tested drafts accepted, against position"
    return svg(axes.height, title, f"By position. {said}.", body, name="acceptance", note=note)


def mismatch_plot(drafts: Drafts) -> Figure | None:
    """What other drafts cost: time per token over that with the first draft, at each K."""
    if len(drafts) < 2:
        return None
    (first, ideal), *others = drafts.items()
    fastest = {r.k: r.speedup.median for r in ideal if r.speedup is not None and r.speedup.median > 0}
    taxes = {
        draft: [(r.k, fastest[r.k] / r.speedup.median) for r in runs if r.k in fastest and r.speedup and r.speedup.median > 0]
        for draft, runs in others
    }
    taxes = {draft: points for draft, points in taxes.items() if points}
    if not taxes:
        return None
    ks = sorted(k for k in fastest if any(k == at for points in taxes.values() for at, _ in points))
    top = 1.12 * max(1.0, *(fastest[k] for k in ks), *(tax for points in taxes.values() for _, tax in points))
    axes = Axes(ks, 0, top, head_of(1 + len(taxes)))
    body = axes.drawn(ACROSS, "x{:g}".format)
    body += [*legend(0, f"baseline alone, no speculation, over the {clipped(first, 16)} draft")]
    body += [line(LEFT, axes.y(1), RIGHT, axes.y(1), "one"), text(RIGHT, axes.y(1) + 13, f"{first} draft", "small", "end")]
    lines = {first: [(k, fastest[k]) for k in ks], **taxes}
    for index, (draft, points) in enumerate(lines.items()):
        style = f"series-{index % 4}"
        body += legend(index, f"{clipped(draft, 20)} draft over the {clipped(first, 16)} draft") if index else []
        placed = [(axes.x(k), axes.y(tax)) for k, tax in points]
        body.append(path(placed, "predicted " + style if index == 0 else "series " + style))
        body += [marker(x, y, SHAPES[index % 4], "dot " + style) for x, y in placed]
    said = "; ".join(f"{d} " + ", ".join(f"K = {k}: {tax:.2f}" for k, tax in points) for d, points in taxes.items())
    note = "Above the dashed line speculation with that draft is slower than none."
    title = f"The mismatch tax: time per token, {clipped(first, 14)} draft = 1"
    return svg(axes.height, title, f"Ratios. {said}.", body, name="mismatch-tax", note=note)


PARTS = (("draft", "K draft steps"), ("verify", "verify pass"), ("accept", "rule"), ("cache", "taking back"), ("loop", "loop"))


def phase_plot(drafts: Drafts) -> Figure | None:
    """What a round of the first draft is made of, in steps of the baseline, with the measured round and the tokens it makes."""
    if not drafts:
        return None
    draft, runs = next(iter(drafts.items()))
    shown = [r for r in runs if r.parts]
    if not shown:
        return None
    present = [(name, words) for name, words in PARTS if any(name in r.parts for r in shown)]
    top = 1.05 * max(max(sum(r.parts.values()), r.round or 0, r.per_round or 0) for r in shown)
    left, row = 26.0, 26.0
    room = WIDTH - left - 8
    columns = 3
    head = 20.0 * (-(-(len(present) + 2) // columns)) + 8
    body: list[str] = []
    keys = [*((words, f"part-{i}") for i, (_, words) in enumerate(present)), ("measured", "limit"), ("tokens made", "")]
    for i, (words, style) in enumerate(keys):
        x, y = 6 + (WIDTH - 12) / columns * (i % columns), 12 + 20.0 * (i // columns)
        if style.startswith("part"):
            body.append(bar(x, y - 9, 11, 11, style))
        elif style:
            body.append(line(x + 5, y - 11, x + 5, y + 3, style))
        else:
            body.append(marker(x + 5, y - 4, "diamond", "mark-certified"))
        body.append(text(x + 17, y, words, "small"))
    for index, run in enumerate(shown):
        y, x = head + row * index, left
        body.append(text(left - 8, y + 16, str(run.k), "small", "end"))
        for i, (name, _) in enumerate(present):
            width = room * run.parts.get(name, 0) / top
            body.append(bar(x, y + 5, width, 15, f"part-{i}"))
            x += width
        if run.round is not None:
            at = left + room * run.round / top
            body.append(line(at, y + 1, at, y + 24, "limit"))
        if run.per_round is not None:
            body.append(marker(left + room * run.per_round / top, y + 12.5, "diamond", "mark-certified"))
    floor = head + row * len(shown)
    step = nice_step(top)
    for tick in (i * step for i in range(int(top / step) + 1)):
        at = left + room * tick / top
        body += [line(at, floor, at, floor + 4, "axis"), text(at, floor + 16, f"{tick:g}", "small", "middle")]
    body.append(text(left + room / 2, floor + 32, "steps of the baseline, by K", "small", "middle"))
    said = "; ".join(
        f"K = {r.k}: " + ", ".join(f"{words} {r.parts.get(name, 0):.2f}" for name, words in present) for r in shown
    )
    note = "Speculation pays where the tokens made lie to the right of the measured round."
    title = f"Where the time of a round goes, {draft} draft"
    return svg(floor + 38, title, f"In steps of the baseline. {said}.", body, name="phases", note=note)


def rate_plot(baselines: Mapping[str, Spread], drafts: Drafts) -> Figure | None:
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
    title = "Tokens per second, each draft at its fastest K"
    return svg(8 + 40 * len(rows), title, said, body, name="tokens-per-second")
