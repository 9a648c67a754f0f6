"""Are requests and rows separate samples? Replay under one seed, difference under others, and between rows of one call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.own_tokens import decoder_prompts
from specverify.checks.sampling import seeded
from specverify.evidence.measurements import AnyMeasurement, RateMeasurement, ViolationMeasurement
from specverify.randomness import derive
from specverify.subjects import Decoder, DecoderLike, checked_log_probs, normalise_generated

NAME = "seeds"
QUESTION = "Does a seed replay, and do other seeds and other rows give samples of their own?"

RARE = 1e-4
"""Probability of a coincidence below which it counts."""
RARER = (RARE, 1e-8, 1e-12, 1e-16)
"""The same for repeats of any earlier output: few at the first, a single one at the last."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """One statistical test on the decoder's own models."""
    if not isinstance(part, Decoder) or part.open is None:
        return Skipped(NAME, part.name, "seeds are given to decoders with models of their own")
    if part.facts.rule == "greedy":
        return Skipped(NAME, part.name, "a greedy decoder draws nothing, whatever the seed")
    return [
        Planned(NAME, part.name, "own models", True, {"calls": 12 if settings.budget.name == "smoke" else 24, "length": 24})
    ]


def _log_prob(decoder: DecoderLike, prompt: torch.Tensor, tokens: list[int], name: str) -> float:
    """Log-probability of new tokens after a prompt, up to and including the first eos."""
    eos = getattr(decoder, "eos_id", None)
    if eos is not None and eos in tokens:
        tokens = tokens[: tokens.index(eos) + 1]
    ids = torch.cat([prompt, torch.tensor(tokens)])[None]
    logs = checked_log_probs(decoder.target_log_probs(ids), ids, decoder.vocab_size, f"{name}.target_log_probs")[0]
    start = len(prompt) - 1
    return float(sum(logs[start + i, t] for i, t in enumerate(tokens)))


def rare_repeats(outputs: Sequence[tuple[int, ...]], chances: Sequence[float], rare: float = RARE) -> int:
    """Outputs that equal any earlier one while all different earlier ones together have probability at most ``rare``.

    Guarantee: for independent outputs with these probabilities, at most binomial with len(outputs) - 1 trials of ``rare``.
    """
    repeats = 0
    earlier: dict[tuple[int, ...], float] = {}
    for output, chance in zip(outputs, chances, strict=True):
        repeats += output in earlier and sum(earlier.values()) <= rare
        earlier[output] = chance
    return repeats


def run(planned: Planned, context: Context) -> Found:
    """Identical outputs have known probability: given the first, each other one equals it with probability p(first).

    Pairs are counted only where what came before makes them rarer than :data:`RARE`, which is fixed beforehand: whatever the
    outputs are, their number is then at most binomial with that rate.
    """
    part, decoder = context.part, context.opened
    assert isinstance(part, Decoder)
    assert decoder is not None
    calls, length = planned.params["calls"], planned.params["length"]
    rows = 1 if part.facts.max_batch == 1 else 2
    eos = getattr(decoder, "eos_id", None)
    prompt = decoder_prompts(decoder, context.seed, 1)[0]

    def generate(seed: int) -> list[list[int]]:
        raw = decoder.generate(prompt.repeat(rows, 1), length, seed=seed)
        tokens: list[list[int]] = normalise_generated(raw, rows, length, decoder.vocab_size, eos, part.name).tokens.tolist()
        return tokens

    with seeded(derive(context.seed, "outer")):
        outputs = [generate(derive(context.seed, "call", c) % 2**31) for c in range(calls)]
        again = generate(derive(context.seed, "call", 0) % 2**31)
    found: list[AnyMeasurement] = []
    if part.facts.seeded:
        same = again == outputs[0]
        found.append(
            ViolationMeasurement(
                "the same seed gives the same tokens",
                int(not same),
                1,
                "" if same else next(f"{a} then {b}" for a, b in zip(outputs[0], again, strict=True) if a != b),
            )
        )
    chances = [min(1.0, math.exp(_log_prob(decoder, prompt, o[0], part.name))) for o in outputs]
    first = [o[0] for o in outputs]
    equal = sum(o == first[0] for o in first[1:])
    found.append(RateMeasurement("identical outputs under different seeds: dependent requests", equal, calls - 1, chances[0]))
    every = [tuple(row) for o in outputs for row in o]  # rows of one call too, and any row against any of an earlier call
    of_each = [min(1.0, math.exp(_log_prob(decoder, prompt, list(row), part.name))) for row in every]
    for rare in RARER:
        repeats = rare_repeats(every, of_each, rare)
        label = f"outputs that repeat any earlier one, rarer than {rare:g}: dependent requests or rows"
        found.append(RateMeasurement(label, repeats, len(every) - 1, rare))
    if rows > 1:
        twins = sum(o[0] == o[1] and chance <= RARE for o, chance in zip(outputs, chances, strict=True))
        found.append(RateMeasurement("identical rows of one call: dependent rows", twins, calls, RARE))
    return Found(tuple(found))
