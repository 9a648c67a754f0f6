"""Which small networks draft from what the main model has computed: heads on its hidden states, and a layer of their own.

Cai et al. 2024, Medusa (arXiv 2401.10774): head j reads the main model's last hidden state and foresees the token j
places after the next one. Li et al. 2024, EAGLE (arXiv 2401.15077): one layer reads the main model's hidden state beside
the token that followed it, foresees the next hidden state, and can thus go on by itself. An early exit (Elhoushi et al.
2024, LayerSkip, arXiv 2404.16710) reads the hidden state of an early layer.

Names of shapes: B rows, n tokens, K heads, E width of the main model, V vocabulary. Hidden states are normalised, as the
main model's own head reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.caching import Cache
from reference.kv_cache import KVCache, attention_bias, block_pass, only_real, padded
from reference.model import Block, Prepared, Shape, new_cache, new_distance_bias


class MedusaHead(nn.Module):
    """A residual layer and a head of its own: hidden (..., E) -> logits (..., V)."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) for hidden states (..., E)."""
        logits: Tensor = self.head(hidden + functional.silu(self.mix(hidden)))
        return logits


class MedusaHeads(nn.Module):
    """K heads; head j, from 0, foresees the token j + 1 places after the one that the main model's own head foresees."""

    def __init__(self, width: int, vocab_size: int, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(MedusaHead(width, vocab_size) for _ in range(count))
        self._stacked: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, hidden: Tensor, k: int) -> Tensor:
        """Return logits (B, K, V) of the first k heads for hidden states (B, E).

        Errors: ValueError for more heads than there are.
        """
        if not 1 <= k <= len(self.heads):
            raise ValueError(f"there are {len(self.heads)} heads, and {k} are asked for; choose 1 to {len(self.heads)}")
        mix, bias, head = (part[:k] for part in self._all())
        mixed = torch.baddbmm(bias, hidden.expand(k, -1, -1), mix)  # (K, B, E)
        return torch.bmm(hidden + functional.silu(mixed), head).transpose(0, 1)

    def train(self, mode: bool = True) -> MedusaHeads:
        """Set the mode; weights that were put side by side are read again."""
        self._stacked = None
        super().train(mode)
        return self

    def _all(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all heads side by side, (K, E, E), (K, 1, E) and (K, E, V), so that one product serves them all."""
        if self._stacked is None:
            heads = list(self.heads)
            self._stacked = (
                torch.stack([h.mix.weight.t() for h in heads]).contiguous(),  # type: ignore[operator, union-attr]
                torch.stack([h.mix.bias[None] for h in heads]),  # type: ignore[index, union-attr]
                torch.stack([h.head.weight.t() for h in heads]).contiguous(),  # type: ignore[operator, union-attr]
            )
        return self._stacked


class ExitHead(nn.Module):
    """A residual two-layer network and a head on an early layer's hidden state (..., E) -> logits (..., V)."""

    def __init__(self, width: int, vocab_size: int, widening: int = 4) -> None:
        super().__init__()
        self.widen = nn.Linear(width, widening * width)
        self.narrow = nn.Linear(widening * width, width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) for hidden states (..., E)."""
        inner = self.narrow(functional.gelu(self.widen(hidden), approximate="tanh"))
        logits: Tensor = self.head(functional.layer_norm(hidden + inner, hidden.shape[-1:]))
        return logits


class FeatureLayer(nn.Module):
    """One transformer block over (token, hidden state before it); it foresees the hidden state at the token.

    ``layer(tokens, features)`` reads whole texts, ``layer.extend`` goes on from a cache of its own.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.width)
        self.join = nn.Linear(shape.width, shape.width, bias=False)
        self.distance_bias = nn.Parameter(new_distance_bias(shape))
        self.block = Block(shape)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.prepared = Prepared()

    def forward(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, n, E) and logits (B, n, V) for tokens (B, n) and the features (B, n, E) before them."""
        rows, n = tokens.shape
        x = self._joined(tokens.reshape(-1), features.reshape(rows * n, -1))
        hidden = self._normalised(self.block(x, attention_bias(self.distance_bias, n), rows)).view(rows, n, -1)
        return hidden, functional.linear(hidden, self.head.weight)

    def start(self, capacity: int, rows: int) -> KVCache:
        """Return an empty cache for ``rows`` rows of at most ``capacity`` tokens each."""
        return new_cache(self.shape, capacity, rows, self.distance_bias, self.prepared.of([self.block]))

    def extend(self, tokens: Tensor, features: Tensor, cache: Cache, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, n, E) and logits (B, n, V) for tokens (B, n) that follow what the cache holds; row b
        reads its first ``counts[b]``. Errors: ValueError when a row would outgrow the capacity.
        """
        assert isinstance(cache, KVCache)
        room = cache.room_for(tokens.shape[1], counts)
        before = features.reshape(-1, features.shape[-1])
        x = self._joined(only_real(tokens.reshape(-1), room), only_real(before, room))
        hidden = padded(self._normalised(block_pass(x, cache.weights[0], cache, 0, room)), room)
        return hidden, functional.linear(hidden, self.head.weight)

    def _joined(self, tokens: Tensor, features: Tensor) -> Tensor:
        return functional.embedding(tokens, self.embed.weight) + functional.linear(features, self.join.weight)

    def _normalised(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.shape.width,))
