"""Is the joint law right over several rounds? Exact law of the first tokens of two and more rounds, rollback included."""

from __future__ import annotations

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.explain import confirm_refutation, counterexample_from
from specverify.evidence.measurements import LawMeasurement
from specverify.exact import Emission, decoder_emission, step_rounds, tree_rounds, verifier_rounds
from specverify.exact.engine import DEFAULT_MAX_PATHS
from specverify.laws import Pair, Tokens
from specverify.pairs import named_pair, pair_for
from specverify.subjects import Decoder, Step, Verifier
from specverify.tree_drafts import vocab_sizes
from specverify.trees import TreeVerifier

NAME = "rounds"
QUESTION = "Is the joint law right over two and more rounds, when rejected tokens had to be taken back?"

SMALL = ((2, 1, 4), (2, 2, 4), (3, 1, 3))
"""(V, K, tokens): every sequence spans at least two rounds."""
MOST_ALONE = 4
"""Most drafts V**K that are walked when every path needs a call of its own."""
FEW_TREES = 16
"""Most draft trees of a round that are walked over two rounds."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """One exact test over small pairs; a decoder needs ``build`` for it."""
    if isinstance(part, Decoder) and part.build is None:
        return Skipped(NAME, part.name, "exact rounds need a decoder that can be built over table models (Decoder.build)")
    if isinstance(part, TreeVerifier):
        small = vocab_sizes(part, MOST_ALONE if part.facts.max_batch == 1 else FEW_TREES)[:1]
        if not small:
            return Skipped(NAME, part.name, "there are too many trees of drafts to walk two rounds exactly; see sequence")
        return [Planned(NAME, part.name, "table models", False, {"sizes": [(small[0], part.k, part.k + 2)]})]
    sizes = [*SMALL, *([(3, 2, 3)] if settings.budget.large and part.facts.max_batch != 1 else [])]
    if isinstance(part, Step):
        sizes = [
            (2, part.k, min(part.k + 2, 4)),
            *([(3, part.k, part.k + 2)] if settings.budget.large and part.k <= 2 else []),
        ]
    elif part.facts.max_k is not None:
        sizes = [s for s in sizes if s[1] <= part.facts.max_k]
    if isinstance(part, Decoder):
        sizes = [s for s in sizes if s != (3, 2, 3)]
    return [Planned(NAME, part.name, "table models", False, {"sizes": sizes})]


MOST_PATHS = 12_000
"""Most paths of every size but the smallest, which is walked to its end: what is not refuted by then is left at that."""


def rounds_law(part: Part, pair: Pair, length: int) -> dict[Tokens, float]:
    """Exact law of the first ``length`` tokens that a part emits on a pair, over as many rounds as it takes."""
    return rounds_emission(part, pair, length).tokens


def rounds_emission(part: Part, pair: Pair, length: int, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """The same with what it took to find it."""
    if isinstance(part, Verifier):
        return verifier_rounds(part, pair, length, max_paths=max_paths)
    if isinstance(part, Step):
        return step_rounds(part, pair, length, max_paths=max_paths)
    if isinstance(part, TreeVerifier):
        return tree_rounds(part, pair, length, max_paths=max_paths)
    assert isinstance(part, Decoder)
    assert part.build is not None
    from specverify.tables import torch_models

    target, draft = torch_models(pair, part.facts.torch_dtype)
    decoder = part.build(target, draft, pair.k)
    return decoder_emission(decoder, pair, length, name=part.name, max_batch=1, max_paths=max_paths)


def run(planned: Planned, context: Context) -> Found:
    """Measure the joint law pair after pair; stop at the first that fails."""
    measurements: list[LawMeasurement] = []
    notes: list[str] = []
    coupled = False
    for number, (vocab_size, k, length) in enumerate(planned.params["sizes"]):
        if coupled and vocab_size**k > MOST_ALONE:
            notes.append(
                f"V = {vocab_size}, K = {k} left out: rows draw according to their batch-mates, so paths are walked one by one"
            )
            continue
        pair = pair_for(context.part.facts.rule, named_pair(vocab_size, k))
        found = rounds_emission(context.part, pair, length, DEFAULT_MAX_PATHS if number == 0 else MOST_PATHS)
        coupled = coupled or found.coupled is not None
        measurement = LawMeasurement(pair, length, found.tokens, context.part.facts.dtype, unexplored=found.unexplored)
        confirm_refutation(measurement, found)
        if number and measurement.judge(0).verdict == "inconclusive":
            notes.append(f"V = {vocab_size}, K = {k} was walked in part: {measurement.judge(0).reason}")
            continue
        measurements.append(measurement)
        if measurement.judge(0).verdict == "refuted":
            return Found(tuple(measurements), counterexample_from(measurement, context.spec, context.part.name, rounds=True))
    return Found(tuple(measurements), None, tuple(notes))
