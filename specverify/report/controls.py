"""Were the known-bad rules refuted? One row per rule, one column per way of testing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specverify.evidence.measurements import Judgement
from specverify.record import Evidence
from specverify.report.wording import number

CONTROL = "fault:"
Judged = tuple[Evidence, Sequence[Judgement]]


@dataclass(frozen=True)
class Control:
    """A known-bad rule and how each way of testing it came out: (verdict, numbers)."""

    name: str
    outcomes: Mapping[str, tuple[str, str]]


def controls_of(controls: Sequence[Judged]) -> tuple[tuple[str, ...], tuple[Control, ...]]:
    """List the ways of testing, and the rules, those not refuted first."""
    ways: list[str] = []
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for evidence, judgements in controls:
        way = evidence.test.rsplit("/", 1)[-1].removeprefix("control, ")
        if way not in ways:
            ways.append(way)
        numbers = next((j.numbers for j in judgements if j.verdict == "refuted"), {})
        said = f"TV {numbers['tv']:.3f}" if "tv" in numbers else f"p {_floor(numbers['p'])}" if "p" in numbers else ""
        if numbers.get("forbidden"):
            said = f"{number(numbers['forbidden'])} impossible sequences"
        rows.setdefault(evidence.part.removeprefix(CONTROL), {})[way] = (evidence.verdict, said)
    missed_first = sorted(rows.items(), key=lambda item: all(v == "refuted" for v, _ in item[1].values()))
    return tuple(ways), tuple(Control(name, outcomes) for name, outcomes in missed_first)


def _floor(p: float) -> str:
    return "<1e-99" if p < 1e-99 else number(p)
