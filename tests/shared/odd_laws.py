"""Laws with everything in them that makes closed forms stumble."""

from __future__ import annotations

import numpy as np

from specverify.laws import Array


def laws_of(n: int, v: int, seed: int) -> tuple[Array, Array]:
    """Random laws with zeros, one-hots, equal and disjoint ones among them."""
    rng = np.random.default_rng(seed)
    p, q = rng.integers(0, 6, (2, n, v)) * rng.random((2, n, v))
    p[:, 0] += p.sum(1) == 0
    q[:, -1] += q.sum(1) == 0
    q[0] = p[0]
    p[1], q[1] = np.eye(v)[0], np.eye(v)[-1]
    q[2] = np.eye(v)[1]
    p[3] = np.eye(v)[1]
    return p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
