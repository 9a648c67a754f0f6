"""Does one round emit the target law, exactly? The law of the unmodified code on fixed and on generated pairs."""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.explain import confirm_refutation, counterexample_from
from specverify.errors import OpaqueRandomness, SubjectError, SubjectTimeout
from specverify.evidence.measurements import BoundMeasurement, CoverageMeasurement, LawMeasurement, OutcomeMeasurement
from specverify.exact import emission
from specverify.laws import Pair, Tokens
from specverify.pairs import named_pair, pair_for, pairs
from specverify.subjects import Decoder, Step, Verifier

NAME = "single_step"
QUESTION = "Does one round emit exactly the target law, whatever p and q are?"

NAMED = ((2, 1), (3, 2), (4, 3))
LARGE = ((5, 3), (6, 4))
MOST_BISECTED_ALONE = 100
"""Most pairs generated where thresholds are bisected with one row per call: each pair takes thousands of calls."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """Two exact tests: the named pairs, and pairs generated until one fails."""
    if isinstance(part, Decoder):
        return Skipped(NAME, part.name, "a decoder does not expose a single round; see rounds and sequence")
    sizes = [*NAMED, *(LARGE if settings.budget.large else ())]
    if isinstance(part, Step):
        sizes = [
            (3, part.k),
            (4, part.k),
            (5, part.k),
            *([(6, part.k)] if settings.budget.large and part.k <= 4 else []),
        ]
    elif part.facts.max_k is not None:
        sizes = [(v, k) for v, k in sizes if k <= part.facts.max_k] or [(3, part.facts.max_k)]
    if part.facts.max_batch == 1:
        sizes = [(v, k) for v, k in sizes if v**k <= (64 if bisected_alone(part) else 125)] or sizes[:1]
    examples = min(settings.budget.generated, MOST_BISECTED_ALONE) if bisected_alone(part) else settings.budget.generated
    return [
        Planned(NAME, part.name, "named pairs", False, {"sizes": sizes}),
        Planned(NAME, part.name, "generated pairs", False, {"examples": examples}),
    ]


def bisected_alone(part: Part) -> bool:
    """Whether thresholds must be bisected with one row per call, which takes hundreds of calls for each region."""
    return isinstance(part, Verifier) and bool(part.given) and part.facts.max_batch == 1


def measure(part: Verifier | Step, pair: Pair, *, confirm: bool = True) -> tuple[LawMeasurement, dict[Tokens, float]]:
    """The law of one round on a pair, completed to K + 1 tokens, as a measurement; a deviation is confirmed by default."""
    found = emission(part, pair)
    measurement = LawMeasurement(pair, pair.k + 1, found.tokens, part.facts.dtype)
    if confirm:
        confirm_refutation(measurement, found)
    return measurement, found.tokens


def run(planned: Planned, context: Context) -> Found:
    """Measure the exact law on every pair; stop at the first that fails."""
    part = context.part
    assert isinstance(part, (Verifier, Step))
    if "sizes" in planned.params:
        return _named(part, planned, context)
    return _generated(part, planned, context)


def _named(part: Verifier | Step, planned: Planned, context: Context) -> Found:
    measurements: list[LawMeasurement | CoverageMeasurement] = []
    events = {"accepted": 0.0, "rejected": 0.0, "bonus": 0.0}
    for vocab_size, k in planned.params["sizes"]:
        pair = pair_for(part.facts.rule, named_pair(vocab_size, k))
        measurement, emitted = measure(part, pair)
        measurements.append(measurement)
        for tokens, mass in emitted.items():
            events["accepted"] += mass * (len(tokens) > 1)
            events["rejected"] += mass * (len(tokens) <= k)
            events["bonus"] += mass * (len(tokens) == k + 1)
        if measurement.judge(0).verdict == "refuted":
            return Found(tuple(measurements), counterexample_from(measurement, context.spec, part.name))
    return Found((*measurements, CoverageMeasurement(events, 1e-3)))


def smallest_failing(
    fails: Callable[[Pair], bool], *, max_vocab: int, max_k: int, min_k: int, dtype: str, examples: int, seed: int
) -> tuple[Pair | None, int]:
    """Look for a pair on which ``fails`` is true, and shrink it; returns (pair or None, number of pairs tried)."""
    tried = 0

    def counted(pair: Pair) -> bool:
        nonlocal tried
        tried += 1
        return fails(pair)

    settings = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    strategy = pairs(max_vocab=max_vocab, max_k=max_k, min_k=min_k, dtype=dtype, ulp=False)
    try:
        return hypothesis.find(strategy, counted, settings=settings, random=random.Random(seed)), tried
    except hypothesis.errors.NoSuchExample:
        return None, tried


def _generated(part: Verifier | Step, planned: Planned, context: Context) -> Found:
    max_k = part.k if isinstance(part, Step) else min(2 if bisected_alone(part) else 3, part.facts.max_k or 3)
    min_k = part.k if isinstance(part, Step) else 1
    max_vocab = 4 if max_k <= 3 and part.facts.max_batch != 1 else 3
    largest = {"deviation": 0.0, "ratio": 0.0}
    kept: dict[str, LawMeasurement] = {}
    broke: dict[str, SubjectError | None] = {}

    def fails(pair: Pair) -> bool:
        try:
            measurement, _ = measure(part, pair_for(part.facts.rule, pair), confirm="failed" not in broke)
        except (OpaqueRandomness, SubjectTimeout):
            raise
        except SubjectError as error:
            broke["failed"] = error
            return True
        ours, right = measurement.laws()
        deviation = float(np.abs(ours - right).max())
        ratio = deviation / measurement.tolerance
        if ratio >= largest["ratio"]:
            largest.update(deviation=deviation, ratio=ratio)
            kept["worst"] = measurement
        if ratio > 1:
            broke["failed"] = None
        return ratio > 1

    failing, tried = smallest_failing(
        fails,
        max_vocab=max_vocab,
        max_k=max_k,
        min_k=min_k,
        dtype=part.facts.dtype,
        examples=planned.params["examples"],
        seed=context.seed,
    )
    if failing is None:
        summary = BoundMeasurement(
            f"largest deviation over {tried} generated pairs, in units of its tolerance", largest["ratio"], 1.0, 0.0
        )
        return Found((summary, kept["worst"]))
    failing = pair_for(part.facts.rule, failing)
    try:
        measurement, _ = measure(part, failing)
    except SubjectError as error:
        return Found((OutcomeMeasurement("error", str(error), f"pair {failing.to_json()}; {error.inputs}"),))
    return Found(
        (measurement,),
        counterexample_from(measurement, context.spec, part.name),
        (f"found after {tried} pairs and shrunk",),
    )
