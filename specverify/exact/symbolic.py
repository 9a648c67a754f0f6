"""How does code use a random number? Symbolic uniforms that ride through PyTorch code as tensors.

A :class:`SymbolicTensor` looks like a float tensor but holds, per element, the index of an *atom* (one uniform number on
[0, 1), known only up to an interval) and a chain of increasing or decreasing maps applied since. Shape and index operations
act on the indices. A comparison with numbers inverts the chain and asks the walk which side the atom lies on: there the path
splits. Every other operation raises :class:`OpaqueRandomness` with the source line.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.errors import OpaqueRandomness, SpecverifyError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Link = tuple[str, Tensor | None]
"""One map of a chain: its name and, for the affine ones, its operand in float64, of the tensor's own shape."""


class Decider(Protocol):
    """What a symbolic tensor asks of the walk it belongs to."""

    def below(self, atoms: Tensor, thresholds: Tensor) -> Tensor:
        """Decide ``u < threshold`` for every element, splitting the path where both are possible; bool, same shape."""
        ...

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide the number of ``edges`` (N, M) rows, ascending, that lie at or below each of the N ``atoms`` (any shape)."""
        ...

    refused: SpecverifyError | None
    """The last refusal, which the code may have caught."""


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
    return OpaqueRandomness(
        f"{operation} on a random number at {source_line()} cannot be followed exactly; to be analysable, {advice}"
    )


class SymbolicTensor(Tensor):
    """A tensor of uniform random numbers that are not known yet. Made by the engine only."""

    atoms: Tensor
    chain: tuple[Link, ...]
    decider: Decider
    aliases: list[weakref.ref[SymbolicTensor]]
    """Every tensor that torch would let share memory with this one, itself included."""

    @staticmethod
    def make(atoms: Tensor, decider: Decider, dtype: torch.dtype, chain: tuple[Link, ...] = ()) -> SymbolicTensor:
        """Wrap ``atoms`` (any shape, int64) as random numbers of ``dtype``."""
        out: SymbolicTensor = Tensor._make_wrapper_subclass(SymbolicTensor, atoms.shape, dtype=dtype)
        out.atoms, out.decider, out.chain = atoms, decider, chain
        out.aliases = [weakref.ref(out)]
        return out

    def sharing(self, other: SymbolicTensor) -> SymbolicTensor:
        """Note that this tensor is a view of ``other``, and return it."""
        self.aliases = other.aliases
        self.aliases[:] = [r for r in self.aliases if r() is not None]
        self.aliases.append(weakref.ref(self))
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return _attribute(func, args)
        if kwargs.pop("out", None) is not None:
            raise opaque(f"torch operation {name!r} with out=")
        for first in ("input", "self", "tensors"):
            if not args and first in kwargs:
                args = (kwargs.pop(first),)
        plain = name.strip("_")
        in_place = (name.endswith("_") and not name.startswith("__")) or (name.startswith("__i") and plain[1:] in _MAPS)
        if name.startswith("__i") and in_place:
            plain = plain[1:]
        handler = _HANDLERS.get(plain)
        if handler is None or name in ("__float__", "__int__"):
            raise opaque(f"torch operation {name!r}")
        result = handler(plain, args, kwargs)
        if in_place:
            target = args[0]
            if not isinstance(target, SymbolicTensor) or not isinstance(result, SymbolicTensor) or result.shape != target.shape:
                raise opaque(f"in-place {name!r} that writes random numbers into a plain tensor")
            shared = any(one is not None and one is not target for one in (r() for r in target.aliases))
            if shared or any(
                step == 0 and size > 1 for step, size in zip(target.atoms.stride(), target.atoms.shape, strict=True)
            ):
                raise opaque(
                    f"in-place {name!r} on a view", "work on a new tensor instead of changing random numbers that others share"
                )
            target.atoms, target.chain = result.atoms, result.chain
            return target
        return result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's stub declares it static
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise opaque(f"torch operation {func}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SymbolicTensor(shape={tuple(self.atoms.shape)}, maps={[name for name, _ in self.chain]})"


class SymbolicNumber:
    """What ``.item()`` of a symbolic tensor gives: a number that can be shifted, scaled and compared."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self._tensor = tensor

    def _map(self, name: str, other: Any) -> Any:
        if isinstance(other, (SymbolicNumber, SymbolicTensor)):
            raise self._refuse(f"{name!r} of two random numbers")
        mapped = _map(name, (self._tensor, other), {})
        return mapped if isinstance(other, Tensor) else SymbolicNumber(mapped)

    def _compare(self, name: str, other: Any) -> Any:
        if isinstance(other, (SymbolicNumber, SymbolicTensor)):
            raise self._refuse("comparing two random numbers")
        answer = _compare(name, (self._tensor, other), {})
        return answer if isinstance(other, Tensor) else bool(answer.item())

    def _refuse(self, operation: str, hint: str = "") -> OpaqueRandomness:
        error = opaque(operation, hint)
        self._tensor.decider.refused = error
        return error

    def __lt__(self, other: Any) -> Any:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare("ge", other)

    def __mul__(self, other: Any) -> Any:
        return self._map("mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._map("mul", other)

    def __add__(self, other: Any) -> Any:
        return self._map("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._map("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._map("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._map("rsub", other)

    def __truediv__(self, other: Any) -> Any:
        return self._map("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._map("rdiv", other)

    def __neg__(self) -> Any:
        return self._map("mul", -1.0)

    def __pos__(self) -> SymbolicNumber:
        return self

    def __float__(self) -> float:
        raise self._refuse("float()", "compare the number itself instead of converting it")

    def __bool__(self) -> bool:
        raise self._refuse("bool()")

    def __eq__(self, other: object) -> bool:
        raise self._refuse("testing equality")

    def __hash__(self) -> int:
        raise self._refuse("hash()")

    def _cannot(self, *_: Any) -> Any:
        raise self._refuse("arithmetic or a conversion")

    __int__ = __index__ = __round__ = __trunc__ = __floor__ = __ceil__ = __abs__ = _cannot
    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = _cannot


def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
    name = getattr(func.__self__, "__name__", "")
    if name in ("data", "T", "mT"):
        return _reshape({"data": "detach", "T": "t", "mT": "mT"}[name], args, {})
    if name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "requires_grad",
        "is_cuda",
        "is_sparse",
        "grad",
        "is_leaf",
        "names",
        "is_nested",
    ):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args)
    raise opaque(f"attribute {name!r}")


def _metadata(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "len":
        return len(args[0].atoms)
    return getattr(args[0].atoms, name)(*args[1:], **kwargs)


def _truth(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return args[0].dtype.is_floating_point


def _reshape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape and index operations: the same on the atoms and on every operand of the chain."""
    source, rest = args[0], args[1:]
    if name in ("expand_as", "view_as", "reshape_as") and not isinstance(source, SymbolicTensor):
        return getattr(source, name[:-3])((rest[0] if rest else kwargs["other"]).shape)
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
            SymbolicTensor.make(
                part, source.decider, source.dtype, tuple((n, None if o is None else o[i]) for n, o in operands)
            ).sharing(source)
            for i, part in enumerate(atoms)
        )
    result = SymbolicTensor.make(atoms, source.decider, source.dtype, tuple(operands))
    return result if name in _COPIES else result.sharing(source)


_COPIES = frozenset({"gather", "index_select", "take_along_dim", "repeat", "repeat_interleave", "flip", "roll"})


def _iterate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return iter(_reshape("unbind", args[:1], {}))


def _to(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    if not isinstance(source, SymbolicTensor):  # plain.to(random) and the like
        return source.to((args[1] if len(args) > 1 else kwargs["other"]).dtype)
    if name == "type" and not any(isinstance(a, torch.dtype) for a in (*args[1:], *kwargs.values())):
        raise opaque("type()", "convert with .to(dtype)")
    dtype = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}.get(name)
    for a in (*args[1:], *kwargs.values()):
        if isinstance(a, torch.dtype):
            dtype = a
        elif isinstance(a, Tensor):
            dtype = a.dtype
    if dtype is not None and not dtype.is_floating_point:
        raise opaque(f"conversion to {dtype}")
    return SymbolicTensor.make(source.atoms, source.decider, dtype or source.dtype, source.chain).sharing(source)


def _same(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    source = args[0]
    result = SymbolicTensor.make(source.atoms, source.decider, source.dtype, source.chain)
    return result if name == "clone" else result.sharing(source)


def _join(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    parts = args[0]
    first = parts[0]
    if not all(isinstance(p, SymbolicTensor) and [n for n, _ in p.chain] == [n for n, _ in first.chain] for p in parts):
        raise opaque(
            f"{name!r} of random numbers with other numbers", "join random numbers only with random numbers mapped alike"
        )
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


_MAPS = {
    "mul",
    "multiply",
    "add",
    "sub",
    "subtract",
    "rsub",
    "div",
    "divide",
    "truediv",
    "log",
    "neg",
    "negative",
    "exp",
    "clamp",
    "clip",
    "clamp_min",
    "clamp_max",
    "clone",
    "radd",
    "rmul",
    "log1p",
    "rdiv",
    "rtruediv",
    "reciprocal",
}


def _operand(source: SymbolicTensor, value: Any) -> tuple[SymbolicTensor, Tensor]:
    """Broadcast a symbolic tensor and a number or tensor against each other; the operand comes back in float64."""
    if isinstance(value, SymbolicTensor):
        raise opaque("arithmetic between random numbers")
    operand = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if operand.is_complex():
        raise opaque("complex arithmetic")
    operand = operand.detach().to("cpu", torch.float64)
    if operand.shape == source.atoms.shape:
        return source, operand
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        source.atoms.shape, operand.shape
    )
    if shape != source.atoms.shape:
        wide = tuple((name, None if link is None else link.expand(shape).contiguous()) for name, link in source.chain)
        source = SymbolicTensor.make(source.atoms.expand(shape).contiguous(), source.decider, source.dtype, wide)
    return source, operand.expand(shape).contiguous()


def _map(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    """Elementwise increasing or decreasing maps: remembered, inverted at the comparison."""
    source, rest = args[0], args[1:]
    if kwargs.get("alpha", 1) != 1 or "out" in kwargs or kwargs.get("rounding_mode") is not None:
        raise opaque(f"torch operation {name!r} with {sorted(kwargs)}")
    if not isinstance(source, SymbolicTensor):  # number op random
        name = {"sub": "rsub", "subtract": "rsub", "div": "rdiv", "divide": "rdiv", "truediv": "rdiv"}.get(name, name)
        if len(args) < 2 or not isinstance(args[1], SymbolicTensor) or "clamp" in name or name == "clip":
            raise opaque(f"torch operation {name!r} with a random number as its operand")
        source, rest = args[1], (args[0],)
    if name == "log":
        _insist_on_positive(source, "the logarithm of")
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
    if name in ("rdiv", "rtruediv"):
        _insist_on_positive(source, "dividing by")
    name = {
        "multiply": "mul",
        "rmul": "mul",
        "radd": "add",
        "subtract": "sub",
        "divide": "div",
        "truediv": "div",
        "rtruediv": "rdiv",
    }.get(name, name)
    value = rest[0] if rest else kwargs["other"]
    if name == "rsub":  # value - u
        source, name = _map("mul", (source, -1.0), {}), "add"
    source, operand = _operand(source, value)
    if name == "sub":
        name, operand = "add", -operand
    dtype = source.dtype if not isinstance(value, Tensor) else torch.promote_types(source.dtype, value.dtype)
    return SymbolicTensor.make(source.atoms, source.decider, dtype, (*source.chain, (name, operand)))


def _evaluate(chain: tuple[Link, ...], z: Array) -> Array:
    """Apply the maps of a chain to the numbers ``z`` (any leading dimensions, then those of the chain)."""
    with np.errstate(all="ignore"):
        for name, link in chain:
            operand: Array = np.zeros(()) if link is None else link.numpy()
            if name == "add":
                z = z + operand
            elif name == "mul":
                z = z * operand
            elif name == "div":
                z = z / operand
            elif name == "rdiv":
                z = operand / z
            elif name == "log":
                z = np.log(z)
            elif name == "exp":
                z = np.exp(z)
            else:
                z = np.maximum(z, operand) if name == "at_least" else np.minimum(z, operand)
    return z


def _insist_on_positive(source: SymbolicTensor, what: str) -> None:
    """Refuse log z and c / z where z may be negative: they are monotone for z >= 0 only. A chain is, so its ends tell."""
    ends = _evaluate(source.chain, np.array([0.0, 1.0]).reshape(2, *[1] * source.atoms.dim()))
    if not (ends >= 0).all():
        raise opaque(f"{what} a number that may be negative")


def _insist_on_agreement(chain: tuple[Link, ...], threshold: Array, name: str, t: Array, flipped: Mask) -> None:
    """Refuse a comparison whose inversion disagrees with the maps themselves at some trial u (overflow, NaN, lost digits)."""
    inside = np.clip(np.where(np.isnan(t), 0.5, t), 0.0, 1.0)
    trial = np.stack([inside / 2, (1 + inside) / 2, np.full(t.shape, 0.21), np.full(t.shape, 0.83)])
    z = _evaluate(chain, trial)
    truth = {"lt": z < threshold, "le": z <= threshold, "gt": z > threshold, "ge": z >= threshold}[name]
    near = np.abs(trial - inside) < 1e-9  # rounding decides there
    if ((truth != ((trial < t) ^ flipped)) & ~near).any():
        raise opaque("a comparison that rounding, overflow or NaN makes other than it looks")


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


def _invert(chain: tuple[Link, ...], threshold: Array, upper: bool, strict: bool) -> tuple[Array, Mask, Mask, Mask]:
    """Turn ``f(u) < threshold`` (or >, where ``upper``; or the non-strict forms) into ``u < t`` or, where flipped, ``u > t``.

    Returns (t, flipped, settled, value): where ``settled`` the comparison does not depend on u and has ``value``. For u
    itself equality has probability 0; for constants and at the ends of a clamp it matters, and ``strict`` decides it.
    """
    t = threshold
    flipped = np.full(t.shape, upper)
    settled = np.isnan(t)
    value = np.zeros(t.shape, bool)

    def settle(where: Mask, outcome: Mask) -> None:
        nonlocal settled, value
        value = np.where(where & ~settled, outcome, value)
        settled = settled | where

    def constant(z: Array | float) -> Mask:
        """Truth of the comparison when the random side is the number z."""
        return np.where(flipped, z > t, z < t) if strict else np.where(flipped, z >= t, z <= t)

    with np.errstate(all="ignore"):
        for name, link in reversed(chain):
            operand: Array = np.zeros(()) if link is None else link.numpy()
            if link is not None and np.isnan(operand).any():
                settle(np.isnan(operand), np.zeros(t.shape, bool))
            if name == "add":
                t = t - operand
            elif name == "mul":
                settle(operand == 0, constant(0.0))
                t = t / operand
                flipped = flipped ^ (operand < 0)
            elif name == "div":
                t = t * operand
                flipped = flipped ^ np.signbit(operand)
            elif name == "rdiv":  # operand / z with z > 0, as uniforms and their positive multiples are
                if (operand < 0).any():
                    raise opaque("dividing a negative number by a random number")
                settle(operand == 0, constant(0.0))
                settle(t <= 0, flipped)  # a positive quotient is never below, always above, a threshold <= 0
                t = operand / t
                flipped = ~flipped
            elif name == "log":
                t = np.exp(t)
            elif name == "exp":
                settle(t <= 0, flipped)
                t = np.log(np.maximum(t, 0))
            else:  # at_least, at_most: max(z, bound), min(z, bound); on its far side the bound itself decides
                at_bound = constant(operand)
                settle(at_bound == flipped if name == "at_least" else at_bound != flipped, at_bound)
    if (np.isnan(t) & ~settled).any():
        raise opaque("a comparison whose threshold is infinite or undefined")
    return t, flipped, settled, value


_MIRROR = {
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "less": "gt",
    "greater": "lt",
    "less_equal": "ge",
    "greater_equal": "le",
}
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
    t, flipped, settled, value = _invert(
        source.chain, threshold.numpy(), upper=name in ("gt", "ge"), strict=name in ("lt", "gt")
    )
    t = np.where(settled, np.where(value ^ flipped, np.inf, -np.inf), t)
    if source.chain:
        _insist_on_agreement(source.chain, threshold.numpy(), name, t, flipped)
    # Operations on arrays without dimensions give numpy scalars, hence asarray.
    return source.decider.below(source.atoms, torch.from_numpy(np.asarray(t))) ^ torch.from_numpy(np.asarray(flipped))


def _searchsorted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Count the edges below (or at most equal to: with probability 1 the same) a random number."""
    named = dict(zip(("edges", "values"), args if name == "searchsorted" else args[::-1], strict=False)) | kwargs
    edges = named.get("sorted_sequence", named.get("boundaries", named.get("edges")))
    source = named.get("values", named.get("input"))
    if (
        not isinstance(source, SymbolicTensor)
        or not isinstance(edges, Tensor)
        or isinstance(edges, SymbolicTensor)
        or len(args) > 2
    ):
        raise opaque(name)
    if kwargs.get("sorter") is not None:
        raise opaque(f"{name} with a sorter")
    edges = edges.detach().to("cpu", torch.float64)
    if not bool((edges.diff(dim=-1) >= 0).all()) or bool(edges.isnan().any()):
        raise opaque(f"{name} in edges that do not ascend")
    if edges.dim() == 1:
        flat = edges.expand(source.atoms.numel(), -1)
    else:
        if edges.shape[:-1] != source.atoms.shape[:-1]:
            raise RuntimeError(
                f"{name}: edges {tuple(edges.shape)} and values {tuple(source.shape)} differ before the last dimension"
            )
        flat = edges.reshape(-1, edges.shape[-1]).repeat_interleave(source.atoms.shape[-1], 0)
    if source.chain:
        chain = tuple((n, None if o is None else o.reshape(-1, 1).expand(flat.shape).contiguous()) for n, o in source.chain)
        t, flipped, settled, _ = _invert(chain, flat.numpy(), upper=False, strict=True)
        if flipped.any() or settled.any() or not (np.diff(t, axis=-1) >= 0).all():
            raise opaque(f"{name} of a random number mapped so")
        _insist_on_agreement(chain, flat.numpy(), "lt", t, flipped)
        flat = torch.from_numpy(t)
    found = source.decider.bin_of(source.atoms, flat)
    return found.int() if kwargs.get("out_int32") else found


_HANDLERS: dict[str, Callable[[str, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(("lt", "gt", "le", "ge", "less", "greater", "less_equal", "greater_equal"), _compare),
    **dict.fromkeys(_MAPS - {"clone"}, _map),
    **dict.fromkeys(
        (
            "getitem",
            "view",
            "reshape",
            "squeeze",
            "unsqueeze",
            "expand",
            "expand_as",
            "view_as",
            "reshape_as",
            "transpose",
            "permute",
            "t",
            "flatten",
            "gather",
            "index_select",
            "take_along_dim",
            "narrow",
            "select",
            "split",
            "chunk",
            "unbind",
            "repeat",
            "flip",
            "roll",
            "swapaxes",
            "movedim",
            "repeat_interleave",
            "unflatten",
            "diagonal",
        ),
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
    "bucketize": _searchsorted,
}
