"""What if the code draws from Python's ``random`` or from numpy? Their calls are replaced too while a law is walked.

:func:`following` is active for one law. Functions of the modules ``random`` and ``numpy.random``, methods of every
``random.Random``, and numpy generators that are made inside the code, or that stand in a module, are followed. A generator
kept elsewhere (in an object, a closure) and functions imported by name are not: :func:`unseen` notices that they moved.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from specverify.errors import OpaqueRandomness
from specverify.exact import numpy_random, python_random
from specverify.exact.arrays import as_tensor
from specverify.exact.calls import BASE, CALLS, ELSEWHERE, GLOBAL_BITS, IMPORTED, REAL_STATE, frozen, letting_through
from specverify.exact.numpy_random import GLOBALS, FollowedGenerator, FollowedState, Follows, followed_default_rng
from specverify.exact.python_random import followed_below, followed_bits, followed_random, through
from specverify.exact.streams import State, torch_state

OWN_FILES = (__file__, numpy_random.__file__, python_random.__file__)
"""Where calls of the libraries' own functions are ours."""
_OTHERS = ("numpy", "torch", "scipy", "hypothesis", "specverify", "_pytest", "pandas", "sklearn", "matplotlib", "sympy")


_modules: dict[str, Any] = {"at": -math.inf, "count": 0, "found": []}


def _in_modules() -> list[tuple[dict[str, Any], str, Any]]:
    """What :func:`_look_in_modules` found, looked for anew every other second and when modules were imported."""
    if BASE:  # a law inside a law: the stand-ins are in their places already
        return []
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
            elif type(value) is REAL_STATE and value is not np.random.mtrand._rand:
                found.append((module.__dict__, attribute, FollowedState(value._bit_generator)))
    return found


@contextmanager
def following() -> Iterator[None]:
    """Within, Python's and numpy's random functions are followed whenever a call is under way.

    Errors: OpaqueRandomness when a global stream has moved in the end although every call that drew from it put it back.
    """
    with letting_through(), _patched():
        IMPORTED.clear()
        base = random.getstate(), GLOBAL_BITS.state
        BASE.append(base)
        try:
            yield
            now = BASE[-1]
            moved = (random.getstate() != now[0] and not IMPORTED) or frozen(GLOBAL_BITS.state) != frozen(now[1])
            if moved:
                raise OpaqueRandomness(ELSEWHERE)
        finally:
            BASE.pop()
            random.setstate(base[0])
            GLOBAL_BITS.state = base[1]


@cache
def _places() -> Iterator[Any]:
    """States for numpy's global stream, one after the other; making one takes longer than most calls."""
    return itertools.cycle([np.random.MT19937(int.from_bytes(os.urandom(6), "big")).state for _ in range(61)])


@contextmanager
def elsewhere_in_the_streams() -> Iterator[None]:
    """Within, all global streams stand somewhere else than before, so that draws that are not seen come out differently."""
    torch_state = torch.get_rng_state()
    torch.default_generator.manual_seed(int.from_bytes(os.urandom(6), "big"))
    random.seed(os.urandom(8))
    GLOBAL_BITS.state = next(_places())
    BASE[-1] = (random.getstate(), GLOBAL_BITS.state)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)


def _after_a_look(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that seeds torch's stream, which would hide that numbers were drawn from it unseen."""

    def seeding(*args: Any, **kwargs: Any) -> Any:
        if CALLS:
            CALLS[-1].streams.insist_on_known(torch_state(None))
        return real(*args, **kwargs)

    return seeding


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

    put(random.Random, "random", followed_random)
    put(random.Random, "_randbelow", followed_below)
    put(random.Random, "getrandbits", followed_bits)
    put(random, "random", lambda: followed_random(random._inst))
    put(random, "getrandbits", lambda k: followed_bits(random._inst, k))
    for module, prefix in ((math, ""), (random, "_")):
        for name in ("log", "exp"):
            put(module, prefix + name, through(getattr(math, name), name))
    put(math, "log1p", through(math.log1p, "log1p"))
    put(math, "sqrt", through(math.sqrt, "sqrt"))
    for name, function in GLOBALS.items():
        put(np.random, name, function)
    put(np.random, "default_rng", followed_default_rng)
    real = torch.from_numpy
    put(torch, "from_numpy", lambda array: real(array) if (made := as_tensor(array)) is None else made)
    put(np.random, "RandomState", FollowedState)
    for module in (torch, torch.random):
        for name in ("seed", "manual_seed", "set_rng_state"):
            put(module, name, _after_a_look(getattr(module, name)))
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


_FOREIGN = (np.random.Generator, REAL_STATE)
_seen: dict[str, Any] = {"at": -math.inf, "alive": {}}


def unseen() -> dict[int, State]:
    """States of all numpy generators alive that are not followed, by identity.

    All objects are looked through every other second; in between only those that are new.
    """
    young = time.monotonic() - _seen["at"] < 2
    objects = [o for generation in (0, 1) for o in gc.get_objects(generation)] if young else gc.get_objects()
    found = {id(o): o for o in objects if issubclass(type(o), _FOREIGN) and not issubclass(type(o), Follows)}
    if young:
        _seen["alive"].update(found)
    else:
        _seen.update(at=time.monotonic(), alive=found)
    bits = {i: o._bit_generator if isinstance(o, REAL_STATE) else o.bit_generator for i, o in _seen["alive"].items()}
    return {i: frozen(b.state) for i, b in bits.items() if b is not GLOBAL_BITS}
