"""What if code draws a large random integer? It is a seed: all it may do is seed a stream.

Streams hand out the same symbolic numbers whatever their seed is, so the law does not depend on the seed, as long as nothing
else is decided by it. A :class:`Seed` is an int of which only sums, differences, products, exclusive ors and remainders by
large numbers can be formed; every other use is refused. Its value differs from call to call.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact.refusals import opaque

SMALLEST_RANGE = 2**16
"""Fewest values that a remainder must leave for the number to be a seed still."""
_TOKEN, _COUNT = os.urandom(16), itertools.count()
_LIBRARIES = (*(str(Path(home).parent) for home in (torch.__file__, np.__file__)), str(random.__file__))


def _refusal(operation: str) -> OpaqueRandomness:
    return opaque(f"{operation} of a random seed", "use large random integers for nothing but seeding")


class Seed(int):
    """A random integer that may only seed streams. lowest, highest: its range, None after arithmetic."""

    lowest: int | None = None
    highest: int | None = None

    @classmethod
    def drawn(cls, low: int, high: int) -> Seed:
        """A seed from low to high - 1, of another value in every call."""
        digest = hashlib.sha256(_TOKEN + next(_COUNT).to_bytes(8, "big")).digest()
        seed = cls(low + int.from_bytes(digest, "big") % (high - low))
        seed.lowest, seed.highest = low, high - 1
        return seed

    def _combined(self, name: str, *others: Any) -> Any:
        if not all(isinstance(other, int) for other in others):
            raise _refusal("arithmetic with other numbers than integers")
        result = getattr(int, name)(self, *others)
        return Seed(result) if isinstance(result, int) else result

    def _reduced(self, name: str, other: int) -> Any:
        """A remainder or a mask: a seed still when it leaves enough values."""
        values = other + 1 if "and" in name and isinstance(other, int) else other
        if not isinstance(other, int) or abs(values) < SMALLEST_RANGE or ("and" in name and values & other):
            raise _refusal(f"taking {name}")
        return self._combined(name, other)

    def _compared(self, name: str, other: Any) -> Any:
        """A comparison whose outcome is the same for every seed."""
        if self.lowest is not None and self.highest is not None and isinstance(other, (int, float)):
            ends = {getattr(int(end), name)(other) for end in (self.lowest, self.highest)}
            outside = not self.lowest <= other <= self.highest
            if len(ends) == 1 and (outside or name not in ("__eq__", "__ne__")):
                return ends.pop()
        raise _refusal("comparing")

    def __int__(self) -> int:
        if not sys._getframe(1).f_code.co_filename.startswith(_LIBRARIES):
            raise _refusal("int()")
        return int.__int__(self)

    def _cannot(self, *_: Any) -> Any:
        raise _refusal("arithmetic with, or a conversion,")

    __hash__ = _cannot
    __invert__ = __pow__ = __rpow__ = __repr__ = _cannot
    bit_length = bit_count = to_bytes = as_integer_ratio = conjugate = _cannot  # type: ignore[assignment]
    real = imag = numerator = denominator = property(_cannot)
    __float__ = __bool__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __rshift__ = _cannot
    __divmod__ = __rmod__ = __round__ = __str__ = __format__ = _cannot


def _method(rule: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda self, *others: rule(self, name, *others)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "xor", "rxor", "or", "ror", "neg", "pos", "abs", "lshift"):
    setattr(Seed, f"__{_name}__", _method(Seed._combined, f"__{_name}__"))
for _name in ("mod", "and", "rand"):
    setattr(Seed, f"__{_name}__", _method(Seed._reduced, f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Seed, f"__{_name}__", _method(Seed._compared, f"__{_name}__"))

_SAME = frozenset({"__getitem__", "clone", "detach", "cpu", "long", "reshape", "view", "squeeze", "unsqueeze", "flatten"})
_COMBINE = frozenset({"add", "sub", "mul", "bitwise_xor", "__xor__", "__rxor__", "__radd__", "__rmul__", "rsub", "__rsub__"})
_DESCRIBE = frozenset({"size", "dim", "numel", "__len__", "stride"})


class SeedTensor(Tensor):
    """A tensor of seeds."""

    @classmethod
    def of(cls, values: Sequence[int], shape: torch.Size, dtype: torch.dtype) -> SeedTensor:
        """Wrap seeds in a tensor of that shape."""
        with torch._C.DisableTorchFunction():
            plain = torch.tensor([int.__int__(v) for v in values], dtype=dtype).reshape(shape)
        return plain.as_subclass(cls)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("tolist", "item"):
                return _seeds(func(*args, **(kwargs or {})))
            if name == "__iter__":
                return iter([part.as_subclass(cls) for part in torch.unbind(args[0])])
            if name in _DESCRIBE or (
                name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") in ("shape", "dtype", "device")
            ):
                return func(*args, **(kwargs or {}))
            if name in _SAME or (name in _COMBINE and all(isinstance(a, (int, SeedTensor)) for a in args)):
                return func(*args, **(kwargs or {})).as_subclass(cls)
            if name == "unbind":
                return tuple(part.as_subclass(cls) for part in func(*args, **(kwargs or {})))
        raise _refusal(f"torch operation {name!r}")


def _seeds(values: Any) -> Any:
    return [_seeds(v) for v in values] if isinstance(values, list) else Seed(values)
