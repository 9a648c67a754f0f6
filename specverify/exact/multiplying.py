"""What does code make of several uniforms multiplied? Running products, which compare with thresholds exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.exact.chains import operand_of
from specverify.exact.links import Link
from specverify.exact.refusals import opaque
from specverify.exact.shaping import widened
from specverify.exact.tensor import Handler, SymbolicTensor

_HINT = "multiply plain uniforms, each once, and compare the products with thresholds"


def _scale(source: SymbolicTensor) -> Tensor:
    """The positive factors (of the tensor's shape) that are all that happened to these uniforms."""
    factor = np.ones(source.atoms.shape)
    for link in source.chain:
        if link.name not in ("mul", "div"):
            raise opaque("a product of random numbers that were mapped before", _HINT)
        by = operand_of(link)
        factor = factor * (by if link.name == "mul" else 1 / by)
    if not ((factor > 0) & np.isfinite(factor)).all():
        raise opaque("a product of random numbers that may not be positive", _HINT)
    return torch.from_numpy(np.asarray(factor))


def _running(source: SymbolicTensor, factors: Tensor, dtype: torch.dtype) -> SymbolicTensor:
    """Running products along the last dimension of uniforms times ``factors``."""
    atoms = source.decider.multiplied(source.atoms)
    scale = factors.cumprod(-1)
    return SymbolicTensor.make(atoms, source.decider, dtype, () if bool((scale == 1).all()) else (Link("mul", scale),))


def _moved(source: SymbolicTensor, dim: int) -> SymbolicTensor:
    """The tensor with that dimension last."""
    if source.atoms.dim() == 0 or source.atoms.numel() == 0:
        raise opaque("a product along a dimension that is not there")
    return source.movedim(dim, -1)  # type: ignore[return-value]


def cumprod(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``u.cumprod(dim)`` and ``u.prod(dim)``."""
    named = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | kwargs
    source: SymbolicTensor = named["input"]
    if named.get("dtype") not in (None, source.dtype) or not isinstance(source, SymbolicTensor):
        raise opaque(f"torch operation {name!r} to another precision")
    if name == "prod" and named.get("dim") is None:
        source, named["dim"] = source.reshape(-1), 0  # type: ignore[assignment]
    moved = _moved(source, named["dim"])
    products = _running(moved, _scale(moved), source.dtype)
    if name == "cumprod":
        return products.movedim(-1, named["dim"])
    last = products[..., -1]
    return last.unsqueeze(named["dim"]) if named.get("keepdim") else last


def cumsum(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``u.log().cumsum(dim)`` and ``u.log().sum(dim)``: the logarithm of a running product."""
    named = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | kwargs
    source = named["input"]
    if not isinstance(source, SymbolicTensor) or named.get("dtype") not in (None, source.dtype):
        raise opaque(f"torch operation {name!r} to another precision")
    if [link.name for link in source.chain[-1:]] != ["log"]:
        raise opaque(f"the sum of random numbers (torch operation {name!r})", _HINT)
    plain = SymbolicTensor.make(source.atoms, source.decider, source.dtype, source.chain[:-1])
    return cumprod("prod" if name == "sum" else "cumprod", (plain,), {k: v for k, v in named.items() if k != "input"}).log()


def times(one: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """Elementwise product of two random tensors."""
    shape = torch.Size(np.broadcast_shapes(one.shape, other.shape))
    one, other = widened(one, shape), widened(other, shape)
    factors = torch.stack([_scale(one), _scale(other)], -1)
    both = SymbolicTensor.make(torch.stack([one.atoms, other.atoms], -1), one.decider, one.dtype)
    return _running(both, factors, torch.promote_types(one.dtype, other.dtype))[..., 1]  # type: ignore[return-value]


MULTIPLYING: dict[str, Handler] = {"cumprod": cumprod, "prod": cumprod, "cumsum": cumsum, "sum": cumsum}
