"""What if the code draws from Python's ``random`` or from numpy? Their calls are replaced too while a law is walked.

:func:`following` is active for one law. Functions of the modules ``random`` and ``numpy.random``, methods of every
``random.Random``, and numpy generators that are made inside the code, or that stand in a module, are followed. A generator
kept elsewhere (in an object, a closure) and functions imported by name are not: :func:`unseen` notices that they moved.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from specverify.errors import OpaqueRandomness
from specverify.exact.arrays import as_tensor, outside
from specverify.exact.interception import Interception
from specverify.exact.number import SymbolicNumber
from specverify.exact.racing import exponential_chain
from specverify.exact.seeds import SMALLEST_RANGE, Seed
from specverify.exact.streams import State
from specverify.exact.symbolic import Chain, Link, SymbolicTensor, opaque

ELSEWHERE = (
    "the code drew random numbers in a way that the exact engine does not follow; to be analysable, draw with torch, or call "
    "random.random() and numpy.random by their modules, and make numpy generators inside the call"
)
_imported: list[str] = []
"""Modules that were imported during the walk and drew from Python's stream by themselves."""
_calls: list[Interception] = []
"""The call under way, if any (the innermost last)."""
_REAL_RANDOM = random.Random.random
_REAL_STATE = np.random.RandomState
_REAL_BELOW = random.Random._randbelow  # type: ignore[attr-defined]
_REAL_BITS = random.Random.getrandbits
_MOST = 4096
_ENGINE = str(Path(__file__).with_name("engine.py"))


_base: list[tuple[Any, Any]] = []
"""States of Python's and numpy's global streams when the walk of a law began; every call starts from them."""


@contextmanager
def drawing_for(call: Interception) -> Iterator[None]:
    """Within, draws belong to this call; streams that were drawn from are put back afterwards."""
    _calls.append(call)
    try:
        yield
    finally:
        _calls.pop()
        for bits, state in call.bit_generators:
            bits.state = state


def _frozen(state: Any) -> State:
    """A numpy state as something that can be looked up."""

    def freeze(value: Any) -> Any:
        if isinstance(value, dict):
            return tuple((k, freeze(v)) for k, v in value.items())
        return value.tobytes() if isinstance(value, np.ndarray) else value

    return "numpy", freeze(state)


@contextmanager
def _letting_through() -> Iterator[None]:
    """Within, draws are real: the libraries' own functions call each other."""
    held = _calls[:]
    _calls.clear()
    try:
        yield
    finally:
        _calls.extend(held)


# Python's random


def _python_draw(rng: random.Random, spec: Any, really: Callable[[], Any]) -> tuple[State, Any]:
    streams = _calls[-1].streams
    state: State = ("python", rng.getstate())
    if all(getattr(g, "rng", None) is not rng for g, _ in _calls[-1].bit_generators):
        start = _base[-1][0] if rng is random._inst else rng.getstate()
        _calls[-1].bit_generators.append((_Restored(rng), start))
        streams.left.add(("python", start))
    streams.insist_on_known(state)
    with _letting_through():
        really()
    streams.left.add(("python", rng.getstate()))
    return state, streams.known(state, spec)


class _Restored:
    """A ``random.Random`` whose ``state`` can be put back as that of numpy's bit generators."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self.rng.setstate(value)
        else:
            super().__setattr__(name, value)


def _new_number(state: State, spec: Any, found: Any) -> SymbolicNumber:
    call = _calls[-1]
    if found is None:
        found = call.batch.new_atoms(call.owners(torch.Size(()), None))
        call.streams.remember(state, spec, found)
    return SymbolicNumber(SymbolicTensor.make(found.reshape(()), call.batch, torch.float64))


def _idle() -> bool:
    """Whether a draw is none of the code's: outside a call, or by a module that is being imported by then."""
    if not _calls:
        return True
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != _ENGINE:  # no farther than the code under analysis
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _imported.append(frame.f_code.co_filename)
            return True
        frame = frame.f_back
    return False


