"""Which of several random numbers is the largest? Races of exponentials and Gumbels in every form in which code writes them.

``argmax(w / E)``, ``argmin(E / w)``, ``argmax(log w - log E)``, ``argmax(log w + g)`` with g = -log(-log u), and
``argmax(u ** (1 / w))`` all choose token i with probability w_i / sum w. The maps of a symbolic tensor are brought to one
form, from which the rate of every clock is read; the walk then decides who rings first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.exact.chains import Array, Mask, operand_of
from specverify.exact.shaping import reshape
from specverify.exact.tensor import Chain, Handler, Link, SymbolicTensor, opaque

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


def _alike(values: Array) -> float:
    """The value that all entries share. Errors: OpaqueRandomness when they differ."""
    if len(values) and not np.allclose(values, values[0], rtol=1e-9, atol=0):
        raise opaque("a race of numbers mapped in different ways", HINT)
    return float(values[0]) if len(values) else 1.0


def _rates(form: Form, at: Mask, largest: bool) -> tuple[Array, bool]:
    """Rates of the clocks at ``at`` and whether the largest (or smallest) number belongs to the last clock to ring."""
    a, b, s = form.a[at], form.b[at], form.s[at]
    with np.errstate(all="ignore"):
        if form.kind == "log":  # a log E + b = a log(E exp(b / a)): rate exp(-b / a)
            power = _alike(a)
            shifted = -b / power
            top = np.max(shifted[np.isfinite(shifted)], initial=-np.inf)
            rates = np.exp(shifted - (top if np.isfinite(top) else 0.0))
            return rates, (power > 0) == largest
        if form.kind == "clock":
            power = _alike(s)
            _alike(b)
            negative = (a <= 0).all() and (a < 0).any()
            if not negative and not (a >= 0).all():
                raise opaque("a race of numbers of both signs", HINT)
            rates = np.abs(a) ** (-1 / power)  # |a| E^s = (E |a|^(1/s))^s
            return rates, bool(((power > 0) == largest) ^ negative)
        if form.kind == "power":  # u^k = exp(-k E)
            _alike(a)
            if not ((s > 0).all() or (s < 0).all()):
                raise opaque("a race of powers of both signs", HINT)
            return 1 / np.abs(s), bool((s < 0).all()) == largest
        _alike(a)
        if np.ptp(b) if len(b) else 0.0:
            raise opaque("a race of uniforms shifted differently", HINT)
        return np.ones(len(a)), (bool((a > 0).all()) if len(a) else True) != largest


def _between(form: Form) -> tuple[float, float]:
    """Values between which the random elements lie: (infimum, supremum) for one lane that is alike."""
    if form.kind == "log":
        return -np.inf, np.inf
    if form.kind == "clock":
        base = float(form.b[~form.fixed][0])
        return (base, np.inf) if (form.a[~form.fixed] >= 0).all() else (-np.inf, base)
    if form.kind == "power":
        top = float(form.a[~form.fixed][0])
        return (0.0, top) if (form.s[~form.fixed] > 0).all() else (top, np.inf)
    ends = form.b[~form.fixed][0] + np.array([0.0, form.a[~form.fixed][0]])
    return float(ends.min()), float(ends.max())


def winner(lane: Form, atoms: list[int], source: SymbolicTensor, largest: bool) -> int:
    """Place of the largest (or smallest) number of one lane: what argmax gives, decided by the walk."""
    nan = np.isnan(lane.b) | (~lane.fixed & (np.isnan(lane.a) | np.isnan(lane.s)))
    if nan.any():
        return int(nan.argmax())  # torch's argmax and argmin give the first NaN
    free = ~lane.fixed
    fixed = np.where(lane.fixed, lane.b if largest else -lane.b, -np.inf)
    best_fixed = float(fixed.max()) if lane.fixed.any() else -np.inf
    if not free.any():
        return int(fixed.argmax())
    rates, last = _rates(lane, free, largest)
    if np.isnan(rates).any():
        raise opaque("a race whose weights are not numbers", HINT)
    places = np.flatnonzero(free)
    infimum, supremum = _between(lane)
    if not largest:
        infimum, supremum = -supremum, -infimum
    dead = np.isinf(rates) if last else rates == 0  # their number is the worst possible one
    if lane.fixed.any() and best_fixed > infimum:
        if best_fixed >= supremum:
            return int(fixed.argmax())
        raise opaque("a race of random with other numbers", HINT)
    if dead.all():
        return int(places[0]) if best_fixed < infimum or not lane.fixed.any() else int(min(places[0], fixed.argmax()))
    sure = rates == 0 if last else np.isinf(rates)
    if sure.any():
        return int(places[sure.argmax()])
    running = ~dead
    chosen = source.decider.race([atoms[i] for i in places[running]], rates[running].tolist(), last=last, side=lane.side)
    return int(places[running][chosen])


def _lanes(source: SymbolicTensor, dim: int | None) -> tuple[list[Form], list[list[int]], torch.Size]:
    """Split along ``dim`` (None: all elements are one lane): forms, atoms, and the shape without that dimension."""
    form = form_of(source)
    atoms = source.atoms
    n = atoms.numel() if dim is None else atoms.shape[dim]

    def lanes(array: Any) -> Any:
        return array.reshape(1, n) if dim is None else np.moveaxis(array, dim, -1).reshape(-1, n)

    parts = [lanes(x) for x in (form.a, form.b, form.s, form.fixed)]
    forms = [replace(form, a=a, b=b, s=s, fixed=f) for a, b, s, f in zip(*parts, strict=True)]
    rest = torch.Size(()) if dim is None else torch.Size([*atoms.shape[:dim], *atoms.shape[dim:][1:]])
    return forms, lanes(atoms.numpy()).tolist(), rest


def _winners(source: SymbolicTensor, dim: int | None, largest: bool) -> Tensor:
    source.decider.check_rows(source.atoms)
    dim = None if dim is None else dim % max(source.atoms.dim(), 1)
    forms, atoms, rest = _lanes(source, dim)
    rates = _plain_rates(forms, largest)
    if rates is None:
        found = [winner(form, row, source, largest) for form, row in zip(forms, atoms, strict=True)]
    else:
        found = [_first(row, line, source, forms[0].side) for row, line in zip(atoms, rates, strict=True)]
    return torch.tensor(found, dtype=torch.int64).reshape(rest)


def _plain_rates(forms: list[Form], largest: bool) -> list[list[float]] | None:
    """Rates of all lanes at once, where every element is a clock and the first to ring wins everywhere; else None."""
    if not forms or forms[0].kind not in ("clock", "log"):
        return None
    a, b, s = (np.stack([getattr(form, name) for form in forms]) for name in ("a", "b", "s"))
    power = (s if forms[0].kind == "clock" else a).flat[0] if a.size else np.nan
    if any(form.fixed.any() for form in forms) or not np.isfinite(power) or power == 0:
        return None
    with np.errstate(all="ignore"):
        if forms[0].kind == "clock":
            sign = -1.0 if (a <= 0).all() else 1.0
            alike = (s == power).all() and (b == b.flat[0]).all() and (sign * a >= 0).all()
            last, rates = ((power > 0) == largest) ^ (sign < 0), np.abs(a) ** (-1 / power)
        else:
            alike, last = (a == power).all(), (power > 0) == largest
            rates = -b / power
            rates = np.exp(rates - np.where(np.isfinite(top := rates.max(-1, keepdims=True)), top, 0.0))
    if not alike or last or not np.isfinite(rates).all():
        return None
    lines: list[list[float]] = rates.tolist()
    return lines


def _first(atoms: list[int], rates: list[float], source: SymbolicTensor, side: int) -> int:
    """Place of the clock that rings first; the first place where none ever rings."""
    running = [i for i, rate in enumerate(rates) if rate > 0]
    if not running:
        return 0
    return running[source.decider.race([atoms[i] for i in running], [rates[i] for i in running], last=False, side=side)]


def argmax(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``argmax`` and ``argmin``."""
    named = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | kwargs
    source, dim = named["input"], named.get("dim")
    found = _winners(source, dim, largest=name == "argmax")
    return found.unsqueeze(dim) if named.get("keepdim") and dim is not None else found


