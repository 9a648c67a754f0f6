"""What does a decoder serve? Requests of different length, seed and temperature in one batch, and how the answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from specverify.errors import SubjectError

Row = tuple[int, ...]
"""New tokens of one request."""


@dataclass(frozen=True)
class Request:
    """One request among others of a batch.

    prompt: at least one id. seed: the same seed gives the same tokens; None: whatever numbers come next. temperature:
    None for the decoder's own setting, 0 for greedy. Errors: SubjectError for an empty prompt, no tokens, or a temperature
    below 0.
    """

    prompt: Row
    max_new_tokens: int
    seed: int | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise SubjectError("a request needs a prompt of at least one token")
        if self.max_new_tokens < 1:
            raise SubjectError(f"a request asks for at least one new token, not {self.max_new_tokens}")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise SubjectError(f"a temperature is None, 0 (greedy) or positive, not {self.temperature}")


@runtime_checkable
class Serving(Protocol):
    """What the check ``rows`` needs of a decoder, beside what every decoder has.

    Optional beside it: ``target_log_probs_at(ids (B, T), temperature) -> (B, T, V)``, the law at another temperature, all
    other processors unchanged; without it, rows with a temperature of their own are greedy.
    """

    def serve(self, requests: Sequence[Request]) -> Sequence[Sequence[int] | Tensor] | Tensor:
        """New tokens of every request of one batch, in their order: ``max_new_tokens`` each, or fewer that end at eos."""
        ...


def read_served(raw: Any, requests: Sequence[Request], vocab_size: int, name: str) -> list[Row]:
    """Read the rows that ``serve`` returned, whatever their lengths; -1 at the end of a row is padding.

    Errors: SubjectError when there is not one row per request, or a row holds anything but ids of 0..V-1.
    """
    if isinstance(raw, (Tensor, np.ndarray)):
        raw = raw.tolist()
    if not isinstance(raw, (list, tuple)):
        raise SubjectError(f"{name}.serve returned {type(raw).__name__}; return one list of new tokens per request")
    if len(raw) != len(requests):
        raise SubjectError(
            f"{name}.serve returned {len(raw)} rows for {len(requests)} requests; return one list of new tokens per request, "
            "in the order of the requests"
        )
    return [_read_row(row, number, vocab_size, name) for number, row in enumerate(raw)]


def _read_row(raw: Any, number: int, vocab_size: int, name: str) -> Row:
    row = raw.tolist() if isinstance(raw, (Tensor, np.ndarray)) else raw
    if not isinstance(row, (list, tuple)):
        raise SubjectError(f"{name}.serve returned {type(raw).__name__} for row {number}; return a list of new tokens")
    for token in row:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise SubjectError(f"{name}.serve returned {token!r} in row {number}; token ids must be integers")
    tokens = [int(token) for token in row]
    while tokens and tokens[-1] == -1:
        del tokens[-1]
    for place, token in enumerate(tokens):
        if not -1 <= token < vocab_size:
            raise SubjectError(
                f"{name}.serve returned token id {token} in row {number}, position {place}: outside 0..{vocab_size - 1}"
            )
    return tuple(tokens)


def until_end(tokens: Row, eos_id: int | None) -> Row:
    """Tokens up to and including the first eos."""
    return tokens[: tokens.index(eos_id) + 1] if eos_id is not None and eos_id in tokens else tokens


def wrong_length(tokens: Row, request: Request, eos_id: int | None) -> str:
    """What is wrong with the length of a row, "" when nothing is. After an eos only eos or -1 may stand."""
    said = until_end(tokens, eos_id)
    if set(tokens[len(said) :]) - {eos_id, -1}:
        return f"tokens {list(tokens[len(said) :])} stand after the eos"
    if -1 in said:
        return "padding stands between tokens"
    if len(said) > request.max_new_tokens:
        return f"too many tokens: {len(said)}, asked for {request.max_new_tokens}"
    if len(said) < request.max_new_tokens and (eos_id is None or said[-1:] != (eos_id,)):
        return f"too few tokens: {len(said)} without an eos, asked for {request.max_new_tokens}"
    return ""