def _random(self: random.Random) -> Any:
    if _idle():
        return _REAL_RANDOM(self)
    state, found = _python_draw(self, "random", lambda: _REAL_RANDOM(self))
    return _new_number(state, "random", found)


def _integer(state: State, spec: Any, found: Any, low: int, high: int) -> int:
    """One of low .. high - 1."""
    call = _calls[-1]
    if found is None and high - low >= SMALLEST_RANGE:
        found = Seed.drawn(low, high)
        call.streams.remember(state, spec, found)
    if found is None:
        if not 0 < high - low <= _MOST:
            raise _refused(opaque(f"drawing one of {high - low} integers", f"draw from at most {_MOST}"))
        owner = call.owners(torch.Size(()), None)[0]
        found = low + call.batch.rows[owner].decide([1.0 / (high - low)] * (high - low))
        call.streams.remember(state, spec, found)
    return found  # type: ignore[no-any-return]


def _refused(error: Exception) -> Exception:
    _calls[-1].batch.refused = error  # type: ignore[assignment]
    return error


def _below(self: random.Random, n: int) -> int:
    if _idle():
        return int(_REAL_BELOW(self, n))
    state, found = _python_draw(self, ("below", n), lambda: _REAL_BELOW(self, n))
    return _integer(state, ("below", n), found, 0, n)


def _bits(self: random.Random, k: int) -> int:
    if _idle():
        return _REAL_BITS(self, k)
    state, found = _python_draw(self, ("bits", k), lambda: _REAL_BITS(self, k))
    return _integer(state, ("bits", k), found, 0, 1 << k)


def _through(real: Callable[[Any], float], name: str) -> Callable[[Any], Any]:
    """A function of ``math`` that also takes random numbers."""
    return lambda x, *more: x.mapped(name) if isinstance(x, SymbolicNumber) and not more else real(x, *more)


# numpy


def _numpy_draw(owner: Any, spec: Any, really: Callable[[], Any]) -> tuple[State, Any]:
    """Move a numpy stream as the real draw does."""
    call = _calls[-1]
    bits = owner._bit_generator if isinstance(owner, _REAL_STATE) else owner.bit_generator
    if all(bits is not b for b, _ in call.bit_generators):
        start = _base[-1][1] if bits is _GLOBAL_BITS else bits.state
        call.bit_generators.append((bits, start))
        call.streams.left.add(_frozen(start))
    state = _frozen(bits.state)
    call.streams.insist_on_known(state)
    with _letting_through():
        really()
    call.streams.left.add(_frozen(bits.state))
    return state, call.streams.known(state, spec)


def _shape(size: Any) -> torch.Size:
    if size is None:
        return torch.Size(())
    return torch.Size([int(size)] if isinstance(size, (int, np.integer)) else [int(n) for n in size])


def _numbers(owner: Any, kind: str, chain: Chain, size: Any, really: Callable[[], Any]) -> Any:
    """Random numbers of a shape for numpy code."""
    call, shape = _calls[-1], _shape(size)
    spec = (kind, shape.numel())
    state, found = _numpy_draw(owner, spec, really)
    if found is None:
        found = call.batch.new_atoms(call.owners(shape, None)) if shape.numel() else torch.empty(0, dtype=torch.int64)
        call.streams.remember(state, spec, found)
    return outside(SymbolicTensor.make(found.reshape(shape), call.batch, torch.float64, chain))


def _scaled(numbers: Any, scale: Any, shift: Any) -> Any:
    numbers = numbers if isinstance(scale, (int, float)) and scale == 1 else numbers * scale
    return numbers if isinstance(shift, (int, float)) and shift == 0 else numbers + shift


_GUMBEL = (Link("log"), Link("mul", -1.0), Link("log"), Link("mul", -1.0))


