"""How does code use a random number? Symbolic uniforms that ride through PyTorch code as tensors.

A :class:`SymbolicTensor` looks like a float tensor but holds, per element, the index of an *atom* (one uniform number on
[0, 1), known only up to an interval) and a chain of increasing or decreasing maps applied since. Shape and index operations
act on the indices. A comparison with numbers inverts the chain and asks the walk which side the atom lies on: there the path
splits. Every other operation raises :class:`OpaqueRandomness` with the source line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness

Link = tuple[str, Tensor | None]
"""One map of a chain: its name and, for the affine ones, its operand in float64, of the tensor's own shape."""


class Decider(Protocol):
    """What a symbolic tensor asks of the walk it belongs to."""

    def below(self, atoms: Tensor, thresholds: Tensor) -> Tensor:
        """Decide ``u < threshold`` for every element, splitting the path where both are possible; bool, same shape."""
        ...

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide the number of ``edges`` (N, M) rows, ascending, that lie at or below each of ``atoms`` (N,)."""
        ...


_INVISIBLE = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def source_line() -> str:
    """``file:line (function)`` of the innermost frame outside torch and this engine."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_INVISIBLE, "<")):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def opaque(operation: str, hint: str = "") -> OpaqueRandomness:
    """The error for an operation whose effect on the law is not followed."""
    advice = hint or "compare the random number with a threshold, or draw with torch.multinomial"
    return OpaqueRandomness(f"{operation} on a random number at {source_line()} cannot be followed exactly; to be analysable, {advice}")


