"""What do samples say about costs and speed? Phases become c, v and o in steps of the baseline; runs become speed-ups.

Nothing here is fitted to the speed with speculation: the costs come from phases timed on their own and from the baseline, and
the prediction made of them is held against runs that had no part in it, except for how many rounds their texts took.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from specverify.errors import SubjectError
from specverify.timing.measure import Base, Run, Samples
from specverify.timing.phases import FURTHER
from specverify.timing.predict import Costs

Key = tuple[str, int]
CHEAPEST = 0.9
"""A verifying pass reads what a step reads and more; measured below this share of a step, its cost cannot be right."""


def costs_of(samples: Samples) -> dict[Key, Costs]:
    """Costs of every configuration, none where phases were not timed.

    c is common to a draft, v and o to a K, so each is pooled over what shares it, as the median of ratios to the target steps
    timed beside it. Those steps are not quite the baseline's, which has a loop around them; so ratios are converted to steps of
    the baseline by the median ratio of the two over all repetitions.
    """
    if not all(samples.phases.values()):
        return {}
    keys = samples.sweep.configurations
    step = step_over_target(samples)

    def pooled(shared: Sequence[Key], phase: str) -> float | None:
        ratios = [p[phase] / p["target"] for key in shared for p in samples.phases[key] if phase in p]
        return statistics.median(ratios) / step if ratios else None

    drafting = {d: pooled([key for key in keys if key[0] == d], "draft") for d in samples.sweep.drafts}
    found: dict[Key, Costs] = {}
    for draft, k in keys:
        same = [key for key in keys if key[1] == k]
        parts = {name: cost for name in ("accept", *FURTHER) if (cost := pooled(same, name)) is not None}
        c, v = drafting[draft], pooled(same, "verify")
        assert c is not None
        assert v is not None
        found[draft, k] = Costs(c, v, sum(parts.values()), parts)
    return found


def step_over_target(samples: Samples) -> float:
    """Seconds per token of the baseline over seconds of the phase "target", median over repetitions."""
    ratios = []
    for repetition, base in enumerate(samples.baselines[samples.base]):
        targets = [timed[repetition]["target"] for timed in samples.phases.values()]
        ratios.append(base.step(samples.sweep.tokens) / statistics.median(targets))
    return statistics.median(ratios)


def round_seconds(run: Run) -> float:
    """Seconds of a round of a run, without reading the prompt. ValueError when its rounds are not known."""
    if run.accepted is None or not run.rounds:
        raise ValueError("a run that reports no accepted counts has no known number of rounds")
    if run.first_seconds is None or run.rounds == run.first_rounds:
        return run.seconds / run.rounds
    return (run.seconds - run.first_seconds) / (run.rounds - run.first_rounds)


def tokens_per_pass(run: Run, tokens: int) -> float:
    """Tokens per row that a pass of the engine made in a run of ``tokens`` tokens per row.

    Less than a round emits on average where the last round was cut, and where rows that are done wait for others. A token made
    while reading the prompt (then a run of one token has no round) is none of the rounds'.
    """
    by_prompt = run.first_seconds is not None and run.first_rounds == 0
    return (tokens - by_prompt) / run.rounds


def decoding_speedup(base: Base, run: Run, tokens: int) -> float:
    """Seconds per token of the baseline over those with speculation, reading the prompt left out on both sides."""
    return base.step(tokens) * tokens_per_pass(run, tokens) / round_seconds(run)


def insist_on_time(samples: Samples) -> None:
    """Refuse what took no time. Errors: SubjectError when a run took no longer than one of a single token."""
    tokens = samples.sweep.tokens
    by_step = any(run.first_seconds is not None for runs in samples.runs.values() for run in runs)
    steps = [base.step(tokens) if by_step else base.seconds for base in samples.baselines[samples.base]]
    rounds = [round_seconds(r) for runs in samples.runs.values() for r in runs if r.accepted is not None and r.rounds]
    targets = [timed["target"] for several in samples.phases.values() for timed in several]
    if min([*steps, *rounds, *targets]) <= 0:
        raise SubjectError(f"{tokens} tokens take no longer than one, as far as the clock tells; ask for more --tokens")


def impossible(samples: Samples) -> list[str]:
    """Say where a pass over K + 1 tokens came out clearly cheaper than a step: such costs tell of the machine alone."""
    cheap = sorted({k for (_, k), cost in costs_of(samples).items() if cost.v < CHEAPEST})
    if not cheap:
        return []
    ks = ", ".join(map(str, cheap))
    seen = f"at K = {ks} a pass over K + 1 tokens came out below {CHEAPEST:g} of a step: something disturbed the measurement"
    return [f"{seen}, so do not trust the predictions; measure again, or with more --repetitions"]
