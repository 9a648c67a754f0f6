"""What a model must offer so that the decoder can extend it and take tokens back.

Both the transformers (:mod:`reference.model`) and the table models (:mod:`reference.tables`) follow these two
protocols, so one decoder runs on either, and a mistake in rolling back shows on both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Branches:
    """Tokens that form a tree instead of following each other, read after ``m`` tokens of the same tree.

    depths (m + n,): how many tokens below the first of the tree each one stands; visible (n, m + n), bool: which of them
    each of the n new tokens follows, itself among them. All rows have the same tree.
    """

    depths: Tensor
    visible: Tensor

    @property
    def earlier(self) -> int:
        """m, how many tokens of the tree the cache holds already."""
        return self.visible.shape[1] - self.visible.shape[0]


class Cache(ABC):
    """What a model remembers of every row: its first ``lengths[b]`` entries; rows may have different lengths.

    Entries past a row's length are leftovers. They are never read: a token sees the positions up to its own, and those
    are all written before it is. Storage is allocated once; rows that leave make room at its end.
    """

    def __init__(self, capacity: int, rows: int) -> None:
        self.capacity = capacity
        self.lengths = torch.zeros(rows, dtype=torch.int64)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of what is remembered."""

    def rollback(self, lengths: Tensor) -> None:
        """Keep the first ``lengths`` (B,) tokens of each row. Errors: ValueError when a row would grow."""
        grown = int(lengths) > int(self.lengths) if len(lengths) == 1 else bool((lengths > self.lengths).any())
        if grown:
            raise ValueError(f"a rollback cannot lengthen a row: asked {lengths.tolist()} of {self.lengths.tolist()}")
        self.lengths = lengths

    def advance(self, n: int, counts: Tensor | None) -> int:
        """Grow the lengths by ``counts`` (B,), or by n, and return the length of the longest row with n tokens more.

        Errors: ValueError when a row would outgrow the capacity.
        """
        span = int(self.lengths if len(self.lengths) == 1 else self.lengths.max()) + n
        if span > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens a row and {span} are needed; start it larger")
        self.lengths = self.lengths + (n if counts is None else counts)
        return span

    def claim(self, n: int, counts: Tensor | None) -> tuple[Tensor, int]:
        """Positions (B, n) of the next n tokens of each row, and what :meth:`advance` returns."""
        before = self.lengths
        span = self.advance(n, counts)
        return before[:, None] + torch.arange(n), span

    def keep_path(self, base: Tensor, path: Tensor, counts: Tensor) -> None:
        """Keep of the tokens after the first ``base`` (B,) those of a path: row b keeps the ones numbered
        ``path[b, :counts[b]]``, path (B, D), moved together; the rest is taken back.
        """
        if path.shape[1] > 0:
            self._move(base[:, None] + path, base[:, None] + torch.arange(path.shape[1]))
        self.rollback(base + counts)

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave; row i is then what row kept[i] was."""
        moved = kept != torch.arange(len(kept))
        if moved.any():
            self._move_rows(kept[moved], moved.nonzero()[:, 0])
        self.lengths = self.lengths[kept]

    def adopt(self, other: Cache, which: Tensor) -> None:
        """Begin every row b with what row ``which[b]`` (B,) of another cache of this model has."""
        self.lengths = other.lengths[which]
        self._copy_rows(other, which, int(other.lengths.max()))

    @abstractmethod
    def _copy_rows(self, other: Any, which: Tensor, span: int) -> None:
        """Copy the first ``span`` entries of rows ``which`` (B,) of another cache of this kind."""

    @abstractmethod
    def _move(self, source: Tensor, target: Tensor) -> None:
        """Copy each row's entries at places ``source`` (B, D) to places ``target`` (B, D), read before written."""

    @abstractmethod
    def _move_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy whole rows ``source`` (n,) to ``target`` (n,), read before written."""


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

    def extend(self, tokens: Tensor, cache: CacheT, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Consume tokens (B, n) after what the cache holds, and return logits (B, n, V).

        Row b consumes its first ``counts[b]`` tokens, all n without counts; its later tokens are padding, and their
        logits mean nothing. With ``branches`` the tokens form a tree, and each follows its own path. Errors: ValueError
        when a row would outgrow the capacity.
        """
        ...


class FeaturedModel(CachedModel[CacheT], Protocol[CacheT]):
    """A cached model that shows the states its head reads, for networks that draft from them."""

    def hidden(self, tokens: Tensor, cache: CacheT, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Consume tokens as :meth:`extend` does, and return hidden states (B, n, E)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B, n, V) for hidden states (B, n, E)."""
        ...

    def no_hidden(self, rows: int, n: int, capacity: int) -> Tensor:
        """Return states (rows, n, E) that stand for no token read; capacity is that of the cache in use."""
        ...