class SymbolicTensor(Tensor):
    """A tensor of uniform random numbers that are not known yet. Made by the engine only."""

    atoms: Tensor
    chain: tuple[Link, ...]
    decider: Decider

    @staticmethod
    def make(atoms: Tensor, decider: Decider, dtype: torch.dtype, chain: tuple[Link, ...] = ()) -> SymbolicTensor:
        """Wrap ``atoms`` (any shape, int64) as random numbers of ``dtype``."""
        out: SymbolicTensor = Tensor._make_wrapper_subclass(SymbolicTensor, atoms.shape, dtype=dtype)  # type: ignore[attr-defined]
        out.atoms, out.decider, out.chain = atoms, decider, chain
        return out

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return _attribute(func, args)
        plain = name.strip("_")
        in_place = (name.endswith("_") and not name.startswith("__")) or (name.startswith("__i") and plain[1:] in _MAPS)
        if name.startswith("__i") and in_place:
            plain = plain[1:]
        handler = _HANDLERS.get(plain)
        if handler is None:
            raise opaque(f"torch operation {name!r}")
        result = handler(plain, args, kwargs)
        if in_place:
            target = args[0]
            if not isinstance(target, SymbolicTensor) or result.shape != target.shape:
                raise opaque(f"in-place {name!r} that writes random numbers into a plain tensor")
            target.atoms, target.chain = result.atoms, result.chain
            return target
        return result

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise opaque(f"torch operation {func}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # noqa: ARG002 - signature of torch
        return f"SymbolicTensor(shape={tuple(self.atoms.shape)}, maps={[name for name, _ in self.chain]})"


class SymbolicNumber:
    """What ``.item()`` of a symbolic tensor gives: a number that can be shifted, scaled and compared."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self._tensor = tensor

    def _map(self, name: str, other: Any) -> SymbolicNumber:
        if isinstance(other, SymbolicNumber):
            raise opaque(f"{name!r} of two random numbers")
        return SymbolicNumber(_map(name, (self._tensor, other), {}))

    def _compare(self, name: str, other: Any) -> bool:
        if isinstance(other, SymbolicNumber):
            raise opaque("comparing two random numbers")
        return bool(_compare(name, (self._tensor, other), {}).item())

    def __lt__(self, other: Any) -> bool:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> bool:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> bool:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> bool:
        return self._compare("ge", other)

    def __mul__(self, other: Any) -> SymbolicNumber:
        return self._map("mul", other)

    def __rmul__(self, other: Any) -> SymbolicNumber:
        return self._map("mul", other)

    def __add__(self, other: Any) -> SymbolicNumber:
        return self._map("add", other)

    def __radd__(self, other: Any) -> SymbolicNumber:
        return self._map("add", other)

    def __sub__(self, other: Any) -> SymbolicNumber:
        return self._map("sub", other)

    def __rsub__(self, other: Any) -> SymbolicNumber:
        return self._map("rsub", other)

    def __truediv__(self, other: Any) -> SymbolicNumber:
        return self._map("div", other)

    def __neg__(self) -> SymbolicNumber:
        return self._map("mul", -1.0)

    def __float__(self) -> float:
        raise opaque("float()", "compare the number itself instead of converting it")

    def __bool__(self) -> bool:
        raise opaque("bool()")

    def __eq__(self, other: object) -> bool:
        raise opaque("testing equality")

    __hash__ = None  # type: ignore[assignment]


def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
    name = getattr(func.__self__, "__name__", "")
    if name in ("data", "T", "mT"):
        return _reshape({"data": "detach", "T": "t", "mT": "mT"}[name], args, {})
    if name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse", "grad", "is_leaf", "names", "is_nested"):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args)
    raise opaque(f"attribute {name!r}")


def _metadata(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(args[0].atoms, name)(*args[1:], **kwargs)


def _truth(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return args[0].dtype.is_floating_point


def _reshape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape and index operations: the same on the atoms and on every operand of the chain."""
    source, rest = args[0], args[1:]
    if not isinstance(source, SymbolicTensor) or any(isinstance(a, SymbolicTensor) for a in (*rest, *kwargs.values())):
        raise opaque(f"torch operation {name!r} with random numbers as an index or a shape")
    method = "__getitem__" if name == "getitem" else name
    rest = tuple(a.shape if name in ("expand_as", "view_as", "reshape_as") and isinstance(a, Tensor) else a for a in rest)
    method = {"expand_as": "expand", "view_as": "view", "reshape_as": "reshape"}.get(method, method)

    def apply(tensor: Tensor) -> Any:
        if name == "mT":
            return tensor.mT
        return getattr(tensor, method)(*rest, **kwargs)

    atoms = apply(source.atoms)
    operands = [(link, None if operand is None else apply(operand)) for link, operand in source.chain]
    if isinstance(atoms, (tuple, list)):
        return tuple(
            SymbolicTensor.make(part, source.decider, source.dtype, tuple((n, None if o is None else o[i]) for n, o in operands))
            for i, part in enumerate(atoms)
        )
    return SymbolicTensor.make(atoms, source.decider, source.dtype, tuple(operands))


def _iterate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return iter(_reshape("unbind", args[:1], {}))


def _to(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    source = args[0]
    dtype = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}.get(name)
    for a in (*args[1:], *kwargs.values()):
        if isinstance(a, torch.dtype):
            dtype = a
        elif isinstance(a, Tensor):
            dtype = a.dtype
    if dtype is not None and not dtype.is_floating_point:
        raise opaque(f"conversion to {dtype}")
    return SymbolicTensor.make(source.atoms, source.decider, dtype or source.dtype, source.chain)


def _same(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    source = args[0]
    return SymbolicTensor.make(source.atoms, source.decider, source.dtype, source.chain)


def _join(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    parts = args[0]
    first = parts[0]
    if not all(isinstance(p, SymbolicTensor) and [n for n, _ in p.chain] == [n for n, _ in first.chain] for p in parts):
        raise opaque(f"{name!r} of random numbers with other numbers", "join random numbers only with random numbers mapped alike")
    join = getattr(torch, {"concat": "cat", "concatenate": "cat"}.get(name, name))
    atoms = join([p.atoms for p in parts], *args[1:], **kwargs)
    chain = tuple(
        (link, None if operand is None else join([p.chain[i][1] for p in parts], *args[1:], **kwargs))
        for i, (link, operand) in enumerate(first.chain)
    )
    return SymbolicTensor.make(atoms, first.decider, first.dtype, chain)


def _item(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    source = args[0]
    if source.atoms.numel() != 1:
        raise RuntimeError(f"a Tensor with {source.atoms.numel()} elements cannot be converted to Scalar")
    return SymbolicNumber(_reshape("reshape", (source, ()), {}))


def _tolist(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    if source.atoms.dim() == 0:
        return _item(name, args, kwargs)
    return [_tolist(name, (part,), {}) for part in _reshape("unbind", (source,), {})]


_MAPS = {"mul", "multiply", "add", "sub", "subtract", "rsub", "div", "divide", "truediv", "log", "neg", "negative", "exp", "clamp", "clip", "clamp_min", "clamp_max", "clone", "radd", "rmul", "log1p", "rdiv", "rtruediv", "reciprocal"}


def _operand(source: SymbolicTensor, value: Any) -> tuple[SymbolicTensor, Tensor]:
    """Broadcast a symbolic tensor and a number or tensor against each other; the operand comes back in float64."""
    if isinstance(value, SymbolicTensor):
        raise opaque("arithmetic between random numbers")
    operand = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if operand.is_complex():
        raise opaque("complex arithmetic")
    operand = operand.detach().to("cpu", torch.float64)
    shape = torch.broadcast_shapes(source.atoms.shape, operand.shape)
    if shape != source.atoms.shape:
        source = _reshape("expand", (source, shape), {})
    return source, operand.expand(shape)


def _map(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    """Elementwise increasing or decreasing maps: remembered, inverted at the comparison."""
    source, rest = args[0], args[1:]
    if kwargs.get("alpha", 1) != 1 or "out" in kwargs or kwargs.get("rounding_mode") is not None:
        raise opaque(f"torch operation {name!r} with {sorted(kwargs)}")
    if not isinstance(source, SymbolicTensor):  # number op random
        name = {"sub": "rsub", "subtract": "rsub", "div": "rdiv", "divide": "rdiv", "truediv": "rdiv"}.get(name, name)
        source, rest = args[1], (args[0],)
    if name in ("log", "exp"):
        return SymbolicTensor.make(source.atoms, source.decider, source.dtype, (*source.chain, (name, None)))
    if name in ("neg", "negative"):
        name, rest = "mul", (-1.0,)
    if name == "log1p":
        return _map("log", (_map("add", (source, 1.0), {}),), {})
    if name in ("clamp", "clip", "clamp_min", "clamp_max"):
        return _clamp(name, source, rest, kwargs)
    if name == "reciprocal":
        name, rest = "rdiv", (1.0,)
    name = {"multiply": "mul", "rmul": "mul", "radd": "add", "subtract": "sub", "divide": "div", "truediv": "div", "rtruediv": "rdiv"}.get(name, name)
    value = rest[0] if rest else kwargs["other"]
    if name == "rsub":  # value - u
        source, value = _map("mul", (source, -1.0), {}), value
        name = "add"
    source, operand = _operand(source, value)
    if name == "sub":
        name, operand = "add", -operand
    dtype = source.dtype if not isinstance(value, Tensor) else torch.promote_types(source.dtype, value.dtype)
    return SymbolicTensor.make(source.atoms, source.decider, dtype, (*source.chain, (name, operand)))


def _clamp(name: str, source: SymbolicTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    low = kwargs.get("min", rest[0] if rest and name != "clamp_max" else None)
    high = kwargs.get("max", rest[1] if len(rest) > 1 else rest[0] if rest and name == "clamp_max" else None)
    chain = source.chain
    for link, bound in (("at_least", low), ("at_most", high)):
        if bound is not None:
            source, operand = _operand(source, bound)
            chain = (*source.chain, (link, operand))
            source = SymbolicTensor.make(source.atoms, source.decider, source.dtype, chain)
    return source


def _invert(chain: tuple[Link, ...], threshold: Tensor, upper: bool, strict: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn ``f(u) < threshold`` (or >, where ``upper``; or the non-strict forms) into ``u < t`` or, where flipped, ``u > t``.

    Returns (t, flipped, settled, value): where ``settled`` the comparison does not depend on u and has ``value``. For u
    itself equality has probability 0; for constants and at the ends of a clamp it matters, and ``strict`` decides it.
    """
    t = threshold.to(torch.float64).clone()
    flipped = torch.full_like(t, upper, dtype=torch.bool)
    settled = torch.isnan(t)
    value = torch.zeros_like(settled)

    def settle(where: Tensor, outcome: Tensor) -> None:
        nonlocal settled, value
        fresh = where & ~settled
        value = torch.where(fresh, outcome, value)
        settled = settled | fresh

    def constant(z: Tensor) -> Tensor:
        """Truth of the comparison when the random side is the number z."""
        return torch.where(flipped, z > t, z < t) if strict else torch.where(flipped, z >= t, z <= t)

    for name, operand in reversed(chain):
        if operand is not None:
            settle(torch.isnan(operand), torch.zeros_like(value))
        if name == "add":
            assert operand is not None
            t = t - operand
        elif name == "mul":
            assert operand is not None
            settle(operand == 0, constant(torch.zeros_like(t)))
            t = t / operand
            flipped = flipped ^ (operand < 0)
        elif name == "div":
            assert operand is not None
            t = t * operand
            flipped = flipped ^ (operand < 0)
        elif name == "rdiv":  # operand / z with z > 0, as uniforms and their positive multiples are
            assert operand is not None
            if (operand < 0).any():
                raise opaque("dividing a negative number by a random number")
            settle(operand == 0, constant(torch.zeros_like(t)))
            settle(t <= 0, flipped)  # a positive quotient is never below, always above, a threshold <= 0
            t = operand / t
            flipped = ~flipped
        elif name == "log":
            t = t.exp()
        elif name == "exp":
            settle(t <= 0, flipped)
            t = t.clamp_min(0).log()
        else:  # at_least, at_most: max(z, bound), min(z, bound); on its far side the bound itself decides
            assert operand is not None
            at_bound = constant(operand)
            settle(at_bound == flipped if name == "at_least" else at_bound != flipped, at_bound)
    if (torch.isnan(t) & ~settled).any():
        raise opaque("a comparison whose threshold is infinite or undefined")
    return t, flipped, settled, value


_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "less": "gt", "greater": "lt", "less_equal": "ge", "greater_equal": "le"}
_SHORT = {"less": "lt", "greater": "gt", "less_equal": "le", "greater_equal": "ge"}


def _compare(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``f(u) < number`` and its kin: the atoms are cut and the answer is an ordinary bool tensor."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(left, SymbolicTensor):
        name = _SHORT.get(name, name)
        source, number = left, right
    else:
        name, source, number = _MIRROR[name], right, left
        name = _SHORT.get(name, name)
    if isinstance(number, SymbolicTensor):
        raise opaque("comparing random numbers with each other", "compare each with a threshold")
    source, threshold = _operand(source, number)
    t, flipped, settled, value = _invert(source.chain, threshold, upper=name in ("gt", "ge"), strict=name in ("lt", "gt"))
    t = torch.where(settled, torch.where(value ^ flipped, torch.inf, -torch.inf), t)
    return source.decider.below(source.atoms, t) ^ flipped


def _searchsorted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:  # noqa: ARG001
    edges, source = args[0], args[1]
    if not isinstance(source, SymbolicTensor) or isinstance(edges, SymbolicTensor) or source.chain or kwargs.get("sorter") is not None:
        raise opaque("searchsorted")
    edges = edges.detach().to("cpu", torch.float64)
    if edges.dim() == 1:
        flat = edges.expand(source.atoms.numel(), -1)
    else:
        per_row = source.atoms.shape[-1]
        flat = edges.reshape(-1, edges.shape[-1]).repeat_interleave(per_row, 0)
    return source.decider.bin_of(source.atoms.reshape(-1), flat).reshape(source.atoms.shape)


_HANDLERS: dict[str, Callable[[str, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(("lt", "gt", "le", "ge", "less", "greater", "less_equal", "greater_equal"), _compare),
    **dict.fromkeys(_MAPS - {"clone"}, _map),
    **dict.fromkeys(
        ("getitem", "view", "reshape", "squeeze", "unsqueeze", "expand", "expand_as", "view_as", "reshape_as", "transpose", "permute", "t",
         "flatten", "gather", "index_select", "take_along_dim", "narrow", "select", "split", "chunk", "unbind", "repeat", "flip", "roll",
         "swapaxes", "movedim", "repeat_interleave", "unflatten", "diagonal"),
        _reshape,
    ),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "type_as", "type"), _to),
    **dict.fromkeys(("clone", "detach", "contiguous", "cpu", "cuda", "requires_grad", "alias"), _same),
    **dict.fromkeys(("size", "dim", "numel", "nelement", "ndimension", "len", "stride"), _metadata),
    **dict.fromkeys(("cat", "stack", "concat", "concatenate", "hstack", "vstack"), _join),
    "is_floating_point": _truth,
    "iter": _iterate,
    "item": _item,
    "tolist": _tolist,
    "searchsorted": _searchsorted,
}
