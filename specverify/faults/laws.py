"""Which law does one position follow under each wrong rule? Closed forms y(p, q), independent of the executables.

Every function takes the target law p and the draft law q, float64 arrays of shape (..., V), and returns the law
(..., V) of the token at one draft position that the round reaches. m = min(p, q), TV = 1 - sum m, S = sum p q and
r = (p - q)+ / sum (p - q)+; where p = q there is no residual and r stands for p. Ties of argmax go to the lowest index.
"""

from __future__ import annotations

import numpy as np

from specverify.laws import Array

LENIENCY = 0.5
"""The factor l of lenience."""
EPS, DELTA = 0.09, 0.3
"""Constants of typical acceptance; delta is the square root of eps, as Medusa (arXiv 2401.10774) suggests."""
TOP_K = 2
"""Tokens that a filtered draft keeps."""
TEMPERATURE = 0.5
"""The temperature that is forgotten, or that the draft was not drawn at."""


def _total(x: Array) -> Array:
    summed: Array = x.sum(axis=-1, keepdims=True)
    return summed


def _rejected(p: Array, q: Array) -> Array:
    """Return sum (q - p)+ = TV, shape (..., 1): how often token rejection rejects."""
    return _total(np.maximum(q - p, 0.0))


def _ratio(above: Array, below: Array) -> Array:
    """Return above / below with 0 where nothing stands below; callers multiply it by a quantity that is 0 there."""
    return np.divide(above, below, out=np.zeros(np.broadcast_shapes(above.shape, below.shape)), where=below > 0)


def _recovered(p: Array, q: Array) -> Array:
    """Return r, or p where the residual is empty."""
    excess = np.maximum(p - q, 0.0)
    mass = _total(excess)
    return np.where(mass > 0, _ratio(excess, mass), p)


def _point(index: Array, like: Array) -> Array:
    """Return the law that always gives the token with the largest entry of ``index``; shape of ``like``."""
    best = index.argmax(axis=-1)[..., None]
    return np.where(np.arange(like.shape[-1]) == best, 1.0, 0.0)


def resample_from_target(p: Array, q: Array) -> Array:
    """Return m + TV p."""
    return np.minimum(p, q) + _rejected(p, q) * p


def resample_excluding(p: Array, q: Array) -> Array:
    """Return m(t) + p(t) sum_{x != t} (q(x) - p(x))+ / (1 - p(x)); a token with p(x) = 1 is never rejected."""
    each = _ratio(np.maximum(q - p, 0.0), 1.0 - p)
    return np.minimum(p, q) + p * (_total(each) - each)


def absolute_residual(p: Array, q: Array) -> Array:
    """Return (p + q) / 2."""
    return (p + q) / 2


def argmax_residual(p: Array, q: Array) -> Array:
    """Return m + TV delta at argmax (p - q)."""
    return np.minimum(p, q) + _rejected(p, q) * _point(p - q, p)


def softmax_residual(p: Array, q: Array) -> Array:
    """Return m + TV softmax(r): the normalised residual taken for logits."""
    weights = np.exp(_recovered(p, q))
    return np.minimum(p, q) + _rejected(p, q) * weights / _total(weights)


def inverted_ratio(p: Array, q: Array) -> Array:
    """Return a + (1 - sum a) r with a = q min(1, q/p), which is q where p = 0."""
    kept = np.where(q >= p, q, q * _ratio(q, p))
    return kept + (1.0 - _total(kept)) * _recovered(p, q)


def accept_always(p: Array, q: Array) -> Array:  # noqa: ARG001 - every law is a function of p and q
    """Return q."""
    return q.copy()


def accept_if_likelier(p: Array, q: Array) -> Array:
    """Return q 1[p >= q] + q(p < q) r."""
    return q * (p >= q) + _total(q * (p < q)) * _recovered(p, q)


def accept_if_likelier_else_target(p: Array, q: Array) -> Array:
    """Return q 1[p >= q] + q(p < q) p."""
    return q * (p >= q) + _total(q * (p < q)) * p


