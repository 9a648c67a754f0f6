"""How is a random call of torch replaced? By symbolic numbers and exact choices, while :class:`Interception` is active."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specverify.errors import RowsCoupled, SpecverifyError
from specverify.exact.arrays import as_tensor
from specverify.exact.fills import Fills
from specverify.exact.racing import argmax
from specverify.exact.seeds import SMALLEST_RANGE, Seed, SeedTensor
from specverify.exact.streams import Streams, cpu_state
from specverify.exact.symbolic import HANDLERS, Chain, Link, SymbolicTensor, is_in_place, opaque
from specverify.exact.tensor import operate
from specverify.exact.walk import Batch

MOST_INTEGERS = 4096
"""Most values of a drawn integer that are told apart."""
_OPAQUE_DRAWS = frozenset(
    {
        "randint_like", "cauchy_", "geometric_", "log_normal_", "poisson", "dropout", "alpha_dropout", "feature_dropout",
        "rrelu", "gumbel_softmax", "binomial", "_standard_gamma", "_sample_dirichlet", "native_dropout", "dropout_",
        "dropout1d", "dropout2d", "dropout3d", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout",
        "feature_alpha_dropout_", "rrelu_",
    }
)  # fmt: skip
_METADATA = frozenset(
    {
        "size", "dim", "numel", "nelement", "ndimension", "stride", "data_ptr", "is_contiguous", "element_size", "__len__",
        "untyped_storage", "storage_offset", "is_floating_point", "get_device", "empty_like", "zeros_like", "ones_like",
        "full_like", "new_empty", "new_zeros", "new_ones", "new_full", "new", "new_tensor", "is_complex", "type",
    }
)  # fmt: skip
_OVERWRITES = frozenset({"zero_", "fill_", "copy_"})
_VIEWS = frozenset(
    {
        "__getitem__", "view", "reshape", "squeeze", "unsqueeze", "expand", "expand_as", "view_as", "transpose", "permute", "t",
        "flatten", "narrow", "select", "split", "chunk", "unbind", "swapaxes", "movedim", "unflatten", "diagonal", "detach",
        "contiguous", "__get__", "cpu", "to", "ravel", "requires_grad_", "squeeze_", "unsqueeze_", "__iter__", "alias",
    }
)  # fmt: skip


@dataclass
class _Chosen:
    """A choice that torch.multinomial made: it runs a race of exponentials whose clocks may be asked for again."""

    owners: list[int]
    weights: list[list[float]]
    picks: list[int]


class Interception(TorchFunctionMode):
    """Replaces torch's random calls by exact ones, for the rows of one batch."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.streams = Streams()
        self.fills = Fills(batch)
        self.bit_generators: list[tuple[Any, Any]] = []
        """Generators of other libraries that were drawn from, with the states to put back."""

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
        draw = _BY_FUNCTION.get(func)
        if draw is None and not types and not kwargs and not self.fills.records:
            return func(*args)  # most operations: nothing random takes part
        kwargs = kwargs or {}
        try:
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
        return operate(name, self._read(args), {k: self._read_one(v) for k, v in kwargs.items()})

    def _into(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Tensor:
        """An operation with out=: its result goes into a tensor that exists."""
        rest = {k: self._read_one(v) for k, v in kwargs.items() if k != "out"}
        inputs = self._read(args)
        if any(isinstance(a, SymbolicTensor) for a in _flat((*inputs, *rest.values()))):
            result = operate(func.__name__, inputs, rest)
        else:
            result = func(*inputs, **rest)
        self._overwrite(out, result)
        return out

    def _overwrite(self, target: Tensor, result: Any) -> None:
        if isinstance(result, SymbolicTensor):
            self.fills.write(target, result)
        else:
            with torch._C.DisableTorchFunction():
                target.copy_(result)
            self.fills.clear(target)

    def _in_place(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, target = func.__name__, args[0]
        rest = self._read(args[1:])
        more = {k: self._read_one(v) for k, v in kwargs.items()}
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
        self._overwrite(target, handler(plain, (self._read_one(target), *rest), more))
        return target

    def _read_one(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._read_one(v) for v in value) if type(value) in (list, tuple) else value
        return self.fills.read(value) if isinstance(value, Tensor) and self.fills.holds(value) else value

    def _read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._read_one(a) for a in args)

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
        if not replacement and bool(((weights > 0).sum(-1) < samples).any()):
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


def exponential_chain(rate: float) -> Chain:
    """Maps from a uniform u to an exponential of that rate: -log(u) / rate."""
    return (Link("log"), Link("mul", -1.0 / rate))


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


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Size:
    if "size" in kwargs:
        return torch.Size(kwargs["size"])
    if len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size)):
        return torch.Size(args[0])
    return torch.Size(args)


