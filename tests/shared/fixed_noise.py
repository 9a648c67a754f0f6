"""Noise of which the coins are known, for what happens at the ends of their range."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import BatchNoise


class FixedNoise(BatchNoise):
    """Uniforms that are all the same number; choices as usual."""

    def __init__(self, u: float) -> None:
        super().__init__(torch.Generator().manual_seed(0))
        self.u = u

    def uniforms(self, rows: int, n: int, dtype: torch.dtype) -> Tensor:
        """Repeat the number (rows, n)."""
        return torch.full((rows, n), self.u, dtype=dtype)
