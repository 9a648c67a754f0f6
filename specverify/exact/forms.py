"""What kind of clock is a random number after its maps? One form for exponentials and Gumbels however code writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from specverify.exact.chains import Array, Mask, operand_of
from specverify.exact.links import Chain, Link
from specverify.exact.refusals import opaque
from specverify.exact.tensor import SymbolicTensor

SLACK = {torch.float64: 2.0**-50, torch.float32: 2.0**-21}
"""How far a uniform may be shifted, scaled or clamped on its way into a logarithm and still count as rounding."""
HINT = "race exponentials or Gumbels: argmax(w / E), argmin(E / w) or argmax(log w + gumbel)"


def exponential_chain(rate: float) -> Chain:
    """Maps from a uniform u to an exponential of that rate: -log(u) / rate."""
    return (Link("log"), Link("mul", -1.0 / rate))


@dataclass(frozen=True)
class Form:
    """What all elements are: b + a u (kind "uniform"), b + a E^s ("clock"), b + a log E ("log"), or a u^s ("power").

    E = -log u, or -log(1 - u) on side 1. a, b, s: arrays of the tensor's shape. fixed: elements that are the number b.
    """

    kind: str
    a: Array
    b: Array
    s: Array
    side: int
    fixed: Mask
    slack: float

    def after(self, link: Link) -> Form:
        """The form after one more map. Errors: OpaqueRandomness when it has none of the forms any more."""
        by = operand_of(link) + np.zeros(self.a.shape)
        match link.name:
            case "add":
                return replace(self, b=self.b + by)
            case "mul":
                return self._scaled(by)
            case "div":
                return self._scaled(1 / by)
            case "choose":
                assert link.where is not None
                keep = link.where.numpy()
                return replace(self, b=np.where(keep, self.b, by), fixed=self.fixed | ~keep)
            case "at_least" | "at_most":
                return self._clamped(link.name, by)
            case "log" | "exp":
                return self._log() if link.name == "log" else self._exp()
            case "rdiv":
                return self._power(-np.ones(self.a.shape))._scaled(by)
            case "pow":
                return self._power(by)
        if link.name in ("round", "whole"):
            raise opaque("a race of float16 or bfloat16 numbers, which tie,", "race in float32")
        raise opaque(f"a race of numbers after {link.name!r}", HINT)

    def _scaled(self, by: Array) -> Form:
        with np.errstate(all="ignore"):
            a = self.a * by
            b = np.where(self.b == 0, 0.0, self.b * by)
        return replace(self, a=a, b=b)

    def _clamped(self, name: str, by: Array) -> Form:
        """A clamp that only keeps numbers away from 0, 1 or infinity by no more than rounding would."""
        free = ~self.fixed
        if self.kind == "uniform":
            near = (by <= self.slack) if name == "at_least" else (by >= 1 - self.slack)
            ok = near & (np.abs(self.b) <= self.slack) & (np.abs(self.a - 1) <= self.slack)
        elif self.kind == "clock":
            ok = (self.b == 0) & (self.a > 0) & (self.s > 0) & (name == "at_least") & (by <= self.slack * self.a)
        else:
            ok = np.zeros(by.shape, bool)
        if not ok[free].all():
            raise opaque("a race of clamped numbers", HINT)
        return self

    def _log(self) -> Form:
        free = ~self.fixed
        fixed_b = np.log(np.where(self.fixed, np.maximum(self.b, 0), 1.0), where=self.fixed, out=np.zeros(self.b.shape))
        with np.errstate(all="ignore"):
            if self.kind == "uniform":
                scale = np.abs(self.a)
                up = (self.a > 0) & (np.abs(self.b) <= self.slack * scale)  # a u
                down = (self.a < 0) & (np.abs(self.b + self.a) <= self.slack * scale)  # |a| (1 - u)
                if not (up[free].all() or down[free].all()):
                    raise opaque("a race of logarithms of shifted uniforms", HINT)
                side = 0 if up[free].all() else 1
                one = np.ones(self.a.shape)
                b = np.where(self.fixed, fixed_b, np.log(scale))
                return replace(self, kind="clock", a=-one, b=np.where(np.abs(b) <= self.slack, 0.0, b), s=one, side=side)
            small = np.abs(self.b) <= self.slack
            if self.kind == "clock" and (small & (self.a > 0))[free].all():
                return replace(self, kind="log", a=self.s, b=np.where(self.fixed, fixed_b, np.log(self.a)))
            if self.kind == "clock" and (small & (self.a == 0) | (self.a >= 0) & small)[free].all():  # weights of 0
                return replace(self, kind="log", a=self.s, b=np.where(self.fixed, fixed_b, np.log(np.maximum(self.a, 0))))
        raise opaque("a race of logarithms of such numbers", HINT)

    def _exp(self) -> Form:
        with np.errstate(all="ignore"):
            if self.kind == "log":
                return replace(self, kind="clock", a=np.exp(self.b), b=np.where(self.fixed, np.exp(self.b), 0.0), s=self.a)
            if self.kind == "clock" and (self.s == 1)[~self.fixed].all():  # exp(b - k E) = e^b u^k
                return replace(self, kind="power", a=np.exp(self.b), b=np.where(self.fixed, np.exp(self.b), 0.0), s=-self.a)
        raise opaque("a race of exponentials of such numbers", HINT)

    def _power(self, k: Array) -> Form:
        free = ~self.fixed
        with np.errstate(all="ignore"):
            fixed_b = np.where(self.fixed, self.b**k, 0.0)
            if self.kind == "clock" and ((self.b == 0) & (self.a >= 0))[free].all():
                return replace(self, a=self.a**k, s=self.s * k, b=fixed_b)
            if self.kind == "uniform" and ((np.abs(self.b) <= self.slack) & (np.abs(self.a - 1) <= self.slack))[free].all():
                return replace(self, kind="power", a=np.ones(self.a.shape), b=fixed_b, s=k)
        raise opaque("a race of powers of such numbers", HINT)


def form_of(source: SymbolicTensor) -> Form:
    """The form of every element of a symbolic tensor. Errors: OpaqueRandomness."""
    shape = tuple(source.atoms.shape)
    form = Form(
        "uniform", np.ones(shape), np.zeros(shape), np.ones(shape), 0, np.zeros(shape, bool), SLACK.get(source.dtype, 2.0**-50)
    )
    if source.dtype not in (torch.float64, torch.float32):
        raise opaque(f"a race of {source.dtype} numbers, which tie,", "race in float32")
    with np.errstate(all="ignore"):
        for link in source.chain:
            form = form.after(link)
    return form
