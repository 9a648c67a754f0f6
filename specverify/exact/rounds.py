"""What law do a verifier, a step and a decoder emit? The exact engine applied to subjects on table models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.errors import RowsCoupled
from specverify.exact.batch import Batch
from specverify.exact.engine import DEFAULT_MAX_PATHS, walk_rows
from specverify.exact.given import given_regions, law_of
from specverify.laws import Ints, Pair, Tokens, all_sequences, masses
from specverify.subjects import DecoderLike, Emitted, Step, Verifier, naming_inputs, normalise_generated
from specverify.tables import torch_models
from specverify.trees import TreeVerifier

ROWS_PER_CALL = 256
MOST_WALKS = 4096
"""Most paths walked again to confirm one refutation."""
MOST_GIVEN = 200_000
"""Most settings of given numbers tried again for the same, where a call takes many rows: they cost little."""


@dataclass(frozen=True)
class Emission:
    """Exact law of what one call emitted.

    tokens: probability by token tuple. reported: joint probability of (accepted count reported, tokens emitted - 1), empty
    when the subject reports nothing. coupled: why one path per row was not possible, when it was tried and given up.
    unexplored: probability of the paths that were not walked, 0 unless the walk was stopped, and why it was.
    confirm(n) walks n paths again and raises OpaqueRandomness when one comes out differently: before a refutation is
    believed, it must be ruled out that the code drew random numbers that the engine does not know. most_walks bounds n.
    """

    tokens: dict[Tokens, float]
    reported: dict[tuple[int, int], float]
    paths: int
    calls: int
    coupled: str | None = None
    unexplored: float = 0.0
    why: str = ""
    confirm: Callable[[int], None] = lambda _walks: None
    most_walks: int = MOST_WALKS

    def confirm_deviation(self, deviation: float) -> None:
        """Walk so many paths again that hidden randomness able to move this much mass would be seen, but for 1 in 10^10."""
        if deviation > 0:
            self.confirm(min(self.most_walks, math.ceil(23 / deviation)))


def _collect(run: Callable[[list[int], Batch], Sequence[Any]], weights: Sequence[float], rows: int, max_paths: int) -> Emission:
    """Mix the laws of several problems with ``weights``, one path per row where rows are independent."""
    coupled = None
    try:
        explored = walk_rows(run, len(weights), rows=rows, max_paths=max_paths)
    except RowsCoupled as error:
        if rows == 1:
            raise
        coupled = str(error)
        explored = walk_rows(run, len(weights), rows=1, max_paths=max_paths)
    tokens, reported = _masses((leaf.outcome, leaf.weight * weights[leaf.problem]) for leaf in explored.leaves)
    left = sum(x * w for x, w in zip(explored.left, weights, strict=True))
    return Emission(tokens, reported, len(explored.leaves), explored.calls, coupled, left, explored.why, explored.confirm)


def _masses(
    outcomes: Iterable[tuple[tuple[Tokens, int | None], float]],
) -> tuple[dict[Tokens, float], dict[tuple[int, int], float]]:
    """Probability by tokens, and jointly by (accepted count reported, tokens emitted - 1)."""
    found = masses(outcomes)
    tokens = masses((emitted, mass) for (emitted, _), mass in found.items())
    reported = masses(((n, len(emitted) - 1), mass) for (emitted, n), mass in found.items() if n is not None)
    return tokens, reported


def _rows_for(max_batch: int | None) -> int:
    return min(ROWS_PER_CALL, max_batch or ROWS_PER_CALL)


def _outcomes(emitted: Any) -> list[tuple[Tokens, int | None]]:
    rows = emitted.rows()
    accepted = [None] * len(rows) if emitted.accepted is None else emitted.accepted.tolist()
    return list(zip(rows, accepted, strict=True))


def mixed_emission(
    call: Callable[[torch.Tensor], Emitted], weights: Sequence[float], max_batch: int | None, max_paths: int
) -> Emission:
    """Exact law of one call mixed over problems of probability ``weights`` (N,); ``call`` judges the problems named (B,)."""

    def run(numbers: list[int], _batch: Batch) -> list[tuple[Tokens, int | None]]:
        return _outcomes(call(torch.tensor(numbers)))

    return _collect(run, weights, _rows_for(max_batch), max_paths)


def verifier_emission(verifier: Verifier, pair: Pair, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of one verification, with the K drafted tokens drawn from the pair's draft and enumerated outside.

    A verifier that draws is replayed over the outcomes of its draws; one that takes its numbers as arguments is bisected (see
    :mod:`specverify.exact.given`).
    """
    drafts = all_sequences(pair.vocab_size, pair.k)
    ids = np.concatenate([np.tile(np.asarray(pair.prompt, np.int64), (len(drafts), 1)), drafts], axis=1)
    start = len(pair.prompt)
    q = pair.draft.laws_along(ids)[:, start : start + pair.k]
    weights = np.take_along_axis(q, drafts[..., None], axis=2)[..., 0].prod(1)
    used = weights > 0
    tokens = torch.from_numpy(drafts[used])
    q_rows = torch.from_numpy(q[used])
    p_rows = torch.from_numpy(pair.target.laws_along(ids[used])[:, start:])
    if verifier.given:
        return _given_emission(verifier, tokens, q_rows, p_rows, weights[used].tolist(), max_paths)

    def run(numbers: list[int], _batch: Batch) -> list[tuple[Tokens, int | None]]:
        with torch._C.DisableTorchFunction():  # nothing random is here yet
            at = slice(numbers[0], numbers[0] + 1) if len(numbers) == 1 else torch.tensor(numbers)
            handed = tokens[at], q_rows[at], p_rows[at]
        return _outcomes(verifier(*handed))

    return _collect(run, weights[used].tolist(), _rows_for(verifier.facts.max_batch), max_paths)


