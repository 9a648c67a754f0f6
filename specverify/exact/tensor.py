"""How does code use a random number? Symbolic random numbers that ride through PyTorch code as tensors.

A :class:`SymbolicTensor` looks like a float tensor but holds, per element, the index of an *atom* (one uniform number on
[0, 1), known only up to an interval) and a chain of monotone maps applied since. Shape and index operations act on the
indices; a comparison with numbers asks the walk which side the atom lies on, an ``argmax`` asks it who wins a race: there
the path splits. Every other operation raises :class:`OpaqueRandomness` with the source line. What each operation does
stands in the modules beside this one, which enter their handlers in ``HANDLERS``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specverify.exact.chains import appended
from specverify.exact.links import COARSE, Chain, Link
from specverify.exact.refusals import opaque


class Decider(Protocol):
    """What a symbolic tensor asks of the walk it belongs to."""

    closed: bool
    """Whether the call in which its numbers were drawn is over."""

    def below(self, atoms: Tensor, thresholds: Tensor) -> Tensor:
        """Decide ``u < threshold`` for every element, splitting the path where both are possible; bool, same shape."""
        ...

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide the number of ``edges`` (N, M) rows, ascending, that lie at or below each of the N ``atoms`` (any shape)."""
        ...

    def race(self, atoms: Sequence[int], rates: Sequence[float], *, last: bool, side: int) -> int:
        """Decide which of these clocks rings first (or last): clock i is -log u / rate, or -log(1 - u) / rate on side 1."""
        ...

    def multiplied(self, atoms: Tensor) -> Tensor:
        """New atoms (..., n) that stand for the running products of these uniforms along the last dimension."""
        ...

    def check_rows(self, atoms: Tensor) -> None:
        """Refuse numbers of an earlier call, and numbers that do not belong to the row where they are used."""
        ...


Handler = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {}
"""What to do for each operation, by its name without underscores; filled by :mod:`specverify.exact.symbolic`."""
IN_PLACE_OPERATORS: set[str] = set()
"""Names that ``__i...__`` operators may have; filled there too."""


class SymbolicTensor(Tensor):
    """A tensor of random numbers that are not known yet. Made by the engine only."""

    atoms: Tensor
    chain: Chain
    decider: Decider
    is_number: bool
    """Whether it stands for a Python float, which takes the precision of what it meets."""
    aliases: list[weakref.ref[SymbolicTensor]]
    """Every tensor that torch would let share memory with this one, itself included."""

    @staticmethod
    def make(atoms: Tensor, decider: Decider, dtype: torch.dtype, chain: Chain = ()) -> SymbolicTensor:
        """Wrap ``atoms`` (any shape, int64) as random numbers of ``dtype``."""
        out: SymbolicTensor = Tensor._make_wrapper_subclass(SymbolicTensor, atoms.shape, dtype=dtype)
        out.atoms, out.decider, out.chain, out.is_number = atoms, decider, chain, False
        out.aliases = [weakref.ref(out)]
        return out

    def mapped(self, *links: Link, dtype: torch.dtype | None = None) -> SymbolicTensor:
        """The same numbers after further maps. Ordinary numbers among them stay last in the chain, as what became of them."""
        kind = dtype or self.dtype
        chain = self.chain
        for link in links:
            chain = appended(chain, link, kind)
            if kind in COARSE and link.name not in ("choose", "round"):
                chain = appended(chain, Link("round", COARSE[kind]), kind)
        return SymbolicTensor.make(self.atoms, self.decider, kind, chain)

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
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return HANDLERS["attribute"](getattr(func.__self__, "__name__", ""), (func, *args), {})  # type: ignore[attr-defined]
        return operate(name, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's stub declares it static
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise opaque(f"torch operation {func}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if not self.decider.closed:
            raise opaque("turning into text")
        return f"SymbolicTensor(shape={tuple(self.atoms.shape)}, maps={[link.name for link in self.chain]})"


def is_in_place(name: str) -> bool:
    """Whether an operation of that name writes into its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name.strip("_")[1:] in IN_PLACE_OPERATORS)
    return name.endswith("_")


def operate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out a torch operation, by name, in which a symbolic tensor takes part."""
    if kwargs.pop("out", None) is not None:
        raise opaque(f"torch operation {name!r} with out=")
    for first in ("input", "self", "tensors"):
        if not args and first in kwargs:
            args = (kwargs.pop(first),)
    plain = name.strip("_")
    in_place = is_in_place(name)
    if in_place and name.startswith("__i"):
        plain = plain[1:]
    handler = HANDLERS.get(plain)
    if handler is None or name in ("__float__", "__int__", "__bool__", "__index__"):
        raise opaque(f"torch operation {name!r}")
    result = handler(plain, args, kwargs)
    if not in_place:
        return result
    target = args[0]
    if not isinstance(target, SymbolicTensor) or not isinstance(result, SymbolicTensor) or result.shape != target.shape:
        raise opaque(f"in-place {name!r} that writes random numbers into a plain tensor")
    shared = any(one is not None and one is not target for one in (r() for r in target.aliases))
    if shared or any(step == 0 and size > 1 for step, size in zip(target.atoms.stride(), target.atoms.shape, strict=True)):
        raise opaque(
            f"in-place {name!r} on a view", "work on a new tensor instead of changing random numbers that others share"
        )
    target.atoms, target.chain = result.atoms, result.chain
    return target
