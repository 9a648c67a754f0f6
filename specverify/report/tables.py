"""Which numbers decided a test? Its measurements as tables, one per kind, and its result in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specverify.evidence.measurements import (
    AnyMeasurement,
    BoundMeasurement,
    CellMeasurement,
    CoverageMeasurement,
    Judgement,
    LawMeasurement,
    OnOffMeasurement,
    ProbeMeasurement,
    RateMeasurement,
    ViolationMeasurement,
    WealthMeasurement,
)
from specverify.record import STATISTICAL_KINDS, Evidence
from specverify.report.wording import clipped, number, plural, probability_bound

Judged = tuple[AnyMeasurement, Judgement]


@dataclass(frozen=True)
class Row:
    """One measurement: its cells, the first of which names it, and how it was judged."""

    cells: tuple[str, ...]
    verdict: str
    reason: str


@dataclass(frozen=True)
class Table:
    """Measurements of one kind."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    dense: bool


def share_of_each(evidence: Evidence) -> float:
    """Give the false-alarm probability at which each statistical measurement of a test is judged."""
    return evidence.alpha / max(sum(m.kind in STATISTICAL_KINDS for m in evidence.measurements), 1)


def pair_name(law: LawMeasurement) -> str:
    """Name the pair of a law, as a person would name it."""
    return f"V = {law.pair.vocab_size}, K = {law.pair.k}, {plural(law.length, 'token')}, {law.dtype}"


