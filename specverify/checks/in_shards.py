"""How is a sample drawn so that a kill loses little of it? In shards with seeds of their own, kept as they come.

A shard is as many rows as a few calls take, so that a decoder that takes one row per call is kept after every few of them.
Shard 0 has the seed that is asked for, shard n the one derived from it and n: what is drawn does not depend on kills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from specverify.checks.base import Context, Part
from specverify.checks.sampling import (
    DECODER_ROWS,
    MOST_ROWS,
    SMALL_BATCHES,
    Sample,
    sample_decoder,
    sample_step,
    sample_tree_verifier,
    sample_verifier,
)
from specverify.laws import Ints, Pair
from specverify.randomness import derive
from specverify.runs.shards import Form, Shard, Shards
from specverify.subjects import Decoder, DecoderLike, Step, Verifier
from specverify.tables import torch_models
from specverify.trees import TreeVerifier

CALLS = 32
"""Calls of one shard, where a call takes few rows."""
SMALL_ROUNDS = 16
"""How often all small batch sizes come in one shard."""


def rows_of_a_shard(max_batch: int | None, most: int, *, small: bool = False) -> int:
    """Rows of a shard: what one call takes where it takes many, and CALLS calls where it takes few."""
    if small:
        return min(most, SMALL_ROUNDS * sum(min(size, max_batch or size) for size in SMALL_BATCHES))
    return most if max_batch is None else min(most, CALLS * max_batch)


def in_shards(
    shards: Shards, n: int, rows: int, seed: int, asked: dict[str, Any], draw: Callable[[int, int, int], list[Sample]]
) -> list[Sample]:
    """``n`` rows, ``rows`` of them per shard, by ``draw(rows, seed, rows made before)``; one sample per prompt."""
    parts: list[list[Sample]] = []
    made = 0
    while made < n or not parts:
        size = min(rows, n - made)
        own = derive(seed, "shard", len(parts)) if parts else seed
        whole = {**asked, "rows": size, "seed": own}
        parts.append(shards.drawn(whole, partial(draw, size, own, made), SAMPLES))
        made += size
    return joined(parts)


def joined(parts: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Samples of several shards after each other, prompt by prompt."""
    out = []
    for same in zip(*parts, strict=True):
        whole = Sample()
        for sample in same:
            whole.sequences += sample.sequences
            whole.calls += sample.calls
            whole.count_all(sample)
        whole.counts_known = any(sample.counts_known for sample in same)
        out.append(whole)
    return out


def sampled_decoder(
    context: Context,
    decoder: DecoderLike,
    prompts: torch.Tensor,
    n: int,
    length: int,
    seed: int | None = None,
    *,
    small: bool = False,
) -> list[Sample]:
    """``sample_decoder`` in shards, with the seed of the test by default."""
    facts, name = context.part.facts, context.part.name

    def draw(rows: int, own: int, made: int) -> list[Sample]:
        return sample_decoder(decoder, prompts, rows, length, own, name=name, max_batch=facts.max_batch, small=small, made=made)

    asked = {"what": "decoder", "length": length, "prompts": len(prompts)}
    size = rows_of_a_shard(facts.max_batch, DECODER_ROWS, small=small)
    return in_shards(context.shards, n, size, context.seed if seed is None else seed, asked, draw)


def sampled_part(context: Context, pair: Pair, n: int, length: int, seed: int, *, small: bool = False) -> Sample:
    """``n`` sequences of a part of any kind over the table models of a pair, in shards."""
    part: Part = context.part
    if isinstance(part, Decoder):
        assert part.build is not None
        decoder = part.build(*torch_models(pair, part.facts.torch_dtype), pair.k)
        prompts = torch.tensor([pair.prompt], dtype=torch.int64)
        (sample,) = sampled_decoder(context, decoder, prompts, n, length, seed, small=small)
        return sample

    def draw(rows: int, own: int, _made: int) -> list[Sample]:
        if isinstance(part, Step):
            return [sample_step(part, pair, rows, length, own)]
        if isinstance(part, TreeVerifier):
            return [sample_tree_verifier(part, pair, rows, length, own, small=small)]
        assert isinstance(part, Verifier)
        return [sample_verifier(part, pair, rows, length, own, small=small)]

    asked = {"what": "table models", "length": length, "v": pair.vocab_size, "k": pair.k}
    size = rows_of_a_shard(part.facts.max_batch, MOST_ROWS, small=small)
    (sample,) = in_shards(context.shards, n, size, seed, asked, draw)
    return sample


EVENTS = ("accepted", "rejected", "bonus", "later_rounds", "counts_known")
"""Fields of a sample that are plain numbers."""


def pack(samples: list[Sample]) -> Shard:
    """Samples as a shard."""
    facts: list[dict[str, Any]] = []
    arrays: dict[str, Ints] = {}
    for i, sample in enumerate(samples):
        facts.append({name: getattr(sample, name) for name in EVENTS})
        arrays[f"{i} sequences"] = np.concatenate(sample.arrays) if sample.arrays else _array(sample.sequences)
        arrays[f"{i} calls"] = np.array(sample.calls, np.int64)
        if sample.reported:
            if [tokens for tokens, _ in sample.reported] != sample.sequences:
                arrays[f"{i} reported"] = _array([tokens for tokens, _ in sample.reported])
            arrays[f"{i} rounds"] = np.array([len(counts) for _, counts in sample.reported], np.int64)
            arrays[f"{i} counts"] = np.array([c for _, counts in sample.reported for c in counts], np.int64)
    return Shard({"samples": facts}, arrays)


def _array(rows: Sequence[Sequence[int]]) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), -1 if rows else 0)


def unpack(shard: Shard) -> list[Sample]:
    """The samples of a shard."""
    samples = []
    for i, facts in enumerate(shard.facts["samples"]):
        sample = Sample(_rows(shard.arrays[f"{i} sequences"]), shard.arrays[f"{i} calls"].tolist(), **facts)
        if f"{i} rounds" in shard.arrays:
            ends = shard.arrays[f"{i} rounds"].cumsum()
            counts = [part.tolist() for part in np.split(shard.arrays[f"{i} counts"], ends[:-1])]
            tokens = _rows(shard.arrays[f"{i} reported"]) if f"{i} reported" in shard.arrays else sample.sequences
            sample.reported = list(zip(tokens, counts, strict=True))
        samples.append(sample)
    return samples


def _rows(array: Ints) -> list[tuple[int, ...]]:
    return list(map(tuple, array.tolist()))


SAMPLES: Form[list[Sample]] = Form(pack, unpack)
