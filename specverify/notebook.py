"""How does a certificate look in a notebook? The verdict, its sentence, what each check said, the smallest counterexample."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from specverify.marking import fenced, plain, table
from specverify.showing import counterexample_lines, rows_of

if TYPE_CHECKING:
    from specverify.certificate import Certificate

COLOURS = {"certified": "#1a7f37", "refuted": "#cf222e", "inconclusive": "#9a6700", "error": "#9a6700"}
"""Of the bar beside the text, readable on a light and on a dark page."""


def as_html(of: Certificate) -> str:
    """A fragment of HTML without script; all text of the certificate is escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(c)}</th><td>{escape(said)}</td></tr>" for c, said in rows_of(of.evidence)
    )
    example = "\n".join(_example(of))
    return (
        f"<div style='border-left:4px solid {COLOURS[of.verdict]};padding-left:12px'>"
        f"<p><strong>{escape(str(of.subject['name']))}: {of.verdict}</strong></p>"
        f"<p>{escape(of.sentence())}</p><table>{rows}</table>"
        + (f"<pre>{escape(example)}</pre>" if example else "")
        + f"<details><summary>scope</summary><p>{escape(of.scope)}</p></details></div>"
    )


def as_markdown(of: Certificate) -> str:
    """The same as Markdown; all text of the certificate is escaped."""
    example = "\n".join(_example(of))
    lines = [f"**{plain(str(of.subject['name']))}: {of.verdict}**", "", plain(of.sentence()), ""]
    lines += table(("check", "found"), rows_of(of.evidence))
    lines += fenced(example) if example else []
    return "\n".join([*lines, plain(of.scope), ""])


def _example(of: Certificate) -> list[str]:
    return counterexample_lines([e for e in of.evidence if e.expected == "certified"])[1:]