def _given_emission(
    verifier: Verifier, tokens: Tensor, q_rows: Tensor, p_rows: Tensor, weights: list[float], max_paths: int
) -> Emission:
    """Exact law of a verifier that takes its random numbers as arguments: drafts (N, K) with their laws and weights (N,)."""

    def run(problems: Ints, numbers: list[Tensor]) -> list[tuple[Tokens, int | None]]:
        at = torch.from_numpy(problems)
        return _outcomes(verifier(tokens[at], q_rows[at], p_rows[at], numbers))

    regions, coupled = given_regions(
        run,
        verifier.given,
        weights,
        k=tokens.shape[1],
        vocab_size=p_rows.shape[2],
        dtype=verifier.facts.torch_dtype,
        max_batch=verifier.facts.max_batch,
        max_paths=max_paths,
    )
    emitted, reported = _masses(law_of(regions))
    most = MOST_WALKS if regions.asker.rows == 1 else MOST_GIVEN
    paths, calls = sum(map(len, regions.leaves)), regions.asker.calls
    return Emission(emitted, reported, paths, calls, coupled, confirm=regions.confirm, most_walks=most)


def step_emission(step: Step, pair: Pair, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of one round of a step after the pair's prompt."""
    target, draft = torch_models(pair, step.facts.torch_dtype)
    prompt = torch.tensor([pair.prompt], dtype=torch.int64)

    def run(numbers: list[int], _batch: Batch) -> list[tuple[Tokens, int | None]]:
        return _outcomes(step(target, draft, prompt.repeat(len(numbers), 1)))

    return _collect(run, [1.0], _rows_for(step.facts.max_batch), max_paths)


def emission(subject: Verifier | Step | TreeVerifier, pair: Pair, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of one round of a verifier, a step or a tree verifier on a pair."""
    if isinstance(subject, Verifier):
        return verifier_emission(subject, pair, max_paths=max_paths)
    if isinstance(subject, Step):
        return step_emission(subject, pair, max_paths=max_paths)
    from specverify.exact.trees import tree_emission

    return tree_emission(subject, pair, max_paths=max_paths)


def round_law(
    subject: Verifier | Step | TreeVerifier, pair: Pair, *, max_paths: int = DEFAULT_MAX_PATHS
) -> dict[Tokens, float]:
    """Probability of every token tuple that one round can emit (without padding)."""
    return emission(subject, pair, max_paths=max_paths).tokens


def step_rounds(step: Step, pair: Pair, length: int, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of the first ``length`` tokens of a step run round after round from the pair's prompt."""
    target, draft = torch_models(pair, step.facts.torch_dtype)
    start = len(pair.prompt)

    def run(numbers: list[int], batch: Batch) -> list[tuple[Tokens, int | None]]:
        ids = [list(pair.prompt) for _ in numbers]
        while unfinished := [r for r, row in enumerate(ids) if len(row) < start + length]:
            # One call per prefix length: a step takes rows of equal length, and finished rows must draw no more.
            shortest = min(len(ids[r]) for r in unfinished)
            now = [r for r in unfinished if len(ids[r]) == shortest]
            with batch.only(now):
                emitted = step(target, draft, torch.tensor([ids[r] for r in now]))
            for r, tokens in zip(now, emitted.rows(), strict=True):
                ids[r] += tokens
        return [(tuple(row[start : start + length]), None) for row in ids]

    return _collect(run, [1.0], _rows_for(step.facts.max_batch), max_paths)


def verifier_rounds(verifier: Verifier, pair: Pair, length: int, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of the first ``length`` tokens of a verifier used round after round, drafting from the pair's draft."""

    def draft_then_verify(target: Any, draft: Any, prefix: torch.Tensor) -> Any:
        rows, start = prefix.shape
        for _ in range(pair.k):
            probs = draft(prefix)[:, -1].exp()
            prefix = torch.cat([prefix, torch.multinomial(probs, 1)], dim=1)
        p = target(prefix)[:, start - 1 :].exp()
        q = draft(prefix)[:, start - 1 : -1].exp()
        assert p.shape[0] == rows
        return verifier(prefix[:, start:], q, p)

    return step_rounds(Step(verifier.name, draft_then_verify, pair.k, verifier.facts), pair, length, max_paths=max_paths)


def decoder_emission(
    decoder: DecoderLike,
    pair: Pair,
    length: int,
    *,
    name: str,
    max_batch: int | None,
    max_paths: int = DEFAULT_MAX_PATHS,
    eos_id: int | None = None,
) -> Emission:
    """Exact law of ``generate`` on a decoder built over the pair's table models: the first ``length`` tokens.

    eos_id: the token it was told to stop at, if any; by default its own ``eos_id``.
    """
    prompt = torch.tensor([pair.prompt], dtype=torch.int64)
    eos = getattr(decoder, "eos_id", None) if eos_id is None else eos_id

    def run(numbers: list[int], _batch: Batch) -> list[tuple[Tokens, int | None]]:
        prompts = prompt.repeat(len(numbers), 1)
        with naming_inputs(f"{name}.generate", pair=pair.to_json(), prompts=prompts, max_new_tokens=length, seed=0):
            raw = decoder.generate(prompts, length, seed=0)
            tokens = normalise_generated(raw, len(numbers), length, pair.vocab_size, eos, name).tokens
        return [(tuple(row), None) for row in tokens.tolist()]

    return _collect(run, [1.0], _rows_for(max_batch), max_paths)
