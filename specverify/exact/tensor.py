"""How does code use a random number? Symbolic random numbers that ride through PyTorch code as tensors.

A :class:`SymbolicTensor` looks like a float tensor but holds, per element, the index of an *atom* (one uniform number on
[0, 1), known only up to an interval) and a chain of monotone maps applied since. Shape and index operations act on the
indices; a comparison with numbers asks the walk which side the atom lies on, an ``argmax`` asks it who wins a race: there
the path splits. Every other operation raises :class:`OpaqueRandomness` with the source line. What each operation does
stands in the modules beside this one, which enter their handlers in ``HANDLERS``.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, SpecverifyError


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


class Decider(Protocol):
    """What a symbolic tensor asks of the walk it belongs to."""

    def below(self, atoms: Tensor, thresholds: Tensor) -> Tensor:
        """Decide ``u < threshold`` for every element, splitting the path where both are possible; bool, same shape."""
        ...

    def bin_of(self, atoms: Tensor, edges: Tensor) -> Tensor:
        """Decide the number of ``edges`` (N, M) rows, ascending, that lie at or below each of the N ``atoms`` (any shape)."""
        ...

    def race(self, atoms: Sequence[int], rates: Sequence[float], *, last: bool, side: int) -> int:
        """Decide which of these clocks rings first (or last): clock i is -log u / rate, or -log(1 - u) / rate on side 1."""
        ...

    def check_rows(self, atoms: Tensor) -> None:
        """Refuse numbers of an earlier call, and numbers that do not belong to the row where they are used."""
        ...


_INVISIBLE = tuple(str(Path(home).parent) for home in (torch.__file__, numpy.__file__, __file__))


def source_line() -> str:
    """``file:line (function)`` of the innermost frame outside torch, numpy and this engine."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_INVISIBLE, "<")):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


_listeners: list[Callable[[SpecverifyError], None]] = []
"""Who is told of refusals in the call under way: the code may catch them."""


@contextmanager
def hearing(note: Callable[[SpecverifyError], None]) -> Iterator[None]:
    """Within, every refusal is told to ``note`` when it is made."""
    _listeners.append(note)
    try:
        yield
    finally:
        _listeners.pop()


def heard(error: OpaqueRandomness) -> OpaqueRandomness:
    """Tell of a refusal and return it, to be raised."""
    if _listeners:
        _listeners[-1](error)
    return error


def opaque(operation: str, hint: str = "") -> OpaqueRandomness:
    """The error for an operation whose effect on the law is not followed."""
    advice = hint or "compare the random number with a threshold, let it race with others, or draw with torch.multinomial"
    return heard(
        OpaqueRandomness(
            f"{operation} on a random number at {source_line()} cannot be followed exactly; to be analysable, {advice}"
        )
    )


def appended(chain: Chain, link: Link, dtype: torch.dtype) -> Chain:
    """A chain with one more map. Constants that were chosen are mapped at once, rounded to ``dtype`` as torch rounds them."""
    if not chain or chain[-1].name != "choose":
        return (*chain, link)
    last = chain[-1]
    assert last.where is not None
    if link.name == "choose":
        assert link.where is not None
        both = torch.where(link.where, _numbers(last.operand, last.where.shape), _numbers(link.operand, last.where.shape))
        return (*chain[:-1], Link("choose", both, last.where & link.where))
    mapped = _evaluate((link,), _numbers(last.operand, last.where.shape).numpy())
    constants = torch.from_numpy(numpy.array(mapped)).to(dtype).to(torch.float64).reshape(last.where.shape)
    return (*chain[:-1], link, Link("choose", constants, last.where))


def _numbers(operand: Tensor | float | None, shape: torch.Size) -> Tensor:
    return operand if isinstance(operand, Tensor) else torch.full(shape, operand or 0.0, dtype=torch.float64)


def _evaluate(chain: Chain, z: Any) -> Any:
    from specverify.exact.chains import evaluate  # above this module

    return evaluate(chain, z)


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
    aliases: list[weakref.ref[SymbolicTensor]]
    """Every tensor that torch would let share memory with this one, itself included."""

    @staticmethod
    def make(atoms: Tensor, decider: Decider, dtype: torch.dtype, chain: Chain = ()) -> SymbolicTensor:
        """Wrap ``atoms`` (any shape, int64) as random numbers of ``dtype``."""
        out: SymbolicTensor = Tensor._make_wrapper_subclass(SymbolicTensor, atoms.shape, dtype=dtype)
        out.atoms, out.decider, out.chain = atoms, decider, chain
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
