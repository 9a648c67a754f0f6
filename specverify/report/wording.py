"""How are numbers and verdicts put into words? The same words on the page and in the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specverify.evidence.measurements import Verdict

GLYPHS: dict[str, str] = {"certified": "✓", "refuted": "✗", "inconclusive": "?", "error": "!", "skipped": "\N{EN DASH}"}
WORST_FIRST: tuple[Verdict, ...] = ("refuted", "error", "inconclusive", "certified", "skipped")
SMALLEST_P = 1e-300
"""Bounds below this are shown as such; they have left the range of floating point or are about to."""

MEANING: dict[str, str] = {
    "certified": (
        "Wherever the law could be computed exactly, as the tests below say, it is the target law itself, up to rounding. No "
        "statistical test found a deviation at its share of the false-alarm budget. The known-bad rules "
        "that ran beside the subject, on table models, were all refuted."
    ),
    "refuted": (
        "At least one test shows output that does not follow the target law. An exact refutation is a computed law "
        "that differs from the right one by more than rounding explains. A statistical refutation could happen to an "
        "exact subject with at most the probability in the ledger."
    ),
    "inconclusive": (
        "Nothing speaks against the subject, but the run is not enough to certify it: a test could not decide, was not "
        "run, or the events it asks about were too rare. This is not a pass."
    ),
    "error": (
        "The run cannot be used as a judgement: a test ended in an error, or a known-bad rule was not refuted. Nothing "
        "follows about the subject, neither for it nor against it."
    ),
}

ON_OFF_MEANING: dict[str, str] = MEANING | {
    "certified": (
        "No bet could tell sequences with speculation from sequences without, at its share of the false-alarm budget; the same "
        "bets did tell a decoder apart that replaces some of its tokens, as the test says. The known-bad rules that ran beside "
        "the subject, on table models, were all refuted."
    ),
    "refuted": (
        "At least one test shows that the two modes differ, or that one breaks what it promises. Which of them is wrong the "
        "test does not say. Two modes of one law would look so different with at most the probability in the ledger."
    ),
}


def number(value: float | None) -> str:
    """Write a number with four digits at most; counts in full."""
    if value is None or math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "infinite"
    if abs(value) < 1e9 and (float(value).is_integer() or abs(value) >= 1000):
        return f"{value:,.0f}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.2g}"


def probability_bound(p: float | None) -> str:
    """Write a bound on a probability, also where floating point has run out."""
    if p is not None and p < SMALLEST_P:
        return "<1e-300"
    return number(p)


def plural(count: int, noun: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def tally(verdicts: Sequence[str]) -> str:
    """``2 refuted, 4 certified``, worst first."""
    counts = [(verdict, sum(v == verdict for v in verdicts)) for verdict in WORST_FIRST]
    return ", ".join(f"{count} {verdict}" for verdict, count in counts if count) or "none"


def squeezed(text: str, length: int) -> str:
    """Cut the middle out of a long name: the ends tell names apart."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    tail = (length - 1) // 2
    return f"{line[: length - 1 - tail]}…{line[-tail:]}"


def clipped(text: str, length: int) -> str:
    """Put a text on one line, cut with an ellipsis when it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"
