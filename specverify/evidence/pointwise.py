"""What probability does each wrong rule give to one token? From p and q at that token and a few sums over the vocabulary.

The same closed forms as :mod:`specverify.faults.laws`, without a law (V,) per rule: a stream of tokens over 150,000 ids costs
one pass over p and q for each sum. Tests compare the two on every kind of law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specverify.faults.laws import DELTA, EPS, LENIENCY, TEMPERATURE, TOP_K
from specverify.faults.several_laws import DRAFTS, shared_noise
from specverify.laws import Array, Ints


def _total(x: Array) -> Array:
    summed: Array = x.sum(axis=-1, keepdims=True)
    return summed


def ratio(above: Array, below: Array) -> Array:
    """Return above / below with 0 where nothing stands below; callers multiply it by a quantity that is 0 there."""
    shape = np.broadcast_shapes(above.shape, below.shape)
    return np.divide(above, below, out=np.zeros(shape), where=np.broadcast_to(below > 0, shape))


def _pick(law: Array, index: Ints) -> Array:
    picked: Array = np.take_along_axis(law, index, -1)
    return picked


def _place(of: Array) -> Ints:
    best: Ints = of.argmax(-1)[:, None]
    return best


@dataclass(frozen=True, eq=False)
class Rows:
    """Target laws p (N, V), and draft laws q (N, V) where they are known; every sum (N, 1) is made once, when asked for."""

    p: Array
    q: Array

    @cached_property
    def excess(self) -> Array:
        """(p - q)+, (N, V)."""
        gap: Array = np.maximum(self.p - self.q, 0.0)
        return gap

    @cached_property
    def lack(self) -> Array:
        """(q - p)+, (N, V)."""
        gap: Array = np.maximum(self.q - self.p, 0.0)
        return gap

    @cached_property
    def mass(self) -> Array:
        """Sum of (p - q)+."""
        return _total(self.excess)

    @cached_property
    def tv(self) -> Array:
        """Sum of (q - p)+: how often token rejection rejects."""
        return _total(self.lack)

    @cached_property
    def same(self) -> Array:
        """S = sum p q."""
        return _total(self.p * self.q)

    @cached_property
    def excluding(self) -> Array:
        """Sum of (q - p)+ / (1 - p)."""
        return _total(ratio(self.lack, 1.0 - self.p))

    @cached_property
    def top(self) -> Ints:
        """Place of argmax p."""
        return _place(self.p)

    @cached_property
    def top_q(self) -> Ints:
        """Place of argmax q."""
        return _place(self.q)

    @cached_property
    def top_gap(self) -> Ints:
        """Place of argmax (p - q)."""
        return _place(self.p - self.q)

    @cached_property
    def softened(self) -> Array:
        """Sum of exp(r)."""
        return _total(np.exp(np.where(self.mass > 0, ratio(self.excess, self.mass), self.p)))

    @cached_property
    def inverted(self) -> Array:
        """Sum of q min(1, q/p)."""
        return _total(np.where(self.q >= self.p, self.q, self.q * ratio(self.q, self.p)))

    @cached_property
    def below(self) -> Array:
        """Draft mass where p < q."""
        return _total(self.q * (self.p < self.q))

    @cached_property
    def lenient(self) -> tuple[Array, Array]:
        """Sums of min(q, p/l) and of (p - l q)+."""
        return _total(np.minimum(self.q, self.p / LENIENCY)), _total(np.maximum(self.p - LENIENCY * self.q, 0.0))

    @cached_property
    def typical(self) -> tuple[Array, Array]:
        """The threshold that p must exceed to be typical, and the draft mass that is not."""
        entropy = -_total(self.p * np.log(np.where(self.p > 0, self.p, 1.0)))
        threshold = np.minimum(EPS, DELTA * np.exp(-entropy))
        return threshold, _total(self.q * ~(self.p > threshold))

    @cached_property
    def filtered(self) -> tuple[Ints, Array, Array]:
        """Places (N, k) of the likeliest draft tokens, their mass, and how often a draft from them is accepted."""
        left, found = self.q.copy(), []
        for _ in range(min(TOP_K, self.q.shape[-1])):  # a sort of a large vocabulary takes longer than all else
            found.append(_place(left))
            np.put_along_axis(left, found[-1], -1.0, -1)
        places: Ints = np.concatenate(found, axis=1)
        likely = _pick(self.q, places)
        kept = likely * np.minimum(1.0, ratio(_pick(self.p, places), likely)) / _total(likely)
        return places, _total(likely), _total(kept)

    @cached_property
    def tempered(self) -> tuple[Array, Array, Array]:
        """Sum of q^(1/T); with d that power normalised, how often a draft from q is accepted by d; sum of (p - d)+."""
        powers = self.q ** (1 / TEMPERATURE)
        scale = _total(powers)
        told = powers / scale
        return (
            scale,
            _total(self.q * np.minimum(1.0, ratio(self.p, told))),
            _total(np.maximum(self.p - told, 0.0)),
        )

    @cached_property
    def unwarped(self) -> Array:
        """Sum of p^T."""
        return _total(self.p**TEMPERATURE)

    @cached_property
    def raced(self) -> Array:
        """The law (N, V) of noise that recovers after it chose the draft; the one law that has no shorter form."""
        return shared_noise(self.p, self.q)


@dataclass(frozen=True, eq=False)
class At:
    """Tokens x (N, X) of rows: p, q and (p - q)+ at them, each (N, X)."""

    rows: Rows
    x: Ints

    @classmethod
    def everywhere(cls, rows: Rows) -> At:
        """All tokens of every row: X = V."""
        made = cls(rows, np.arange(rows.p.shape[-1])[None])
        made.__dict__.update(p=rows.p, q=rows.q)
        return made

    @cached_property
    def p(self) -> Array:
        """Target probability."""
        return _pick(self.rows.p, self.x)

    @cached_property
    def q(self) -> Array:
        """Draft probability."""
        return _pick(self.rows.q, self.x)

    @cached_property
    def least(self) -> Array:
        """min(p, q)."""
        both: Array = np.minimum(self.p, self.q)
        return both

    @cached_property
    def recovered(self) -> Array:
        """r, or p where the residual is empty."""
        gap = np.maximum(self.p - self.q, 0.0)
        return np.where(self.rows.mass > 0, ratio(gap, self.rows.mass), self.p)


def _resample_excluding(a: At) -> Array:
    each = ratio(np.maximum(a.q - a.p, 0.0), 1.0 - a.p)
    return a.least + a.p * (a.rows.excluding - each)


def _softmax_residual(a: At) -> Array:
    law: Array = a.least + a.rows.tv * np.exp(a.recovered) / a.rows.softened
    return law


def _inverted_ratio(a: At) -> Array:
    kept = np.where(a.q >= a.p, a.q, a.q * ratio(a.q, a.p))
    return kept + (1.0 - a.rows.inverted) * a.recovered


def _naive_accept_resample(a: At) -> Array:
    hit = _pick(a.rows.q, a.rows.top)
    law: Array = hit * (a.x == a.rows.top) + (1.0 - hit) * a.p
    return law


def _lenience(a: At) -> Array:
    kept, excess = a.rows.lenient
    law: Array = np.minimum(a.q, a.p / LENIENCY) + (1.0 - kept) * np.maximum(a.p - LENIENCY * a.q, 0.0) / excess
    return law


def _typical(a: At) -> Array:
    threshold, missed = a.rows.typical
    law: Array = a.q * (a.p > threshold) + missed * a.p
    return law


def _greedy_draft(a: At) -> Array:
    kept = np.minimum(1.0, _pick(a.rows.p, a.rows.top_q) / _pick(a.rows.q, a.rows.top_q))
    law: Array = kept * (a.x == a.rows.top_q) + (1.0 - kept) * a.recovered
    return law


def _draft_filtered(a: At) -> Array:
    places, mass, kept = a.rows.filtered
    chosen = (a.x[:, :, None] == places[:, None, :]).any(-1)
    law: Array = chosen * a.q / mass * np.minimum(1.0, ratio(a.p, a.q)) + (1.0 - kept) * a.recovered
    return law


def _draft_temperature(a: At) -> Array:
    scale, kept, excess = a.rows.tempered
    told = a.q ** (1 / TEMPERATURE) / scale
    left = np.where(excess > 0, ratio(np.maximum(a.p - told, 0.0), excess), a.p)
    return a.q * np.minimum(1.0, ratio(a.p, told)) + (1.0 - kept) * left


def _k_tries(a: At) -> Array:
    tries = sum(a.rows.tv**i for i in range(DRAFTS))
    law: Array = a.least * tries + a.rows.tv**DRAFTS * a.recovered
    return law


Pointwise = Callable[[At], Array]
"""Probability (N, X) that a wrong rule gives to tokens (N, X)."""
FAULT_LAWS: dict[str, Pointwise] = {
    "resample_from_target": lambda a: a.least + a.rows.tv * a.p,
    "resample_excluding": _resample_excluding,
    "absolute_residual": lambda a: (a.p + a.q) / 2,
    "argmax_residual": lambda a: a.least + a.rows.tv * (a.x == a.rows.top_gap),
    "softmax_residual": _softmax_residual,
    "inverted_ratio": _inverted_ratio,
    "accept_always": lambda a: a.q,
    "accept_if_likelier": lambda a: a.q * (a.p >= a.q) + a.rows.below * a.recovered,
    "accept_if_likelier_else_target": lambda a: a.q * (a.p >= a.q) + a.rows.below * a.p,
    "naive_accept": lambda a: (a.x == a.rows.top).astype(float),
    "naive_accept_resample": _naive_accept_resample,
    "match_then_redraw": lambda a: a.p * (1.0 + a.q - a.rows.same),
    "match_with_residual": lambda a: a.p * a.q + (1.0 - a.rows.same) * a.recovered,
    "lenience": _lenience,
    "typical": _typical,
    "greedy_draft": _greedy_draft,
    "draft_filtered": _draft_filtered,
    "draft_temperature": _draft_temperature,
    "target_unwarped": lambda a: a.p**TEMPERATURE * (a.p > 0) / a.rows.unwarped,
    "k_tries": _k_tries,
    "shared_noise": lambda a: _pick(a.rows.raced, a.x),
}
"""Every catalogued fault that has a law of one position, by its name in the catalogue."""
WITHOUT_Q = ("naive_accept", "target_unwarped")
"""Those whose law does not depend on the draft."""
