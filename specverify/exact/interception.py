"""How is a random call of torch replaced? By symbolic numbers and exact choices, while :class:`Interception` is active."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from specverify.errors import RowsCoupled, SpecverifyError
from specverify.exact.batch import Batch
from specverify.exact.fills import Fills
from specverify.exact.forms import exponential_chain
from specverify.exact.links import COARSE
from specverify.exact.racing import argmax
from specverify.exact.refusals import opaque
from specverify.exact.seeds import SMALLEST_RANGE, Seed
from specverify.exact.streams import Streams, cpu_state
from specverify.exact.symbolic import HANDLERS, SymbolicTensor, is_in_place
from specverify.exact.tensor import operate

MOST_INTEGERS = 4096
"""Most values of a drawn integer that are told apart."""
_METADATA = frozenset(
    {
        "size", "dim", "numel", "nelement", "ndimension", "stride", "data_ptr", "is_contiguous", "element_size", "__len__",
        "untyped_storage", "storage_offset", "is_floating_point", "get_device", "empty_like", "zeros_like", "ones_like",
        "full_like", "new_empty", "new_zeros", "new_ones", "new_full", "new", "is_complex",
    }
)  # fmt: skip
_OVERWRITES = frozenset({"zero_", "fill_", "copy_"})
_VIEWS = frozenset(
    {
        "__getitem__", "view", "reshape", "squeeze", "unsqueeze", "expand", "expand_as", "view_as", "transpose", "permute", "t",
        "flatten", "narrow", "select", "split", "chunk", "unbind", "swapaxes", "movedim", "unflatten", "diagonal", "detach",
        "contiguous", "__get__", "cpu", "to", "ravel", "requires_grad_", "squeeze_", "unsqueeze_", "__iter__", "alias", "t_",
        "transpose_", "swapaxes_", "swapdims_",
    }
)  # fmt: skip


Draw = Callable[["Interception", tuple[Any, ...], dict[str, Any]], Any]
"""How one random function is followed."""
Draws = Mapping[Any, Draw | str]
"""Every random function of torch: those followed, with their handler, and those refused, with their name."""


@dataclass
class _Chosen:
    """A choice that torch.multinomial made: it runs a race of exponentials whose clocks may be asked for again."""

    owners: list[int]
    weights: list[list[float]]
    picks: list[int]


class Interception(TorchFunctionMode):
    """Replaces torch's random calls by exact ones, for the rows of one batch."""

    def __init__(self, batch: Batch, draws: Draws) -> None:
        super().__init__()
        self.batch, self.draws = batch, draws
        self.streams = Streams()
        self.fills = Fills(batch)
        self.elsewhere: dict[int, Any] = {}
        """Streams of other libraries that were drawn from, by identity (see :mod:`specverify.exact.calls`)."""

    def __enter__(self) -> Self:
        self._global_state = torch.get_rng_state()
        self.streams.left.add(cpu_state(self._global_state))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]
        try:
            if kind is None:
                self.streams.insist_on_all_known()
        finally:
            torch.set_rng_state(self._global_state)
            self.streams.restore()
            self.batch.closed = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        draw = self.draws.get(func)
        kwargs = kwargs or {}
        if draw is None and not types and not self.fills.records and "generator" not in kwargs:
            return func(*args, **kwargs)  # most operations: nothing random takes part
        try:
            if draw is not None and torch._C._functorch.peek_interpreter_stack() is not None:
                raise opaque("drawing inside torch.func (vmap, grad)", "draw before it and hand the numbers in")
            if draw is not None and not isinstance(draw, str):
                return draw(self, args, kwargs)
            if kwargs.get("generator") is not None or (draw is not None and _really_draws(draw, args, kwargs)):
                raise opaque(f"drawing with torch.{draw or func.__name__}", "draw with torch.rand, or with torch.multinomial")
            if self.fills or (SymbolicTensor in types and (is_in_place(func.__name__) or "out" in kwargs)):
                return self._with_fills(func, args, kwargs)
            return func(*args, **kwargs)
        except SpecverifyError as error:
            self.batch.refused = error  # the code may catch it and go on
            raise

    # Reading and writing tensors that were filled with random numbers

    def _with_fills(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation where tensors may hold random numbers that were written into them."""
        name = func.__name__
        if name in _METADATA and any(self.fills.holds(a) for a in _flat((*args[1:], *kwargs.values()))):
            raise opaque(f"torch operation {name!r} with random numbers")
        if name in _METADATA or (name == "__get__" and getattr(func.__self__, "__name__", "") not in ("data", "T", "mT", "H")):  # type: ignore[attr-defined]
            return func(*args, **kwargs)
        if is_in_place(name) and args and isinstance(args[0], Tensor) and name not in _VIEWS:
            return self._in_place(func, args, kwargs)
        held = [a for a in _flat((*args, *kwargs.values())) if self.fills.holds(a)]
        out = kwargs.get("out")
        if not held:
            return self._into(func, args, kwargs, out) if isinstance(out, Tensor) else func(*args, **kwargs)
        if name in _VIEWS and len(held) == 1 and held[0] is args[0]:
            with torch._C.DisableTorchFunction():
                result = func(*args, **kwargs)
            parts = result if isinstance(result, (tuple, list)) else (result,)
            storage = args[0].untyped_storage()._cdata
            if all(isinstance(p, Tensor) and p.untyped_storage()._cdata == storage for p in parts) and name != "__iter__":
                return result
        if isinstance(out, Tensor):
            return self._into(func, args, kwargs, out)
        if name == "__get__":
            return HANDLERS["attribute"](getattr(func.__self__, "__name__", ""), (func, self.fills.read(args[0])), {})  # type: ignore[attr-defined]
        return operate(name, self._read(args), {k: self.read_one(v) for k, v in kwargs.items()})

    def _into(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Tensor:
        """An operation with out=: its result goes into a tensor that exists."""
        rest = {k: self.read_one(v) for k, v in kwargs.items() if k != "out"}
        inputs = self._read(args)
        if any(isinstance(a, SymbolicTensor) for a in _flat((*inputs, *rest.values()))):
            result = operate(func.__name__, inputs, rest)
        else:
            result = func(*inputs, **rest)
        self._overwrite(out, result)
        return out

    def _overwrite(self, target: Tensor, result: Any) -> None:
        if isinstance(result, SymbolicTensor):
            if target.dtype in COARSE and result.dtype != target.dtype:
                raise opaque(f"a result in {target.dtype}", "compute in one precision and convert with .to(dtype)")
            self.fills.write(target, result)
        else:
            with torch._C.DisableTorchFunction():
                target.copy_(result)
            self.fills.clear(target)

    def _in_place(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, target = func.__name__, args[0]
        rest = self._read(args[1:])
        more = {k: self.read_one(v) for k, v in kwargs.items()}
        random = [a for a in _flat((*rest, *more.values())) if isinstance(a, SymbolicTensor)]
        if isinstance(target, SymbolicTensor):
            return operate(name, (target, *rest), more)
        if name == "__setitem__":
            if random and isinstance(rest[1], SymbolicTensor):
                self.fills.write(target, rest[1], rest[0])
                return None
            with torch._C.DisableTorchFunction():
                func(target, *rest)
            self.fills.clear(target, rest[0])
            return None
        if name in _OVERWRITES:
            value = random[0] if random else None
            if value is None:
                with torch._C.DisableTorchFunction():
                    func(target, *rest, **more)
                self.fills.clear(target)
            else:
                self.fills.write(target, value)
            return target
        if not random and not self.fills.holds(target):
            return func(target, *rest, **more)
        plain = name.strip("_")
        plain = plain[1:] if name.startswith("__i") else plain
        handler = HANDLERS.get(plain)
        if handler is None:
            raise opaque(f"in-place torch operation {name!r}")
        self._overwrite(target, handler(plain, (self.read_one(target), *rest), more))
        return target

    def read_one(self, value: Any) -> Any:
        """The random numbers that stand in a tensor, or in those of a list; anything else as it is."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.read_one(v) for v in value) if type(value) in (list, tuple) else value
        return self.fills.read(value) if isinstance(value, Tensor) and self.fills.holds(value) else value

    def _read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.read_one(a) for a in args)

    # Draws

    def owners(self, shape: torch.Size, generator: torch.Generator | None) -> list[int]:
        """The row every element of a draw belongs to: by its first dimension, else by its generator."""
        active, numel = self.batch.active, shape.numel()
        rows = len(active)
        if rows == 1:
            return active * numel
        if len(shape) > 0 and shape[0] == rows:
            each = numel // rows
            return [row for row in active for _ in range(each)]
        if generator is not None:
            index = self.streams.number(generator)
            if index < rows == len(self.batch.rows):
                return [index] * numel
        raise RowsCoupled(f"a draw of shape {tuple(shape)} does not say which of {rows} rows it belongs to")

    def atoms(
        self, kind: str, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator | None, really: Callable[[], Any]
    ) -> Tensor:
        """Uniforms for a draw: fresh ones, or the same as before when the stream was put back."""
        numel = shape.numel()
        spec = (kind, dtype, numel)
        state, found = self.streams.draw_torch(spec, generator, really)
        if numel == 0:
            return torch.empty(shape, dtype=torch.int64)
        if isinstance(found, _Chosen):
            found = self._clocks(found)
            self.streams.remember(state, spec, found)
        if found is None:
            found = self.batch.new_atoms(self.owners(shape, generator))
            self.streams.remember(state, spec, found)
        atoms: Tensor = found.reshape(shape)
        return atoms

    def _clocks(self, chosen: _Chosen) -> Tensor:
        """The clocks behind a choice that was made, with the race that they ran."""
        rows = []
        for owner, weights, pick in zip(chosen.owners, chosen.weights, chosen.picks, strict=True):
            atoms = self.batch.new_atoms([owner] * len(weights))
            self.batch.note_race({int(a): w for a, w in zip(atoms, weights, strict=True) if w > 0}, int(atoms[pick]))
            rows.append(atoms)
        return torch.cat(rows)

    def choose(self, probs: Tensor, samples: int, replacement: bool, generator: torch.Generator | None) -> Tensor:
        """torch.multinomial: an exact categorical choice per row, with the same complaints about bad weights."""
        if isinstance(probs, SymbolicTensor):
            raise opaque("multinomial")
        weights = probs.detach()
        # One sample is drawn as argmax(weights / E) by torch itself, with E from the same numbers as exponential_.
        spec: Hashable = ("exponential", weights.dtype, weights.numel()) if samples == 1 else None
        state, found = self.streams.draw_torch(
            spec, generator, lambda: torch.multinomial(weights, samples, replacement, generator=generator)
        )
        if samples > 1 and not replacement and bool(((weights > 0).sum(-1) < samples).any()):
            raise opaque("torch.multinomial of more samples than there are tokens with positive weight, without replacement,")
        table = weights.to("cpu", torch.float64).reshape(-1, probs.shape[-1])
        owners = self.owners(torch.Size(probs.shape[:1] if probs.dim() == 2 else (1,)), generator)
        if found is not None:
            return self._choose_again(state, spec, found, table).reshape(*probs.shape[:-1], samples)
        rows = table.tolist()
        chosen = [self._choose_row(owner, list(row), samples, replacement) for owner, row in zip(owners, rows, strict=True)]
        if probs.numel() and samples:
            first = _Chosen(owners, rows, [picks[0] for picks in chosen])
            self.streams.remember(state, spec, first if samples == 1 else None)
        out = torch.tensor(chosen, dtype=torch.int64).reshape(*probs.shape[:-1], samples)
        return out.to(probs.device)

    def _choose_again(self, state: Any, spec: Hashable, found: Any, table: Tensor) -> Tensor:
        """A choice from a stream that made the same kind of choice before: the same clocks run another race."""
        if isinstance(found, _Chosen):
            found = self._clocks(found)
            self.streams.remember(state, spec, found)
        clocks = SymbolicTensor.make(found.reshape(table.shape), self.batch, torch.float64, exponential_chain(1.0))
        scores = HANDLERS["div"]("div", (table, clocks), {})
        return argmax("argmax", (scores, 1), {})

    def _choose_row(self, owner: int, weights: list[float], samples: int, replacement: bool) -> list[int]:
        chosen = []
        for _ in range(samples):
            total = sum(weights)
            pick = self.batch.rows[owner].decide([w / total for w in weights])
            chosen.append(pick)
            if not replacement:
                weights[pick] = 0.0
        return chosen

    def integers(
        self, spec: Hashable, owners: Sequence[int], low: int, high: int, generator: torch.Generator | None, really: Any
    ) -> list[int]:
        """Integers from low to high - 1, all equally likely; seeds where there are many values."""
        if not 0 < high - low <= MOST_INTEGERS and high - low < SMALLEST_RANGE:
            raise opaque(f"drawing one of {high - low} integers", f"draw from at most {MOST_INTEGERS}")
        state, found = self.streams.draw_torch(spec, generator, really)
        if found is None and high - low >= SMALLEST_RANGE:
            found = [Seed.drawn(low, high) for _ in owners]
            self.streams.remember(state, spec, found)
        elif found is None:
            share = [1.0 / (high - low)] * (high - low)
            found = [low + self.batch.rows[owner].decide(share) for owner in owners]
            if owners:
                self.streams.remember(state, spec, found)
        return list(found)


def _flat(values: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _really_draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "rrelu":
        return bool(kwargs.get("training", args[3] if len(args) > 3 else False))
    if "dropout" in name:
        return bool(kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True)))
    return True


def walking() -> bool:
    """Whether an exact law is walked right now: for code that cannot be followed because it draws out of sight."""
    return any(isinstance(mode, Interception) for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]
