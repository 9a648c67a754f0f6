"""What a model must offer so that the decoder can extend it and take tokens back.

Both the transformers (:mod:`reference.model`) and the table models (:mod:`reference.tables`) follow these two
protocols, so one decoder runs on either, and a mistake in rolling back shows on both.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor


class Cache:
    """What a model remembers of every row: its first ``lengths[b]`` entries; rows may have different lengths.

    Entries past a row's length are leftovers. They are never read: a token sees the positions up to its own, and those
    are all written before it is.
    """

    def __init__(self, capacity: int, rows: int) -> None:
        self.capacity = capacity
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        self.first_slots = torch.arange(rows)[:, None] * capacity  # (B, 1): where each row starts in flattened storage

    def rollback(self, lengths: Tensor) -> None:
        """Keep the first ``lengths`` (B,) tokens of each row. Errors: ValueError when a row would grow."""
        if (lengths > self.lengths).any():
            raise ValueError(f"a rollback cannot lengthen a row: asked {lengths.tolist()} of {self.lengths.tolist()}")
        self.lengths = lengths

    def claim(self, n: int, counts: Tensor | None) -> tuple[Tensor, int]:
        """Positions (B, n) of the next n tokens of each row, and the length of the longest row with them.

        The lengths grow by ``counts`` (B,), or by n. Errors: ValueError when a row would outgrow the capacity.
        """
        span = int(self.lengths.max()) + n
        if span > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens a row and {span} are needed; start it larger")
        positions = self.lengths[:, None] + torch.arange(n)
        self.lengths = self.lengths + (n if counts is None else counts)
        return positions, span


CacheT = TypeVar("CacheT", bound=Cache)


class CachedModel(Protocol[CacheT]):
    """A model that consumes tokens piece by piece."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        ...

    def start(self, capacity: int, rows: int) -> CacheT:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        ...

    def extend(self, tokens: Tensor, cache: CacheT, counts: Tensor | None = None) -> Tensor:
        """Consume tokens (B, n) after what the cache holds, and return logits (B, n, V).

        Row b consumes its first ``counts[b]`` tokens, all n without counts; its later tokens are padding, and their
        logits mean nothing. Errors: ValueError when a row would outgrow the capacity.
        """
        ...
