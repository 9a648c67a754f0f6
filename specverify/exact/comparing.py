"""Which side of a threshold does a random number lie on? Comparisons and searches cut its interval and split the path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.exact.arithmetic import operand
from specverify.exact.chains import insist_on_agreement, invert
from specverify.exact.links import Link, full
from specverify.exact.refusals import opaque
from specverify.exact.tensor import Handler, SymbolicTensor

_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_SHORT = {"less": "lt", "greater": "gt", "less_equal": "le", "greater_equal": "ge"}


def compare(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``f(u) < number`` and its kin: the atoms are cut and the answer is an ordinary bool tensor."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    name = _SHORT.get(name, name)
    if isinstance(left, SymbolicTensor):
        source, number = left, right
    else:
        name, source, number = _MIRROR[name], right, left
    if isinstance(number, SymbolicTensor):
        raise opaque("comparing random numbers with each other", "compare each with a threshold, or take argmax of all")
    source, threshold = operand(source, number)
    bound = full(threshold, source.atoms.shape).numpy()
    if not source.chain and not np.isnan(bound).any():
        below = source.decider.below(source.atoms, torch.from_numpy(bound))
        return ~below if name in ("gt", "ge") else below
    t, flipped, settled, value = invert(source.chain, bound, upper=name in ("gt", "ge"), strict=name in ("lt", "gt"))
    if source.chain:
        t = np.where(settled, np.where(value ^ flipped, np.inf, -np.inf), t)
        insist_on_agreement(source.chain, bound, name, t, flipped)
    elif settled.any():
        t = np.where(settled, np.where(value ^ flipped, np.inf, -np.inf), t)
    # Operations on arrays without dimensions give numpy scalars, hence asarray.
    below = source.decider.below(source.atoms, torch.from_numpy(np.asarray(t)))
    if not source.chain:
        return ~below if name in ("gt", "ge") else below
    return below ^ torch.from_numpy(np.asarray(flipped))


def search(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Count the edges below a random number, or at most equal to it (which differs for clamped and coarse numbers)."""
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
        closed = bool(kwargs.get("right")) or kwargs.get("side") == "right"
        flat = _inverted(name, source, flat, closed)
    found = source.decider.bin_of(source.atoms, flat)
    return found.int() if kwargs.get("out_int32") else found


def _inverted(name: str, source: SymbolicTensor, flat: Tensor, closed: bool) -> Tensor:
    """The edges (N, M) as thresholds of the uniforms themselves; an edge that is hit counts where ``closed``."""
    chain = tuple(
        Link(
            link.name,
            link.operand.reshape(-1, 1).expand(flat.shape).contiguous() if isinstance(link.operand, Tensor) else link.operand,
            None if link.where is None else link.where.reshape(-1, 1).expand(flat.shape).contiguous(),
        )
        for link in source.chain
    )
    t, flipped, settled, _ = invert(chain, flat.numpy(), upper=False, strict=closed)
    if flipped.any() or settled.any() or not (np.diff(t, axis=-1) >= 0).all():
        raise opaque(f"{name} of a random number mapped so")
    insist_on_agreement(chain, flat.numpy(), "lt" if closed else "le", t, flipped)
    return torch.from_numpy(t)


COMPARING: dict[str, Handler] = {
    **dict.fromkeys(("lt", "gt", "le", "ge", "less", "greater", "less_equal", "greater_equal"), compare),
    "searchsorted": search,
    "bucketize": search,
}
