"""Who drafts: one module for each family of drafters. A drafter is made once; ``begin`` starts one decode with it.

What it proposes is a :class:`Chain`, one token after the other, or a :class:`specverify.trees.Tree`. Its laws are those
the tokens were really drawn from, after the processors: with any rule that is lossless for drafts of given laws, the text
then has the main model's law, whatever the drafter is worth.

Names of shapes: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reference.caching import Cache, CachedModel
from reference.history import Text
from reference.noise import Noise
from specverify.trees import Tree

Model = CachedModel[Any]
Laws = Callable[[Tensor, Tensor | None], Tensor]
"""``process(logits (B, ..., V), seen (B, ..., V) or None) -> laws (B, ..., V)``, all that a drafter needs of a processor."""


@dataclass(frozen=True)
class Chain:
    """Drafted tokens (B, K), one after the other, and the laws they were drawn from, (B, K, V).

    A place may have no draft. Its token is then V, one that the target never emits, with certainty: laws are (B, K, V+1),
    and a rule that is lossless rejects it and emits of the target's law, which is what a shorter chain would have done.
    """

    tokens: Tensor
    laws: Tensor


class Drafting(Protocol):
    """A drafter during one decode."""

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain | Tree:
        """Draft up to k tokens after every row's text."""
        ...

    def settle(self, text: Text) -> None:
        """Forget what was not accepted; the text has grown since the last proposal."""
        ...

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        ...


class Drafter(Protocol):
    """What proposes tokens."""

    reads_hidden: bool
    """Whether it reads the main model's hidden states from the text."""

    @property
    def room(self) -> int:
        """How many tokens beyond k it may have in flight."""
        ...

    def begin(self, main: Model, cache: Cache, text: Text) -> Drafting:
        """Start a decode. The main model's cache holds all of the text but the last token of each row."""
        ...


class NothingKept:
    """The part of a drafting that has no memory of its own."""

    def settle(self, text: Text) -> None:
        """Forget nothing."""

    def keep_rows(self, kept: Tensor) -> None:
        """Let rows leave."""


def drawn_on(
    first: Tensor,
    k: int,
    go_on: Callable[[Tensor], Tensor],
    text: Text,
    process: Laws,
    noise: Noise,
) -> Chain:
    """Draw k tokens one by one: the first of logits (B, V), each other of ``go_on(token (B, 1)) -> logits (B, V)``."""
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    logits, seen = first, text.seen
    for _ in range(k):
        if tokens:
            logits = go_on(tokens[-1][:, None])
            if seen is not None:
                seen = seen.scatter(1, tokens[-1][:, None], True)
        laws.append(process(logits, seen))
        tokens.append(noise.choose(laws[-1]))
    return Chain(torch.stack(tokens, 1), torch.stack(laws, 1))


def at_end(values: Tensor, counts: Tensor | None) -> Tensor:
    """Return of values (B, n, ...) each row's last, (B, ...); row b has ``counts[b]``, all n without counts."""
    return values[:, -1] if counts is None else values[torch.arange(len(values)), counts - 1]
