"""What do shape and index operations do to random numbers? The same to their atoms and to every operand of their maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specverify.exact.links import COARSE, Chain, Link, full
from specverify.exact.refusals import opaque
from specverify.exact.tensor import HANDLERS, Handler, SymbolicTensor

_PLAIN_ATTRIBUTES = frozenset(
    {
        "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse", "grad", "is_leaf", "names",
        "is_nested", "is_quantized", "is_meta", "itemsize",
    }
)  # fmt: skip
_SHAPES = (
    "getitem", "view", "reshape", "squeeze", "unsqueeze", "expand", "expand_as", "view_as", "reshape_as", "transpose",
    "permute", "t", "flatten", "gather", "index_select", "take_along_dim", "narrow", "select", "split", "chunk", "unbind",
    "repeat", "flip", "roll", "swapaxes", "movedim", "repeat_interleave", "unflatten", "diagonal", "broadcast_to", "tile",
    "ravel", "masked_select",
)  # fmt: skip
_COPIES = frozenset(
    {"gather", "index_select", "take_along_dim", "repeat", "repeat_interleave", "flip", "roll", "tile", "masked_select"}
)


def attribute(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """An attribute of a symbolic tensor: what describes its shape, and its reshaped forms. args: getter, tensor."""
    func, source = args[0], args[1]
    if name in ("data", "T", "mT", "H"):
        return reshape({"data": "detach", "T": "t", "mT": "mT", "H": "t"}[name], (source,), {})
    if name == "is_cpu":
        return True
    if name in _PLAIN_ATTRIBUTES:
        with torch._C.DisableTorchFunctionSubclass():
            return func(source)
    raise opaque(f"attribute {name!r}")


def _metadata(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "len":
        return len(args[0].atoms)
    return getattr(args[0].atoms, name)(*args[1:], **kwargs)


def _truth(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return args[0].dtype.is_floating_point


def reshape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape and index operations: the same on the atoms and on every operand of the chain."""
    source, rest = args[0], args[1:]
    if name in ("expand_as", "view_as", "reshape_as") and not isinstance(source, SymbolicTensor):
        return getattr(source, name[:-3])((rest[0] if rest else kwargs["other"]).shape)
    if not isinstance(source, SymbolicTensor) or any(isinstance(a, SymbolicTensor) for a in (*rest, *kwargs.values())):
        raise opaque(f"torch operation {name!r} with random numbers as an index or a shape")
    if name == "view" and any(isinstance(a, torch.dtype) for a in (*rest, *kwargs.values())):
        raise opaque("reading the bits of a number", "convert with .to(dtype)")
    method = "__getitem__" if name == "getitem" else name
    rest = tuple(a.shape if name in ("expand_as", "view_as", "reshape_as") and isinstance(a, Tensor) else a for a in rest)
    method = {"expand_as": "expand", "view_as": "view", "reshape_as": "reshape"}.get(method, method)

    def apply(tensor: Tensor) -> Any:
        if name == "mT":
            return tensor.mT
        if name == "take_along_dim":
            return torch.take_along_dim(tensor, *rest, **kwargs)
        return getattr(tensor, method)(*rest, **kwargs)

    atoms = apply(source.atoms)
    links = [link.reshaped(apply) for link in source.chain]
    if isinstance(atoms, (tuple, list)):
        return tuple(
            SymbolicTensor.make(part, source.decider, source.dtype, tuple(_part(link, i) for link in links)).sharing(source)
            for i, part in enumerate(atoms)
        )
    result = SymbolicTensor.make(atoms, source.decider, source.dtype, tuple(links))
    return result if name in _COPIES else result.sharing(source)


def _part(link: Any, i: int) -> Link:
    """The i-th part of a link whose operands were split."""
    return Link(
        link.name,
        link.operand[i] if isinstance(link.operand, (tuple, list)) else link.operand,
        None if link.where is None else link.where[i],
    )


def _iterate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return iter(reshape("unbind", args[:1], {}))


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
    if dtype in (torch.int32, torch.int64):
        whole = "int" if dtype == torch.int32 else "long"
        return HANDLERS[whole](whole, (source,), {})
    if dtype is not None and not dtype.is_floating_point:
        raise opaque(f"conversion to {dtype}", "take floor() first, or convert with .long()")
    if dtype in COARSE and dtype != source.dtype:
        return source.mapped(Link("round", COARSE[dtype]), dtype=dtype)
    return SymbolicTensor.make(source.atoms, source.decider, dtype or source.dtype, source.chain).sharing(source)


def _same(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:  # noqa: ARG001
    source = args[0]
    result = SymbolicTensor.make(source.atoms, source.decider, source.dtype, source.chain)
    return result if name == "clone" else result.sharing(source)


def join(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicTensor:
    """Concatenation and stacking of random numbers that were mapped alike."""
    parts = args[0]
    first = next(p for p in parts if isinstance(p, SymbolicTensor))
    names = [link.name for link in first.chain]
    if not all(isinstance(p, SymbolicTensor) and [link.name for link in p.chain] == names for p in parts):
        raise opaque(
            f"{name!r} of random numbers with other numbers", "join random numbers only with random numbers mapped alike"
        )
    how = getattr(torch, {"concat": "cat", "concatenate": "cat"}.get(name, name))

    def joined(of: list[Tensor]) -> Tensor:
        out: Tensor = how(of, *args[1:], **kwargs)
        return out

    atoms = joined([p.atoms for p in parts])
    chain: list[Link] = []
    for i, link in enumerate(first.chain):
        links = [p.chain[i] for p in parts]
        if all(o.where is None and not isinstance(o.operand, Tensor) and o[:2] == link[:2] for o in links):
            chain.append(link)
            continue
        operands = [full(o.operand, p.atoms.shape) for o, p in zip(links, parts, strict=True)]
        masks = None if link.where is None else joined([o.where for o in links if o.where is not None])
        chain.append(Link(link.name, joined(operands), masks))
    return SymbolicTensor.make(atoms, first.decider, first.dtype, tuple(chain))


def widened(source: SymbolicTensor, shape: torch.Size) -> SymbolicTensor:
    """The same numbers broadcast to ``shape``."""
    if shape == source.atoms.shape:
        return source
    wide: Chain = tuple(link.reshaped(lambda t: t.expand(shape).contiguous()) for link in source.chain)
    return SymbolicTensor.make(source.atoms.expand(shape).contiguous(), source.decider, source.dtype, wide)


SHAPING: dict[str, Handler] = {
    "attribute": attribute,
    **dict.fromkeys(_SHAPES, reshape),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "type_as", "type"), _to),
    **dict.fromkeys(("clone", "detach", "contiguous", "cpu", "cuda", "requires_grad", "alias", "positive"), _same),
    **dict.fromkeys(("size", "dim", "numel", "nelement", "ndimension", "len", "stride"), _metadata),
    **dict.fromkeys(("cat", "stack", "concat", "concatenate", "hstack", "vstack"), join),
    "is_floating_point": _truth,
    "iter": _iterate,
}
