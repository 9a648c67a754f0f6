"""Does a greedy decoder take the likeliest token everywhere? Its own tokens are fed back to its models, with a margin for ties.

Comparing texts token by token calls a tie a fault, and everything after it; teacher forcing asks about each token given those
that really came before it. A token that lies no further below the likeliest than rounding explains is no fault.
"""

from __future__ import annotations

import itertools
import math

import torch

from specverify.checks.base import Context, Found, Planned
from specverify.checks.in_shards import sampled_decoder
from specverify.checks.own_tokens import decoder_prompts
from specverify.checks.rows import not_the_best
from specverify.checks.sampling import Sample, coverage
from specverify.checks.served import Served, Server
from specverify.evidence.measurements import AnyMeasurement, ViolationMeasurement
from specverify.randomness import derive, stream
from specverify.requests import Request, until_end
from specverify.subjects import DecoderLike

VARIANT = "own models, greedy choices"
"""Name of the test within the check that asks for it."""
PROMPTS = {"smoke": 100, "standard": 400, "certify": 2_000}
"""Prompts to generate after, by budget. What was generated once is generated again after the same prompt, so all differ."""
A_CALL = 32
"""Prompts of one call."""


def many_prompts(decoder: DecoderLike, number: int, seed: int) -> torch.Tensor:
    """Different prompts (N, T): the decoder's own, then beginnings of one with ends of another; or random ids."""
    own = decoder_prompts(decoder, seed, most=number)
    rng, found = stream(seed, "greedy prompts"), dict.fromkeys(map(tuple, own.tolist()))
    length, v = own.shape[1], decoder.vocab_size
    for _ in range(20 * number):  # few prompts, or few ids, do not make that many
        if len(found) >= number:
            break
        if getattr(decoder, "prompts", None) is None:
            found[tuple(rng.integers(0, v, length).tolist())] = None
        else:
            first, second = own[rng.integers(len(own), size=2)].tolist()
            cut = int(rng.integers(0, length + 1))
            found[tuple(first[:cut] + second[cut:])] = None
    return torch.tensor(list(found)[:number])


def greedy_choices(planned: Planned, context: Context, decoder: DecoderLike) -> Found:
    """Generate after many prompts and look at every token; each call has a seed of its own."""
    part, length = context.part, planned.params["length"]
    server = Server(decoder, None, part.name, greedy_only=True)
    prompts = many_prompts(decoder, planned.params["prompts"], context.seed)
    wrong: list[str] = []
    tokens, everything = 0, Sample(counts_known=False)
    for call, some in enumerate(torch.split(prompts, min(part.facts.max_batch or A_CALL, A_CALL))):
        seed = derive(context.seed, "greedy", call)
        samples = sampled_decoder(context, decoder, some, len(some), length, seed)
        for prompt, sample in zip(some.tolist(), samples, strict=True):
            everything.count_all(sample)
            for row in sample.sequences:
                said = tuple(itertools.takewhile(lambda token: token >= 0, until_end(row, server.eos)))
                tokens += len(said)
                asked = Served(Request(tuple(prompt), length), said, "", True)
                wrong += not_the_best(server, asked, part.facts.logit_tolerance)
    label = "every token is the likeliest after those before it, up to rounding"
    found: list[AnyMeasurement] = [ViolationMeasurement(label, len(wrong), tokens, wrong[0] if wrong else "")]
    if everything.reported:
        found.append(coverage(everything))
    share = min(1.0, -math.log(0.01) / max(tokens, 1))
    note = f"{tokens} tokens after {len(prompts)} prompts: more than {share:.2g} of them wrong would very likely show"
    return Found(tuple(found), None, (note,))
