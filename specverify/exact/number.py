"""What is ``.item()`` of a random number? A number that can be shifted, scaled, cut to an integer and compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact.arithmetic import map_, whole
from specverify.exact.comparing import compare
from specverify.exact.refusals import opaque
from specverify.exact.shaping import reshape
from specverify.exact.tensor import Handler, SymbolicTensor


class SymbolicNumber:
    """A random number that is not known yet, in place of a Python float."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        tensor.is_number = True
        self.tensor = tensor
        """The same number as a tensor without dimensions."""

    @property  # type: ignore[misc] # object's is writable
    def __class__(self) -> Any:  # what code asks of it with isinstance is answered as for a float
        return float

    def mapped(self, name: str, *other: Any) -> Any:
        """The number after a map; a tensor when the other operand is one."""
        if any(isinstance(o, np.ndarray) for o in other):
            return NotImplemented
        given = other
        other = tuple(o.tensor if isinstance(o, SymbolicNumber) else o for o in other)
        if name != "mul" and any(isinstance(o, SymbolicTensor) for o in other):
            raise self._refuse(f"{name!r} of two random numbers")
        result = map_(name, (self.tensor, *other), {})
        return result if any(isinstance(o, Tensor) for o in given) else SymbolicNumber(result)

    def _compare(self, name: str, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        if isinstance(other, (SymbolicNumber, SymbolicTensor)):
            raise self._refuse("comparing two random numbers")
        answer = compare(name, (self.tensor, other), {})
        return answer if isinstance(other, Tensor) else bool(answer.item())

    def _refuse(self, operation: str, hint: str = "") -> OpaqueRandomness:
        return opaque(operation, hint)

    def __lt__(self, other: Any) -> Any:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare("ge", other)

    def __mul__(self, other: Any) -> Any:
        return self.mapped("mul", other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self.mapped("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.mapped("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self.mapped("rsub", other)

    def __truediv__(self, other: Any) -> Any:
        return self.mapped("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.mapped("rdiv", other)

    def __pow__(self, other: Any) -> Any:
        return self.mapped("pow", other)

    def __neg__(self) -> Any:
        return self.mapped("neg")

    def __pos__(self) -> SymbolicNumber:
        return self

    def __floor__(self) -> int:
        return int(whole(self.tensor))

    def __trunc__(self) -> int:
        return math.floor(self) if self >= 0 else -math.floor(-self)

    __int__ = __trunc__

    def __float__(self) -> float:
        raise self._refuse("float()", "compare the number itself instead of converting it")

    def __bool__(self) -> bool:
        raise self._refuse("bool()")

    def __eq__(self, other: object) -> bool:
        raise self._refuse("testing equality")

    def __hash__(self) -> int:
        raise self._refuse("hash()")

    def _cannot(self, *_: Any) -> Any:
        raise self._refuse("arithmetic or a conversion")

    __str__ = __repr__ = __format__ = _cannot
    __index__ = __round__ = __ceil__ = __abs__ = _cannot
    __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = _cannot


def item(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """``tensor.item()``."""
    source = args[0]
    if source.atoms.numel() != 1:
        raise RuntimeError(f"a Tensor with {source.atoms.numel()} elements cannot be converted to Scalar")
    number = reshape("reshape", (source, ()), {})
    # A Python float holds the number as it is: what it meets from now on is not rounded to the tensor's precision.
    return SymbolicNumber(SymbolicTensor.make(number.atoms, number.decider, torch.float64, number.chain))


def to_list(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.tolist()``."""
    source = args[0]
    if source.atoms.dim() == 0:
        return item(name, args, kwargs)
    return [to_list(name, (part,), {}) for part in reshape("unbind", (source,), {})]


CONVERTING: dict[str, Handler] = {"item": item, "tolist": to_list}
