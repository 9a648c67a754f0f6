"""Are requests and rows separate samples? Replay under one seed, difference under others, and between rows of one call."""

from __future__ import annotations

import math

import torch

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.own_tokens import decoder_prompts
from specverify.checks.sampling import seeded
from specverify.evidence.measurements import AnyMeasurement, RateMeasurement, ViolationMeasurement
from specverify.randomness import derive
from specverify.subjects import Decoder, DecoderLike, checked_log_probs, normalise_generated

NAME = "seeds"
QUESTION = "Does a seed replay, and do other seeds and other rows give samples of their own?"


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """One statistical test on the decoder's own models."""
    if not isinstance(part, Decoder) or part.open is None:
        return Skipped(NAME, part.name, "seeds are given to decoders with models of their own")
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


def run(planned: Planned, context: Context) -> Found:
    """Identical outputs have known probability: each request repeats an earlier one with at most the sum of their p."""
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
                "" if same else f"{outputs[0][0]} then {again[0]}",
            )
        )
    chances = [min(1.0, math.exp(_log_prob(decoder, prompt, o[0], part.name))) for o in outputs]
    # Given the requests before it, each repeats one of them with probability at most the sum over all that are different.
    different = {tuple(o[0]): chance for o, chance in zip(outputs, chances, strict=True)}
    repeats = sum(any(o[0] == earlier[0] for earlier in outputs[:c]) for c, o in enumerate(outputs))
    bound = min(1.0, sum(different.values()))
    found.append(RateMeasurement("identical outputs under different seeds: dependent requests", repeats, calls - 1, bound))
    if rows > 1:
        twins = sum(o[0] == o[1] for o in outputs)
        found.append(RateMeasurement("identical rows of one call: dependent rows", twins, calls, max(chances)))
    return Found(tuple(found))
