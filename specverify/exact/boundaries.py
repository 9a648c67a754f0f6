"""Which extreme values can a draw take, and how often? The grids of torch's, Python's and numpy's samplers on a CPU.

Facts, each compared with the installed samplers by the tests:

- ``torch.rand`` in float32 is k / 2^24, in float64 k / 2^53; Python's and numpy's ``random()`` are k / 2^53 as well. Both 0
  and 1 - 2^-bits come with probability 2^-bits.
- In bfloat16 (8 bits of precision) and float16 (11 bits) torch either takes k / 2^bits, or rounds a float32 uniform and
  puts 0 in the place of what rounds up to 1; 0 then has probability 2^-(bits+1) + 2^-24. Which of the two is found out once.
- ``Tensor.exponential_`` is -log(1 - v) in float64 with v = k / 2^53, rounded to the tensor's precision. torch documents that
  it never gives 0, and its CPU code does give 0 when v = 0: what happens only there is nothing to hold against code that
  relies on the documentation, so its chance counts as 0 here. In float16, whose smallest number is 2^-24, all of v below
  2^-25 is rounded to 0; that is no accident of one in 2^53, and counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

DIGITS: dict[torch.dtype, int] = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Bits of precision by dtype."""


@dataclass(frozen=True)
class Boundary:
    """An extreme value of a draw. chance: its probability per element, 0 when the sampler cannot (be relied on to) give it."""

    name: str
    value: float
    chance: float


@cache
def halves_are_rounded() -> bool:
    """Whether torch rounds float32 uniforms to make bfloat16 ones; else it draws 8 bits."""
    draws = torch.rand(256, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16).double() * 2.0**8
    return bool((draws != draws.round()).any())


def grid_bits(dtype: torch.dtype) -> int:
    """Bits of the integer k from which a uniform of this dtype is made."""
    return max(DIGITS[dtype], 24) if halves_are_rounded() else DIGITS[dtype]


def uniform_at(k: int, dtype: torch.dtype) -> float:
    """The uniform that torch makes of the integer k in [0, 2^grid_bits)."""
    value = float(torch.tensor(k / 2 ** grid_bits(dtype), dtype=torch.float64).to(dtype))
    return 0.0 if value == 1.0 else value


def last_step(dtype: torch.dtype) -> int:
    """The largest k whose uniform is the largest below 1."""
    bits, digits = grid_bits(dtype), DIGITS[dtype]
    # Where uniforms are rounded, 1 - 2^-(digits+1) is a tie that goes up to 1, and all below it stay below 1.
    return (1 << bits) - 1 if bits == digits else (1 << bits) - (1 << (bits - digits - 1)) - 1


def uniform_chance(value: float, dtype: torch.dtype) -> float:
    """Probability of one value on the grid; near enough where the grid is rounded: the width of what rounds to it."""
    bits, digits = grid_bits(dtype), DIGITS[dtype]
    if bits == digits:
        return 2.0**-bits
    if value == 0.0:
        return 2.0 ** -(digits + 1) + 2.0**-bits
    _, exponent = math.frexp(value)
    return max(2.0 ** (exponent - digits), 2.0**-bits)


def uniform_ends(dtype: torch.dtype) -> tuple[Boundary, Boundary]:
    """The smallest and the largest uniform."""
    top = 1.0 - 2.0 ** -DIGITS[dtype]
    return (
        Boundary("exactly 0", 0.0, uniform_chance(0.0, dtype)),
        Boundary("the largest value below 1", top, uniform_chance(top, dtype)),
    )


def exponential_ends(dtype: torch.dtype) -> tuple[Boundary, ...]:
    """The smallest and the largest exponential of rate 1, and exactly 0."""
    least = float(torch.tensor(2.0**-53, dtype=torch.float64).to(dtype))
    most = float(torch.tensor(53 * math.log(2), dtype=torch.float64).to(dtype))
    largest = Boundary("the largest exponential", most, 2.0**-53)
    if least == 0.0:
        return Boundary("exactly 0", 0.0, 2.0**-25), largest
    return Boundary("the smallest exponential", least, 2.0**-53), largest, Boundary("exactly 0", 0.0, 0.0)