def _made(mode: Interception, kind: str, chain: Chain, shape: torch.Size, dtype: torch.dtype, kwargs: dict[str, Any]) -> Tensor:
    """Random numbers in a new tensor, or in the one given as out=."""
    generator = kwargs.get("generator")
    device = None if generator is None else generator.device
    draw = torch.rand if kind == "uniform" else torch.randn
    atoms = mode.atoms(kind, shape, dtype, generator, lambda: draw(shape, dtype=dtype, generator=generator, device=device))
    made = SymbolicTensor.make(atoms, mode.batch, dtype, chain)
    out = kwargs.get("out")
    if out is None:
        return made
    mode.fills.write(out, made)
    return out  # type: ignore[no-any-return]


def _rand(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    out = kwargs.get("out")
    dtype = kwargs.get("dtype") or (out.dtype if out is not None else torch.get_default_dtype())
    return _made(mode, "uniform", uniform_chain(dtype), _size(args, kwargs), dtype, kwargs)


def _rand_like(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    like = args[0] if args else kwargs["input"]
    dtype = kwargs.get("dtype") or like.dtype
    return _made(mode, "uniform", uniform_chain(dtype), like.shape, dtype, kwargs)


@cache
def _nearest(dtype: torch.dtype) -> bool:
    """Whether torch makes its low-precision uniforms by rounding those of float32 (1 becomes 0), as new versions do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        low = torch.rand(4096, dtype=dtype).float()
        torch.manual_seed(1)
        high = torch.rand(4096).to(dtype).float()
    return bool((low == torch.where(high == 1, 0.0, high)).all())


@cache
def uniform_chain(dtype: torch.dtype) -> Chain:
    """What torch's uniforms of a dtype are in terms of a real one: in float16 and bfloat16 they are coarse.

    Rounding to the nearest makes 1 of the uppermost half unit, which torch then turns into 0. Moving that half unit h to the
    bottom, u -> max(u - h, 0) rounded, gives numbers of the same law that rise with u.
    """
    bits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype)
    if bits is None:
        return ()
    if _nearest(dtype):
        return (Link("add", -(2.0 ** -(bits + 1))), Link("at_least", 0.0), Link("round", float(bits)))
    return (Link("mul", 2.0**bits), Link("whole"), Link("mul", 2.0**-bits))


_NORMAL = (Link("normal"),)


def _randn(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return _made(mode, "normal", _NORMAL, _size(args, kwargs), dtype, kwargs)


def _randn_like(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    like = args[0] if args else kwargs["input"]
    return _made(mode, "normal", _NORMAL, like.shape, kwargs.get("dtype") or like.dtype, kwargs)


def _fill(kind: str, links: Callable[[dict[str, Any]], Chain], *names: str) -> Callable[..., Tensor]:
    """A method that fills a tensor in place; ``names`` are its parameters after the tensor."""

    def fill(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        target: Tensor = args[0]
        if isinstance(target, SymbolicTensor):
            raise opaque(f"filling random numbers anew with {kind!r}", "draw into a new tensor")
        named = dict(zip(names, args[1:], strict=False)) | kwargs
        generator = named.pop("generator", None)
        with torch._C.DisableTorchFunction():
            scratch = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        fills: dict[str, Callable[..., Any]] = {
            "uniform": scratch.uniform_,
            "exponential": scratch.exponential_,
            "normal": scratch.normal_,
        }
        really = fills[kind]
        atoms = mode.atoms(kind, target.shape, target.dtype, generator, lambda: really(generator=generator))
        if target.numel():
            chain = (*(uniform_chain(target.dtype) if kind == "uniform" else ()), *links(named))
            mode.fills.write(target, SymbolicTensor.make(atoms, mode.batch, target.dtype, chain))
        return target

    return fill


def _uniform_links(named: dict[str, Any]) -> Chain:
    low, high = float(named.get("from", 0.0)), float(named.get("to", 1.0))
    return () if (low, high) == (0.0, 1.0) else (Link("mul", high - low), Link("add", low))


def _normal_links(named: dict[str, Any]) -> Chain:
    mean, std = float(named.get("mean", 0.0)), float(named.get("std", 1.0))
    return (*_NORMAL, Link("mul", std), Link("add", mean))


def _multinomial(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "num_samples", "replacement"), args, strict=False)) | kwargs
    if named.get("out") is not None:
        raise opaque("torch.multinomial(out=...)", "use the tensor that torch.multinomial returns")
    probs = named["input"]
    if mode.fills and mode.fills.holds(probs):
        raise opaque("multinomial")
    return mode.choose(probs, int(named["num_samples"]), bool(named.get("replacement", False)), named.get("generator"))


def _bernoulli(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "p"), args, strict=False)) | kwargs
    if named.get("out") is not None:
        raise opaque("torch.bernoulli(out=...)", "use the tensor that torch.bernoulli returns")
    probs = named["input"] if named.get("p") is None else torch.full_like(named["input"], float(named["p"]))
    return _coins(mode, probs, named.get("generator"))


def _coins(mode: Interception, probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One coin per element of ``probs``."""
    if isinstance(probs, SymbolicTensor) or (mode.fills and mode.fills.holds(probs)):
        raise opaque("bernoulli")
    given = probs.detach()
    state, _ = mode.streams.draw_torch(None, generator, lambda: torch.bernoulli(given, generator=generator))
    if probs.numel() == 0:
        return given.clone()
    atoms = mode.batch.new_atoms(mode.owners(probs.shape, generator))
    mode.streams.remember(state, None, atoms)
    u = SymbolicTensor.make(atoms.reshape(probs.shape), mode.batch, probs.dtype)
    return (u < given).to(probs.dtype)


def _bernoulli_(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("self", "p"), args, strict=False)) | kwargs
    target, p = named["self"], named.get("p", 0.5)
    probs = p.expand(target.shape) if isinstance(p, Tensor) else torch.full(target.shape, float(p), dtype=torch.float64)
    coins = _coins(mode, probs.to(torch.float64), named.get("generator"))
    with torch._C.DisableTorchFunction():
        target.copy_(coins)
    mode.fills.clear(target)
    return target  # type: ignore[no-any-return]


def _randint(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(kwargs)
    places = [a for a in args if isinstance(a, int)]
    low, high = (0, *places)[-2:] if places else (named.pop("low", 0), named.pop("high"))
    shape = torch.Size(named.pop("size") if "size" in named else next(a for a in args if not isinstance(a, int)))
    generator = named.pop("generator", None)
    dtype = named.pop("dtype", None) or torch.int64
    owners = mode.owners(shape, generator) if shape.numel() else []
    found = mode.integers(
        ("randint", dtype, shape.numel(), low, high),
        owners,
        low,
        high,
        generator,
        lambda: torch.randint(low, high, shape, generator=generator, dtype=dtype),
    )
    if any(isinstance(x, Seed) for x in found):
        return SeedTensor.of(found, shape, dtype)
    return torch.tensor(found, dtype=dtype).reshape(shape)


def _randperm(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    n = int(args[0] if args else kwargs["n"])
    generator = kwargs.get("generator")
    dtype = kwargs.get("dtype") or torch.int64
    spec = ("randperm", n)
    state, found = mode.streams.draw_torch(spec, generator, lambda: torch.randperm(n, generator=generator))
    if found is None:
        owner = mode.owners(torch.Size((n,)), generator)
        if len(set(owner)) > 1:
            raise RowsCoupled("a permutation over rows belongs to no row")
        left, found = list(range(n)), []
        while left:
            share = [1.0 / len(left)] * len(left)
            found.append(left.pop(mode.batch.rows[owner[0]].decide(share)))
        if n:
            mode.streams.remember(state, spec, found)
    return torch.tensor(found, dtype=dtype)


def _normal(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("mean", "std", "size"), args, strict=False)) | kwargs
    mean, std = named["mean"], named.get("std", 1.0)
    shape = named.get("size")
    if shape is None:
        shape = np.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor)))
    like = next((x for x in (mean, std) if isinstance(x, Tensor)), None)
    dtype = named.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    plain = _made(mode, "normal", _NORMAL, torch.Size(shape), dtype, {"generator": named.get("generator")})
    return plain * std + mean  # type: ignore[no-any-return]


