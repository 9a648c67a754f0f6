"""What does arithmetic do to random numbers? Monotone maps are remembered, and inverted when the number is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.exact.chains import evaluate, insist_on_positive, operand_of
from specverify.exact.links import COARSE, Link
from specverify.exact.multiplying import times
from specverify.exact.refusals import opaque
from specverify.exact.shaping import widened
from specverify.exact.tensor import Handler, SymbolicTensor

MAPS = frozenset(
    {
        "mul", "multiply", "add", "sub", "subtract", "rsub", "div", "divide", "true_divide", "truediv", "log", "neg",
        "negative", "exp", "clamp", "clip", "clamp_min", "clamp_max", "radd", "rmul", "log1p", "rdiv", "rtruediv",
        "reciprocal", "pow", "sqrt", "square", "maximum", "minimum",
    }
)  # fmt: skip
_MEANS = {
    "multiply": "mul", "rmul": "mul", "radd": "add", "subtract": "sub", "divide": "div", "truediv": "div",
    "true_divide": "div", "rtruediv": "rdiv", "negative": "neg", "clip": "clamp", "maximum": "clamp_min",
    "minimum": "clamp_max",
}  # fmt: skip
_REVERSED = {"sub": "rsub", "div": "rdiv", "rsub": "sub", "rdiv": "div"}
_COMMUTE = ("add", "mul", "clamp_min", "clamp_max")


def common_dtype(source: SymbolicTensor, value: Any) -> torch.dtype:
    """The precision in which torch combines a random tensor with a number or tensor."""
    plain = 1.0 if source.is_number else torch.empty((0,) * source.atoms.dim(), dtype=source.dtype)
    return torch.result_type(plain, value) if isinstance(plain, Tensor) or isinstance(value, Tensor) else torch.float64


def operand(source: SymbolicTensor, value: Any) -> tuple[SymbolicTensor, Tensor | float]:
    """Broadcast a symbolic tensor and a number or tensor against each other, both rounded as torch rounds them before it
    combines them; the operand comes back in float64.
    """
    if isinstance(value, SymbolicTensor):
        raise opaque("arithmetic between random numbers")
    given = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if given.is_complex():
        raise opaque("complex arithmetic")
    common = common_dtype(source, value if isinstance(value, (Tensor, int, float)) else given)
    if common in COARSE and source.dtype != common:
        source = source.mapped(Link("round", COARSE[common]), dtype=common)
    given = given.detach().to("cpu").to(common).to(torch.float64)
    if given.dim() == 0:
        return source, float(given)
    if given.shape == source.atoms.shape:
        return source, given.contiguous()
    shape = torch.Size(np.broadcast_shapes(source.atoms.shape, given.shape))
    return widened(source, shape), given.expand(shape).contiguous()


def map_(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    """Elementwise increasing or decreasing maps: remembered, inverted at the comparison."""
    name = _MEANS.get(name, name)
    if kwargs.get("alpha", 1) != 1 or "out" in kwargs or kwargs.get("rounding_mode") is not None:
        raise opaque(f"torch operation {name!r} with {sorted(kwargs)}")
    source, rest = args[0], args[1:]
    if not isinstance(source, SymbolicTensor):  # number op random
        if len(args) < 2 or not isinstance(args[1], SymbolicTensor) or not (name in _REVERSED or name in _COMMUTE):
            raise opaque(f"torch operation {name!r} with a random number as its operand")
        source, rest, name = args[1], (args[0],), _REVERSED.get(name, name)
    if name == "clamp":
        return _clamp(source, rest, kwargs)
    if name in _UNARY:
        return _UNARY[name](source)
    value = rest[0] if rest else kwargs.get("other", kwargs.get("exponent", kwargs.get("min", kwargs.get("max"))))
    return binary(name, source, value)


def _log(source: SymbolicTensor) -> SymbolicTensor:
    insist_on_positive(source.chain, source.atoms.dim(), "the logarithm of")
    return source.mapped(Link("log"))


def _log1p(source: SymbolicTensor) -> SymbolicTensor:
    if source.dtype in COARSE:
        raise opaque(f"log1p in {source.dtype}", "convert to float32 first")
    return _log(source.mapped(Link("add", 1.0)))


_UNARY: dict[str, Callable[[SymbolicTensor], SymbolicTensor]] = {
    "log": _log,
    "exp": lambda source: source.mapped(Link("exp")),
    "neg": lambda source: source.mapped(Link("mul", -1.0)),
    "log1p": _log1p,
    "reciprocal": lambda source: binary("rdiv", source, 1.0),
    "sqrt": lambda source: binary("pow", source, 0.5),
    "square": lambda source: binary("pow", source, 2.0),
}


def _held_by(value: Any, dtype: torch.dtype) -> bool:
    """Whether a number is what it is in this precision too (tensors with dimensions are rounded before they are combined)."""
    if isinstance(value, Tensor):
        return value.dim() > 0 or bool(value.to(dtype).to(torch.float64) == value.to(torch.float64))
    return float(torch.tensor(value, dtype=torch.float64).to(dtype)) == float(value)


def binary(name: str, source: SymbolicTensor, value: Any) -> SymbolicTensor:
    """One of add, sub, rsub (value - u), mul, div, rdiv (value / u), pow, clamp_min, clamp_max."""
    if isinstance(value, SymbolicTensor) and name == "mul":
        return times(source, value)
    if isinstance(value, SymbolicTensor):
        raise opaque("arithmetic between random numbers")
    if name == "rsub":
        source, name = source.mapped(Link("mul", -1.0)), "add"
    if name in ("rdiv", "pow"):
        insist_on_positive(source.chain, source.atoms.dim(), "dividing by" if name == "rdiv" else "a power of")
    common = common_dtype(source, value)
    if common in COARSE and not name.startswith("clamp_") and (source.is_number or not _held_by(value, common)):
        # torch keeps such a number in float32 for the operation; what that rounds to is not followed.
        raise opaque(f"{name!r} of {common} and a number that {common} does not hold", "convert to float32 first")
    source, by = operand(source, value)
    if name == "sub":
        name, by = "add", -by
    name = {"clamp_min": "at_least", "clamp_max": "at_most"}.get(name, name)
    if name not in ("add", "mul", "div", "rdiv", "pow", "at_least", "at_most"):
        raise opaque(f"torch operation {name!r}")
    return source.mapped(Link(name, by), dtype=common_dtype(source, value))


def _clamp(source: SymbolicTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    low = kwargs.get("min", rest[0] if rest else None)
    high = kwargs.get("max", rest[1] if len(rest) > 1 else None)
    for name, bound in (("clamp_min", low), ("clamp_max", high)):
        if bound is not None:
            source = binary(name, source, bound)
    return source


def choose(mask: Tensor, source: SymbolicTensor, others: Any) -> SymbolicTensor:
    """``where(mask, random, others)``: elements outside the mask become ordinary numbers."""
    if isinstance(mask, SymbolicTensor):
        raise opaque("choosing by random numbers")
    if isinstance(others, SymbolicTensor):
        return _either(mask, source, others)
    third = [others.shape] if isinstance(others, Tensor) else []
    shape = torch.Size(np.broadcast_shapes(mask.shape, source.atoms.shape, *third))
    source = widened(source, shape)
    kept = mask.detach().cpu().expand(shape).contiguous()
    source, constants = operand(source, others)
    wide = constants.expand(shape).contiguous() if isinstance(constants, Tensor) else torch.full(shape, constants).double()
    return widened(source, shape).mapped(Link("choose", wide, kept), dtype=common_dtype(source, others))


def _affine(source: SymbolicTensor) -> tuple[np.ndarray, np.ndarray]:
    """Factor and summand (float64, of the tensor's shape) of maps that are sums and products only."""
    factor, summand = np.ones(source.atoms.shape), np.zeros(source.atoms.shape)
    with np.errstate(all="ignore"):
        for link in source.chain:
            by = operand_of(link)
            if link.name == "add":
                summand = summand + by
            elif link.name in ("mul", "div"):
                by = by if link.name == "mul" else 1 / by
                factor, summand = factor * by, np.where(summand == 0, 0.0, summand * by)
            else:
                raise opaque("choosing between random numbers that were mapped in different ways")
    return factor, summand


def _either(mask: Tensor, one: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """``where(mask, random, random)``: element by element the one or the other number."""
    shape = torch.Size(np.broadcast_shapes(mask.shape, one.atoms.shape, other.atoms.shape))
    one, other = widened(one, shape), widened(other, shape)
    keep = mask.detach().cpu().expand(shape)
    atoms = torch.where(keep, one.atoms, other.atoms)
    if not one.chain and not other.chain:
        return SymbolicTensor.make(atoms, one.decider, one.dtype)
    factor, summand = (np.where(keep.numpy(), x, y) for x, y in zip(_affine(one), _affine(other), strict=True))
    if not (np.isfinite(factor) & np.isfinite(summand)).all():
        raise opaque("choosing between random numbers of which one is infinite")
    chain = (Link("mul", torch.from_numpy(factor)), Link("add", torch.from_numpy(summand)))
    return SymbolicTensor.make(atoms, one.decider, torch.promote_types(one.dtype, other.dtype), chain)


def _where(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    named = dict(zip(("condition", "input", "other"), args, strict=False)) | kwargs
    if len(named) < 3:
        raise opaque("torch.where with one argument")
    condition, first, second = named["condition"], named["input"], named["other"]
    if condition.dtype != torch.bool:  # the method first.where(condition, second)
        condition, first = first, condition
    if isinstance(first, SymbolicTensor):
        return choose(condition, first, second)
    return choose(~condition, second, first)


def _masked_fill(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    named = dict(zip(("input", "mask", "value"), args, strict=False)) | kwargs
    if not isinstance(named["input"], SymbolicTensor):
        raise opaque("masked_fill with random numbers")
    return choose(~named["mask"], named["input"], named["value"])


def set_item(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    """``random[index] = number``."""
    source, index, value = args
    if not isinstance(source, SymbolicTensor) or isinstance(value, SymbolicTensor):
        raise opaque("assigning random numbers to a part of a tensor")
    kept = torch.ones(source.atoms.shape, dtype=torch.bool)
    kept[index] = False
    constants = torch.zeros(source.atoms.shape, dtype=torch.float64)
    rounded = torch.as_tensor(value).detach().to(source.dtype).to(torch.float64)
    constants[index] = rounded
    return source.mapped(Link("choose", constants, kept))


def whole(source: SymbolicTensor, most: int = 65536) -> Tensor:
    """The integer part of every number, decided at once: int64, same shape."""
    ends = np.floor(evaluate(source.chain, np.array([0.0, np.nextafter(1.0, 0.0)]).reshape(2, *[1] * source.atoms.dim())))
    ends = np.broadcast_to(ends, (2, *source.atoms.shape))
    low, high = np.asarray(ends.min(0)), np.asarray(ends.max(0))
    if not np.isfinite(ends).all() or (high - low).max(initial=0) > most:
        raise opaque("the integer part", f"round random numbers to at most {most} values")
    out = torch.from_numpy(low.astype(np.int64).reshape(source.atoms.shape)).clone()
    for step in range(int((high - low).max(initial=0))):
        edge = torch.from_numpy(np.asarray(low + step + 1).reshape(source.atoms.shape))
        out += torch.ge(source, edge).long()
    return out


def _integers(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:  # noqa: ARG001
    if name == "floor":
        return whole(args[0]).to(args[0].dtype)
    insist_on_positive(args[0].chain, args[0].atoms.dim(), "cutting off")  # long() and int() cut towards 0
    return whole(args[0]).to(torch.int32 if name == "int" else torch.int64)


ARITHMETIC: dict[str, Handler] = {
    **dict.fromkeys(MAPS, map_),
    "where": _where,
    "masked_fill": _masked_fill,
    "setitem": set_item,
    "long": _integers,
    "int": _integers,
    "floor": _integers,
}