def naive_accept(p: Array, q: Array) -> Array:  # noqa: ARG001 - every law is a function of p and q
    """Return delta at argmax p: the draft does not matter."""
    return _point(p, p)


def naive_accept_resample(p: Array, q: Array) -> Array:
    """Return q(mx) delta at mx + (1 - q(mx)) p with mx = argmax p."""
    top = _point(p, p)
    hit = _total(top * q)
    return hit * top + (1.0 - hit) * p


def match_then_redraw(p: Array, q: Array) -> Array:
    """Return p (1 + q - S)."""
    return p * (1.0 + q - _total(p * q))


def match_with_residual(p: Array, q: Array) -> Array:
    """Return p q + (1 - S) r."""
    return p * q + (1.0 - _total(p * q)) * _recovered(p, q)


def lenience(p: Array, q: Array, leniency: float = LENIENCY) -> Array:
    """Return a + (1 - sum a) (p - l q)+ normalised, with a = min(q, p / l) and 0 < l < 1 the leniency."""
    kept = np.minimum(q, p / leniency)
    excess = np.maximum(p - leniency * q, 0.0)
    return kept + (1.0 - _total(kept)) * excess / _total(excess)


def typical(p: Array, q: Array, eps: float = EPS, delta: float = DELTA) -> Array:
    """Return q 1[A] + q(not A) p, A the tokens with p > min(eps, delta exp(-H(p))), H in nats."""
    entropy = -_total(p * np.log(np.where(p > 0, p, 1.0)))
    typical_set = p > np.minimum(eps, delta * np.exp(-entropy))
    return q * typical_set + _total(q * ~typical_set) * p


def greedy_draft(p: Array, q: Array) -> Array:
    """Return a delta_g + (1 - a) r with g = argmax q and a = min(1, p(g) / q(g))."""
    top = _point(q, q)
    kept = np.minimum(1.0, _total(top * p) / _total(top * q))
    return kept * top + (1.0 - kept) * _recovered(p, q)


def target(p: Array, q: Array) -> Array:  # noqa: ARG001 - every law is a function of p and q
    """Return p: the position is right."""
    return p.copy()


def stale(p: Array, before: Array) -> Array:  # noqa: ARG001 - every law of a bonus is a function of both
    """Return the law one place before."""
    return before.copy()


def _told(p: Array, drawn: Array, declared: Array) -> Array:
    """Return a + (1 - sum a) r with a = s min(1, p/q), s the law the draft was drawn from, q the one the rule is told."""
    kept = drawn * np.minimum(1.0, _ratio(p, declared))
    return kept + (1.0 - _total(kept)) * _recovered(p, declared)


def draft_filtered(p: Array, q: Array, top_k: int | None = TOP_K, top_p: float = 1.0) -> Array:
    """Return a + (1 - sum a) r with a = s min(1, p/q), s = q restricted to its likeliest tokens and normalised.

    Ties go to the lower ids; the top_k likeliest are kept, of those the fewest that reach top_p of their mass.
    """
    order = np.argsort(-q, axis=-1, kind="stable")
    likely = np.take_along_axis(q, order, -1)
    if top_k is not None:
        likely = np.where(np.arange(q.shape[-1]) < top_k, likely, 0.0)
    before = (likely.cumsum(-1) - likely) / _total(likely)
    s = np.zeros_like(q)
    np.put_along_axis(s, order, np.where(before < top_p, likely, 0.0), -1)
    return _told(p, s / _total(s), q)


def draft_temperature(p: Array, q: Array, temperature: float = TEMPERATURE) -> Array:
    """Return a + (1 - sum a) r with a = q min(1, p/d) and r of p and d, where d = q^(1/T) normalised."""
    declared = q ** (1 / temperature)
    return _told(p, q, declared / _total(declared))


def target_unwarped(p: Array, q: Array, temperature: float = TEMPERATURE) -> Array:  # noqa: ARG001
    """Return p^T normalised, the law before a temperature T made it p."""
    raw = p**temperature
    normalised: Array = raw / _total(raw)
    return normalised
