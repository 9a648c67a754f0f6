"""Does a row stop where it should? EOS inside an accepted run, nothing after it, and the exact number of tokens asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.in_shards import sampled_decoder
from specverify.checks.own_tokens import MOST_PROBABILITIES, OwnTokens, decoder_prompts
from specverify.evidence.measurements import AnyMeasurement, LawMeasurement, ViolationMeasurement
from specverify.exact import decoder_emission
from specverify.laws import Tokens
from specverify.pairs import named_pair, pair_for
from specverify.subjects import Decoder, DecoderLike
from specverify.tables import torch_models

NAME = "stopping"
QUESTION = "Does a row end at the first EOS, with nothing after it and the law of what came before intact?"

SIZES = ((2, 2, 4), (3, 1, 3))


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """An exact test over table models with an EOS, and a sampled one on the decoder's own models."""
    if not isinstance(part, Decoder):
        return Skipped(NAME, part.name, "a single round does not stop; the decoder does")
    tests = []
    if part.build is not None and takes_eos(part.build):
        tests.append(Planned(NAME, part.name, "table models", False))
    if part.open is not None:
        drawn = part.facts.rule != "greedy"
        tests.append(Planned(NAME, part.name, "own models", drawn, {"rows": min(settings.budget.single, 256), "length": 48}))
    return tests or Skipped(NAME, part.name, "there is no open, and build takes no eos_id")


def takes_eos(build: Callable[..., DecoderLike]) -> bool:
    """Whether a factory declares that it can stop: a parameter eos_id, or keywords of any name."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):
        return True
    return "eos_id" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def after_eos(tokens: Tokens, eos_id: int) -> bool:
    """Whether anything but eos or padding stands after the first eos."""
    if eos_id not in tokens:
        return False
    return any(t not in (eos_id, -1) for t in tokens[tokens.index(eos_id) :])


def run(planned: Planned, context: Context) -> Found:
    """Look for tokens after an EOS, and compare the law up to it."""
    part = context.part
    assert isinstance(part, Decoder)
    if planned.variant == "own models":
        return _own_models(planned, context)
    assert part.build is not None
    found: list[AnyMeasurement] = []
    for vocab_size, k, length in SIZES:
        pair, eos = pair_for(part.facts.rule, named_pair(vocab_size, k)), vocab_size - 1
        decoder = part.build(*torch_models(pair, part.facts.torch_dtype), pair.k, eos_id=eos)
        found_law = decoder_emission(decoder, pair, length, name=part.name, max_batch=1, eos_id=eos)
        emitted, left = found_law.tokens, found_law.unexplored
        bad = [tokens for tokens in emitted if after_eos(tokens, eos)]
        found.append(
            ViolationMeasurement(
                f"nothing follows eos_id = {eos} (V = {vocab_size}, K = {k})",
                len(bad),
                len(emitted),
                str(list(bad[0])) if bad else "",
            )
        )
        if not bad:
            padded = {tuple(eos if t == -1 else t for t in tokens): 0.0 for tokens in emitted}
            for tokens, mass in emitted.items():
                padded[tuple(eos if t == -1 else t for t in tokens)] += mass
            found.append(LawMeasurement(pair, length, padded, part.facts.dtype, eos, left))
    return Found(tuple(found))


def _own_models(planned: Planned, context: Context) -> Found:
    decoder = context.opened
    assert decoder is not None
    eos = getattr(decoder, "eos_id", None)
    label = "exactly the tokens asked for"
    if eos is not None:
        label += ", and nothing after an EOS"
    rows, length = planned.params["rows"], planned.params["length"]
    prompts = decoder_prompts(decoder, context.seed)
    if context.part.facts.max_batch == 1:
        rows = min(rows, 24)
    samples = sampled_decoder(context, decoder, prompts, rows, length)
    sequences = [s for sample in samples for s in sample.sequences]
    bad = [s for s in sequences if eos is not None and after_eos(s, int(eos))]
    notes = () if eos is not None else ("the decoder declares no eos_id; only the number of tokens was checked",)
    ranks: list[AnyMeasurement] = []
    if planned.statistical:
        own = OwnTokens(decoder, prompts, context.part.name, context.seed, context.part.facts.logit_tolerance)
        own.see(samples, MOST_PROBABILITIES)
        never = ViolationMeasurement(
            "no token of probability 0", len(own.impossible), own.watch.process.tokens, "".join(own.impossible[:1])
        )
        ranks = [*own.rank_cells(), never]
    return Found(
        (
            *ranks,
            ViolationMeasurement(label, len(bad), len(sequences), str(list(bad[0])) if bad else ""),
        ),
        None,
        notes,
    )