class _Follows:
    """Methods of numpy's generators, followed while a call is under way and left as they are otherwise."""

    def _really(self, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: getattr(super(_Follows, self), name)(*args, **kwargs)

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("random", size, *args, **kwargs)
        return _numbers(self, "random", (), size, really) if _calls else really()

    def random_sample(self, size: Any = None) -> Any:
        really = self._really("random_sample", size)
        return _numbers(self, "random", (), size, really) if _calls else really()

    def rand(self, *size: int) -> Any:
        really = self._really("rand", *size)
        return _numbers(self, "random", (), size or None, really) if _calls else really()

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        really = self._really("uniform", low, high, size)
        if not _calls:
            return really()
        shape = np.broadcast_shapes(np.shape(low), np.shape(high)) or None if size is None else size
        return _scaled(_numbers(self, "random", (), shape, really), np.subtract(high, low)[()], low)

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("exponential", scale, size)
        if not _calls:
            return really()
        shape = np.shape(scale) or None if size is None else size
        return _scaled(_numbers(self, "exponential", exponential_chain(1.0), shape, really), scale, 0)

    def standard_exponential(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("standard_exponential", size, *args, **kwargs)
        return _numbers(self, "exponential", exponential_chain(1.0), size, really) if _calls else really()

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("gumbel", loc, scale, size)
        if not _calls:
            return really()
        shape = np.broadcast_shapes(np.shape(loc), np.shape(scale)) or None if size is None else size
        return _scaled(_numbers(self, "gumbel", _GUMBEL, shape, really), scale, loc)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("normal", loc, scale, size)
        if not _calls:
            return really()
        shape = np.broadcast_shapes(np.shape(loc), np.shape(scale)) or None if size is None else size
        return _scaled(_numbers(self, "normal", (Link("normal"),), shape, really), scale, loc)

    def standard_normal(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("standard_normal", size, *args, **kwargs)
        return _numbers(self, "normal", (Link("normal"),), size, really) if _calls else really()

    def integers(self, low: Any, high: Any = None, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._whole("integers", low, high, size, *args, **kwargs)

    def randint(self, low: Any, high: Any = None, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._whole("randint", low, high, size, *args, **kwargs)

    def _whole(self, name: str, low: Any, high: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        really = self._really(name, low, high, size, *args, **kwargs)
        if not _calls:
            return really()
        low, high = (0, low) if high is None else (low, high)
        high += bool(kwargs.get("endpoint", False))
        if high - low >= SMALLEST_RANGE and size is None:
            return self._seed(low, high, really)
        return self._choose(("integers", low, high, size), really, [1.0 / (high - low)] * (high - low), size, low)

    def _seed(self, low: int, high: int, really: Callable[[], Any]) -> Seed:
        """A large integer, which can only be a seed."""
        state, found = _numpy_draw(self, ("seed", low, high), really)
        if found is None:
            found = Seed.drawn(int(low), int(high))
            _calls[-1].streams.remember(state, ("seed", low, high), found)
        return found  # type: ignore[no-any-return]

    def _choose(self, spec: Any, really: Any, law: Sequence[float], size: Any, low: int = 0) -> Any:
        """Independent choices from a law, as integers from ``low`` on."""
        call, shape = _calls[-1], _shape(size)
        if len(law) > _MOST:
            raise _refused(opaque(f"drawing one of {len(law)} integers", f"draw from at most {_MOST}"))
        state, found = _numpy_draw(self, spec, really)
        if found is None:
            found = [low + call.batch.rows[owner].decide(law) for owner in call.owners(shape, None)]
            call.streams.remember(state, spec, found)
        return np.array(found, dtype=np.int64).reshape(shape)[()]

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("choice", a, size, replace, p, *args, **kwargs)
        if not _calls:
            return really()
        items = np.arange(a) if isinstance(a, (int, np.integer)) else np.asarray(a)
        weights = np.full(len(items), 1.0 / len(items)) if p is None else np.asarray(p, np.float64)
        if not replace and size is not None and _shape(size).numel() > 1:
            raise _refused(opaque("numpy's choice without replacement", "choose one at a time"))
        spec = ("choice", len(items), size, weights.tobytes())
        return items[self._choose(spec, really, (weights / weights.sum()).tolist(), size)]

    def multinomial(self, n: int, pvals: Any, size: Any = None, **kwargs: Any) -> Any:
        really = self._really("multinomial", n, pvals, size, **kwargs)
        if not _calls:
            return really()
        if n != 1 or size is not None or np.ndim(pvals) != 1:
            raise _refused(opaque("numpy's multinomial of more than one draw", "use choice"))
        weights = np.asarray(pvals, np.float64)
        pick = self._choose(("multinomial", weights.tobytes()), really, (weights / weights.sum()).tolist(), None)
        return np.eye(len(weights), dtype=np.int64)[pick]

    def permutation(self, x: Any, **kwargs: Any) -> Any:
        really = self._really("permutation", x, **kwargs)
        if not _calls:
            return really()
        items = np.arange(x) if isinstance(x, (int, np.integer)) else np.array(x)
        call = _calls[-1]
        state, found = _numpy_draw(self, ("permutation", len(items)), really)
        if found is None:
            owner, left, found = call.owners(torch.Size(()), None)[0], list(range(len(items))), []
            while left:
                found.append(left.pop(call.batch.rows[owner].decide([1.0 / len(left)] * len(left))))
            call.streams.remember(state, ("permutation", len(items)), found)
        return items[found]


class FollowedGenerator(_Follows, np.random.Generator):  # type: ignore[misc] # numpy's stubs are overloaded
    """A numpy Generator whose draws are followed."""


class FollowedState(_Follows, np.random.RandomState):  # type: ignore[misc] # as above
    """A numpy RandomState whose draws are followed."""


def _default_rng(seed: Any = None) -> Any:
    if isinstance(seed, np.random.Generator):
        return seed if isinstance(seed, FollowedGenerator) else FollowedGenerator(seed.bit_generator)
    if seed is None and _calls:
        seed = int.__int__(Seed.drawn(0, 2**64))  # of the system, as numpy would take one
    return FollowedGenerator(_REAL_DEFAULT_RNG(seed).bit_generator)


_REAL_DEFAULT_RNG = np.random.default_rng
_GLOBAL_BITS = np.random.mtrand._rand._bit_generator
_GLOBAL = FollowedState(_GLOBAL_BITS)
_GLOBAL_NAMES = (
    "random", "random_sample", "rand", "uniform", "exponential", "standard_exponential", "gumbel", "normal",
    "standard_normal", "randint", "choice", "multinomial", "permutation",
)  # fmt: skip


def _global(name: str) -> Callable[..., Any]:
    real = getattr(np.random, name)
    followed = getattr(_GLOBAL, "random_sample" if name == "random" else name)

    def draw(*args: Any, **kwargs: Any) -> Any:
        return followed(*args, **kwargs) if _calls else real(*args, **kwargs)

    return draw


_GLOBALS = {name: _global(name) for name in _GLOBAL_NAMES}
_OTHERS = ("numpy", "torch", "scipy", "hypothesis", "specverify", "_pytest", "pandas", "sklearn", "matplotlib", "sympy")


_modules: dict[str, Any] = {"at": -math.inf, "count": 0, "found": []}


def _in_modules() -> list[tuple[dict[str, Any], str, Any]]:
    """What :func:`_look_in_modules` found, looked for anew every other second and when modules were imported."""
    if time.monotonic() - _modules["at"] > 2 or len(sys.modules) != _modules["count"]:
        _modules.update(found=_look_in_modules(), at=time.monotonic(), count=len(sys.modules))
    found: list[tuple[dict[str, Any], str, Any]] = _modules["found"]
    return [entry for entry in found if entry[1] in entry[0]]


def _look_in_modules() -> list[tuple[dict[str, Any], str, Any]]:
    """Numpy generators that stand in modules of the user's: (namespace, name, followed stand-in)."""
    found: list[tuple[dict[str, Any], str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.split(".", 1)[0] in _OTHERS:
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is np.random.Generator:
                found.append((module.__dict__, attribute, FollowedGenerator(value.bit_generator)))
            elif type(value) is _REAL_STATE and value is not np.random.mtrand._rand:
                found.append((module.__dict__, attribute, FollowedState(value._bit_generator)))
    return found


@contextmanager
def following() -> Iterator[None]:
    """Within, Python's and numpy's random functions are followed whenever a call is under way.

    Errors: OpaqueRandomness when a global stream has moved in the end although every call that drew from it put it back.
    """
    with _letting_through(), _patched():
        _imported.clear()
        base = random.getstate(), _GLOBAL_BITS.state
        _base.append(base)
        try:
            yield
            moved = (random.getstate() != base[0] and not _imported) or _frozen(_GLOBAL_BITS.state) != _frozen(base[1])
            if moved:
                raise OpaqueRandomness(ELSEWHERE)
        finally:
            _base.pop()
            random.setstate(base[0])
            _GLOBAL_BITS.state = base[1]


@contextmanager
def _patched() -> Iterator[None]:
    """Put the functions that follow in the place of those that draw."""
    undo: list[tuple[Any, str, Any, bool]] = []

    def put(home: Any, name: str, value: Any) -> None:
        space = home if isinstance(home, dict) else vars(home)
        undo.append((home, name, space.get(name), name in space))
        if isinstance(home, dict):
            home[name] = value
        else:
            setattr(home, name, value)

    put(random.Random, "random", _random)
    put(random.Random, "_randbelow", _below)
    put(random.Random, "getrandbits", _bits)
    put(random, "random", lambda: _random(random._inst))
    put(random, "getrandbits", lambda k: _bits(random._inst, k))
    for module, prefix in ((math, ""), (random, "_")):
        for name in ("log", "exp"):
            put(module, prefix + name, _through(getattr(math, name), name))
    put(math, "log1p", _through(math.log1p, "log1p"))
    put(math, "sqrt", _through(math.sqrt, "sqrt"))
    for name, function in _GLOBALS.items():
        put(np.random, name, function)
    put(np.random, "default_rng", _default_rng)
    real = torch.from_numpy
    put(torch, "from_numpy", lambda array: real(array) if (made := as_tensor(array)) is None else made)
    put(np.random, "RandomState", FollowedState)
    for space, name, followed in _in_modules():
        put(space, name, followed)
    try:
        yield
    finally:
        for home, name, before, was in reversed(undo):
            if isinstance(home, dict):
                home[name] = before
            elif was:
                setattr(home, name, before)
            else:
                delattr(home, name)


_FOREIGN = (np.random.Generator, _REAL_STATE)
_seen: dict[str, Any] = {"at": -math.inf, "alive": {}}


def unseen() -> dict[int, State]:
    """States of all numpy generators alive that are not followed, by identity.

    All objects are looked through every other second; in between only those that are new.
    """
    young = time.monotonic() - _seen["at"] < 2
    objects = [o for generation in (0, 1) for o in gc.get_objects(generation)] if young else gc.get_objects()
    found = {id(o): o for o in objects if issubclass(type(o), _FOREIGN) and not issubclass(type(o), _Follows)}
    if young:
        _seen["alive"].update(found)
    else:
        _seen.update(at=time.monotonic(), alive=found)
    bits = {i: o._bit_generator if isinstance(o, _REAL_STATE) else o.bit_generator for i, o in _seen["alive"].items()}
    return {i: _frozen(b.state) for i, b in bits.items()}
