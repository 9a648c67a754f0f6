"""Is the joint law right over several rounds? Exact law of the first tokens of two and more rounds, rollback included."""

from __future__ import annotations

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.explain import counterexample_from
from specverify.errors import PathBudgetExceeded
from specverify.evidence.measurements import LawMeasurement, OutcomeMeasurement
from specverify.exact import decoder_emission, step_rounds, verifier_rounds
from specverify.laws import Pair, Tokens
from specverify.pairs import named_pair, pair_for
from specverify.subjects import Decoder, Step, Verifier

NAME = "rounds"
QUESTION = "Is the joint law right over two and more rounds, when rejected tokens had to be taken back?"

SMALL = ((2, 1, 4), (2, 2, 4), (3, 1, 3))
"""(V, K, tokens): every sequence spans at least two rounds."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """One exact test over small pairs; a decoder needs ``build`` for it."""
    if isinstance(part, Decoder) and part.build is None:
        return Skipped(NAME, part.name, "exact rounds need a decoder that can be built over table models (Decoder.build)")
    sizes = [*SMALL, *([(3, 2, 4)] if settings.budget.large and part.facts.max_batch != 1 else [])]
    if isinstance(part, Step):
        sizes = [
            (2, part.k, min(part.k + 2, 4)),
            *([(3, part.k, part.k + 2)] if settings.budget.large and part.k <= 2 else []),
        ]
    elif part.facts.max_k is not None:
        sizes = [s for s in sizes if s[1] <= part.facts.max_k]
    if isinstance(part, Decoder):
        sizes = [s for s in sizes if s != (3, 2, 4)]
    return [Planned(NAME, part.name, "table models", False, {"sizes": sizes})]


def rounds_law(part: Part, pair: Pair, length: int) -> dict[Tokens, float]:
    """Exact law of the first ``length`` tokens that a part emits on a pair, over as many rounds as it takes."""
    if isinstance(part, Verifier):
        return verifier_rounds(part, pair, length).tokens
    if isinstance(part, Step):
        return step_rounds(part, pair, length).tokens
    assert part.build is not None
    from specverify.tables import torch_models

    target, draft = torch_models(pair, part.facts.torch_dtype)
    decoder = part.build(target, draft, pair.k)
    return decoder_emission(decoder, pair, length, name=part.name, max_batch=1).tokens


def run(planned: Planned, context: Context) -> Found:
    """Measure the joint law pair after pair; stop at the first that fails."""
    measurements: list[LawMeasurement | OutcomeMeasurement] = []
    for vocab_size, k, length in planned.params["sizes"]:
        pair = pair_for(context.part.facts.rule, named_pair(vocab_size, k))
        try:
            emitted = rounds_law(context.part, pair, length)
        except PathBudgetExceeded as error:
            measurements.append(OutcomeMeasurement("inconclusive", str(error)))
            continue
        measurement = LawMeasurement(pair, length, emitted, context.part.facts.dtype)
        measurements.append(measurement)
        if measurement.judge(0).verdict == "refuted":
            return Found(tuple(measurements), counterexample_from(measurement, context.spec, context.part.name, rounds=True))
    return Found(tuple(measurements))
