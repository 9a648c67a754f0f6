"""Do randomised ranks come out even? Dirichlet mixtures over cells of U = F(x-) + W p(x), W uniform, in several orders.

Under exactness U is uniform and independent of the past whatever the laws are. With counts n of N ranks in B cells the ratio of
the Dirichlet-multinomial law with parameters c / B to the even one has mean 1, at every N, and is a martingale in N.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from specverify.evidence.eprocess import Alternative
from specverify.laws import Array, Ints

CELLS = 32
CONCENTRATIONS = (16.0, 256.0, 4096.0, 65536.0)
ORDERS = ("id", "p", "q/p")


def rank_alternatives(with_q: bool) -> list[Alternative]:
    """One for each order and concentration, in the order of :class:`Ranks`; weights within the family."""
    orders = ORDERS if with_q else ORDERS[:2]
    return [Alternative("ranks", f"ranks by {order}", c, 1.0) for order in orders for c in CONCENTRATIONS]


def lower(p: Array, q: Array | None) -> Array:
    """F(x-) of every token in each order (orders, N, V): by id, by falling p, by falling q/p; ties go by id."""
    keys = [p] if q is None else [p, np.divide(q, p, out=np.zeros_like(p), where=p > 0)]
    found = [p.cumsum(-1) - p]
    for key in keys:
        order = np.argsort(-key, axis=-1, kind="stable")
        sorted_p = np.take_along_axis(p, order, -1)
        low = np.empty_like(p)
        np.put_along_axis(low, order, sorted_p.cumsum(-1) - sorted_p, -1)
        found.append(low)
    return np.stack(found)


def lower_at(p: Array, q: Array | None, x: Ints) -> Array:
    """The same at single tokens x (N,) only, without sorting: (orders, N)."""
    ids = np.arange(p.shape[-1])
    own = np.take_along_axis(p, x[:, None], -1)
    keys = [p] if q is None else [p, np.divide(q, p, out=np.zeros_like(p), where=p > 0)]
    found = [np.where(ids < x[:, None], p, 0.0).sum(-1)]
    for key in keys:
        mine = own if key is p else np.take_along_axis(key, x[:, None], -1)
        found.append(np.where((key > mine) | ((key == mine) & (ids < x[:, None])), p, 0.0).sum(-1))
    return np.stack(found)


class Ranks:
    """Counts of ranks in cells, and the evidence in them."""

    def __init__(self, orders: int) -> None:
        self.counts = np.zeros((orders, CELLS), np.int64)
        self._logs = np.zeros(orders * len(CONCENTRATIONS))

    def add(self, low: Array, mass: Array, rng: np.random.Generator) -> Array:
        """Count tokens given F(x-) (orders, N) and p(x) (N,); returns how much the logarithms grew (orders * 4,)."""
        u = low + rng.random(mass.shape) * mass
        cells = np.minimum((u * CELLS).astype(np.int64), CELLS - 1)
        for order, row in enumerate(cells):
            self.counts[order] += np.bincount(row, minlength=CELLS)
        n = self.counts.sum(1, keepdims=True)
        c = np.array(CONCENTRATIONS)[:, None, None]
        terms = gammaln(c / CELLS + self.counts) - gammaln(c / CELLS)
        logs = terms.sum(-1) + (gammaln(c[..., 0]) - gammaln(c[..., 0] + n[:, 0])) + n[:, 0] * math.log(CELLS)
        now = logs.T.reshape(-1)
        grown: Array = now - self._logs
        self._logs = now
        return grown
