"""What do laws and tests look like? Paired bars of what should be and what came out, and all tests on one log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specverify.report.svg import WIDTH, Figure, bar, line, marker, svg, text
from specverify.report.wording import clipped, squeezed

ROW = 24
LABEL_CHARS = 16


@dataclass(frozen=True)
class Paired:
    """One row of paired bars. spread: three standard deviations of what came out, around what should."""

    label: str
    right: float
    got: float
    spread: float = 0.0


def paired_bars(title: str, rows: Sequence[Paired], names: tuple[str, str], shown: Callable[[float], str]) -> Figure:
    """Hollow bars for what should be, filled bars for what came out, and both numbers."""
    labels = [clipped(r.label, LABEL_CHARS) for r in rows]
    left = 10 + 7 * max(map(len, labels), default=1)
    values = [f"{shown(r.got)} / {shown(r.right)}" for r in rows]
    room = WIDTH - left - 8 - 6.6 * max(map(len, values), default=1)
    top = max([max(r.right + r.spread, r.got) for r in rows] or [1]) or 1
    body = [
        bar(left, 4, 12, 8, "should"),
        text(left + 17, 12, names[0]),
        bar(left + 27 + 7 * len(names[0]), 4, 12, 8, "came"),
        text(left + 44 + 7 * len(names[0]), 12, names[1]),
    ]
    for index, (row, label, value) in enumerate(zip(rows, labels, values, strict=True)):
        y = 22 + ROW * index
        body += [
            text(left - 6, y + 15, label, anchor="end"),
            bar(left, y + 2, room * row.right / top, 8, "should"),
            bar(left, y + 11, room * row.got / top, 8, "came"),
            text(WIDTH, y + 15, value, anchor="end"),
        ]
        if row.spread:
            low, high = max(row.right - row.spread, 0), row.right + row.spread
            body.append(line(left + room * low / top, y + 6, left + room * high / top, y + 6, "spread"))
    body.append(line(left, 20, left, 24 + ROW * len(rows), "axis"))
    return svg(28 + ROW * len(rows), title, f"Each row gives {names[1]} / {names[0]}: " + _spoken(rows, shown), body)


def _spoken(rows: Sequence[Paired], shown: Callable[[float], str]) -> str:
    return "; ".join(f"{r.label}: {shown(r.got)} / {shown(r.right)}" for r in rows[:8]) + (
        "; and more." if len(rows) > 8 else "."
    )


@dataclass(frozen=True)
class Against:
    """One test on a log scale: its value, the limit at which it is refuted, and its verdict. Larger is worse."""

    label: str
    exponent: float
    limit: float
    verdict: str


def log_overview(title: str, tests: Sequence[Against], low: int, high: int, tick: Callable[[int], str]) -> Figure:
    """Every test as a mark on its own line, and the limit that refutes it; marks beyond the scale stand at its end."""
    left, right, row = 14.0, WIDTH - 16.0, 36

    def at(exponent: float) -> float:
        inside = min(max(exponent, low), high)
        return left + (right - left) * (inside - low) / (high - low)

    bottom = 22 + row * len(tests)
    body = []
    step = max(1, math.ceil((high - low) / 5))
    for exponent in range(low, high + 1, step):
        anchor = "start" if exponent == low else "end" if exponent + step > high else "middle"
        x = at(exponent)
        edge = {"start": x - 12, "end": x + 12, "middle": x}[anchor]
        body += [line(x, 18, x, bottom, "grid"), text(edge, 12, tick(exponent), "small", anchor)]
    for index, test in enumerate(tests):
        y = 22 + row * index
        x, limit = at(test.exponent), at(test.limit)
        body += [
            text(left - 12, y + 13, squeezed(test.label, 50), "small"),
            line(left, y + 25, right, y + 25, "track"),
            line(limit, y + 18, limit, y + 32, "limit"),
            marker(x, y + 25, "cross" if test.verdict == "refuted" else "circle", "mark-" + test.verdict),
        ]
        if test.exponent > high:
            body.append(text(x - 10, y + 23, "beyond", "small", "end"))
    refuted = sum(t.verdict == "refuted" for t in tests)
    return svg(bottom + 4, title, f"{len(tests)} tests, {refuted} of them beyond the limit that refutes.", body)
