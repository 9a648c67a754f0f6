"""Which fault fits? The one that holds most of the wealth, how much more than the next, and whether something tells still more.

Bets that learn (ranks in cells) fit any law in the end, so with enough tokens they overtake the law of a fault that governs all
but, say, the bonus tokens. A fault that explains most of the evidence is therefore named before them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

NAMED = 0.5
"""Share of the wealth from which a fault is named alone as the one that fits."""
SAME = 1e-6
"""Difference of ln wealth below which two faults have one law."""
CLOSE = 3.0
"""Difference of ln wealth below which the next is said to fit about as well."""
EXPLAINED = 0.8
"""Part of the best bet's ln wealth from which a fault counts as an explanation, though another bet has more."""


@dataclass(frozen=True)
class Diagnosis:
    """The family and name of what fits, and the same in words."""

    family: str
    name: str
    words: str


def _leaning(family: str, name: str) -> str:
    return {
        "fault": name,
        "direction": f"tokens lean {name}",
        "ranks": f"the {name} are uneven",
        "dependence": f"tokens depend on each other: {name}",
        "place": f"tokens follow the {name}",
        "leak": f"too much of {name}",
    }[family]


def diagnosed(wealth: Mapping[tuple[str, str], float]) -> Diagnosis:
    """Diagnosis from ln wealth by (family, name), largest first."""
    (best_family, best_name), most = next(iter(wealth.items()))
    faults = [(name, log) for (family, name), log in wealth.items() if family == "fault"]
    if best_family != "fault":
        explains = best_family != "dependence" and faults and most > 0 and faults[0][1] >= EXPLAINED * most
        if not explains:
            return _with_the_next(wealth)
        name, log = faults[0]
        also = f"; yet more is wrong, {_leaning(best_family, best_name)} with e^{most - log:.0f} times as much"
        return Diagnosis("fault", name, f"fits best of the known faults: {name}{_more(log, faults[1:2])}{also}")
    return _with_the_next(wealth)


def _with_the_next(wealth: Mapping[tuple[str, str], float]) -> Diagnosis:
    """The best bet beside the second best."""
    ((family, name), most), *rest = wealth.items()
    start = "fits best: " if family == "fault" else "" if family == "dependence" else "no known fault fits; "
    what = start + _leaning(family, name)
    if not rest:
        return Diagnosis(family, name, what)
    (next_family, next_name), log = rest[0]
    if family == next_family == "fault" and most - log < SAME:
        return Diagnosis(family, name, f"{what} or {next_name}, whose laws are the same here")
    top = max(wealth.values())
    total = top + math.log(sum(math.exp(value - top) for value in wealth.values()))
    share, second = math.exp(most - total), math.exp(log - total)
    if share < NAMED:
        return Diagnosis(family, name, f"{what} ({share:.0%} of the wealth, {next_name} {second:.0%})")
    return Diagnosis(family, name, what + _more(most, [(next_name, log)]))


def _more(log: float, rest: list[tuple[str, float]]) -> str:
    """How many times as much wealth as the next."""
    if not rest:
        return ""
    name, other = rest[0]
    return (
        f", though {name} fits about as well"
        if log - other < CLOSE
        else f", e^{log - other:.0f} times as much wealth as {name}"
    )
