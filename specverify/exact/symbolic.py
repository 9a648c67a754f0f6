"""Symbolic random numbers, complete: the tensor, and what every operation does to it."""

from __future__ import annotations

from specverify.exact.arithmetic import ARITHMETIC, MAPS
from specverify.exact.comparing import COMPARING
from specverify.exact.links import Chain, Link
from specverify.exact.multiplying import MULTIPLYING
from specverify.exact.number import CONVERTING, SymbolicNumber
from specverify.exact.racing import RACING
from specverify.exact.refusals import opaque
from specverify.exact.shaping import SHAPING
from specverify.exact.tensor import HANDLERS, IN_PLACE_OPERATORS, Decider, SymbolicTensor, is_in_place

for _handlers in (SHAPING, ARITHMETIC, COMPARING, RACING, MULTIPLYING, CONVERTING):
    HANDLERS.update(_handlers)
IN_PLACE_OPERATORS.update(MAPS)

__all__ = ["HANDLERS", "Chain", "Decider", "Link", "SymbolicNumber", "SymbolicTensor", "is_in_place", "opaque"]
