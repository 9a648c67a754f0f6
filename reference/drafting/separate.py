"""How a separate draft model drafts: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192); and an early exit, which is a
draft that shares the main model's first layers and their cache: Elhoushi et al. 2024, LayerSkip (arXiv 2404.16710).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from reference.caching import Branches, Cache
from reference.drafting import Chain, Drafter, Laws, Model, at_end, drawn_on
from reference.history import Text
from reference.kv_cache import KVCache
from reference.model import Transformer
from reference.noise import Noise
from reference.sharing import read_sharing


class SeparateDraft:
    """A model of its own, with a cache of its own."""

    reads_hidden = False
    room = 0

    def __init__(self, model: Model) -> None:
        self.model = model

    def begin(self, main: Model, cache: Cache, text: Text) -> ModelDrafting:  # noqa: ARG002
        """Start a decode: the draft reads all but the last token of each row."""
        read = text.ids[:, : int(text.lengths.max()) - 1]
        own, _ = read_sharing(self.model.start, self.model.extend, read, text.lengths - 1, cache.capacity)
        return ModelDrafting(self.model, own)


def as_drafter(draft: Drafter | Model) -> Drafter:
    """Return a drafter as it is, and a model as one that drafts by itself."""
    return cast("Drafter", draft) if hasattr(draft, "begin") else SeparateDraft(draft)


class ModelDrafting:
    """A draft model during one decode. Between rounds its cache lacks the last token of every row, and more where it did
    not read its own last proposal or did not draft for a while; these it reads first.
    """

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model, self.cache = model, cache

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain:
        """Draft tokens (B, K). Afterwards the cache holds all but the last of them."""
        tokens, counts = text.after(self.cache.lengths)
        first = at_end(self.model.extend(tokens, self.cache, counts), counts)
        return drawn_on(first, k, lambda token: self.model.extend(token, self.cache)[:, 0], text, process, noise)

    def settle(self, text: Text) -> None:
        """Keep what the cache has of the text, the last token apart."""
        self.cache.rollback(torch.minimum(text.lengths - 1, self.cache.lengths))

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        self.cache.keep_rows(kept)


class ExitModel:
    """The first layers of a transformer and a head on them, as a model that reads into the transformer's own cache."""

    def __init__(self, main: Transformer, head: Callable[[Tensor], Tensor], layers: int) -> None:
        self.main, self.head, self.layers = main, head, layers
        self.vocab_size = main.vocab_size

    def start(self, capacity: int, rows: int) -> KVCache:
        """Return an empty cache of the transformer."""
        return self.main.start(capacity, rows)

    def extend(self, tokens: Tensor, cache: KVCache, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n); keys and values of the first layers are written."""
        return self.head(self.main.hidden(tokens, cache, counts, branches, self.layers))


class EarlyExit:
    """The main model's own first layers. ``model`` reads into the cache of the main model."""

    reads_hidden = False
    room = 0

    def __init__(self, model: Any) -> None:
        self.model = model

    def begin(self, main: Model, cache: Cache, text: Text) -> ExitDrafting:  # noqa: ARG002
        """Start a decode: nothing has to be read again."""
        return ExitDrafting(self.model, cache)


class ExitDrafting:
    """An early exit during one decode. What drafting writes into the main model's cache is taken back at once: the
    verifying pass writes all layers of the same places.
    """

    def __init__(self, model: Any, cache: Cache) -> None:
        self.model, self.cache = model, cache

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain:
        """Draft tokens (B, K); the cache holds afterwards what it held before."""
        before = self.cache.lengths
        first = self.model.extend(text.last, self.cache)[:, 0]
        chain = drawn_on(first, k, lambda token: self.model.extend(token, self.cache)[:, 0], text, process, noise)
        self.cache.rollback(before)
        return chain

    def settle(self, text: Text) -> None:
        """Forget nothing: the main model's cache is settled by the decoder."""

    def keep_rows(self, kept: Tensor) -> None:
        """Rows leave with the main model's cache."""
