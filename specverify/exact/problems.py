"""What is run when a part is probed? The calls it can be put to on a pair, one such call, and what it may not emit there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.exact.pushing import Draw, Push, Pushing, Streams
from specverify.laws import Pair, Tokens, all_sequences, first_impossible
from specverify.subjects import Decoder, Step, Verifier, naming_inputs, normalise_generated
from specverify.tables import torch_models

ROWS_PER_CALL = 256

Outcome = Tokens | SubjectError
"""What became of a row: the tokens it emitted, or the error that the code raised."""


@dataclass(frozen=True)
class Problems:
    """``call(numbers)`` runs the problems of these numbers, one per row, and returns the tokens that each emitted.

    drafted: by problem, the drafted tokens handed in (empty where the code drafts itself). rows: most rows per call.
    """

    pair: Pair
    call: Callable[[Sequence[int]], list[Tokens]]
    drafted: tuple[Tokens, ...]
    rows: int

    def impossible(self, tokens: Tokens) -> int | None:
        """Place of the first token with target probability 0 after those before it; None when there is none."""
        return first_impossible(self.pair.target, tokens, self.pair.prompt)


def problems_of(part: Verifier | Step | Decoder, pair: Pair, length: int) -> Problems:
    """The problems of a part on a pair: every draft that a verifier can be handed; the prompt for a step or a decoder.

    A decoder is built over the pair's table models and asked for ``length`` tokens, one row per call.
    """
    if isinstance(part, Verifier):
        return _verifications(part, pair)
    target, draft = torch_models(pair, part.facts.torch_dtype)
    prompt = torch.tensor([pair.prompt], dtype=torch.int64)
    if isinstance(part, Step):

        def call(numbers: Sequence[int]) -> list[Tokens]:
            return part(target, draft, prompt.repeat(len(numbers), 1)).rows()

        return Problems(pair, call, ((),), _rows_of(part.facts.max_batch))
    assert part.build is not None
    decoder = part.build(target, draft, pair.k)

    def generate(numbers: Sequence[int]) -> list[Tokens]:
        prompts = prompt.repeat(len(numbers), 1)
        with naming_inputs(f"{part.name}.generate", prompts=prompts, max_new_tokens=length, seed=0):
            raw = decoder.generate(prompts, length, seed=0)
            read = normalise_generated(raw, len(numbers), length, pair.vocab_size, None, part.name)
        return [tuple(row) for row in read.tokens.tolist()]

    return Problems(pair, generate, ((),), 1)


def _verifications(verifier: Verifier, pair: Pair) -> Problems:
    drafts = all_sequences(pair.vocab_size, pair.k)
    ids = np.concatenate([np.tile(np.asarray(pair.prompt, np.int64), (len(drafts), 1)), drafts], axis=1)
    start = len(pair.prompt)
    q = torch.from_numpy(pair.draft.laws_along(ids)[:, start : start + pair.k])
    p = torch.from_numpy(pair.target.laws_along(ids)[:, start:])
    tokens = torch.from_numpy(drafts)
    # Only what the draft can draw in the precision it is handed in: a token with q = 0 never reaches a verifier.
    used = (q.to(verifier.facts.torch_dtype).gather(2, tokens[..., None])[..., 0] > 0).all(1)
    tokens, q, p = tokens[used], q[used], p[used]

    def call(numbers: Sequence[int]) -> list[Tokens]:
        at = torch.tensor(list(numbers))
        return verifier(tokens[at], q[at], p[at]).rows()

    return Problems(pair, call, tuple(map(tuple, tokens.tolist())), _rows_of(verifier.facts.max_batch))


def _rows_of(max_batch: int | None) -> int:
    return min(ROWS_PER_CALL, max_batch or ROWS_PER_CALL)


def run_call(
    problems: Problems,
    streams: Streams,
    numbers: Sequence[int],
    seed: int,
    pushes: Sequence[Push] = (),
    turns: Sequence[int] | None = None,
    given: Sequence[Tensor] = (),
) -> tuple[list[Outcome], Pushing]:
    """Run problems in one call, with elements pushed or draws given; when it raises, the one error stands for every row."""
    mode = Pushing(len(numbers), pushes, turns, given)
    outcomes: list[Outcome]
    streams.start(mode, seed)
    try:
        with mode:
            outcomes = list(problems.call(numbers))
    except SubjectError as error:
        outcomes = [error] * len(numbers)
    return outcomes, mode


def row_of(draws: Sequence[Draw], row: int, rows: int) -> tuple[Tensor, ...]:
    """Every draw of a call with ``rows`` rows as one of them saw it, flat."""
    return tuple(d.value.reshape(rows, -1)[row].clone() for d in draws)
