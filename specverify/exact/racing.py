"""Which of several random numbers is the largest? Races of exponentials and Gumbels in every form in which code writes them.

``argmax(w / E)``, ``argmin(E / w)``, ``argmax(log w - log E)``, ``argmax(log w + g)`` with g = -log(-log u), and
``argmax(u ** (1 / w))`` all choose token i with probability w_i / sum w. The maps of a symbolic tensor are brought to one
form, from which the rate of every clock is read; the walk then decides who rings first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.exact.chains import Array, Mask
from specverify.exact.forms import HINT, Form, form_of
from specverify.exact.refusals import opaque
from specverify.exact.shaping import reshape
from specverify.exact.tensor import Handler, SymbolicTensor


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
            scale = _alike(a)
            _alike(b)
            if not ((s > 0).all() or (s < 0).all()):
                raise opaque("a race of powers of both signs", HINT)
            return 1 / np.abs(s), (bool((s < 0).all()) == largest) ^ (scale < 0)
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
        base, scale = float(form.b[~form.fixed][0]), float(form.a[~form.fixed][0])
        ends = (0.0, 1.0) if (form.s[~form.fixed] > 0).all() else (1.0, np.inf)
        low, high = sorted(base + scale * end for end in ends)
        return low, high
    ends = form.b[~form.fixed][0] + np.array([0.0, form.a[~form.fixed][0]])
    return float(ends.min()), float(ends.max())


def _settled(form: Form) -> Form:
    """The form with what does not depend on its random number any more, times 0 or to the power of 0, as fixed numbers."""
    powers = form.kind in ("clock", "power")
    if form.kind != "clock" and np.isinf(form.a[~form.fixed]).any():
        raise opaque("a race of random numbers times infinity", HINT)
    flat = ~form.fixed & (form.s == 0) if powers else np.zeros(form.fixed.shape, bool)
    zero = ~form.fixed & (form.a == 0) if form.kind != "clock" else np.zeros(form.fixed.shape, bool)
    return replace(form, b=np.where(flat & ~zero, form.b + form.a, form.b), fixed=form.fixed | flat | zero)


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
    form = _settled(form_of(source))
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


def _named(name: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, numpy's names for dimensions too. Errors: OpaqueRandomness for one that is not known."""
    given = {{"axis": "dim", "keepdims": "keepdim"}.get(k, k): v for k, v in kwargs.items()}
    if unknown := sorted(given.keys() - {*names, "stable"}):
        raise opaque(f"torch operation {name!r} with {unknown}")
    return dict(zip(names, args, strict=False)) | given


def argmax(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """``argmax`` and ``argmin``."""
    named = _named(name, ("input", "dim", "keepdim"), args, kwargs)
    source, dim = named["input"], named.get("dim")
    found = _winners(source, dim, largest=name == "argmax")
    if not named.get("keepdim"):
        return found
    return found.reshape([1] * source.atoms.dim()) if dim is None else found.unsqueeze(dim)


def extreme(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``max(dim)`` and ``min(dim)``: (values, indices)."""
    named = _named(name, ("input", "dim", "keepdim"), args, kwargs)
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
        named = _named(name, ("input", "k", "dim", "largest", "sorted"), args, kwargs)
        dim, largest = named.get("dim", -1), named.get("largest", True)
    else:
        named = _named(name, ("input", "dim", "descending"), args, kwargs)
        dim, largest = named.get("dim", -1), named.get("descending", False)
    source = named["input"]
    dim %= max(source.atoms.dim(), 1)
    k = int(named.get("k", source.atoms.shape[dim]))
    found = _ordered(source, dim, k, bool(largest))
    if name == "argsort":
        return found
    kind = torch.return_types.topk if name == "topk" else torch.return_types.sort
    return kind((reshape("gather", (source, dim, found), {}), found))


RACING: dict[str, Handler] = {
    "argmax": argmax,
    "argmin": argmax,
    "max": extreme,
    "min": extreme,
    "topk": top,
    "sort": top,
    "argsort": top,
}
