"""What are random numbers to numpy code? Arrays whose operations are those of the symbolic tensor inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from specverify.exact.number import SymbolicNumber
from specverify.exact.refusals import opaque
from specverify.exact.symbolic import HANDLERS, SymbolicTensor
from specverify.exact.tensor import operate

_UFUNCS = {
    "less": "lt", "greater": "gt", "less_equal": "le", "greater_equal": "ge", "multiply": "mul", "add": "add",
    "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg", "log": "log", "exp": "exp",
    "log1p": "log1p", "power": "pow", "sqrt": "sqrt", "square": "square", "maximum": "maximum", "minimum": "minimum",
    "reciprocal": "reciprocal", "floor": "floor", "positive": "positive",
}  # fmt: skip


def inside(value: Any) -> Any:
    """The tensor inside a random number or array; arrays as float64 tensors (of bools where they hold bools)."""
    if isinstance(value, SymbolicNumber):
        return value.tensor
    if isinstance(value, SymbolicArray):
        return value.tensor
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return torch.from_numpy(array if array.dtype.kind == "b" else array.astype(np.float64)).reshape(value.shape)
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, (SymbolicNumber, SymbolicArray)) for v in value):
            raise opaque("a list of random numbers in arithmetic of arrays", "make an array of it with numpy.stack")
        return inside(np.asarray(value))
    return value.item() if isinstance(value, np.generic) else value


def outside(value: Any) -> Any:
    """What numpy code gets for a tensor: an array, a number where it has no dimensions."""
    if isinstance(value, SymbolicTensor):
        return SymbolicArray(value) if value.atoms.dim() else SymbolicNumber(value)
    if isinstance(value, Tensor):
        return value.numpy() if value.dim() else value.numpy()[()]
    return value


def ufunc(self: Any, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:  # noqa: ARG001 - the protocol
    """Numpy's elementwise operations (the protocol ``__array_ufunc__``)."""
    name = _UFUNCS.get(function.__name__)
    if name is None or method != "__call__" or kwargs.get("out") is not None:
        raise opaque(f"numpy's {function.__name__!r}")
    return outside(HANDLERS[name](name, tuple(inside(x) for x in inputs), {}))


def _where(condition: Any, x: Any, y: Any) -> Any:
    return HANDLERS["where"]("where", (inside(condition), inside(x), inside(y)), {})