def _law(m: LawMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:  # noqa: ARG001 - exact
    return (pair_name(m), *(number(n[key]) for key in ("deviation", "tolerance", "tv", "impossible")))


def _cells(m: CellMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:
    counts = (number(n["draws"]), number(n["dof"]), number(n["divergence"]))
    classical = f"{number(n['chi_square'])} (p {probability_bound(n['chi_square_p'])})"
    return (m.label, *counts, probability_bound(n["p"]), number(share), number(n["forbidden"]), classical)


def _wealth(m: WealthMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:
    most = number(n["contamination"]) if "contamination" in n else ""
    unseen = number(n["faults_unseen"]) if "faults_unseen" in n else ""
    best = ""
    if n["log_e"] >= math.log(100):  # below that it is noise
        (_, name), part = next(iter(m.process().posterior().items()))
        best = f"{name} {part:.0%}"
    return (m.label, number(n["tokens"]), number(n["log_e"]), probability_bound(n["p"]), number(share), best, most, unseen)


def _on_off(m: OnOffMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:
    shown = f"{n['replaced']:.0%} replaced, in {number(n['replaced_pairs'])} pairs" if "replaced" in n else "not run"
    if "replaced" not in n and all(call.control is not None for call in m.calls):
        shown = "nothing"
    return (m.label, number(n["pairs"]), number(n["log_e"]), probability_bound(n["p"]), number(share), shown)


def _rate(m: RateMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:
    return (m.label, number(m.successes), number(m.trials), number(m.bound), probability_bound(n["p"]), number(share))


def _bound(m: BoundMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:  # noqa: ARG001 - exact
    return (m.label, number(m.value), number(m.bound), number(m.tolerance))


def _violations(m: ViolationMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:  # noqa: ARG001 - exact
    return (m.label, number(m.violations), number(m.trials), m.example or "none")


def _probes(m: ProbeMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:  # noqa: ARG001 - no statistics
    found = "; ".join(m.describe(f) for f in m.findings if f["chance"] > 0)
    return (m.label, number(m.probes), number(m.runs), found or "none")


def _coverage(m: CoverageMeasurement, n: Mapping[str, float], share: float) -> tuple[str, ...]:  # noqa: ARG001 - no statistics
    events = ", ".join(f"{name} {number(count)}" for name, count in m.events.items())
    return ("events", events or "none", number(m.minimum), "yes" if m.known else "no")


_KINDS: dict[str, tuple[str, tuple[str, ...], Callable[..., tuple[str, ...]]]] = {
    "law": ("Exact laws against the target law", ("pair", "deviation", "allowed", "TV", "mass on impossible"), _law),
    "cells": (
        "Counts of sampled sequences; chi-square is for reading only and decides nothing",
        ("cells", "draws", "dof", "n KL", "bound p", "refuted at", "impossible", "chi-square"),
        _cells,
    ),
    "wealth": (
        "Bets on every token against exactness, all at once; what a pass leaves possible",
        ("bets", "tokens", "ln E", "bound p", "refuted at", "most wealth", "possible", "unseen"),
        _wealth,
    ),
    "on_off": (
        "Bets on which of two batches was made with speculation; what the same bets refute when tokens are replaced",
        ("comparison", "pairs", "highest ln E", "bound p", "refuted at", "control refuted"),
        _on_off,
    ),
    "rate": ("Rates", ("event", "times", "trials", "at most", "bound p", "refuted at"), _rate),
    "bound": ("Exact values against their bounds", ("value of", "value", "bound", "tolerance"), _bound),
    "violations": ("What must never happen", ("rule", "violations", "trials", "example"), _violations),
    "probes": (
        "Draws pushed to the ends of their range, one at a time",
        ("pair", "pushed", "ordinary runs", "what must not happen and did"),
        _probes,
    ),
    "coverage": (
        "Did the events that the check is about happen?",
        ("coverage", "events", "needed", "reported"),
        _coverage,
    ),
}


def tables_of(evidence: Evidence, judgements: Sequence[Judgement]) -> tuple[Table, ...]:
    """Tables of all measurements of a test; outcomes (errors, skips) are shown as text instead."""
    share, tables = share_of_each(evidence), []
    for kind, (caption, heads, cells) in _KINDS.items():
        rows = tuple(
            Row(cells(m, j.numbers, share), j.verdict, j.reason)
            for m, j in zip(evidence.measurements, judgements, strict=True)
            if m.kind == kind
        )
        if rows:
            tables.append(Table(caption, heads, rows, kind in ("law", "cells")))
    return tuple(tables)


def headline(evidence: Evidence, judgements: Sequence[Judgement], verdict: str) -> str:
    """Say what a test found, in one line."""
    if verdict != "certified":
        return clipped(next((j.reason for j in judgements if j.verdict == verdict), "nothing was measured"), 220)
    judged = list(zip(evidence.measurements, judgements, strict=True))
    parts = [said for said in (_laws_said(judged), _cells_said(judged, share_of_each(evidence)), _others_said(judged)) if said]
    return "; ".join(parts) or clipped(judgements[0].reason, 220)


def _laws_said(judged: Sequence[Judged]) -> str:
    laws = [j.numbers for m, j in judged if m.kind == "law"]
    if not laws:
        return ""
    worst = max(laws, key=lambda n: n["deviation"] / n["tolerance"])
    said = f"{plural(len(laws), 'exact law')} equal to the target"
    return f"{said}; largest deviation {number(worst['deviation'])}, {number(worst['tolerance'])} allowed for rounding"


def _cells_said(judged: Sequence[Judged], share: float) -> str:
    tests = [j for m, j in judged if m.kind in STATISTICAL_KINDS and m.kind != "on_off" and "p" in j.numbers]
    if not tests:
        return ""
    tokens = max((j.numbers.get("tokens", 0) for j in tests), default=0)
    draws = max((j.numbers.get("draws", 0) for j in tests if "tokens" not in j.numbers), default=0)
    sampled = f"{number(draws)} sequences; " if draws else f"{number(tokens)} tokens; " if tokens else ""
    smallest = probability_bound(min(j.numbers["p"] for j in tests))
    return f"{sampled}smallest bound p {smallest} in {plural(len(tests), 'comparison')}, refuted at {number(share)}"


def _others_said(judged: Sequence[Judged]) -> str:
    bounds = sum(m.kind == "bound" for m, _ in judged)
    trials = sum(m.trials for m, _ in judged if isinstance(m, ViolationMeasurement))
    said = [j.reason for m, j in judged if isinstance(m, OnOffMeasurement)]
    said += [f"{plural(bounds, 'bound')} kept"] if bounds else []
    probes = sum(m.probes for m, _ in judged if isinstance(m, ProbeMeasurement))
    said += [f"nothing impossible and no crash in {plural(probes, 'boundary draw')}"] if probes else []
    said += [f"no violation in {plural(trials, 'trial')}"] if trials else []
    said += ["coverage not known"] if any(isinstance(m, CoverageMeasurement) and not m.known for m, _ in judged) else []
    return "; ".join(said)
