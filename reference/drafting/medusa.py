"""How Medusa heads draft, in a chain or in a tree: Cai et al. 2024 (arXiv 2401.10774, sections 2.1 and 2.2).

Head j foresees the token j + 1 places after the one the main model's own head foresees, from the main model's last hidden
state alone: the last token of the text it has not seen, nor the tokens drafted before its own. All laws of a round are thus
known at once. The tokens of a tree are drawn anew at every node, so that the rules for trees find the independence they
rest on.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from reference.caching import Cache
from reference.drafting import Chain, Laws, Model, NothingKept
from reference.history import Text
from reference.noise import Noise
from specverify.trees import Tree, TreeShape

DrawnChildren = Literal["without replacement", "top-k"]
"""How siblings of a tree are found."""


class MedusaDraft:
    """Heads ``heads(hidden (B, E), k) -> logits (B, k, V)``: a chain, or with ``shape`` a tree of drafts.

    children: how siblings of a tree are found, drawn without replacement or the likeliest ones ("top-k").
    """

    reads_hidden = True

    def __init__(
        self,
        heads: Any,
        shape: TreeShape | None = None,
        children: DrawnChildren = "top-k",
    ) -> None:
        self.heads, self.shape, self.children = heads, shape, children

    @property
    def room(self) -> int:
        """How many tokens beyond k are in flight: those of a tree."""
        return 0 if self.shape is None else self.shape.size

    def begin(self, main: Model, cache: Cache, text: Text) -> MedusaDrafting:  # noqa: ARG002
        """Start a decode; there is nothing to read."""
        return MedusaDrafting(self)


class MedusaDrafting(NothingKept):
    """Heads during one decode."""

    def __init__(self, drafter: MedusaDraft) -> None:
        self.drafter = drafter

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain | Tree:
        """Draft tokens (B, K), or a tree."""
        assert text.hidden is not None
        shape = self.drafter.shape
        # Place -1, where no state is ever written, stands for the state before the first token.
        hidden = text.hidden[torch.arange(len(text.ids)), text.lengths - 2]
        logits = self.drafter.heads(hidden, k if shape is None else shape.depth)
        if shape is not None:
            return branched(logits, shape, self.drafter.children, text, process, noise)
        if text.seen is None:
            laws = process(logits, None)
            return Chain(torch.stack([noise.choose(law) for law in laws.unbind(1)], 1), laws)
        return self._with_history(logits, text, process, noise)

    def _with_history(self, logits: Tensor, text: Text, process: Laws, noise: Noise) -> Chain:
        tokens, laws, seen = [], [], text.seen
        assert seen is not None
        for place in logits.unbind(1):
            laws.append(process(place, seen))
            tokens.append(noise.choose(laws[-1]))
            seen = seen.scatter(1, tokens[-1][:, None], True)
        return Chain(torch.stack(tokens, 1), torch.stack(laws, 1))


def branched(
    logits: Tensor,
    shape: TreeShape,
    children: DrawnChildren,
    text: Text,
    process: Laws,
    noise: Noise,
) -> Tree:
    """Fill a tree of ``shape`` from logits (B, depth, V): a node at depth d, from 1, is a token of the (d - 1)th law."""
    B, V = len(logits), logits.shape[-1]
    tokens = torch.zeros(B, shape.size, dtype=torch.int64)
    at: dict[int, Tensor] = {}  # the law after every node
    drawn: list[Tensor] = []
    for parent in range(-1, shape.size):
        siblings = shape.children(parent)
        depth = len(shape.path(parent))
        if depth < shape.depth:
            seen = text.seen
            if seen is not None and depth:
                seen = seen.scatter(1, tokens[:, list(shape.path(parent))], True)
            at[parent] = process(logits[:, depth], seen)
        else:
            at[parent] = torch.full((B, V), 1 / V, dtype=at[-1].dtype)  # nothing is drafted there
        law = at[parent]
        if children == "top-k" and siblings:
            tokens[:, list(siblings)] = law.sort(dim=1, descending=True, stable=True).indices[:, : len(siblings)]
            continue
        for node in siblings:
            drawn.append(law)
            tokens[:, node] = noise.choose(law)
            law = law.scatter(1, tokens[:, node : node + 1], 0.0)
            mass = law.sum(1, keepdim=True)
            # Once the law has nothing left, any token not drawn yet will do: it was declared, and it was drawn so.
            rest = torch.ones_like(law).scatter(1, tokens[:, [s for s in siblings if s <= node]], 0.0)
            law = torch.where(mass > 0, law / mass, rest / rest.sum(1, keepdim=True).clamp(min=1))
    laws = None if children == "top-k" else torch.stack(_in_order(drawn, shape), 1)
    return Tree(shape, tokens, laws, torch.stack([at[node] for node in range(-1, shape.size)], 1))


def _in_order(drawn: list[Tensor], shape: TreeShape) -> list[Tensor]:
    """Laws in the order of the nodes, given in the order of their drawing."""
    nodes = [node for parent in range(-1, shape.size) for node in shape.children(parent)]
    return [law for _, law in sorted(zip(nodes, drawn, strict=True), key=lambda pair: pair[0])]
