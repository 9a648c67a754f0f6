"""How the decoder runs on a table of laws, and where context-dependent tables come from.

A table model is anything that answers ids (B, T) with logits (B, T, V), row t being the log-law after ``ids[:, : t +
1]``. Its cache holds the ids that were consumed: what a decoder forgets to take back changes every later law, as it
would in a KV cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reference.caching import Cache

Logits = Callable[[Tensor], Tensor]


class IdsCache(Cache):
    """The ids (B, C) that each row consumed."""

    def __init__(self, capacity: int, rows: int) -> None:
        super().__init__(capacity, rows)
        self.ids = torch.zeros(rows, capacity, dtype=torch.int64)


class CachedTable:
    """A table model as a :class:`reference.caching.CachedModel`; logits keep the table's precision."""

    def __init__(self, logits: Logits, vocab_size: int) -> None:
        self.logits = logits
        self.vocab_size = vocab_size

    def start(self, capacity: int, rows: int) -> IdsCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return IdsCache(capacity, rows)

    def extend(self, tokens: Tensor, cache: IdsCache, counts: Tensor | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n) that follow what the cache holds, see
        :class:`reference.caching.CachedModel`.
        """
        positions, span = cache.claim(tokens.shape[1], counts)  # (B, n)
        cache.ids.scatter_(1, positions, tokens)
        return self.logits(cache.ids[:, :span])[torch.arange(len(tokens))[:, None], positions]


class HashedTable:
    """Seeded laws over V tokens that depend on the position and on every token before it, with exact zeros among them.

    A prefix is hashed to one of ``size`` laws; about a quarter of a law's entries are 0, and at least two are not.
    """

    def __init__(self, vocab_size: int, seed: int, size: int = 251) -> None:
        if not 2 <= vocab_size <= 8:
            raise ValueError(f"vocab_size is {vocab_size}; tables have 2 to 8 tokens, so that laws can be enumerated")
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randint(1, 10, (size, vocab_size), generator=generator).double()
        keys = torch.rand(size, vocab_size, generator=generator)
        dropped = (keys < 0.25) & (keys.argsort(1).argsort(1) < vocab_size - 2)
        self.laws = torch.where(dropped, 0.0, weights) / torch.where(dropped, 0.0, weights).sum(1, keepdim=True)
        self.vocab_size = vocab_size
        self.size = size

    def __call__(self, ids: Tensor) -> Tensor:
        """Return log-laws (B, T, V) in float64 for ids (B, T)."""
        state = torch.zeros(len(ids), dtype=torch.int64)
        states = []
        for position, column in enumerate(ids.unbind(1)):
            state = (31 * state + 7 * column + position + 1) % self.size
            states.append(state)
        return self.laws[torch.stack(states, 1)].log()


def table_pair(vocab_size: int, seed: int) -> tuple[HashedTable, HashedTable]:
    """Make a target and a draft over the same tokens (V from 2 to 8), independent of each other. Errors: ValueError for
    another V.
    """
    return HashedTable(vocab_size, 2 * seed), HashedTable(vocab_size, 2 * seed + 1)
