"""What number does a chain of maps make of a uniform, and which uniforms does a comparison select? Plain arrays.

Every chain is monotone in u on [0, 1], so a comparison with a number selects an interval that starts at 0 or ends at 1.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from specverify.exact.links import Chain, Link, full
from specverify.exact.refusals import opaque

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def operand_of(link: Link) -> Array:
    """The operand of a link as an array (0-dimensional where it is one number)."""
    if isinstance(link.operand, Tensor):
        array: Array = link.operand.numpy()
        return array
    return np.asarray(0.0 if link.operand is None else link.operand)


def rounded(z: Array, bits: Array) -> Array:
    """Numbers rounded to ``bits`` significant binary digits, to even where two are equally near."""
    fraction, exponent = np.frexp(z)
    out: Array = np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent)
    return out


def _between(t: Array, bits: Array, inclusive: Mask) -> Array:
    """The z from which on rounded(z) is no longer below t (at most t, where inclusive); t itself where t <= 0."""
    negative = t < 0
    if negative.any():  # rounding is the same on both sides of 0
        mirrored = -_between(np.where(negative, -t, 1.0), bits, ~inclusive)
        return np.where(negative, mirrored, _between(np.where(negative, 1.0, t), bits, inclusive))
    _, exponent = np.frexp(t)
    unit = np.ldexp(1.0, exponent - bits.astype(int))
    steps = t / unit
    upper = np.where(inclusive, np.floor(steps) + 1, np.ceil(steps)) * unit
    # Below a power of two the numbers are twice as dense.
    lower = upper - np.where(np.frexp(upper)[0] == 0.5, np.where(upper <= np.ldexp(0.5, exponent), unit / 2, unit), unit)
    return np.where(t > 0, (lower + upper) / 2, t)


def evaluate(chain: Chain, z: Array) -> Array:
    """Apply the maps of a chain to the numbers ``z`` (any leading dimensions, then those of the chain)."""
    with np.errstate(all="ignore"):
        for link in chain:
            operand = operand_of(link)
            match link.name:
                case "add":
                    z = z + operand
                case "mul":
                    z = z * operand
                case "div":
                    z = z / operand
                case "rdiv":
                    z = operand / z
                case "log":
                    z = np.log(z)
                case "exp":
                    z = np.exp(z)
                case "pow":
                    z = np.power(z, operand)
                case "normal":
                    z = ndtri(z)
                case "round":
                    z = rounded(z, operand)
                case "whole":
                    z = np.floor(z)
                case "choose":
                    assert link.where is not None
                    z = np.where(link.where.numpy(), z, operand)
                case "at_least":
                    z = np.maximum(z, operand)
                case "at_most":
                    z = np.minimum(z, operand)
                case _:
                    raise AssertionError(link.name)
    return z


def appended(chain: Chain, link: Link, dtype: torch.dtype) -> Chain:
    """A chain with one more map. Constants that were chosen are mapped at once, rounded to ``dtype`` as torch rounds them."""
    if not chain or chain[-1].name != "choose":
        return (*chain, link)
    last = chain[-1]
    assert last.where is not None
    if link.name == "choose":
        assert link.where is not None
        both = torch.where(link.where, full(last.operand, last.where.shape), full(link.operand, last.where.shape))
        return (*chain[:-1], Link("choose", both, last.where & link.where))
    mapped = evaluate((link,), full(last.operand, last.where.shape).numpy())
    constants = torch.from_numpy(np.array(mapped)).to(dtype).to(torch.float64).reshape(last.where.shape)
    return (*chain[:-1], link, Link("choose", constants, last.where))


def insist_on_positive(chain: Chain, dimensions: int, what: str) -> None:
    """Refuse log z and c / z where z may be negative: they are monotone for z >= 0 only. A chain is, so its ends tell."""
    ends = evaluate(chain, np.array([5e-324, 1 - 2.0**-53]).reshape(2, *[1] * dimensions))  # 0 and 1 have probability 0
    if not (ends >= 0).all():
        raise opaque(f"{what} a number that may be negative")


def insist_on_agreement(chain: Chain, threshold: Array, name: str, t: Array, flipped: Mask) -> None:
    """Refuse a comparison whose inversion disagrees with the maps themselves at some trial u (overflow, NaN, lost digits)."""
    inside = np.clip(np.where(np.isnan(t), 0.5, t), 0.0, 1.0)
    trial = np.stack([inside / 2, (1 + inside) / 2, np.full(t.shape, 0.21), np.full(t.shape, 0.83)])
    z = evaluate(chain, trial)
    truth = {"lt": z < threshold, "le": z <= threshold, "gt": z > threshold, "ge": z >= threshold}[name]
    near = np.abs(trial - inside) < 1e-9  # rounding decides there
    if ((truth != ((trial < t) ^ flipped)) & ~near).any():
        raise opaque("a comparison that rounding, overflow or NaN makes other than it looks")


class _Inversion:
    """A comparison ``f(u) < t`` (or its kin) while the maps of f are taken away one by one, the last first."""

    def __init__(self, threshold: Array, upper: bool, strict: bool) -> None:
        self.t = threshold
        self.flipped: Mask = np.full(threshold.shape, upper)
        self.settled: Mask = np.isnan(threshold)
        self.value: Mask = np.zeros(threshold.shape, bool)
        self.strict = strict
        self.undone = 0

    def settle(self, where: Mask, outcome: Mask) -> None:
        """Note that the comparison has this outcome there whatever u is."""
        self.value = np.where(where & ~self.settled, outcome, self.value)
        self.settled = self.settled | where

    def constant(self, z: Array | float) -> Mask:
        """Truth of the comparison when the random side is the number z. Errors: OpaqueRandomness when rounding decides it."""
        close = (np.abs(z - self.t) <= 1e-6 * np.maximum(np.abs(z), 1e-30)) & (z != self.t) & ~self.settled
        if self.undone and close.any():
            raise opaque("a comparison of a constant that rounding decides")
        if self.strict:
            return np.where(self.flipped, z > self.t, z < self.t)
        return np.where(self.flipped, z >= self.t, z <= self.t)

    def undo(self, link: Link) -> None:
        """Take one map away."""
        operand = operand_of(link)
        if link.name != "choose" and np.isnan(operand).any():
            self.settle(np.isnan(operand) & np.ones(self.t.shape, bool), np.zeros(self.t.shape, bool))
        match link.name:
            case "add":
                self.t = self.t - operand
            case "mul":
                self.settle((operand == 0) & np.ones(self.t.shape, bool), self.constant(0.0))
                self.t = self.t / operand
                self.flipped = self.flipped ^ (operand < 0)
            case "div":
                self.t = self.t * operand
                self.flipped = self.flipped ^ np.signbit(operand)
            case "rdiv":  # operand / z with z > 0, as uniforms and their positive multiples are
                if (operand < 0).any():
                    raise opaque("dividing a negative number by a random number")
                self.settle((operand == 0) & np.ones(self.t.shape, bool), self.constant(0.0))
                self.settle(self.t <= 0, self.flipped)  # a positive quotient is never below, always above, a threshold <= 0
                self.t = operand / self.t
                self.flipped = ~self.flipped
            case "log":
                self.t = np.exp(self.t)
            case "exp":
                self.settle(self.t <= 0, self.flipped)
                self.t = np.log(np.maximum(self.t, 0))
            case "pow":  # z >= 0
                self.settle((operand == 0) & np.ones(self.t.shape, bool), self.constant(1.0))
                self.settle(self.t <= 0, self.flipped)
                self.t = np.power(np.maximum(self.t, 0), 1 / operand)
                self.flipped = self.flipped ^ (operand < 0)
            case "normal":
                self.t = ndtr(self.t)
            case "whole":  # floor(z) < t exactly when z < ceil(t); floor(z) <= t when z < floor(t) + 1
                self.t = np.where(self.flipped == self.strict, np.floor(self.t) + 1, np.ceil(self.t))
            case "round":
                if (operand == 11).any() and ((np.abs(self.t) >= 65504) | ((np.abs(self.t) < 6.2e-5) & (self.t != 0))).any():
                    raise opaque("a comparison beyond the range of float16")
                self.t = _between(self.t, operand + np.zeros(self.t.shape), self.flipped == self.strict)
            case "choose":
                assert link.where is not None
                self.settle(~link.where.numpy(), self.constant(operand))
            case "at_least":  # max(z, bound): on its far side the bound itself decides
                at_bound = self.constant(operand)
                self.settle(at_bound == self.flipped, at_bound)
            case "at_most":
                at_bound = self.constant(operand)
                self.settle(at_bound != self.flipped, at_bound)
            case _:
                raise AssertionError(link.name)


def invert(chain: Chain, threshold: Array, upper: bool, strict: bool) -> tuple[Array, Mask, Mask, Mask]:
    """Turn ``f(u) < threshold`` (or >, where ``upper``; or the non-strict forms) into ``u < t`` or, where flipped, ``u > t``.

    Returns (t, flipped, settled, value): where ``settled`` the comparison does not depend on u and has ``value``. For u
    itself equality has probability 0; for constants and at the ends of a clamp it matters, and ``strict`` decides it.
    """
    state = _Inversion(threshold, upper, strict)
    with np.errstate(all="ignore"):
        for link in reversed(chain):
            state.undo(link)
            state.undone += 1
    if (np.isnan(state.t) & ~state.settled).any():
        raise opaque("a comparison whose threshold is infinite or undefined")
    return state.t, state.flipped, state.settled, state.value
