"""Does one round emit the target law, exactly? The law of the unmodified code on fixed and on generated pairs."""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase

from specverify.checks.base import Context, Found, Part, Planned, Round, Settings, Skipped
from specverify.checks.explain import confirm_refutation, counterexample_from
from specverify.errors import OpaqueRandomness, SubjectError, SubjectTimeout
from specverify.evidence.measurements import BoundMeasurement, CoverageMeasurement, LawMeasurement, OutcomeMeasurement
from specverify.exact import Emission, emission
from specverify.laws import Pair
from specverify.pairs import named_pair, pair_for, pairs
from specverify.subjects import Decoder, Step, Verifier
from specverify.tree_drafts import vocab_sizes
from specverify.trees import TreeVerifier

NAME = "single_step"
QUESTION = "Does one round emit exactly the target law, whatever p and q are?"

NAMED = ((2, 1), (3, 2), (4, 3))
LARGE = ((5, 3), (6, 4))
TREES, LARGE_TREES, GENERATED_TREES, TREES_ALONE = 800, 5_000, 100, 125
"""Most draft trees that are walked on a named pair, on one of a large budget, on a generated pair, one row per call."""
MOST_BISECTED_ALONE = 100
"""Most pairs generated where thresholds are bisected with one row per call: each pair takes thousands of calls."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """Two exact tests: the named pairs, and pairs generated until one fails."""
    if isinstance(part, Decoder):
        return Skipped(NAME, part.name, "a decoder does not expose a single round; see rounds and sequence")
    if isinstance(part, TreeVerifier):
        return _plan_trees(part, settings)
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


def _plan_trees(part: TreeVerifier, settings: Settings) -> list[Planned] | Skipped:
    """The same two tests over as many tokens as leave few enough trees to draft."""
    most = LARGE_TREES if settings.budget.large else TREES
    sizes = [(v, part.k) for v in vocab_sizes(part, TREES_ALONE if part.facts.max_batch == 1 else most)]
    if not sizes:
        return Skipped(NAME, part.name, f"there are more than {most} such trees of drafts; see sequence")
    tests = [Planned(NAME, part.name, "named pairs", False, {"sizes": sizes})]
    if vocab_sizes(part, GENERATED_TREES):
        tests.append(Planned(NAME, part.name, "generated pairs", False, {"examples": settings.budget.generated}))
    return tests


def bisected_alone(part: Part) -> bool:
    """Whether thresholds must be bisected with one row per call, which takes hundreds of calls for each region."""
    return isinstance(part, Verifier) and bool(part.given) and part.facts.max_batch == 1


def measure(part: Round, pair: Pair, *, confirm: bool = True) -> tuple[LawMeasurement, Emission]:
    """The law of one round on a pair, completed to K + 1 tokens, as a measurement; a deviation is confirmed by default."""
    found = emission(part, pair)
    measurement = LawMeasurement(pair, pair.k + 1, found.tokens, part.facts.dtype, unexplored=found.unexplored)
    if confirm:
        confirm_refutation(measurement, found)
    return measurement, found


def run(planned: Planned, context: Context) -> Found:
    """Measure the exact law on every pair; stop at the first that fails."""
    part = context.part
    assert isinstance(part, (Verifier, Step, TreeVerifier))
    if "sizes" in planned.params:
        return _named(part, planned, context)
    return _generated(part, planned, context)


def _named(part: Round, planned: Planned, context: Context) -> Found:
    measurements: list[LawMeasurement | CoverageMeasurement] = []
    notes: list[str] = []
    events = {"accepted": 0.0, "rejected": 0.0, "bonus": 0.0}
    for vocab_size, k in planned.params["sizes"]:
        pair = pair_for(part.facts.rule, named_pair(vocab_size, k))
        measurement, emitted = measure(part, pair)
        measurements.append(measurement)
        if emitted.coupled and not notes:
            notes.append(f"rows of a batch were not walked side by side, but one row per call: {emitted.coupled}")
        for tokens, mass in emitted.tokens.items():
            events["accepted"] += mass * (len(tokens) > 1)
            events["rejected"] += mass * (len(tokens) <= k)
            events["bonus"] += mass * (len(tokens) == k + 1)
        if measurement.judge(0).verdict == "refuted":
            return Found(tuple(measurements), counterexample_from(measurement, context.spec, part.name))
    distinct = isinstance(part, TreeVerifier) and part.children != "with replacement"
    if distinct and all(vocab_size <= part.shape.width for vocab_size, _ in planned.params["sizes"]):  # type: ignore[union-attr]
        del events["rejected"]
        notes.append("nothing can be rejected here: the children of a node are all tokens that there are")
    return Found((*measurements, CoverageMeasurement(events, 1e-3)), None, tuple(notes))


def smallest_failing(
    fails: Callable[[Pair], bool],
    *,
    max_vocab: int,
    max_k: int,
    min_k: int,
    dtype: str,
    examples: int,
    seed: int,
    min_vocab: int = 2,
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
    strategy = pairs(max_vocab=max_vocab, max_k=max_k, min_k=min_k, min_vocab=min_vocab, dtype=dtype, ulp=False)
    try:
        return hypothesis.find(strategy, counted, settings=settings, random=random.Random(seed)), tried
    except hypothesis.errors.NoSuchExample:
        return None, tried


def _generated(part: Round, planned: Planned, context: Context) -> Found:
    max_k = min(2 if bisected_alone(part) else 3, part.facts.max_k or 3) if isinstance(part, Verifier) else part.k
    min_k = 1 if isinstance(part, Verifier) else part.k
    min_vocab, max_vocab = 2, 4 if max_k <= 3 and part.facts.max_batch != 1 else 3
    if isinstance(part, TreeVerifier):
        min_vocab, *_, max_vocab = 2 * vocab_sizes(part, GENERATED_TREES)
    largest = {"ratio": 0.0}
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
        ratio = measurement.deviation()[0] / measurement.tolerance
        if ratio >= largest["ratio"]:
            largest["ratio"] = ratio
            kept["worst"] = measurement
        if measurement.unexplored > measurement.tolerance:
            kept["partial"] = measurement
        if ratio > 1:
            broke["failed"] = None
        return ratio > 1

    failing, tried = smallest_failing(
        fails,
        min_vocab=min_vocab,
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
        return Found((summary, *kept.values()))
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