_DRAWS: dict[str, Callable[[Interception, tuple[Any, ...], dict[str, Any]], Any]] = {
    "rand": _rand,
    "rand_like": _rand_like,
    "randn": _randn,
    "randn_like": _randn_like,
    "normal": _normal,
    "uniform_": _fill("uniform", _uniform_links, "from", "to"),
    "exponential_": _fill("exponential", lambda named: exponential_chain(float(named.get("lambd", 1.0))), "lambd"),
    "normal_": _fill("normal", _normal_links, "mean", "std"),
    "multinomial": _multinomial,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_,
    "randint": _randint,
    "randperm": _randperm,
}


def _tensor_of(maker: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor of Python numbers or of an array, which may be random."""

    def make(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        random = as_tensor(args[0]) if args else None
        if random is None:
            if mode.fills and args and isinstance(args[0], Tensor) and mode.fills.holds(args[0]):
                random = mode.fills.read(args[0])
            else:
                return maker(*args, **kwargs)
        dtype = kwargs.get("dtype") or (args[1] if len(args) > 1 else None)
        return random if dtype is None else random.to(dtype)

    return make


def _by_function() -> dict[Any, Any]:
    """Every random function of torch: those followed, with their handler, and those refused, with their name."""
    found: dict[Any, Any] = {}
    for home in (torch, Tensor, torch.nn.functional):
        for name in (*_OPAQUE_DRAWS, "random_"):
            if hasattr(home, name):
                found[getattr(home, name)] = name
        for name, handler in _DRAWS.items():
            if hasattr(home, name):
                found[getattr(home, name)] = handler
    for maker in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
        found[maker] = _tensor_of(maker)
    return found


_BY_FUNCTION = _by_function()
