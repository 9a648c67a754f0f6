"""Which functions of torch draw, and what does each hand out? The table that :class:`Interception` looks in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.errors import RowsCoupled
from specverify.exact.arrays import as_tensor
from specverify.exact.batch import Batch
from specverify.exact.forms import exponential_chain
from specverify.exact.interception import Draw, Interception
from specverify.exact.links import COARSE, Chain, Link
from specverify.exact.refusals import opaque
from specverify.exact.seeds import Seed, SeedTensor
from specverify.exact.symbolic import SymbolicTensor

_OPAQUE_DRAWS = frozenset(
    {
        "randint_like", "cauchy_", "geometric_", "log_normal_", "poisson", "dropout", "alpha_dropout", "feature_dropout",
        "rrelu", "gumbel_softmax", "binomial", "_standard_gamma", "_sample_dirichlet", "native_dropout", "dropout_",
        "dropout1d", "dropout2d", "dropout3d", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout",
        "feature_alpha_dropout_", "rrelu_",
    }
)  # fmt: skip


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
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    low = torch.rand(4096, dtype=dtype, generator=one).float()
    high = torch.rand(4096, generator=other).to(dtype).float()
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
        layout = kind if target.is_contiguous() else f"{kind} {target.stride()}"  # numbers are handed out by memory order
        atoms = mode.atoms(layout, target.shape, target.dtype, generator, lambda: really(generator=generator))
        if kind == "uniform" and target.dtype in COARSE and links(named):
            raise opaque(f"uniform_ between other ends than 0 and 1 in {target.dtype}", "draw in float32")
        if target.numel():
            plain = uniform_chain(target.dtype) if kind == "uniform" else ()
            made = SymbolicTensor.make(atoms, mode.batch, target.dtype, plain)
            mode.fills.write(target, made.mapped(*links(named)))
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
    given = named["input"]
    probs = given if named.get("p") is None else torch.full(given.shape, float(named["p"]), dtype=torch.float64)
    return _coins(mode, probs, named.get("generator")).to(given.dtype)


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


def _no_out(name: str, kwargs: dict[str, Any]) -> None:
    if kwargs.get("out") is not None:
        raise opaque(f"torch.{name}(out=...)", f"use the tensor that torch.{name} returns")


def _randint(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(kwargs)
    _no_out("randint", named)
    numbers = [index(a) for a in args if not isinstance(a, (tuple, list, torch.Size))]
    shapes = [a for a in args if isinstance(a, (tuple, list, torch.Size))]
    shape = torch.Size(named.pop("size") if "size" in named else shapes[0])
    if "high" in named:
        low, high = (numbers[0] if numbers else index(named.pop("low", 0))), index(named.pop("high"))
    else:
        low, high = (0, *numbers)[-2:]
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
    _no_out("randperm", kwargs)
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
    _no_out("normal", named)
    mean, std = named["mean"], named.get("std", 1.0)
    shape = named.get("size")
    if shape is None:
        shape = np.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor)))
    like = next((x for x in (mean, std) if isinstance(x, Tensor)), None)
    dtype = named.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    plain = _made(mode, "normal", _NORMAL, torch.Size(shape), dtype, {"generator": named.get("generator")})
    return plain * std + mean  # type: ignore[no-any-return]


_DRAWS: dict[str, Draw] = {
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


def _any_random(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(type(part) not in (int, float, bool) and _any_random(part) for part in data)
    return as_tensor(data) is not None


def _tensor_of(maker: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor of Python numbers or of an array, which may be random."""

    def make(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        if isinstance(data, Seed):
            return SeedTensor.of([data], torch.Size(()), torch.int64)
        random = as_tensor(mode.read_one(data))
        if random is None:
            if _any_random(data):
                raise opaque("a tensor made of random and other numbers", "write the numbers into a tensor")
            return maker(*args, **kwargs)
        if maker is torch.tensor:
            random = random.clone()  # type: ignore[assignment]
        dtype = kwargs.get("dtype") or (args[1] if len(args) > 1 else None)
        return random if dtype is None else random.to(dtype)

    return make


def _by_function() -> dict[Any, Draw | str]:
    """Every random function of torch: those followed, with their handler, and those refused, with their name."""
    found: dict[Any, Draw | str] = {}
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


_FOUND = _by_function()


def intercepting(batch: Batch) -> Interception:
    """What replaces torch's random calls for the rows of one batch."""
    return Interception(batch, _FOUND)
