"""Table models as torch modules: what specverify hands to a step or a decoder factory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specverify.laws import Pair, TableModel


class TorchTable:
    """A :class:`TableModel` that answers ids (B, T) with log-laws (B, T, V); row t follows ``ids[:, : t + 1]``.

    Probability 0 is a logit of -inf. The model has no state and draws nothing.
    """

    def __init__(self, table: TableModel, dtype: torch.dtype = torch.float64) -> None:
        self.table = table
        self.vocab_size = table.vocab_size
        self._laws = torch.from_numpy(np.ascontiguousarray(table.laws))
        self._logits = self._laws.log().to(dtype)
        n = table.size
        self._n = n
        self._period = max(n - 1, 1)

    def _contexts(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        positions = torch.arange(length)
        sums = (ids * (1 + positions % self._period)).cumsum(1)
        return (sums + positions + 1) % self._n

    def __call__(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) for ids (B, T)."""
        return self._logits[self._contexts(ids)]


def torch_models(pair: Pair, dtype: torch.dtype = torch.float64) -> tuple[TorchTable, TorchTable]:
    """The target and the draft of a pair as torch models."""
    return TorchTable(pair.target, dtype), TorchTable(pair.draft, dtype)
