"""Which drafts are worse than bad: one that is never right, and one that is not honest about its law.

The first costs time and nothing else. With the second no rule is exact: all of them rest on drafts that were drawn from the
laws declared. Both are here to be shown failing, in ``docs/tour.md`` and by ``python -m reference.break_it``.
"""

from __future__ import annotations

from torch import Tensor

from reference.caching import Branches, Cache
from reference.drafting import Chain, Drafter, Drafting, Laws, Model
from reference.drafting.separate import as_drafter
from reference.history import Text
from reference.noise import Noise

LEAST = -30.0
"""A logit of -inf counts as this one where signs are changed."""


class Negated:
    """A model turned against itself: its logits change sign, so that what it liked least it likes best."""

    def __init__(self, model: Model) -> None:
        self.model, self.vocab_size = model, model.vocab_size

    def start(self, capacity: int, rows: int) -> Cache:
        """Return an empty cache of the model."""
        cache: Cache = self.model.start(capacity, rows)
        return cache

    def extend(self, tokens: Tensor, cache: Cache, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n), see :class:`reference.caching.CachedModel`."""
        return -self.model.extend(tokens, cache, counts, branches).clamp(min=LEAST)


class LyingDraft:
    """A draft that draws at another temperature than the one whose law it declares. With such drafts no rule is exact."""

    def __init__(self, draft: Drafter | Model, drawn_at: float = 0.5) -> None:
        self.draft, self.drawn_at = as_drafter(draft), drawn_at
        self.reads_hidden, self.room = self.draft.reads_hidden, self.draft.room

    def begin(self, main: Model, cache: Cache, text: Text) -> LyingDrafting:
        """Start a decode."""
        return LyingDrafting(self.draft.begin(main, cache, text), self.drawn_at)


class LyingDrafting:
    """A lying draft during one decode."""

    def __init__(self, inner: Drafting, drawn_at: float) -> None:
        self.inner, self.drawn_at = inner, drawn_at
        self.settle, self.keep_rows = inner.settle, inner.keep_rows

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain:
        """Draw tokens (B, K) of laws q ** (1 / drawn_at), normalised, and declare the laws q (B, K, V)."""

        def sharpened(logits: Tensor, seen: Tensor | None = None) -> Tensor:
            laws = process(logits, seen) ** (1 / self.drawn_at)
            return laws / laws.sum(-1, keepdim=True)

        drawn = self.inner.propose(text, k, sharpened, noise)
        assert isinstance(drawn, Chain)
        declared = drawn.laws**self.drawn_at
        return Chain(drawn.tokens, declared / declared.sum(-1, keepdim=True))
