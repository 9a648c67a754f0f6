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

from reference.caching import Branches, Cache


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

    def __init__(self, shape: Shape, capacity: int, rows: int, windows: Tensor) -> None:
        super().__init__(capacity, rows)
        self.windows = windows  # (H, C+3, C), a view: at (C - t, s) what a token at t adds to its score for s
        self.storage = torch.zeros(shape.layers, rows * capacity, 2 * shape.width)
        self.rows_of = self.storage.view(shape.layers, rows, capacity, 2, shape.heads, shape.width // shape.heads)
        self.flat = self.storage.unbind(0)
        self.layers = self.rows_of.unbind(0)

    def room_for(self, n: int, counts: Tensor | None = None, branches: Branches | None = None) -> tuple[Tensor, Tensor, int]:
        """Claim room for n more tokens a row: the slots (B n,) to write, the attention bias (B, H, n, S), and S."""
        base = self.lengths
        positions, span = self.claim(n, counts)
        slots = (positions + self.first_slots).view(-1)
        if branches is None:
            return slots, self.windows[:, :, :span][:, self.capacity - positions].transpose(0, 1), span
        base, depths = base - branches.earlier, branches.depths
        mine = depths[branches.earlier :]
        # Up to the tree a token sees all; of the tree, whose slots hold its tokens in any order, only its own path.
        bias = self.windows[:, :, :span][:, self.capacity - base[:, None] - mine].transpose(0, 1)  # (B, H, n, S)
        among = self.windows[:, (self.capacity - mine)[:, None], depths].masked_fill(~branches.visible, -torch.inf)
        places = (base[:, None] + torch.arange(len(depths)))[:, None, None].expand(-1, *among.shape)
        return slots, bias.contiguous().scatter_(3, places, among.expand(len(base), -1, -1, -1)), span

    def _move(self, source: Tensor, target: Tensor) -> None:
        self.storage[:, target.reshape(-1)] = self.storage[:, source.reshape(-1)]

    def _move_rows(self, source: Tensor, target: Tensor) -> None:
        self.rows_of[:, target] = self.rows_of[:, source]

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        super().keep_rows(kept)
        self.rows_of = self.rows_of[:, : len(kept)]
        self.layers = self.rows_of.unbind(0)


def new_distance_bias(shape: Shape) -> Tensor:
    """Return the bias (reach + 1, H) a model starts from, by 1 + distance; entry 0 stands for what lies ahead."""
    slopes = torch.logspace(0, -5, shape.heads, base=2.0)  # steeper heads start by looking nearer
    return -torch.arange(-1.0, shape.reach)[:, None].clamp(min=0) * slopes / 2


def bias_by_distance(distance_bias: Tensor, size: int) -> Tensor:
    """Return the bias (2 size, H) at ``size + distance``: -inf ahead (distance < 0), constant beyond the reach."""
    reach, heads = distance_bias.shape[0] - 1, distance_bias.shape[1]
    table = torch.cat([torch.full((1, heads), -torch.inf), distance_bias[1:]])
    return table[(torch.arange(-size, size) + 1).clamp(0, reach)]


def attention_bias(distance_bias: Tensor, length: int) -> Tensor:
    """Return what each place of a text of T tokens adds to its score for every other, (1, H, T, T)."""
    positions = torch.arange(length)
    distances = positions[:, None] - positions
    return bias_by_distance(distance_bias, length)[length + distances].permute(2, 0, 1)[None]


def distance_windows(distance_bias: Tensor, capacity: int) -> Tensor:
    """Return (H, C+3, C) for a cache of C tokens: a bias depends on t - s alone, so those of a token at t for s = 0, 1, ..
    are a window, the one numbered C - t, of one row of distances C, C-1, .., -C.
    """
    return bias_by_distance(distance_bias, capacity + 1).detach().flip(0).t().contiguous().unfold(1, capacity, 1)


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
        self.distance_bias = nn.Parameter(new_distance_bias(shape))  # (reach+1, H)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5 / math.sqrt(shape.width))

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
            x = block(x, bias, rows, None)
            if number in wanted:
                found.append(self._normalised(x).view(rows, length, -1))
        return found

    def start(self, capacity: int, rows: int) -> KVCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return KVCache(self.shape, capacity, rows, distance_windows(self.distance_bias, capacity))

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
        rows, n = tokens.shape
        slots, bias, span = cache.room_for(n, counts, branches)
        x = functional.embedding(tokens.reshape(-1), self.embed.weight)
        for block, flat, shaped in zip(self.blocks[:layers], cache.flat, cache.layers, strict=False):
            x = block(x, bias, rows, (flat, shaped, slots, span))
        return self._normalised(x).view(rows, n, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) for hidden states (..., E)."""
        return functional.linear(hidden, self.head.weight)

    def no_hidden(self, rows: int, n: int, capacity: int) -> Tensor:  # noqa: ARG002
        """Return the states (rows, n, E) that stand for no token read: zeros."""
        return torch.zeros(rows, n, self.shape.width)

    def _normalised(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.shape.width,))
