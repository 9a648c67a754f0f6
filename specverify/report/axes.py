"""What stands around the lines of a plot? Axes with a grid, a legend of its series, and numbers that are easy to read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specverify.report.svg import WIDTH, line, marker, text
from specverify.report.wording import clipped

SHAPES = ("circle", "square", "triangle", "diamond")
LEFT, RIGHT, HEIGHT = 38.0, WIDTH - 12.0, 190.0


def nice_step(top: float) -> float:
    """The step of 1, 2 or 5 times a power of ten that makes at most five of ``top`` > 0."""
    rough = top / 5
    base = 10.0 ** math.floor(math.log10(rough))
    return next(base * m for m in (1, 2, 5, 10) if base * m >= rough)


@dataclass(frozen=True)
class Axes:
    """A field with whole numbers across, evenly spaced, and values from ``bottom`` to ``top`` upwards, below ``head``."""

    across: Sequence[int]
    bottom: float
    top: float
    head: float

    @property
    def floor(self) -> float:
        """Where the field ends below."""
        return self.head + HEIGHT

    @property
    def height(self) -> float:
        """Height of the whole image."""
        return self.floor + 38

    def x(self, at: int) -> float:
        """Place of a number across."""
        return LEFT + (RIGHT - LEFT) * (list(self.across).index(at) + 0.5) / len(self.across)

    def y(self, value: float) -> float:
        """Place of a value; beyond the field it stands at its edge."""
        inside = min(max(value, self.bottom), self.top)
        return self.floor - HEIGHT * (inside - self.bottom) / (self.top - self.bottom)

    def drawn(self, label: str, shown: Callable[[float], str] = "{:g}".format) -> list[str]:
        """Draw the grid, its numbers and the label below."""
        step = nice_step(self.top - self.bottom)
        body: list[str] = []
        for i in range(math.ceil(self.bottom / step - 1e-9), math.floor(self.top / step + 1e-9) + 1):
            tick = round(i * step, 12)
            body += [
                line(LEFT, self.y(tick), RIGHT, self.y(tick), "grid"),
                text(LEFT - 5, self.y(tick) + 4, shown(tick), "small", "end"),
            ]
        body += [text(self.x(k), self.floor + 15, str(k), "small", "middle") for k in self.across]
        body.append(text((LEFT + RIGHT) / 2, self.floor + 31, label, "small", "middle"))
        return body


def head_of(series: int) -> float:
    """Where the field begins below a legend of so many series."""
    return 14 + 16.0 * series


def legend(index: int, words: str) -> list[str]:
    """Draw the line of the legend for a series, with its mark."""
    y = 12 + 16.0 * index
    return [marker(12, y - 4, SHAPES[index % 4], f"dot series-{index % 4}"), text(24, y, clipped(words, 56), "small")]
