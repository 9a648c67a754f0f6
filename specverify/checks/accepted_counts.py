"""Do the accepted counts that a decoder reports add up, and can an exact decoder accept that much? On table models and its own.

Two bounds need nothing but the models: the first draft is accepted with probability 1 - TV at most, and no rule that verifies
one drafted path accepts more tokens of a round than block verification does on average (Sun et al. 2024). Acceptance below
that of the declared rule is no fault; it is said in a note, for it costs speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from specverify.checks.base import Context, Found, Part
from specverify.checks.in_shards import sampled_decoder
from specverify.checks.sampling import Sample
from specverify.evidence.measurements import AnyMeasurement, OutcomeMeasurement, RateMeasurement, ViolationMeasurement
from specverify.laws import Array, Pair
from specverify.pairs import named_pair, pair_for
from specverify.randomness import derive, stream
from specverify.subjects import Decoder
from specverify.tables import torch_models
from specverify.theory import block_tail, first_overlap, token_rejection_tail

ROUNDING = 1e-5
"""What float32 laws may add to a probability."""
LAWS: Mapping[str, Callable[[Pair], Array]] = {
    "token_rejection": token_rejection_tail,
    "token rejection": token_rejection_tail,
    "block_verification": block_tail,
    "block verification": block_tail,
}
"""Declared rules whose acceptance law is known."""
SEVERAL = "several tokens are drafted for a position: the bounds on accepted counts hold for one, and were not asked for"

OWN = "what it drafts is not drawn from the draft law at hand: the bounds on accepted counts were not asked for"


def without_bounds(part: Part) -> str:
    """Why the bounds on accepted counts of one path drafted from the declared law do not apply, "" where they do."""
    if part.facts.drafts > 1:
        return SEVERAL
    return "" if part.facts.drafts_as_given else OWN


def accepted_on_tables(part: Decoder, size: tuple[int, int], draws: int, context: Context) -> Found:
    """Accepted counts of the first round over table models, against what is possible and what the declared rule does."""
    assert part.build is not None
    pair = pair_for(part.facts.rule, named_pair(*size))
    decoder = part.build(*torch_models(pair, part.facts.torch_dtype), pair.k)
    prompts, length = torch.tensor([pair.prompt], dtype=torch.int64), pair.k + 2
    (sample,) = sampled_decoder(context, decoder, prompts, draws, length)
    if not sample.reported:
        return Found((), None, ("the decoder does not report accepted counts",))
    first = [counts[0] for _, counts in sample.reported if counts]
    found: list[AnyMeasurement] = [consistency(sample, length, None)]
    if without_bounds(part):
        return Found(tuple(found), None, (without_bounds(part),))
    return Found((*found, *bounded(first, pair, context.seed)), None, (said(first, pair, part.facts.rule),))


def bounded(first: Sequence[int], pair: Pair, seed: int) -> list[AnyMeasurement]:
    """The two bounds on accepted counts of the first round. A mean is tested as a rate: one token in K is kept by lot."""
    best, k = float(block_tail(pair).sum()), pair.k
    lots = stream(derive(seed, "lots"), "accepted").random(len(first))
    kept = sum(bool(lot * k < accepted) for lot, accepted in zip(lots, first, strict=True))
    overlap = min(1.0, first_overlap(pair) + ROUNDING)
    return [
        RateMeasurement("first draft accepted, against 1 - TV", sum(n >= 1 for n in first), len(first), overlap),
        RateMeasurement(
            f"accepted in the first round, one of K = {k} by lot, against the block optimum",
            kept,
            len(first),
            min(1.0, best / k + ROUNDING),
        ),
    ]


def said(first: Sequence[int], pair: Pair, rule: str | None) -> str:
    """How much is accepted, how much the declared rule would accept, and how much anyone could."""
    mean = sum(first) / max(len(first), 1)
    at_most = f"at most {float(block_tail(pair).sum()):.3f} are possible"
    law = LAWS.get(rule or "")
    declared = "" if law is None else f", {rule} accepts {float(law(pair).sum()):.3f}"
    return f"first round over V = {pair.vocab_size}, K = {pair.k}: {mean:.3f} tokens accepted on average{declared}, {at_most}"


def consistency(sample: Sample, length: int, eos_id: int | None) -> AnyMeasurement:
    """Rounds emit accepted + 1 tokens each: all together reach the length, all but the last do not. Rows that end say less."""
    bad = []
    judged = 0
    for tokens, counts in sample.reported:
        if eos_id is not None and eos_id in tokens:
            continue
        judged += 1
        reach = sum(c + 1 for c in counts)
        if not counts or reach < length or reach - (counts[-1] + 1) >= length:
            bad.append(counts)
    if not judged:
        return OutcomeMeasurement("skipped", "every row ended before its length, so accepted counts need not add up to it")
    example = f"rounds report {bad[0]} accepted for {length} tokens" if bad else ""
    return ViolationMeasurement("accepted counts add up to the tokens returned", len(bad), judged, example)
