"""What does a timing hold of each run? Its numbers as far as they are there and can be read; every field may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median with the low and high ends of its spread."""

    median: float
    low: float
    high: float

    def words(self) -> str:
        """``1.62 (1.55 to 1.70)``."""
        median, low, high = (f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in (self.median, self.low, self.high))
        return median if self.low == self.high else f"{median} ({low} to {high})"


@dataclass(frozen=True)
class Run:
    """One timed setting: a draft and K.

    by_position: places tested, share accepted and exact mean, by position. parts: what a round costs by phase, K draft steps as
    one, in steps of the baseline; round: what a measured one takes. exact, error, z: tokens per round against the exact value.
    """

    draft: str
    k: int
    rate: Spread | None
    speedup: Spread | None
    predicted: float | None
    per_tested: float | None
    per_drafted: float | None
    per_round: float | None
    costs: tuple[float | None, ...]
    exact: float | None = None
    error: float | None = None
    z: float | None = None
    by_position: tuple[tuple[float, float | None, float | None], ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    round: float | None = None


def real(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    """A list, empty for anything else."""
    return value if isinstance(value, list) else []


def spread_of(value: Any) -> Spread | None:
    """A median with quartiles, from a mapping or a bare number."""
    parts = mapping(value) if isinstance(value, Mapping) else {"median": value}
    median = real(parts.get("median"))
    if median is None:
        return None
    low, high = real(parts.get("low")), real(parts.get("high"))
    return Spread(median, median if low is None else low, median if high is None else high)


def run_of(value: Any) -> Run | None:
    """What is known of one run, None when its K is not."""
    run = mapping(value)
    k = real(run.get("k"))
    if k is None:
        return None
    costs, exact = mapping(run.get("costs")), mapping(run.get("exact"))
    return Run(
        str(run.get("draft", "draft")),
        int(k),
        spread_of(run.get("tps")),
        spread_of(run.get("speedup")),
        real(run.get("predicted_speedup")),
        real(run.get("accepted_per_tested")),
        real(run.get("accepted_per_drafted")),
        real(run.get("tokens_per_round")),
        tuple(real(costs.get(name)) for name in ("c", "v", "o")),
        real(exact.get("tokens_per_round")),
        real(exact.get("error")),
        real(exact.get("z")),
        tuple(
            (real(p.get("tested")) or 0.0, real(p.get("accepted")), real(p.get("exact")))
            for p in map(mapping, listed(run.get("by_position")))
        ),
        _parts(costs, int(k)),
        real(run.get("round")),
    )


def _parts(costs: Mapping[str, Any], k: int) -> dict[str, float]:
    """Costs of a round by phase; nothing unless a draft step and the verify pass are known."""
    c, v = real(costs.get("c")), real(costs.get("v"))
    if c is None or v is None:
        return {}
    further = {str(name): real(cost) for name, cost in mapping(costs.get("parts")).items()}
    return {"draft": k * c, "verify": v, **{name: cost for name, cost in further.items() if cost is not None}}


def by_draft(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by draft, in the order in which drafts appear, by K."""
    grouped: dict[str, list[Run]] = {run.draft: [] for run in runs}
    for run in sorted(runs, key=lambda r: r.k):
        grouped[run.draft].append(run)
    return grouped
