"""What are plots drawn with? A few shapes as SVG text; every colour is a class, so the page's scheme decides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 360
"""Units across every plot: one unit is one pixel on a narrow phone, so text of 12 units stays legible there."""


@dataclass(frozen=True)
class Figure:
    """A plot and the title that stands above it."""

    title: str
    image: Markup
    note: str = ""


def svg(height: float, title: str, description: str, body: Iterable[str]) -> Figure:
    """Make a complete image with a name and a description for those who do not see it."""
    name, words = escape(title), escape(description)
    image = Markup(  # noqa: S704 - words are escaped here and in text()
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{name}">'
        f"<title>{name}</title><desc>{words}</desc>{''.join(body)}</svg>"
    )
    return Figure(title, image)


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Words at a point; style is a class."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, style: str) -> str:
    """Draw a rectangle; never narrower than nothing."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{style}"/>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """Draw a straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def path(points: Sequence[tuple[float, float]], style: str) -> str:
    """Straight pieces through the points."""
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return f'<path d="{steps}" class="{style}"/>'


def marker(x: float, y: float, shape: str, style: str) -> str:
    """Draw a point as circle, square, triangle, diamond or cross: shapes tell series apart without colour."""
    outlines = {
        "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
        "square": "M-4 -4H4V4H-4Z",
        "triangle": "M0 -5.5L5 4H-5Z",
        "diamond": "M0 -6L6 0L0 6L-6 0Z",
        "cross": "M-5 -5L5 5M-5 5L5 -5",
    }
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{outlines[shape]}" class="{style}"/>'
