"""Which bets are made against exactness, and what does one token pay? Catalogued faults, and directions that know no fault.

Every payoff is y(x) / p(x) - 1 for a law y on the support of p, so its mean under p is 0; a bet at level l pays
1 + l (y/p - 1). Directions tilt p: with g in [0, 1] any function of the token, y = p (1 + l (g - E_p g)) for -1 <= l <= 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specverify.evidence.eprocess import Alternative
from specverify.evidence.pointwise import FAULT_LAWS, WITHOUT_Q, At, Rows, ratio
from specverify.laws import Array

FAULT_LEVELS = {1.0: 0.4, 0.3: 0.2, 0.1: 0.12, 0.03: 0.12, 0.01: 0.09, 0.003: 0.07}
"""Share of tokens that follow a fault -> its part of the fault's weight."""
TILTS = (0.9, -0.9, 0.3, -0.3, 0.1, -0.1, 0.03, -0.03, 0.01, -0.01, 0.003, -0.003)

Density = Callable[[At], Array]


def _share(law: Callable[[Rows], Array]) -> Callable[[At], Array]:
    """A law that is made whole and read at the tokens."""
    return lambda a: np.take_along_axis(law(a.rows), np.broadcast_to(a.x, (len(a.rows.p), a.x.shape[1])), -1)


def _powers(rows: Rows, power: float) -> Array:
    raised = rows.p**power * (rows.p > 0)
    normalised: Array = raised / raised.sum(-1, keepdims=True)
    return normalised


DIRECTIONS: dict[str, Density] = {
    "argmax p": lambda a: np.where(a.x == a.rows.top, np.inf, 0.0),
    "uniform": lambda a: np.full(a.p.shape, 1 / a.rows.p.shape[-1]),
    "p^2": lambda a: a.p**2 / np.square(a.rows.p).sum(-1, keepdims=True),
    "p^(1/2)": _share(lambda rows: _powers(rows, 0.5)),
    "q": lambda a: a.q,
    "(p - q)+": lambda a: a.recovered,
    "(q - p)+": lambda a: ratio(np.maximum(a.q - a.p, 0.0), a.rows.tv),
    "p q": lambda a: ratio(a.p * a.q, a.rows.same),
}
"""Densities towards which p is tilted, and away from which."""
WITHOUT_DRAFT = ("argmax p", "uniform", "p^2", "p^(1/2)")


def tilt(density: Array, p: Array) -> Array:
    """G = d / (d + p) in [0, 1]: how much more a density has of a token than the target; 1 where d is infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(density), 1.0, ratio(density, density + p))


def alternatives(with_q: bool) -> list[Alternative]:
    """The catalogued faults at every level, then the directions, in the order of :func:`payoffs`; weights within families."""
    out = [
        Alternative("fault", name, level, share)
        for name in FAULT_LAWS
        if with_q or name in WITHOUT_Q
        for level, share in FAULT_LEVELS.items()
    ]
    names = [name for name in DIRECTIONS if with_q or name in WITHOUT_DRAFT]
    return out + [Alternative("direction", name, level, 1.0) for name in names for level in TILTS]


def payoffs(rows: Rows, at: At, with_q: bool) -> tuple[Array, Array]:
    """Payoffs y/p - 1 of the faults (F, N, X), and g - E_p g of the directions (D, N, X), at tokens where p > 0."""
    everywhere = At.everywhere(rows)
    # A difference of nearly equal numbers may leave a law at -1e-17 where it is 0, and p there may be smaller still.
    faults = [np.maximum(FAULT_LAWS[n](at), 0.0) / at.p - 1 for n in FAULT_LAWS if with_q or n in WITHOUT_Q]
    tilts = []
    for name, density in DIRECTIONS.items():
        if with_q or name in WITHOUT_DRAFT:
            mean = (rows.p * tilt(density(everywhere), rows.p)).sum(-1, keepdims=True)
            tilts.append(tilt(density(at), at.p) - mean)
    return np.stack(faults), np.stack(tilts)


def divergences(rows: Rows, with_q: bool) -> dict[str, Array]:
    """KL(y || p) in nats per token (N,) of every catalogued fault; infinite where it emits what p never does."""
    everywhere = At.everywhere(rows)
    found = {}
    for name, law in FAULT_LAWS.items():
        if with_q or name in WITHOUT_Q:
            y = law(everywhere)
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0) / rows.p), 0.0)
            found[name] = np.maximum(terms.sum(-1), 0.0)
    return found
