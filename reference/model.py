"""Which transformer the decoder runs on, and how its KV cache extends.

A decoder-only transformer with normalisation before each block and no biases. Position enters only through a learned
bias on attention, one number per head and distance, shared by all layers (Raffel et al. 2020, arXiv 1910.10683, section
2.1); distances beyond ``reach`` share one. There is thus no longest text, and one table per step is all the position
work there is.

Names of shapes: B rows, n new tokens, C capacity, S positions in use, H heads, D width of a head, E = H D, V
vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.caching import Cache


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


class KVCache(Cache):
    """Keys and values (layers, B, C, 2, H, D), allocated once; extending writes at each row's own positions."""

    def __init__(self, shape: Shape, capacity: int, rows: int, bias: Tensor) -> None:
        super().__init__(capacity, rows)
        self.bias = bias  # (H, C+3, C), a view: at (C - t, s) what a token at t adds to its score for s
        storage = torch.zeros(shape.layers, rows * capacity, 2 * shape.width)
        self.flat = storage.unbind(0)
        self.layers = storage.view(shape.layers, rows, capacity, 2, shape.heads, shape.width // shape.heads).unbind(0)


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

    def forward(self, x: Tensor, bias: Tensor, rows: int, memory: tuple[Tensor, Tensor, Tensor, int] | None) -> Tensor:
        """Map x (B n, E) -> (B n, E), with the attention bias (B or 1, H, n, S).

        memory: a layer's storage flat (B C, 2E) and shaped (B, C, 2, H, D), the slots (B n,) to write, and S.
        """
        E = self.norm_shape[0]
        mixed = functional.linear(functional.layer_norm(x, self.norm_shape), self.mix.weight)
        query, new = mixed[:, :E], mixed[:, E:]
        if memory is None:
            stored = new.view(rows, -1, 2, self.heads, E // self.heads)
        else:
            flat, shaped, slots, span = memory
            flat.index_copy_(0, slots, new)
            stored = shaped[:, :span]
        key, value = stored.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, S, D)
        query = query.reshape(rows, -1, self.heads, E // self.heads).transpose(1, 2)  # (B, H, n, D)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + functional.linear(seen.transpose(1, 2).reshape(-1, E), self.gather.weight)
        wide = functional.linear(functional.layer_norm(x, self.norm_shape), self.widen.weight)
        return x + functional.linear(functional.gelu(wide, approximate="tanh"), self.narrow.weight)


class Transformer(nn.Module):
    """A language model over ids in 0..V-1: ``model(ids)`` reads whole texts, ``model.extend`` goes on from a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.width)
        nn.init.normal_(self.embed.weight, std=1.0)
        # By 1 + distance; entry 0 stands for what lies ahead. Steeper heads start by looking nearer.
        slopes = torch.logspace(0, -5, shape.heads, base=2.0)
        distances = torch.arange(-1.0, shape.reach)[:, None].clamp(min=0)
        self.distance_bias = nn.Parameter(-distances * slopes / 2)  # (reach+1, H)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5 / math.sqrt(shape.width))

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.shape.vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T) that are read at once, without a cache."""
        rows, length = ids.shape
        positions = torch.arange(length)
        distances = positions[:, None] - positions
        bias = self._bias_by_distance(length)[length + distances].permute(2, 0, 1)[None]  # (1, H, T, T)
        x = self.embed(ids.reshape(-1))
        for block in self.blocks:
            x = block(x, bias, rows, None)
        return self._logits(x).view(rows, length, -1)

    def start(self, capacity: int, rows: int) -> KVCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        # A bias depends on t - s alone, so those of a token at t for s = 0, 1, .. are a window, the one numbered C - t,
        # of one row of distances C, C-1, .., -C.
        windows = self._bias_by_distance(capacity + 1).detach().flip(0).t().contiguous().unfold(1, capacity, 1)
        return KVCache(self.shape, capacity, rows, windows)

    def extend(self, tokens: Tensor, cache: KVCache, counts: Tensor | None = None) -> Tensor:
        """Return logits (B, n, V) for tokens (B, n) that follow what the cache holds, see
        :class:`reference.caching.CachedModel`.
        """
        rows, n = tokens.shape
        positions, span = cache.claim(n, counts)
        slots = (positions + cache.first_slots).view(-1)
        bias = cache.bias[:, :, :span][:, cache.capacity - positions].transpose(0, 1)  # (B, H, n, S)
        x = functional.embedding(tokens.reshape(-1), self.embed.weight)
        for block, flat, shaped in zip(self.blocks, cache.flat, cache.layers, strict=True):
            x = block(x, bias, rows, (flat, shaped, slots, span))
        return self._logits(x).view(rows, n, -1)

    def _logits(self, x: Tensor) -> Tensor:
        return functional.linear(functional.layer_norm(x, (self.shape.width,)), self.head.weight)

    def _bias_by_distance(self, size: int) -> Tensor:
        """Return the bias (2 size, H) at ``size + distance``: -inf ahead (distance < 0), constant beyond the reach."""
        distances = torch.arange(-size, size)
        table = torch.cat([torch.full((1, self.shape.heads), -torch.inf), self.distance_bias[1:]])
        return table[(distances + 1).clamp(0, self.shape.reach)]
