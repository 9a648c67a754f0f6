"""Which law does one position follow under the wrong rules for several drafts? Closed forms, also for noise used twice.

Shapes and conventions are those of :mod:`specverify.faults.laws`: laws (..., V) in float64, m = min(p, q), beta = sum m =
1 - TV, r = (p - q)+ / TV, or p where p = q.
"""

from __future__ import annotations

import numpy as np

from specverify.laws import Array

DRAFTS = 2
"""Drafts per position of the faults that are known by name."""


def _total(x: Array) -> Array:
    summed: Array = x.sum(axis=-1, keepdims=True)
    return summed


def _left(p: Array, q: Array) -> Array:
    """Return (p - q)+ normalised, or p where nothing is left."""
    excess = np.maximum(p - q, 0.0)
    mass = _total(excess)
    return np.where(mass > 0, excess / np.where(mass > 0, mass, 1.0), p)


def k_tries(p: Array, q: Array, n: int = DRAFTS) -> Array:
    """Return m (1 - (1 - beta)^n) / beta + (1 - beta)^(n-1) (p - q)+.

    Each of n tries ends in an accepted token of law m / beta with probability beta, all fail with TV^n, and then r = (p - q)+ /
    TV. The first factor is the sum of TV^i over i < n, which is also right where beta = 0.
    """
    tv = _total(np.maximum(q - p, 0.0))
    tries = sum(tv**i for i in range(n))
    law: Array = np.minimum(p, q) * tries + tv**n * _left(p, q)
    return law


def top_k_sampled(p: Array, q: Array, n: int = DRAFTS) -> Array:
    """Return sum_i R_{i-1} a_i delta_{g_i} + R_n P_n for the n likeliest tokens g_i of q, the lower id first among equals.

    P_0 = p, P_i = (P_{i-1} - q)+ normalised, a_i = min(1, P_{i-1}(g_i) / q(g_i)) and R_i = prod_{j<=i} (1 - a_j). A child with
    q = 0 is accepted where P has it.
    """
    order = np.argsort(-q, axis=-1, kind="stable")
    law, rest, left = np.zeros_like(p), np.ones_like(_total(p)), p
    for i in range(n):
        child = np.where(np.arange(p.shape[-1]) == order[..., i : i + 1], 1.0, 0.0)
        above, below = _total(child * left), _total(child * q)
        certain = np.where(above > 0, 1.0, 0.0)
        kept = np.where(below > 0, np.minimum(1.0, above / np.where(below > 0, below, 1.0)), certain)
        law, rest, left = law + rest * kept * child, rest * (1 - kept), _left(left, q)
    return law + rest * left


def shared_noise(p: Array, q: Array) -> Array:
    """Return m + TV rho, rho the law of the race argmin E / r run with the clocks E that chose the draft, argmin E / q.

    The winning time T = min E / q is exponential and independent of the winner x. Given both, every loser's E_i is q_i T
    plus a fresh exponential, and x, which was rejected, has r_x = 0. So token i starts at T c_i, c_i = q_i / r_i, and rings
    at rate r_i from there. Put the tokens in order of c and let R_k, A_k be the sums of r_i and r_i c_i over the first k:
    between T c_k and T c_{k+1} none has rung by s with probability exp(T A_k - R_k s). Integrated over s there, and over T,
    rho_i = sum_{k >= i} (r_i / R_k) [1 / (1 + R_k c_k - A_k) - 1 / (1 + R_k c_{k+1} - A_k)], the last term 0 at the end.
    """
    flat_p, flat_q = p.reshape(-1, p.shape[-1]), q.reshape(-1, q.shape[-1])
    left = _left(flat_p, flat_q)
    rho = np.stack([_raced_again(r, law) for r, law in zip(left, flat_q, strict=True)]).reshape(p.shape)
    law: Array = np.minimum(p, q) + _total(np.maximum(q - p, 0.0)) * rho
    return law


def _raced_again(r: Array, q: Array) -> Array:
    """Return rho (V,) for one residual r and draft law q, both (V,)."""
    rho = np.zeros_like(r)
    racing = np.flatnonzero(r > 0)
    racing = racing[np.argsort(q[racing] / r[racing], kind="stable")]
    rates, starts = r[racing], q[racing] / r[racing]
    steps = np.diff(starts)
    # R_k c_k - A_k grows by R_k (c_(k+1) - c_k) and the difference of two survivals, over R_k, is that step times both:
    # all terms are positive, nothing cancels.
    survived = 1.0 / (1.0 + np.concatenate([[0.0], np.cumsum(np.cumsum(rates)[:-1] * steps)]))
    terms = np.append(steps * survived[:-1] * survived[1:], survived[-1] / rates.sum())
    rho[racing] = rates * np.cumsum(terms[::-1])[::-1]
    return rho
