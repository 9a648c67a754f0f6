"""What has become of a random number since it was drawn? The chain of maps applied to it, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Link(NamedTuple):
    """One map of a chain: its name, its operand (float64; a tensor has the shape of the random tensor), and for ``choose``
    the mask of the elements that stay random, the others being the operand.
    """

    name: str
    operand: Tensor | float | None = None
    where: Tensor | None = None

    def reshaped(self, apply: Callable[[Tensor], Any]) -> Link:
        """The same link after an operation on the shape."""
        operand = apply(self.operand) if isinstance(self.operand, Tensor) else self.operand
        return Link(self.name, operand, None if self.where is None else apply(self.where))


Chain = tuple[Link, ...]
COARSE = {torch.bfloat16: 8.0, torch.float16: 11.0}
"""Significant binary digits of the precisions whose rounding is followed; that of float32 and float64 is taken for none."""


def full(operand: Tensor | float | None, shape: torch.Size) -> Tensor:
    """An operand as a tensor of the full shape."""
    if isinstance(operand, Tensor):
        return operand
    return torch.full(shape, float("nan") if operand is None else operand, dtype=torch.float64)
