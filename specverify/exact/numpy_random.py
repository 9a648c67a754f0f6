"""How is ``numpy.random`` followed? Stand-ins of its generators draw symbolic arrays while a call is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from specverify.exact.arrays import outside
from specverify.exact.calls import BASE, CALLS, GLOBAL_BITS, REAL_STATE, Stream, draw, frozen
from specverify.exact.forms import exponential_chain
from specverify.exact.interception import MOST_INTEGERS
from specverify.exact.links import Chain, Link
from specverify.exact.refusals import opaque
from specverify.exact.seeds import SMALLEST_RANGE, Seed
from specverify.exact.streams import State
from specverify.exact.symbolic import SymbolicTensor


def _draw(owner: Any, spec: Any, really: Callable[[], Any]) -> tuple[State, Any]:
    bits = owner._bit_generator if isinstance(owner, REAL_STATE) else owner.bit_generator
    start = BASE[-1][1] if bits is GLOBAL_BITS else bits.state
    return draw(Stream(bits, lambda: bits.state, lambda state: setattr(bits, "state", state), frozen, start), spec, really)


def _shape(size: Any) -> torch.Size:
    if size is None:
        return torch.Size(())
    return torch.Size([int(size)] if isinstance(size, (int, np.integer)) else [int(n) for n in size])


def _numbers(owner: Any, kind: str, chain: Chain, size: Any, really: Callable[[], Any]) -> Any:
    """Random numbers of a shape for numpy code."""
    call, shape = CALLS[-1], _shape(size)
    spec = (kind, shape.numel())
    state, found = _draw(owner, spec, really)
    if found is None:
        found = call.batch.new_atoms(call.owners(shape, None)) if shape.numel() else torch.empty(0, dtype=torch.int64)
        call.streams.remember(state, spec, found)
    return outside(SymbolicTensor.make(found.reshape(shape), call.batch, torch.float64, chain))


def _scaled(numbers: Any, scale: Any, shift: Any) -> Any:
    numbers = numbers if isinstance(scale, (int, float)) and scale == 1 else numbers * scale
    return numbers if isinstance(shift, (int, float)) and shift == 0 else numbers + shift


_GUMBEL = (Link("log"), Link("mul", -1.0), Link("log"), Link("mul", -1.0))


def _insist_on_no_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if CALLS and (kwargs.get("out") is not None or any(isinstance(a, np.ndarray) for a in args)):
        raise opaque("numpy's out=", "use the array that is returned")


class Follows:
    """Methods of numpy's generators, followed while a call is under way and left as they are otherwise."""

    def _really(self, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: getattr(super(Follows, self), name)(*args, **kwargs)

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("random", size, *args, **kwargs)
        _insist_on_no_out(args, kwargs)
        return _numbers(self, "random", (), size, really) if CALLS else really()

    def random_sample(self, size: Any = None) -> Any:
        really = self._really("random_sample", size)
        return _numbers(self, "random", (), size, really) if CALLS else really()

    def rand(self, *size: int) -> Any:
        really = self._really("rand", *size)
        return _numbers(self, "random", (), size or None, really) if CALLS else really()

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        really = self._really("uniform", low, high, size)
        if not CALLS:
            return really()
        shape = np.broadcast_shapes(np.shape(low), np.shape(high)) or None if size is None else size
        return _scaled(_numbers(self, "random", (), shape, really), np.subtract(high, low)[()], low)

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("exponential", scale, size)
        if not CALLS:
            return really()
        shape = np.shape(scale) or None if size is None else size
        return _scaled(_numbers(self, "exponential", exponential_chain(1.0), shape, really), scale, 0)

    def standard_exponential(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("standard_exponential", size, *args, **kwargs)
        _insist_on_no_out(args, kwargs)
        return _numbers(self, "exponential", exponential_chain(1.0), size, really) if CALLS else really()

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("gumbel", loc, scale, size)
        if not CALLS:
            return really()
        shape = np.broadcast_shapes(np.shape(loc), np.shape(scale)) or None if size is None else size
        return _scaled(_numbers(self, "gumbel", _GUMBEL, shape, really), scale, loc)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        really = self._really("normal", loc, scale, size)
        if not CALLS:
            return really()
        shape = np.broadcast_shapes(np.shape(loc), np.shape(scale)) or None if size is None else size
        return _scaled(_numbers(self, "normal", (Link("normal"),), shape, really), scale, loc)

    def standard_normal(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("standard_normal", size, *args, **kwargs)
        _insist_on_no_out(args, kwargs)
        return _numbers(self, "normal", (Link("normal"),), size, really) if CALLS else really()

    def integers(self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False) -> Any:
        return self._whole("integers", low, high, size, endpoint, dtype=dtype, endpoint=endpoint)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        return self._whole("randint", low, high, size, False, dtype=dtype)

    def _whole(self, name: str, low: Any, high: Any, size: Any, closed: bool, **kwargs: Any) -> Any:
        really = self._really(name, low, high, size, **kwargs)
        if not CALLS:
            return really()
        low, high = (0, low) if high is None else (low, high)
        if np.ndim(low) or np.ndim(high):
            raise opaque("drawing integers from ranges in arrays", "draw them one by one")
        high += closed
        if high - low >= SMALLEST_RANGE and size is None:
            return self._seed(low, high, really)
        if high - low > MOST_INTEGERS:
            raise opaque(f"drawing one of {high - low} integers", f"draw from at most {MOST_INTEGERS}")
        return self._choose(("integers", low, high, size), really, [1.0 / (high - low)] * (high - low), size, low)

    def _seed(self, low: int, high: int, really: Callable[[], Any]) -> Seed:
        """A large integer, which can only be a seed."""
        state, found = _draw(self, ("seed", low, high), really)
        if found is None:
            found = Seed.drawn(int(low), int(high))
            CALLS[-1].streams.remember(state, ("seed", low, high), found)
        return found  # type: ignore[no-any-return]

    def _choose(self, spec: Any, really: Any, law: Sequence[float], size: Any, low: int = 0) -> Any:
        """Independent choices from a law, as integers from ``low`` on."""
        call, shape = CALLS[-1], _shape(size)
        if len(law) > MOST_INTEGERS:
            raise opaque(f"drawing one of {len(law)} integers", f"draw from at most {MOST_INTEGERS}")
        state, found = _draw(self, spec, really)
        if found is None:
            found = [low + call.batch.rows[owner].decide(law) for owner in call.owners(shape, None)]
            call.streams.remember(state, spec, found)
        return np.array(found, dtype=np.int64).reshape(shape)[()]

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None, *args: Any, **kwargs: Any) -> Any:
        really = self._really("choice", a, size, replace, p, *args, **kwargs)
        if not CALLS:
            return really()
        if (args and args[0]) or kwargs.get("axis"):
            raise opaque("numpy's choice along another axis than 0", "choose an index")
        items = np.arange(a) if isinstance(a, (int, np.integer)) else np.asarray(a)
        weights = np.full(len(items), 1.0 / len(items)) if p is None else np.asarray(p, np.float64)
        if not replace and size is not None and _shape(size).numel() > 1:
            raise opaque("numpy's choice without replacement", "choose one at a time")
        spec = ("choice", len(items), size, weights.tobytes())
        return items[self._choose(spec, really, (weights / weights.sum()).tolist(), size)]

    def multinomial(self, n: int, pvals: Any, size: Any = None, **kwargs: Any) -> Any:
        really = self._really("multinomial", n, pvals, size, **kwargs)
        if not CALLS:
            return really()
        if n != 1 or size is not None or np.ndim(pvals) != 1:
            raise opaque("numpy's multinomial of more than one draw", "use choice")
        weights = np.asarray(pvals, np.float64)
        pick = self._choose(("multinomial", weights.tobytes()), really, (weights / weights.sum()).tolist(), None)
        return np.eye(len(weights), dtype=np.int64)[pick]

    def permutation(self, x: Any, **kwargs: Any) -> Any:
        really = self._really("permutation", x, **kwargs)
        if not CALLS:
            return really()
        if kwargs.get("axis"):
            raise opaque("numpy's permutation along another axis than 0", "permute an index")
        items = np.arange(x) if isinstance(x, (int, np.integer)) else np.array(x)
        call = CALLS[-1]
        state, found = _draw(self, ("permutation", len(items)), really)
        if found is None:
            owner, left, found = call.owners(torch.Size(()), None)[0], list(range(len(items))), []
            while left:
                found.append(left.pop(call.batch.rows[owner].decide([1.0 / len(left)] * len(left))))
            call.streams.remember(state, ("permutation", len(items)), found)
        return items[found]


class FollowedGenerator(Follows, np.random.Generator):  # type: ignore[misc] # numpy's stubs are overloaded
    """A numpy Generator whose draws are followed."""


class FollowedState(Follows, np.random.RandomState):  # type: ignore[misc] # as above
    """A numpy RandomState whose draws are followed."""


def followed_default_rng(seed: Any = None) -> Any:
    """``numpy.random.default_rng``, whose generators are followed."""
    if isinstance(seed, np.random.Generator):
        return seed if isinstance(seed, FollowedGenerator) else FollowedGenerator(seed.bit_generator)
    if seed is None and CALLS:
        seed = int.__int__(Seed.drawn(0, 2**64))  # of the system, as numpy would take one
    if isinstance(seed, Seed):
        seed = int.__int__(seed)
    return FollowedGenerator(_REAL_DEFAULT_RNG(seed).bit_generator)


_REAL_DEFAULT_RNG = np.random.default_rng
_GLOBAL = FollowedState(GLOBAL_BITS)
_GLOBAL_NAMES = (
    "random", "random_sample", "rand", "uniform", "exponential", "standard_exponential", "gumbel", "normal",
    "standard_normal", "randint", "choice", "multinomial", "permutation",
)  # fmt: skip


def _global(name: str) -> Callable[..., Any]:
    real = getattr(np.random, name)
    followed = getattr(_GLOBAL, "random_sample" if name == "random" else name)

    def draw(*args: Any, **kwargs: Any) -> Any:
        return followed(*args, **kwargs) if CALLS else real(*args, **kwargs)

    return draw


GLOBALS = {name: _global(name) for name in _GLOBAL_NAMES}
