"""How the decoder runs on a table of laws, and where context-dependent tables come from.

A table model is anything that answers ids (B, T) with logits (B, T, V), row t being the log-law after ``ids[:, : t +
1]``. Its cache holds the ids that were consumed: what a decoder forgets to take back changes every later law, as it
would in a KV cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Branches, Cache

Logits = Callable[[Tensor], Tensor]


class IdsCache(Cache):
    """The ids (B, C) that each row consumed."""

    def __init__(self, capacity: int, rows: int) -> None:
        super().__init__(capacity, rows)
        self.ids = torch.zeros(rows, capacity, dtype=torch.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the ids."""
        return self.ids.nbytes

    def _copy_rows(self, other: IdsCache, which: Tensor, span: int) -> None:
        self.ids[:, :span] = other.ids[which, :span]

    def _move(self, source: Tensor, target: Tensor) -> None:
        self.ids.scatter_(1, target, self.ids.gather(1, source))

    def _move_rows(self, source: Tensor, target: Tensor) -> None:
        self.ids[target] = self.ids[source]

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        super().keep_rows(kept)
        self.ids = self.ids[: len(kept)]


class CachedTable:
    """A table model as a :class:`reference.caching.FeaturedModel`; logits keep the table's precision.

    Its hidden state (C,) after a token is the text up to it, filled up with -1 to the capacity C of the cache.
    """

    def __init__(self, logits: Logits, vocab_size: int) -> None:
        self.table = logits
        self.vocab_size = vocab_size

    def start(self, capacity: int, rows: int) -> IdsCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return IdsCache(capacity, rows)

    def extend(self, tokens: Tensor, cache: IdsCache, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n) that follow what the cache holds, see
        :class:`reference.caching.CachedModel`.
        """
        if branches is not None:
            return self.logits(self.hidden(tokens, cache, counts, branches))
        positions, span = cache.claim(tokens.shape[1], counts)  # (B, n)
        cache.ids.scatter_(1, positions, tokens)
        return self.table(cache.ids[:, :span])[torch.arange(len(tokens))[:, None], positions]

    def hidden(self, tokens: Tensor, cache: IdsCache, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Consume tokens (B, n) and return the text up to each, (B, n, C)."""
        base = cache.lengths
        positions, _ = cache.claim(tokens.shape[1], counts)
        cache.ids.scatter_(1, positions, tokens)
        if branches is None:
            upto = torch.arange(cache.capacity) <= positions[..., None]
            return torch.where(upto, cache.ids[:, None], -1)
        base, n = base - branches.earlier, len(branches.visible)
        texts = torch.where(torch.arange(cache.capacity) < base[:, None], cache.ids, -1)[:, None].repeat(1, n, 1)
        for i, own in enumerate(branches.visible):
            for j in own.nonzero()[:, 0].tolist():  # the tree's first token stands at the base, whatever its slot
                place = base + branches.depths[j]
                texts[torch.arange(len(base)), i, place] = cache.ids.gather(1, base[:, None] + j)[:, 0]
        return texts

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) after texts (..., C) filled up with -1."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        lengths = (flat >= 0).sum(1)
        found = self.table(flat[:, : int(lengths.max())].clamp(min=0))
        return found[torch.arange(len(flat)), lengths - 1].reshape(*hidden.shape[:-1], -1)

    def no_hidden(self, rows: int, n: int, capacity: int) -> Tensor:
        """Return the texts (rows, n, capacity) without a token."""
        return torch.full((rows, n, capacity), -1)


class TableHeads:
    """A table in the place of Medusa heads: head j, from 0, has the table's law after the text and j + 1 tokens 0."""

    def __init__(self, logits: Logits, count: int) -> None:
        self.table, self.count = logits, count

    def __call__(self, hidden: Tensor, k: int) -> Tensor:
        """Return logits (B, K, V) of the first k heads for texts (B, C) filled up with -1.

        Errors: ValueError for more heads than there are.
        """
        if not 1 <= k <= self.count:
            raise ValueError(f"there are {self.count} heads, and {k} are asked for; choose 1 to {self.count}")
        lengths = (hidden >= 0).sum(1, keepdim=True)  # (B, 1)
        ids = functional.pad(hidden.clamp(min=0), (0, k))
        return self.table(ids)[torch.arange(len(ids))[:, None], lengths + torch.arange(k)]


class TableLayer:
    """A table in the place of the layer on the main model's states: its law after the tokens that its cache holds."""

    def __init__(self, logits: Logits, vocab_size: int) -> None:
        self.inner = CachedTable(logits, vocab_size)

    def start(self, capacity: int, rows: int) -> IdsCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return self.inner.start(capacity, rows)

    def extend(
        self,
        tokens: Tensor,
        features: Tensor,  # noqa: ARG002
        cache: IdsCache,
        counts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return states (B, n, C) and logits (B, n, V) for tokens (B, n), see :class:`reference.heads.FeatureLayer`."""
        states = self.inner.hidden(tokens, cache, counts)
        return states, self.inner.logits(states)


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
