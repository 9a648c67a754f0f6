"""What is worth drawing of a test? The law where it parts from the target, joint cells, all tests at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specverify.evidence.measurements import CellMeasurement, Judgement, LawMeasurement
from specverify.laws import Array, Tokens, first_difference
from specverify.record import STATISTICAL_KINDS, Evidence
from specverify.report.plots import Against, Paired, log_overview, paired_bars
from specverify.report.svg import Figure
from specverify.report.tables import Judged, share_of_each
from specverify.report.wording import number

MOST_CELLS = 24
MOST_SEQUENCES = 12
LEAST_EXPONENT = 400.0
"""Stands for the logarithm of numbers too small or too large for floating point."""


def conditional(law: Array, context: Tokens) -> Array:
    """Law (V,) of the token after ``context``; zeros when the context never comes."""
    at = law[context]
    flat: Array = at.reshape(at.shape[0], -1).sum(1)
    return flat / flat.sum() if flat.sum() > 0 else flat


def _badness(judged: Judged) -> float:
    numbers = judged[1].numbers
    return max(numbers["deviation"], numbers["impossible"]) / numbers["tolerance"]


def law_to_draw(judged: Sequence[Judged]) -> tuple[LawMeasurement, bool] | None:
    """Choose the law that is furthest off when one is refuted (True), else the one over the most sequences (False)."""
    laws = [(m, j) for m, j in judged if isinstance(m, LawMeasurement)]
    refuted = [mj for mj in laws if mj[1].verdict == "refuted"]
    if refuted:
        return max(refuted, key=_badness)[0], True
    return (max(laws, key=lambda mj: len(mj[0].emitted))[0], False) if laws else None


def law_figures(measurement: LawMeasurement, *, refuted: bool) -> list[Figure]:
    """Draw the law after the context where it goes wrong (else of the first token), and the main sequences."""
    ours, right = measurement.laws()
    found = first_difference(ours, right, measurement.tolerance) if refuted else None
    context: Tokens = found[0] if found else ()
    got, wanted = conditional(ours, context), conditional(right, context)
    place = f"token {len(context) + 1} after {list(context)}" if context else "the first token"
    pair = f"V = {measurement.pair.vocab_size}, K = {measurement.pair.k}".replace(
        " = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    )
    tokens = sorted(np.argsort(-np.maximum(got, wanted), kind="stable")[:MOST_CELLS].tolist())
    rows = [Paired(f"token {t}", float(wanted[t]), float(got[t])) for t in tokens]
    figures = [paired_bars(f"Law of {place} ({pair})", rows, ("target", "came out"), _probability)]
    if ours.ndim > 1:
        order = (np.abs(ours - right) if refuted else np.maximum(ours, right)).ravel()
        chosen = [i for i in np.argsort(-order, kind="stable")[:MOST_SEQUENCES] if order[i] > 0]
        which = "furthest off" if refuted else "likeliest"
        rows = [_sequence_row(ours, right, int(flat)) for flat in chosen]
        figures.append(
            paired_bars(
                f"The {len(rows)} {which} sequences of {ours.ndim} tokens ({pair})",
                rows,
                ("target", "came out"),
                _probability,
            )
        )
    return figures


def _probability(x: float) -> str:
    return f"{x:.3f}" if x == 0 or x >= 5e-4 else f"{x:.0e}"


def _sequence_row(ours: Array, right: Array, flat: int) -> Paired:
    index = tuple(int(i) for i in np.unravel_index(flat, ours.shape))
    return Paired(" ".join(map(str, index)), float(right[index]), float(ours[index]))


def cell_figure(judged: Sequence[Judged]) -> Figure | None:
    """Observed against expected counts of the joint cells, for the sample that fits worst."""
    joint = [
        (m, j) for m, j in judged if isinstance(m, CellMeasurement) and any(g.label == "joint" and g.total for g in m.groups)
    ]
    if not joint:
        return None
    worst, _ = min(joint, key=lambda mj: mj[1].numbers["p"])
    group = next(g for g in worst.groups if g.label == "joint")
    probs = np.asarray(group.probs) / sum(group.probs)
    expected, observed = probs * group.total, np.asarray(group.counts)
    chosen = np.argsort(-np.maximum(expected, observed), kind="stable")[:MOST_CELLS].tolist()
    rows = [
        Paired(
            group.names[c] if group.names else f"cell {c + 1}",
            float(expected[c]),
            float(observed[c]),
            3 * math.sqrt(group.total * probs[c] * (1 - probs[c])),
        )
        for c in sorted(chosen, key=lambda c: -expected[c])
    ]
    title = f"{worst.label[:1].upper()}{worst.label[1:]}: the {len(rows)} largest of {len(probs)} cells"
    figure = paired_bars(title, rows, ("expected", "observed"), lambda x: f"{x:,.0f}")
    return replace(figure, note="The stroke spans three standard deviations around what is expected.")


def figures_of(evidence: Evidence, judgements: Sequence[Judgement]) -> list[Figure]:
    """Everything drawn for one test."""
    judged = list(zip(evidence.measurements, judgements, strict=True))
    law = law_to_draw(judged)
    figures = [] if law is None else law_figures(law[0], refuted=law[1])
    cells = cell_figure(judged)
    return figures if cells is None else [*figures, cells]


def _exponent(value: float) -> float:
    if value <= 0:
        return -LEAST_EXPONENT
    return math.log10(value) if value < math.inf else LEAST_EXPONENT


def overviews(tests: Sequence[tuple[Evidence, Sequence[Judgement]]]) -> list[tuple[str, Figure]]:
    """All exact tests by deviation over tolerance, all statistical tests by bound p against their share."""
    exact, statistical = [], []
    for evidence, judgements in tests:
        judged = list(zip(evidence.measurements, judgements, strict=True))
        label = evidence.test
        laws = [mj for mj in judged if mj[0].kind == "law"]
        if laws:
            exact.append(Against(label, _exponent(max(map(_badness, laws))), 0.0, evidence.verdict))
        bounds = [j.numbers["p"] for m, j in judged if m.kind in STATISTICAL_KINDS and "p" in j.numbers]
        if bounds and evidence.alpha > 0:
            verdict = "refuted" if any(j.verdict == "refuted" for j in judgements) else evidence.verdict
            statistical.append(Against(label, -_exponent(min(bounds)), -_exponent(share_of_each(evidence)), verdict))
    drawn = []
    if exact:
        caption = (
            "Exact tests: largest deviation of a probability, in units of what rounding is allowed to do. "
            "A test is refuted to the right of the upright stroke, at 1. Cross: refuted; circle: not refuted."
        )
        drawn.append(
            (
                caption,
                log_overview("Exact tests: deviation over tolerance", exact, -4, 6, lambda e: "1" if e == 0 else f"1e{e}"),
            )
        )
    if statistical:
        smallest = number(min(share_of_each(e) for e, _ in tests if e.alpha > 0))
        caption = (
            "Statistical tests: the smallest bound p of each test, from 1 at the left to ever less likely under the "
            f"target law. A test is refuted to the right of its upright stroke, its share per comparison "
            f"(the smallest is {smallest}). Cross: refuted; circle: not refuted."
        )
        drawn.append(
            (
                caption,
                log_overview(
                    "Statistical tests: bound p against its share",
                    statistical,
                    0,
                    20,
                    lambda e: "1" if e == 0 else f"1e-{e}",
                ),
            )
        )
    return drawn
