"""What do the matrix products of a run cost alone? Records which products a run makes, and makes just these.

A floor under anything that is built on them: the same linear layers with the same weights in the same order, and attention's
two products, with operands already laid out as the products like them best. Memory is as in the run: what lay in different
places lies in different places (every layer's keys, say), what was overwritten is the same place again.

Names of shapes: a product is (M, K) x (K, N), or a batch of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
OPERANDS: dict[Any, Callable[..., tuple[Tensor, Tensor]]] = {
    aten.mm.default: lambda a, b: (a, b),
    aten.addmm.default: lambda _, a, b, **__: (a, b),
    aten.linear.default: lambda a, weight, _=None: (a.flatten(0, -2), weight.t()),
    aten.bmm.default: lambda a, b: (a, b),
    aten.baddbmm.default: lambda _, a, b, **__: (a, b),
}
"""The two operands of every product that is made by name."""
ATTENTION = {
    aten.scaled_dot_product_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_attention_math.default,
}
"""Fused attention; two products each."""
HIDDEN = {aten.matmul.default, aten.einsum.default, aten.dot.default, aten.mv.default, aten.bilinear.default}
"""Products of other names, of which there must be none: they would be missing in the record."""


@dataclass(frozen=True)
class Operand:
    """Where an operand lay (numbered by first use), its shape, and whether its last two dimensions lay transposed."""

    place: int
    shape: tuple[int, ...]
    transposed: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()

    def inside(self, memory: Tensor) -> Tensor:
        """Return the operand as a view of its place."""
        if not self.transposed:
            return memory[: self.size].view(self.shape)
        *batch, rows, columns = self.shape
        return memory[: self.size].view(*batch, columns, rows).transpose(-2, -1)


@dataclass(frozen=True)
class Product:
    """One product, and whether it belongs to attention."""

    left: Operand
    right: Operand
    attention: bool

    @property
    def size(self) -> int:
        """Number of elements of what comes out."""
        return self.left.size // self.left.shape[-1] * self.right.shape[-1]


class Recording(TorchDispatchMode):
    """While entered, every matrix product is written to ``products``. Errors: RuntimeError at a product of unknown name."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []
        self._places: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the product, if it is one, and do it."""
        if func in HIDDEN:
            raise RuntimeError(f"{func} is a matrix product that this record does not know; teach it its operands")
        if func in OPERANDS:
            left, right = OPERANDS[func](*args, **(kwargs or {}))
            self.products.append(Product(self._operand(left), self._operand(right), attention=left.dim() == 3))
        elif func in ATTENTION:
            query, key, value = args[:3]  # each (B, H, n or S, D)
            weights = torch.empty(*query.shape[:-1], key.shape[-2])
            for left, right in ((query, key.transpose(-2, -1)), (weights, value)):
                self.products.append(Product(self._operand(left), self._operand(right), attention=True))
        return func(*args, **(kwargs or {}))

    def _operand(self, tensor: Tensor) -> Operand:
        place = self._places.setdefault(tensor.data_ptr(), len(self._places))
        shape = (tensor.shape[:-2].numel(), *tensor.shape[-2:]) if tensor.dim() > 2 else tuple(tensor.shape)
        return Operand(place, shape, transposed=tensor.stride(-2) < tensor.stride(-1))


class Replay:
    """Makes recorded products, on random numbers."""

    def __init__(self, products: list[Product]) -> None:
        sizes: dict[int, int] = {}
        for product in products:
            for operand in (product.left, product.right):
                sizes[operand.place] = max(sizes.get(operand.place, 0), operand.size)
        self._memory = {place: torch.randn(size) for place, size in sizes.items()}
        self._out = torch.empty(max(product.size for product in products))
        self.products = products

    def run(self, *, attention: bool = True) -> None:
        """Make all products once, in their order, or without those of attention."""
        for product in self.products:
            if product.attention and not attention:
                continue
            left, right = (side.inside(self._memory[side.place]) for side in (product.left, product.right))
            out = self._out[: product.size].view(*product.left.shape[:-1], product.right.shape[-1])
            (torch.bmm if left.dim() == 3 else torch.mm)(left, right, out=out)


def recorded(run: Callable[[], object]) -> list[Product]:
    """Run something and return the matrix products that it made."""
    with Recording() as recording:
        run()
    return recording.products
