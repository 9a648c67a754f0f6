"""Does a greedy decoder take the likeliest token everywhere? Its own tokens are fed back to its models, with a margin for ties.

Comparing texts token by token calls a tie a fault, and everything after it; teacher forcing asks about each token given those
that really came before it. A token that lies no further below the likeliest than rounding explains is no fault.
"""

from __future__ import annotations

from specverify.checks.base import Context, Found, Planned
from specverify.checks.own_tokens import decoder_prompts
from specverify.checks.rows import not_the_best
from specverify.checks.sampling import sample_decoder
from specverify.checks.served import Served, Server
from specverify.evidence.measurements import ViolationMeasurement
from specverify.requests import Request, until_end
from specverify.subjects import DecoderLike

VARIANT = "own models, greedy choices"
"""Name of the test within the check that asks for it."""


def greedy_choices(planned: Planned, context: Context, decoder: DecoderLike) -> Found:
    """Generate after several prompts and look at every token."""
    part, length = context.part, planned.params["length"]
    prompts, server = decoder_prompts(decoder, context.seed, most=8), Server(decoder, None, part.name, greedy_only=True)
    samples = sample_decoder(
        decoder, prompts, planned.params["draws"], length, context.seed, name=part.name, max_batch=part.facts.max_batch
    )
    wrong, tokens = [], 0
    for prompt, sample in zip(prompts.tolist(), samples, strict=True):
        for row in dict.fromkeys(sample.sequences):
            said = tuple(t for t in until_end(row, server.eos) if t >= 0)
            tokens += len(said)
            wrong += not_the_best(server, Served(Request(tuple(prompt), length), said, "", True), part.facts.logit_tolerance)
    label = "every token is the likeliest after those before it, up to rounding"
    return Found((ViolationMeasurement(label, len(wrong), tokens, wrong[0] if wrong else ""),))
