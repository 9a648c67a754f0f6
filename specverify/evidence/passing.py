"""What does a pass say in numbers? Which faults would have been refuted by now, and the share of each that may be hidden.

For tokens of table models all follows from counts and laws; for other models from the growth of every fault that was measured
along the run and from the wealth of its bets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specverify.evidence.contamination import SAME_LAW, Growth, share_on_grid
from specverify.evidence.eprocess import Alternative


@dataclass(frozen=True)
class Power:
    """Which faults differ from the target on the models at hand, and how many tokens each needs at a share of the budget.

    needed: by name, for those that would not have been refuted by now; seen: the others. same: faults whose law is the target's
    here. hidden: faults whose law is the target's with logits off by no more than was declared, or hardly more (no bet grows,
    and twice the tolerance covers them), so that nothing shows them.
    """

    seen: tuple[str, ...] = ()
    needed: Mapping[str, float] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def power(
    growing: Mapping[str, Growth], bets: Sequence[Alternative], level: float, tolerance: float, tokens: int, alpha: float
) -> Power:
    """Power at a false-alarm share of every fault that follows ``level`` of the tokens, with logits off by ``tolerance``."""
    weights = {a.name: a.weight for a in bets if a.family == "fault" and a.level == level}
    seen, same, hidden, needed = [], [], [], {}
    for name, growth in growing.items():
        if growth.tv <= SAME_LAW * level:
            same.append(name)
            continue
        enough = growth.tokens(alpha, weights[name])
        if growth.spread <= (2 * tolerance if np.isinf(enough) else tolerance):
            hidden.append(name)
            continue
        if tokens >= enough:
            seen.append(name)
        else:
            needed[name] = enough
    return Power(tuple(seen), needed, tuple(same), tuple(hidden))


def worst_share(bounds: Mapping[str, float]) -> tuple[str, float]:
    """The fault of which most may be hidden."""
    name = max(bounds, key=bounds.__getitem__)
    return name, bounds[name]


def bounds_by_level(bets: Sequence[tuple[Alternative, float]], alpha: float) -> dict[str, float]:
    """For every fault the least share that was bet on and is excluded; 1 where none is."""
    levels: dict[str, list[tuple[float, float]]] = {}
    for one, log in bets:
        if one.family == "fault":
            levels.setdefault(one.name, []).append((one.level, log))
    found = {}
    for name, pairs in levels.items():
        shares, logs = (np.array(x) for x in zip(*sorted(pairs), strict=True))
        found[name] = share_on_grid(shares, logs, alpha)
    return found


def listed(needed: Mapping[str, float]) -> str:
    """Faults that are left, with the tokens each needs."""
    return ", ".join(
        f"{name} ({'not at this tolerance' if np.isinf(tokens) else f'about {tokens:,.0f} tokens'})"
        for name, tokens in sorted(needed.items(), key=lambda item: item[1])
    )
