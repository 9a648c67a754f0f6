"""What does one call of every phase take? Calls that follow each other as they do in earnest, and the mean of each.

What ran before a call decides what is in the processor's caches, so phases are timed in the order of a round: K draft steps, a
verify pass, the rule, and what comes after it; target steps in a row, as in the baseline.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Timeable
from specverify.timing.clocks import Clock

PHASES = ("target", "draft", "verify", "accept")
"""What a round is made of; "target" is the unit."""
FURTHER = ("cache", "loop")
"""What comes on top where a decoder tells: taking tokens back, and the bookkeeping of its loop."""


@dataclass(frozen=True)
class Difference:
    """A phase that cannot be called alone: one occurrence takes what ``longer`` takes beyond ``shorter``, divided by ``times``.

    For a loop that is only seen from outside: runs of several rounds and of one, and how many rounds lie between them.
    """

    longer: Callable[[], object]
    shorter: Callable[[], object]
    times: int

    def __call__(self) -> object:
        """Make the longer call."""
        return self.longer()


def one_call(call: Callable[[], object], clock: Clock) -> float:
    """Seconds of one occurrence of a phase; a :class:`Difference` may come out negative in a noisy moment."""
    if isinstance(call, Difference):
        return (clock.timed(call.longer)[0] - clock.timed(call.shorter)[0]) / call.times
    return clock.timed(call)[0]


def phase_seconds(timing: Timeable, context: Tensor, draft: str, k: int, clock: Clock, times: int = 8) -> dict[str, float]:
    """Seconds of one call of each phase after context (B, T): the mean of ``times`` calls, after some that warm up.

    A mean, since a whole run is a sum: where other processes interrupt, the quickest or the middle call of a short phase would
    pass for cheaper than it is in the long run. The result is empty where the decoder offers no phases.
    Errors: SubjectError when it offers some of the required ones only.
    """
    calls = timing.phases(context, draft=draft, k=k)
    if not calls:
        return {}
    lacking = [name for name in PHASES if name not in calls]
    if lacking:
        raise SubjectError(f"phases() lacks {', '.join(lacking)}; return all of {', '.join(PHASES)}, or nothing at all")
    further = [name for name in FURTHER if name in calls]
    seconds: dict[str, list[float]] = {name: [] for name in (*PHASES, *further)}

    def target_steps() -> None:
        for _ in range(2):  # what was timed before has filled the processor's caches with something else
            clock.timed(calls["target"])
        seconds["target"] += [one_call(calls["target"], clock) for _ in range(-(-times // 2))]

    target_steps()
    for turn in range(-1, times):
        drafting = sum(one_call(calls["draft"], clock) for _ in range(k)) / k
        after = {name: one_call(calls[name], clock) for name in ("verify", "accept", *further)}
        if turn >= 0:  # the first round warms up
            for name, elapsed in {"draft": drafting, **after}.items():
                seconds[name].append(elapsed)
    target_steps()
    return {name: statistics.fmean(values) for name, values in seconds.items()}
