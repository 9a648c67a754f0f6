"""Which transformer the decoder runs on, and how its KV cache extends.

A decoder-only transformer with normalisation before each block and no biases. Position enters only through a learned
bias on attention, one number per head and distance, shared by all layers (Raffel et al. 2020, arXiv 1910.10683, section
2.1); distances beyond ``reach`` share one. There is thus no longest text, and one table per step is all the position
work there is.

Names of shapes: B rows, n new tokens, H heads, D width of a head, E = H D, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.caching import Branches
from reference.kv_cache import KVCache, Weights, attention_bias, block_pass, only_real, padded


@dataclass(frozen=True)
class Shape:
    """Size of a transformer: ``layers`` blocks, ``heads`` heads over ``width`` channels, biases for distances <
    ``reach``.
    """

    vocab_size: int
    layers: int
    width: int
    heads: int
    reach: int = 64


def new_distance_bias(shape: Shape) -> Tensor:
    """Return the bias (reach + 1, H) a model starts from, by 1 + distance; entry 0 stands for what lies ahead."""
    slopes = torch.logspace(0, -5, shape.heads, base=2.0)  # steeper heads start by looking nearer
    return -torch.arange(-1.0, shape.reach)[:, None].clamp(min=0) * slopes / 2


def new_cache(shape: Shape, capacity: int, rows: int, distance_bias: Tensor, weights: Sequence[Weights]) -> KVCache:
    """Return an empty cache of a network of that shape, with the matrices of its blocks."""
    cache = KVCache(shape.layers, shape.heads, shape.width, capacity, rows, distance_bias)
    cache.weights = weights
    return cache


class Block(nn.Module):
    """Attention over everything up to a token, then a two-layer network, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        E = shape.width
        self.heads, self.norm_shape = shape.heads, (E,)
        self.mix = nn.Linear(E, 3 * E, bias=False)  # queries, keys and values at once
        self.gather = nn.Linear(E, E, bias=False)
        self.widen = nn.Linear(E, 4 * E, bias=False)
        self.narrow = nn.Linear(4 * E, E, bias=False)
        for linear in (self.gather, self.narrow):
            nn.init.normal_(linear.weight, std=0.5 / math.sqrt(E * shape.layers))

    def forward(self, x: Tensor, bias: Tensor, rows: int) -> Tensor:
        """Map x (B n, E) -> (B n, E) of whole texts, with the attention bias (B or 1, H, n, n)."""
        E = self.norm_shape[0]
        mixed = functional.linear(functional.layer_norm(x, self.norm_shape), self.mix.weight)
        parts = mixed.view(rows, -1, 3, self.heads, E // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, n, D)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + functional.linear(seen.transpose(1, 2).reshape(-1, E), self.gather.weight)
        wide = functional.linear(functional.layer_norm(x, self.norm_shape), self.widen.weight)
        return x + functional.linear(functional.gelu(wide, approximate="tanh"), self.narrow.weight)


class Prepared:
    """The matrices of some blocks as :func:`reference.kv_cache.block_pass` wants them, made again when they change.

    A change is seen by other tensors, other memory, or torch's count of writes. Writing through ``.data`` is not counted:
    call :meth:`forget` after it. Tensors made in inference mode count nothing, and are prepared every time.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, int, int]] = []
        self.weights: list[Weights] = []

    def forget(self) -> None:
        """Prepare all matrices again the next time."""
        self.seen = []

    def of(self, blocks: Iterable[Block]) -> list[Weights]:
        """Return the matrices of the blocks, in order."""
        matrices = [w.weight for b in blocks for w in (b.mix, b.gather, b.widen, b.narrow)]
        counted = not any(w.is_inference() for w in matrices)
        same = (
            len(self.seen) == len(matrices)
            and all(
                w is old and w.data_ptr() == at and w._version == version
                for w, (old, at, version) in zip(matrices, self.seen, strict=True)
            )
            if counted
            else False
        )
        if not same:
            turned = [w.detach().t().contiguous() for w in matrices]
            self.weights = [Weights(*turned[i : i + 4]) for i in range(0, len(turned), 4)]
            self.seen = [(w, w.data_ptr(), w._version) for w in matrices] if counted else []
        return self.weights


class Transformer(nn.Module):
    """A language model over ids in 0..V-1: ``model(ids)`` reads whole texts, ``model.extend`` goes on from a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.width)
        nn.init.normal_(self.embed.weight, std=1.0)
        self.distance_bias = nn.Parameter(new_distance_bias(shape))  # (reach+1, H)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5 / math.sqrt(shape.width))
        self.prepared = Prepared()

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.shape.vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T) that are read at once, without a cache."""
        return self.logits(self.states(ids)[-1])

    def states(self, ids: Tensor, layers: tuple[int, ...] | None = None) -> list[Tensor]:
        """Return the hidden states (B, T, E) after each number of blocks in ``layers`` (default: after all)."""
        rows, length = ids.shape
        wanted = layers or (self.shape.layers,)
        bias = attention_bias(self.distance_bias, length)
        x, found = self.embed(ids.reshape(-1)), []
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, bias, rows)
            if number in wanted:
                found.append(self._normalised(x).view(rows, length, -1))
        return found

    def start(self, capacity: int, rows: int) -> KVCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return new_cache(self.shape, capacity, rows, self.distance_bias, self.prepared.of(cast("Iterable[Block]", self.blocks)))

    def extend(self, tokens: Tensor, cache: KVCache, counts: Tensor | None = None, branches: Branches | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n) that follow what the cache holds, see
        :class:`reference.caching.CachedModel`.
        """
        return self.logits(self.hidden(tokens, cache, counts, branches))

    def hidden(
        self,
        tokens: Tensor,
        cache: KVCache,
        counts: Tensor | None = None,
        branches: Branches | None = None,
        layers: int | None = None,
    ) -> Tensor:
        """Return hidden states (B, n, E) for tokens that follow what the cache holds, after the first ``layers`` blocks
        (default: all), the only ones whose keys and values are then written.
        """
        room = cache.room_for(tokens.shape[1], counts, branches)
        x = functional.embedding(only_real(tokens.reshape(-1), room), self.embed.weight)
        for layer, weights in enumerate(cache.weights[:layers]):
            x = block_pass(x, weights, cache, layer, room)
        return padded(self._normalised(x), room)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) for hidden states (..., E)."""
        return functional.linear(hidden, self.head.weight)

    def no_hidden(self, rows: int, n: int, capacity: int) -> Tensor:  # noqa: ARG002
        """Return the states (rows, n, E) that stand for no token read: zeros."""
        return torch.zeros(rows, n, self.shape.width)

    def _normalised(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.shape.width,))
