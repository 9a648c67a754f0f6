"""Where keys and values live, and what a token sees of them: storage allocated once, written at each row's own places.

Position enters attention through a learned bias alone, one number per head and distance; distances beyond the reach share
one. What a token adds to its scores is a window of one row of numbers, so looking it up is all the position work there is.

Names of shapes: B rows, n new tokens, C capacity, S positions in use, H heads, D width of a head, E = H D, M real tokens
of a padded block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Branches, Cache


class Weights(NamedTuple):
    """Matrices of a block, transposed and contiguous: mix (E, 3E), gather (E, E), widen (E, 4E), narrow (4E, E)."""

    mix: Tensor
    gather: Tensor
    widen: Tensor
    narrow: Tensor


@dataclass(frozen=True)
class Room:
    """What a pass needs to know of the places it writes and sees.

    bias (B H, n, S). At one row ``start`` is where its n tokens go; for several rows ``slots`` (M H,) are their places in
    storage (B H C, D), and ``real`` (M,) says which of the B n tokens are not padding, None when all are.
    """

    rows: int
    n: int
    span: int
    bias: Tensor
    start: int = 0
    slots: Tensor | None = None
    real: Tensor | None = None


class KVCache(Cache):
    """Keys and values, (layers, B H, C, D) each."""

    def __init__(self, layers: int, heads: int, width: int, capacity: int, rows: int, distance_bias: Tensor) -> None:
        super().__init__(capacity, rows)
        self.heads = heads
        self.windows = distance_windows(distance_bias, capacity)
        self.keys = torch.zeros(layers, rows * heads, capacity, width // heads, dtype=distance_bias.dtype)
        self.values = torch.zeros_like(self.keys)
        self.weights: Sequence[Weights] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def room_for(self, n: int, counts: Tensor | None = None, branches: Branches | None = None) -> Room:
        """Claim room for n more tokens a row, or for the first ``counts[b]`` of them."""
        rows, C = len(self.lengths), self.capacity
        if rows == 1 and branches is None:
            span = self.advance(n, counts)
            start = span - n
            # Window number C - t is that of a token at t.
            bias = self.windows[:, C - span + 1 : C - start + 1, :span]
            return Room(1, n, span, bias if n == 1 else bias.flip(1), start)
        base = self.lengths
        positions, span = self.claim(n, counts)  # (B, n)
        slots = (torch.arange(rows * self.heads).view(rows, 1, self.heads) * C + positions[..., None]).view(rows * n, -1)
        real = None
        if counts is not None:
            real = (torch.arange(n) < counts[:, None]).view(-1).nonzero()[:, 0]
            real = None if len(real) == rows * n else real
            slots = slots if real is None else slots[real]
        bias = self._bias(base, positions, span, branches)  # (H, B, n, S)
        return Room(rows, n, span, bias.transpose(0, 1).reshape(rows * self.heads, n, span), 0, slots.view(-1), real)

    def _bias(self, base: Tensor, positions: Tensor, span: int, branches: Branches | None) -> Tensor:
        if branches is None:
            return self.windows[:, :, :span][:, self.capacity - positions]
        base, depths = base - branches.earlier, branches.depths
        mine = depths[branches.earlier :]
        # Up to the tree a token sees all; of the tree, whose places hold its tokens in any order, only its own path.
        bias = self.windows[:, :, :span][:, self.capacity - base[:, None] - mine].contiguous()
        among = self.windows[:, (self.capacity - mine)[:, None], depths].masked_fill(~branches.visible, -torch.inf)
        places = (base[:, None] + torch.arange(len(depths)))[None, :, None].expand(len(among), -1, len(mine), -1)
        return bias.scatter_(3, places, among[:, None].expand(-1, len(base), -1, -1))

    def _copy_rows(self, other: KVCache, which: Tensor, span: int) -> None:
        for mine, others in ((self.keys, other.keys), (self.values, other.values)):
            by_row = others.view(len(others), -1, self.heads, *others.shape[2:])[:, :, :, :span]
            mine.view(len(mine), -1, self.heads, *mine.shape[2:])[:, :, :, :span] = by_row[:, which]

    def _move(self, source: Tensor, target: Tensor) -> None:
        rows = torch.arange(len(source))[:, None]
        for kept in (self.keys, self.values):
            by_row = kept.view(len(kept), -1, self.heads, *kept.shape[2:])
            by_row[:, rows, :, target] = by_row[:, rows, :, source]

    def _move_rows(self, source: Tensor, target: Tensor) -> None:
        for kept in (self.keys, self.values):
            by_row = kept.view(len(kept), -1, self.heads, *kept.shape[2:])
            by_row[:, target] = by_row[:, source]


def block_pass(x: Tensor, weights: Weights, cache: KVCache, layer: int, room: Room) -> Tensor:
    """Map x (M, E) -> (M, E) by one block: write keys and values of the new tokens, attend, and the two-layer network."""
    E, H = x.shape[1], cache.heads
    D, B, n = E // H, room.rows, room.n
    mixed = torch.mm(torch.layer_norm(x, (E,)), weights.mix).view(-1, 3 * H, D)
    keys, values = cache.keys[layer], cache.values[layer]
    if room.slots is None:
        heads_first = mixed.transpose(0, 1)  # (3H, n, D)
        keys[:H, room.start : room.span] = heads_first[H : 2 * H]
        values[:H, room.start : room.span] = heads_first[2 * H :]
        query = heads_first[:H]
    else:
        keys.view(-1, D).index_copy_(0, room.slots, mixed[:, H : 2 * H].reshape(-1, D))
        values.view(-1, D).index_copy_(0, room.slots, mixed[:, 2 * H :].reshape(-1, D))
        query = mixed[:, :H]
        if room.real is not None:
            query = query.new_zeros(B * n, H, D).index_copy_(0, room.real, query)
        query = query.view(B, n, H, D).transpose(1, 2).reshape(B * H, n, D)
    scores = torch.baddbmm(room.bias, query, keys[: B * H, : room.span].transpose(1, 2), alpha=1 / math.sqrt(D))
    seen = torch.bmm(scores.softmax(-1), values[: B * H, : room.span])
    seen = seen.view(B, H, n, D).transpose(1, 2).reshape(B * n, E)
    if room.real is not None:
        seen = seen[room.real]
    x = torch.addmm(x, seen, weights.gather)
    wide = functional.gelu(torch.mm(torch.layer_norm(x, (E,)), weights.widen), approximate="tanh")
    return torch.addmm(x, wide, weights.narrow)


def only_real(x: Tensor, room: Room) -> Tensor:
    """Return of a padded block (B n, E) the tokens that are no padding, (M, E)."""
    return x if room.real is None else x[room.real]


def padded(x: Tensor, room: Room) -> Tensor:
    """Return (M, E) as a block (B, n, E), zeros at its padding."""
    if room.real is not None:
        x = x.new_zeros(room.rows * room.n, x.shape[1]).index_copy_(0, room.real, x)
    return x.view(room.rows, room.n, -1)


def bias_by_distance(distance_bias: Tensor, size: int) -> Tensor:
    """Return the bias (2 size, H) at ``size + distance``: -inf ahead (distance < 0), constant beyond the reach."""
    reach, heads = distance_bias.shape[0] - 1, distance_bias.shape[1]
    table = torch.cat([torch.full((1, heads), -torch.inf, dtype=distance_bias.dtype), distance_bias[1:]])
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
