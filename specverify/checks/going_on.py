"""How long must sampling go on? Until the bets refute, every known fault would have been refuted, or the budget ends.

Wealth may be looked at after every call and the run ended for any reason: see :mod:`specverify.evidence.eprocess`. A pass says
that every catalogued fault that differs from the target on the models at hand would have been refuted by then with
probability about 0.99, were it to govern the stated share of the tokens; otherwise it is inconclusive and names those left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from specverify.evidence.contamination import Growth
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.evidence.wealth import WealthMeasurement, measured
from specverify.exact.walk import time_is_up

FIRST, MOST = 32, 4096
"""Sequences in the first call, and the most in any."""


@dataclass(frozen=True)
class Goal:
    """When to end: the test's false-alarm share, the share of tokens that a fault governs, the most and the fewest tokens."""

    alpha: float
    share: float
    tokens: int
    fewest: int = 0


def go_on(
    watch: TableWatch | StreamWatch,
    add: Callable[[int, int], None],
    length: int,
    goal: Goal,
    growing: Callable[[], Mapping[str, Growth]] | None = None,
    spent: Callable[[], str] = lambda: "",
    impossible: Callable[[], int] | None = None,
) -> WealthMeasurement:
    """Call ``add(sequences, call)``, which samples and lets ``watch`` see them, as often as it takes.

    growing: growth of the faults along the run, where the watch counts nothing. spent: why no more can be sampled, if so.
    impossible: tokens that the target never gives, where somebody else than the watch is sure of them.
    """
    sequences, call = FIRST, 0
    while True:
        left = goal.tokens - watch.process.tokens
        add(max(1, min(sequences, math.ceil(left / length))), call)
        wrong = watch.impossible if impossible is None else impossible()
        more = {"until": goal.share, "growing": None if growing is None else growing()}
        found = replace(measured("all bets, until every known fault is seen", watch, **more), impossible=wrong)
        power = found.power(goal.alpha) if goal.alpha > 0 else None
        few = watch.process.tokens < min(goal.fewest, goal.tokens) and not time_is_up()
        if wrong or power is None or watch.process.refutes(goal.alpha) or (not power.needed and not few):
            return found
        stopped = spent()
        if watch.process.tokens >= goal.tokens:
            stopped = f"the budget of {goal.tokens:,} is spent"
        elif time_is_up():
            stopped = "time is up"
        most = max(tokens for tokens in (*power.needed.values(), 0.0) if math.isfinite(tokens))
        most = max(most, float(min(goal.fewest, goal.tokens)))
        if not stopped and most <= watch.process.tokens:
            stopped = "no number of them shows the rest"
        if stopped:
            return replace(found, stopped=stopped)
        wanted = math.ceil((most - watch.process.tokens) / length)
        sequences, call = max(FIRST, min(2 * sequences, MOST, wanted)), call + 1
