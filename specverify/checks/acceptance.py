"""Are accepted counts what they can be? Reported against emitted, and the most that any exact rule can accept."""

from __future__ import annotations

from dataclasses import replace

from specverify.checks.accepted_counts import accepted_on_tables, consistency, without_bounds
from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.in_shards import sampled_decoder
from specverify.checks.own_tokens import decoder_prompts
from specverify.checks.sampling import Sample
from specverify.evidence.measurements import (
    ROUNDING_AT_MOST,
    AnyMeasurement,
    BoundMeasurement,
    OutcomeMeasurement,
    RateMeasurement,
    law_tolerance,
)
from specverify.exact import Emission, emission
from specverify.laws import Pair
from specverify.pairs import named_pair, pair_for
from specverify.subjects import Decoder, DecoderLike, Step, Verifier, checked_log_probs
from specverify.theory import block_tail, first_overlap, several_drafts_bound
from specverify.tree_drafts import first_draft_sets, vocab_sizes
from specverify.trees import TreeVerifier
from specverify.unknown_law import OnOff

NAME = "acceptance"
QUESTION = "Do the reported counts match what was emitted, and is acceptance within what exactness allows?"

FEW_TREES = 800
"""Most draft trees that are walked for the acceptance of one round."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """Exact bounds for what drafts in a round; for decoders that report counts, their consistency and first rate."""
    if isinstance(part, Decoder):
        draws = max(settings.budget.single // 4, 500)
        tests = []
        if part.build is not None:
            tests.append(Planned(NAME, part.name, "table models", True, {"draws": draws, "size": (3, 2)}))
        if part.open is not None:
            drawn = part.facts.rule != "greedy"
            tests.append(Planned(NAME, part.name, "own models", drawn, {"draws": draws, "length": 8}))
        return tests or Skipped(NAME, part.name, "there is neither open nor build to sample from")
    if isinstance(part, TreeVerifier):
        trees = [(v, part.k) for v in vocab_sizes(part, FEW_TREES)[-2:]]
        if not trees:
            return Skipped(NAME, part.name, "there are too many trees of drafts to walk exactly")
        return [Planned(NAME, part.name, "exact", False, {"sizes": trees})]
    sizes = [(3, part.k)] if isinstance(part, Step) else [(3, 1), (3, 2), (4, 3)]
    if isinstance(part, Step) and without_bounds(part):
        return Skipped(NAME, part.name, without_bounds(part))
    if isinstance(part, Verifier) and part.facts.max_k is not None:
        sizes = [s for s in sizes if s[1] <= part.facts.max_k]
    return [Planned(NAME, part.name, "exact", False, {"sizes": sizes})]


def run(planned: Planned, context: Context) -> Found:
    """Compare accepted counts with the bounds; see rules.md's lie detectors."""
    part = context.part
    if isinstance(part, Decoder) and planned.variant == "table models":
        return accepted_on_tables(part, planned.params["size"], planned.params["draws"], context)
    if isinstance(part, Decoder):
        assert context.opened is not None
        return _decoder(planned, context, context.opened)
    assert not isinstance(part, OnOff)
    found: list[AnyMeasurement] = []
    notes: list[str] = []
    for vocab_size, k in planned.params["sizes"]:
        pair = pair_for(context.part.facts.rule, named_pair(vocab_size, k))
        emitted = emission(part, pair)
        slack = min(law_tolerance(part.facts.dtype, vocab_size, k + 1), ROUNDING_AT_MOST)
        where = f"V = {vocab_size}, K = {k}"
        bounds = _tree_bounds(part, pair, emitted, slack) if isinstance(part, TreeVerifier) else _bounds(pair, emitted, slack)
        found += [replace(bound, label=f"{bound.label} ({where})") for bound in bounds]
        emitted.confirm_deviation(max(m.value - m.bound - m.tolerance for m in bounds))
        if emitted.unexplored > slack:
            found.append(
                OutcomeMeasurement("inconclusive", f"{emitted.why}; {emitted.unexplored:.3g} of the probability is left")
            )
        if emitted.reported:
            off, example = _misreported(emitted)
            if off > slack:
                notes.append(f"{where}: {example}, on the pair {pair.to_json()}")
            found.append(BoundMeasurement(f"P(reported accepted count is not tokens emitted - 1) ({where})", off, 0.0, slack))
    return Found(tuple(found), None, tuple(notes))


def _misreported(emitted: Emission) -> tuple[float, str]:
    """Probability that the count reported is not the accepted one, and the likeliest example."""
    wrong = {counts: mass for counts, mass in emitted.reported.items() if counts[0] != counts[1]}
    if not wrong:
        return 0.0, ""
    (said, real), mass = max(wrong.items(), key=lambda entry: entry[1])
    return sum(wrong.values()), f"{said} accepted were reported where {real + 1} tokens were emitted (probability {mass:.4g})"


def _at_least(emitted: Emission, accepted: int) -> float:
    """P(tau >= accepted)."""
    return sum(mass for tokens, mass in emitted.tokens.items() if len(tokens) > accepted)


def _bounds(pair: Pair, emitted: Emission, slack: float) -> list[BoundMeasurement]:
    """What one drafted path may be accepted at most."""
    tail = [_at_least(emitted, i) for i in range(1, pair.k + 1)]
    best = float(block_tail(pair).sum())
    return [
        BoundMeasurement("P(first draft accepted) against 1 - TV", tail[0], first_overlap(pair), slack),
        BoundMeasurement("E[accepted] against the block optimum", sum(tail), best, pair.k * slack),
    ]


def _tree_bounds(part: TreeVerifier, pair: Pair, emitted: Emission, slack: float) -> list[BoundMeasurement]:
    """How often one of the root's children may be accepted at most."""
    bound = several_drafts_bound(pair.target.next_law(pair.prompt), first_draft_sets(part.shape, part.children, pair))
    label = "P(one of the first drafts accepted) against 1 + min over H of p(H) - P(all drafts in H)"
    return [BoundMeasurement(label, _at_least(emitted, 1), bound, slack)]


def _decoder(planned: Planned, context: Context, decoder: DecoderLike) -> Found:
    """A decoder on its own models: counts that add up, and after each of a few prompts the first draft of the first round."""
    length, part = planned.params["length"], context.part
    prompts = decoder_prompts(decoder, context.seed, 3)
    samples = sampled_decoder(context, decoder, prompts, planned.params["draws"], length)
    together = Sample()
    for sample in samples:
        together.count_all(sample)
    if not together.reported:
        return Found((), None, ("the decoder does not report accepted counts",))
    found: list[AnyMeasurement] = [consistency(together, length, getattr(decoder, "eos_id", None))]
    draft_log_probs = getattr(decoder, "draft_log_probs", None)
    if without_bounds(part):
        return Found(tuple(found), None, (without_bounds(part),))
    if draft_log_probs is None or not planned.statistical:
        return Found(tuple(found))
    for number, (prompt, sample) in enumerate(zip(prompts, samples, strict=True), 1):
        ids = prompt[None]
        p = checked_log_probs(decoder.target_log_probs(ids), ids, decoder.vocab_size, "target_log_probs")[0, -1].exp()
        q = checked_log_probs(draft_log_probs(ids), ids, decoder.vocab_size, "draft_log_probs")[0, -1].exp()
        bound = min(1.0, float(p.minimum(q).sum()) + 1e-5)
        first = [counts[0] >= 1 for _, counts in sample.reported if counts]
        found.append(RateMeasurement(f"first draft accepted, against 1 - TV, prompt {number}", sum(first), len(first), bound))
    return Found(tuple(found))