def extreme(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``max(dim)`` and ``min(dim)``: (values, indices)."""
    named = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | kwargs
    source, dim = named["input"], named.get("dim")
    if dim is None or isinstance(dim, Tensor):
        raise opaque(f"torch operation {name!r} over all elements", "take argmax")
    found = _winners(source, dim, largest=name == "max").unsqueeze(dim)
    values = reshape("gather", (source, dim, found), {})
    if not named.get("keepdim"):
        values, found = reshape("squeeze", (values, dim), {}), found.squeeze(dim)
    kind = torch.return_types.max if name == "max" else torch.return_types.min
    return kind((values, found))


def _insist_on_order(form: Form, k: int, largest: bool) -> None:
    """Refuse an order that torch does not promise: that of numbers that tie, or are not numbers."""
    if np.isnan(form.b).any() or (~form.fixed & (np.isnan(form.a) | np.isnan(form.s))).any():
        raise opaque("the order of numbers of which some are NaN")
    alive = 0
    if not form.fixed.all():
        rates, last = _rates(form, ~form.fixed, largest)
        alive = int((~np.isinf(rates) if last else rates > 0).sum())
    dead = len(form.a) - alive
    if k > alive and dead > 1:
        raise opaque("the order of numbers that tie", "ask for no more numbers than can win")


def _ordered(source: SymbolicTensor, dim: int, k: int, largest: bool) -> Tensor:
    """The places of the k best, best first: after each winner the race goes on without it."""
    source.decider.check_rows(source.atoms)
    forms, atoms, rest = _lanes(source, dim)
    out = []
    for form, row in zip(forms, atoms, strict=True):
        _insist_on_order(form, k, largest)
        left, places = form, []
        for _ in range(k):
            remaining = [i for i in range(len(row)) if i not in places]
            part = replace(left, a=form.a[remaining], b=form.b[remaining], s=form.s[remaining], fixed=form.fixed[remaining])
            places.append(remaining[winner(part, [row[i] for i in remaining], source, largest)])
        out.append(places)
    return torch.tensor(out, dtype=torch.int64).reshape(*rest, k).movedim(-1, dim)


def top(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``topk``, ``sort`` and ``argsort``."""
    if name == "topk":
        named = dict(zip(("input", "k", "dim", "largest", "sorted"), args, strict=False)) | kwargs
        dim, largest = named.get("dim", -1), named.get("largest", True)
    else:
        named = dict(zip(("input", "dim", "descending"), args, strict=False)) | kwargs
        dim, largest = named.get("dim", -1), named.get("descending", False)
    source = named["input"]
    dim %= max(source.atoms.dim(), 1)
    k = int(named.get("k", source.atoms.shape[dim]))
    found = _ordered(source, dim, k, bool(largest))
    if name == "argsort":
        return found
    kind = torch.return_types.topk if name == "topk" else torch.return_types.sort
    return kind((reshape("gather", (source, dim, found), {}), found))


def equal_rates(first: dict[int, float], atoms: list[int], rates: list[float]) -> bool:
    """Whether a race has the clocks and, up to a factor, the rates of an earlier one: then it has the same winner."""
    if set(first) != set(atoms):
        return False
    ratios = [rate / first[atom] for atom, rate in zip(atoms, rates, strict=True)]
    return all(abs(x - y) <= 1e-12 * abs(x) for x, y in itertools.pairwise(ratios))


RACING: dict[str, Handler] = {
    "argmax": argmax,
    "argmin": argmax,
    "max": extreme,
    "min": extreme,
    "topk": top,
    "sort": top,
    "argsort": top,
}