def _search(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if sorter is not None:
        raise opaque("searchsorted with a sorter")
    edges, numbers = inside(np.asarray(a)), inside(v)
    flat = HANDLERS["reshape"]("reshape", (numbers, -1), {})
    found = HANDLERS["searchsorted"]("searchsorted", (edges, flat), {"right": side == "right"})
    return found.reshape(numbers.atoms.shape)


def _insist_on_none(name: str, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that would be ignored."""
    if given := sorted(k for k, v in kwargs.items() if v is not None and v is not np._NoValue and k != "copy"):
        raise opaque(f"numpy's {name!r} with {given}")


def _along(name: str) -> Callable[..., Any]:
    def take(a: Any, axis: int | None = None, **kwargs: Any) -> Any:
        _insist_on_none(name, kwargs)
        return HANDLERS[name](name, (inside(a), axis), {})

    return take


def _argsort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:  # noqa: ARG001
    source = inside(a)
    if axis is None:
        source, axis = source.reshape(-1), 0
    return HANDLERS["argsort"]("argsort", (source, axis), {})


def _joined(name: str) -> Callable[..., Any]:
    def join(arrays: Any, axis: int | None = 0, **kwargs: Any) -> Any:
        _insist_on_none(name, kwargs)
        parts = [inside(a) for a in arrays]
        if axis is None:
            parts, axis = [part.reshape(-1) for part in parts], 0
        return HANDLERS[name](name, (parts, axis), {})

    return join


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **kwargs: Any) -> Any:
    _insist_on_none("clip", kwargs)
    return HANDLERS["clamp"]("clamp", (inside(a),), {"min": inside(a_min), "max": inside(a_max)})


def _shaped(name: str) -> Callable[..., Any]:
    def shape(a: Any, *args: Any, **kwargs: Any) -> Any:
        args += tuple(kwargs.pop(k) for k in ("newshape", "shape", "axis") if k in kwargs)
        if kwargs.pop("order", None) not in (None, "C"):
            raise opaque(f"numpy's {name!r} in another order than C's")
        _insist_on_none(name, kwargs)
        return HANDLERS[name](name, (inside(a), *args), {})

    return shape


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.searchsorted: _search,
    np.digitize: lambda x, bins, right=False: _search(bins, x, "left" if right else "right"),
    np.argmax: _along("argmax"),
    np.argmin: _along("argmin"),
    np.argsort: _argsort,
    np.concatenate: _joined("cat"),
    np.stack: _joined("stack"),
    np.clip: _clip,
    np.reshape: _shaped("reshape"),
    np.ravel: _shaped("ravel"),
    np.squeeze: _shaped("squeeze"),
    np.expand_dims: _shaped("unsqueeze"),
    np.shape: lambda a: tuple(inside(a).atoms.shape),
    np.ndim: lambda a: inside(a).atoms.dim(),
    np.size: lambda a: inside(a).atoms.numel(),
}


def function(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """Numpy's other functions (the protocol ``__array_function__``)."""
    handler = _FUNCTIONS.get(func)
    if handler is None:
        raise opaque(f"numpy's {func.__name__!r}")
    return outside(handler(*args, **kwargs))


class SymbolicArray(NDArrayOperatorsMixin):
    """Random numbers that are not known yet, in place of a numpy array."""

    __array_ufunc__ = ufunc
    __array_function__ = function

    def __init__(self, tensor: SymbolicTensor) -> None:
        self.tensor = tensor

    @property  # type: ignore[misc] # object's is writable
    def __class__(self) -> Any:  # what code asks of it with isinstance is answered as for an array
        return np.ndarray

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise opaque("conversion to a numpy array")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise opaque(f"the array attribute {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as of any array."""
        return tuple(self.tensor.atoms.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.tensor.atoms.numel()

    @property
    def dtype(self) -> Any:
        """Precision, as of any array."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def T(self) -> Any:  # noqa: N802 - numpy's name
        """Transposed."""
        return outside(HANDLERS["t"]("t", (self.tensor,), {}))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        source, turned = self.tensor, []
        plain = [torch.from_numpy(np.asarray(p)) if isinstance(p, (np.ndarray, list)) else p for p in parts]
        for place, part in enumerate(plain):
            if isinstance(part, slice) and part.step is not None and part.step < 0:  # torch has no such slices
                if part != slice(None, None, -1) or any(p is Ellipsis or p is None for p in plain):
                    raise opaque("an index with a negative step", "take [::-1] alone")
                plain[place] = slice(None)
                turned.append(place)
        if turned:
            source = HANDLERS["flip"]("flip", (source, turned), {})
        return outside(HANDLERS["getitem"]("getitem", (source, tuple(plain) if len(plain) > 1 else plain[0]), {}))

    def __setitem__(self, index: Any, value: Any) -> None:
        operate("__setitem__", (self.tensor, index, inside(value)), {})

    def astype(self, dtype: Any, **_: Any) -> Any:
        """The same numbers in another precision; integers are decided at once."""
        kind = np.dtype(dtype)
        name = {"float32": "float", "float64": "double", "float16": "half", "int64": "long", "int32": "int"}.get(kind.name)
        if name is None:
            raise opaque(f"conversion to {kind}")
        return outside(HANDLERS[name](name, (self.tensor,), {}))

    def reshape(self, *shape: Any) -> Any:
        """In another shape."""
        return outside(HANDLERS["reshape"]("reshape", (self.tensor, *shape), {}))

    def ravel(self) -> Any:
        """Without shape."""
        return self.reshape(-1)

    flatten = ravel

    def copy(self) -> Any:
        """A copy."""
        return SymbolicArray(HANDLERS["clone"]("clone", (self.tensor,), {}))

    def argmax(self, axis: int | None = None) -> Any:
        """Place of the largest."""
        return outside(HANDLERS["argmax"]("argmax", (self.tensor, axis), {}))

    def argmin(self, axis: int | None = None) -> Any:
        """Place of the smallest."""
        return outside(HANDLERS["argmin"]("argmin", (self.tensor, axis), {}))

    def argsort(self, axis: int = -1) -> Any:
        """Order of all."""
        return outside(HANDLERS["argsort"]("argsort", (self.tensor, axis), {}))

    def item(self) -> Any:
        """The only element as a number."""
        return HANDLERS["item"]("item", (self.tensor,), {})

    def tolist(self) -> Any:
        """Numbers in lists."""
        return HANDLERS["tolist"]("tolist", (self.tensor,), {})


def as_tensor(value: Any) -> SymbolicTensor | None:
    """A random number, an array of them, or a list of them as a tensor; None for anything else."""
    if isinstance(value, SymbolicTensor):
        return value
    if isinstance(value, (SymbolicNumber, SymbolicArray)):
        return value.tensor
    if isinstance(value, (list, tuple)) and value:
        parts = [as_tensor(v) for v in value]
        if all(p is not None for p in parts):
            return HANDLERS["stack"]("stack", (parts,), {})  # type: ignore[no-any-return]
    return None


SymbolicNumber.__array_ufunc__ = ufunc  # type: ignore[attr-defined]
SymbolicNumber.__array_function__ = function  # type: ignore[attr-defined]
