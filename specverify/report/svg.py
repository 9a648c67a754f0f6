"""What are plots drawn with? A few shapes as SVG text; every colour is a class, so the page's scheme decides it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup, escape

from specverify.report.wording import clipped

WIDTH = 360
"""Units across every plot: one unit is one pixel on a narrow phone, so text of 12 units stays legible there."""


@dataclass(frozen=True)
class Figure:
    """A plot and the title that stands above it; name is what a file of it is called."""

    title: str
    image: Markup
    note: str = ""
    name: str = "plot"


def svg(height: float, title: str, description: str, body: Iterable[str], *, name: str = "plot", note: str = "") -> Figure:
    """Make a complete image with a title and a description for those who do not see it."""
    titled, words = escape(title), escape(description)
    image = Markup(  # noqa: S704 - words are escaped here and in text()
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{titled}">'
        f"<title>{titled}</title><desc>{words}</desc>{''.join(body)}</svg>"
    )
    return Figure(title, image, note, name)


def standalone(figure: Figure) -> str:
    """Make a figure the contents of a file: the same image with its title, the page's colours and a ground of its own."""
    style = resources.files("specverify.report").joinpath("page.css").read_text(encoding="utf-8")
    colours = style[: style.index("* { box-sizing")]
    shapes = "\n".join(line for line in style.splitlines() if line.startswith((".plot text", ".plot .")))
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure.image)
    assert size is not None
    width, height = float(size[1]), float(size[2])
    view = f'viewBox="-12 -34 {width + 24:g} {height + 46:g}"'
    image = str(figure.image).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(size[0], view, 1)
    ground = (
        f"<style>{colours}\n{shapes}\n.ground {{ fill: var(--paper); }} .plot text.title {{ font-weight: 600; }}</style>"
        f'<rect class="ground" x="-12" y="-34" width="{width + 24:g}" height="{height + 46:g}"/>'
        f"{text(0, -14, clipped(figure.title, 54), 'title')}"
    )
    return image.replace("</desc>", "</desc>" + ground, 1) + "\n"


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
