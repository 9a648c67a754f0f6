"""Which evidence do tokens give as they come? Every bet at once: on table models by counting, on others token by token.

Tokens come as completed sequences of a fixed length, never as the accepted ones; every law that is bet on is chosen from tokens
before it and the two models alone.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from specverify.evidence.bets import FAULT_LEVELS, TILTS, alternatives, payoffs
from specverify.evidence.dependence import (
    BETS,
    MOST_LAG,
    Drawn,
    dependence_alternatives,
    log_payoffs,
    pair_payoffs,
)
from specverify.evidence.eprocess import FLOOR, EProcess, weighted
from specverify.evidence.leaks import class_mass, class_masses, leak_alternatives, leak_gains, leak_logs
from specverify.evidence.places import OWN_AND_OTHER, place_alternatives, place_logs
from specverify.evidence.pointwise import At, Rows
from specverify.evidence.ranks import Ranks, lower, lower_at, rank_alternatives
from specverify.evidence.rounding import prices, widened_by
from specverify.laws import Array, Ints
from specverify.randomness import stream

FAMILIES = {"fault": 0.5, "direction": 0.15, "ranks": 0.1, "dependence": 0.1, "place": 0.05, "leak": 0.1}
"""Share of the wealth that each family starts with."""
BLOCK = 2**16
"""Probabilities that are worked on at once: more do not stay in a processor's cache."""
MOST_STATES = 512
"""Most (law, token) states of table models for which pairs are counted in a table."""
MOST_PLACES = 2**16
"""Most (other law, law, token) for which they are."""


class _Watch:
    """What both ways of watching share: the wealth, the ranks, and the impossible tokens seen.

    logit_tolerance widens what counts as exact to all laws whose logits lie within it of the target's (see
    :mod:`specverify.evidence.rounding`): an engine in half precision is then asked about its algorithm, not its rounding.
    """

    def __init__(self, with_q: bool, vocab_size: int, seed: int, logit_tolerance: float) -> None:
        if not 0 <= logit_tolerance < 10:
            raise ValueError(f"the logit tolerance must lie in [0, 10), got {logit_tolerance}")
        self.logit_tolerance = logit_tolerance
        self.vocab_size = vocab_size
        bets = [*alternatives(with_q), *rank_alternatives(with_q), *dependence_alternatives()]
        self.process = EProcess(weighted(FAMILIES, [*bets, *place_alternatives(), *leak_alternatives(vocab_size)]))
        self.ranks = Ranks(3 if with_q else 2)
        self.impossible = 0
        self._strict = np.zeros(len(self.process.alternatives))
        # A stream of its own: whoever drew the tokens may have used the same seed.
        self._rng = stream(seed, "ranks of tokens")

    def _settled(self, parts: list[Array], price: Array, mass: Array) -> None:
        """Let every bet grow by its logarithms, less its price at the tolerance; mass is p(x) of the tokens (N,).

        price: of the bets on faults and directions; all others pay for the worst that can be.
        """
        grown = np.concatenate(parts)
        self._strict = self._strict + grown
        if self.logit_tolerance > 0:
            worst = float(widened_by(mass, self.logit_tolerance).sum())
            grown = grown - np.concatenate([price, np.full(len(grown) - len(price), worst)])
        self.process.add(grown, len(mass))

    @property
    def log_e_strict(self) -> float:
        """Ln E now, had no tolerance been declared."""
        return float(logsumexp(self._strict + self.process.log_weights))

    @property
    def log_e(self) -> float:
        """Ln E now; infinite once a token came that the target never gives."""
        return float("inf") if self.impossible else self.process.log_e


def _levels(faults: Array, tilts: Array) -> Array:
    """ln(1 + l payoff) of payoffs (F, ...) and (D, ...) at every level, in the order of the alternatives."""
    with np.errstate(divide="ignore"):
        logs = [np.log1p(level * one) for one in faults for level in FAULT_LEVELS]
        logs += [np.log1p(level * one) for one in tilts for level in TILTS]
    bounded: Array = np.maximum(np.stack(logs), FLOOR)
    return bounded


class TableWatch(_Watch):
    """Tokens whose laws stand in a table: p (C, V), and q (C, V) where the draft is known. Bets are settled by counts."""

    def __init__(self, p: Array, q: Array | None = None, *, seed: int = 0, logit_tolerance: float = 0.0) -> None:
        super().__init__(q is not None, p.shape[1], seed, logit_tolerance)
        self.p, self.q = p, q
        self.contexts = len(p)
        rows = Rows(p, p if q is None else q)
        with np.errstate(divide="ignore", invalid="ignore"):
            faults, tilts = payoffs(rows, At.everywhere(rows), q is not None)
        possible = p > 0
        faults, tilts = (np.where(possible, paid, 0.0) for paid in (faults, tilts))
        logs = _levels(faults, tilts)
        self._price = np.zeros((0, len(p)))
        if logit_tolerance > 0:
            self._price, made = prices(p, faults, tilts, logit_tolerance)
            logs = np.where(made[..., None], logs, 0.0)
        self._logs = logs.reshape(len(logs), -1)
        self._lower = lower(p, q)
        self.counts = np.zeros(p.shape, np.int64)
        """How often every token came after every context."""
        self._pairs = self._pair_table() if p.size <= MOST_STATES else None
        small = len(p) * p.size <= MOST_PLACES
        self._elsewhere = self._place_logs(np.arange(len(p))[:, None], np.arange(p.size)).reshape(5, -1) if small else None
        self._tokens = np.tile(np.arange(p.shape[1]), len(p))
        self._gains = leak_gains(np.where(possible, class_masses(p), 1.0)).reshape(-1, p.size)
        self._before: Ints | None = None

    def _pair_table(self) -> Array:
        """ln(1 + l payoff) (20, S * S) for all pairs of states (context, token)."""
        token = np.tile(np.arange(self.vocab_size), self.contexts)
        context = np.repeat(np.arange(self.contexts), self.vocab_size)
        return self._pair_logs((context[:, None], token[:, None]), (context[None], token[None])).reshape(len(BETS), -1)

    def _pair_logs(self, first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> Array:
        (c, x), (d, y) = first, second
        low = self._lower[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            paid = pair_payoffs(Drawn(low[c, x], self.p[c, x]), Drawn(low[d, y], self.p[d, y]), (x == y) * 1.0, self.p[d, x])
        return log_payoffs(np.nan_to_num(paid, posinf=0.0))

    def _place_logs(self, others: Ints, states: Ints) -> Array:
        """ln(1 + l (p'/p - 1)) (5, ...) of states under the laws of other contexts."""
        own = self.p.reshape(-1)[states]
        there = own > 0
        other = self.p[others, states % self.vocab_size]
        return place_logs(np.where(there, other, 1.0), np.where(there, own, 1.0))

    def _place_sum(self, others: Ints, states: Ints) -> Array:
        """Sum of the same (5,) over tokens (states of -1 left out) with the contexts of their other places."""
        used = (states >= 0) & (others >= 0)
        if self._elsewhere is None:
            summed: Array = self._place_logs(others[used], states[used]).sum(-1)
            return summed
        counted = np.bincount(others[used] * self.p.size + states[used], minlength=self._elsewhere.shape[1])
        found: Array = self._elsewhere @ counted
        return found

    def add(self, contexts: Ints, tokens: Ints) -> float:
        """Rows of one call: contexts and tokens (R, L), -1 where a sequence had ended. Returns ln E now."""
        live = tokens >= 0
        possible = live & (self.p[contexts, np.maximum(tokens, 0)] > 0)
        self.impossible += int((live & ~possible).sum())
        states = np.where(possible, contexts * self.vocab_size + tokens, -1)
        flat = states[states >= 0]
        counts = np.bincount(flat, minlength=self.p.size)
        self.counts += counts.reshape(self.p.shape)
        mass = self.p.reshape(-1)[flat]
        low = self._lower.reshape(len(self._lower), -1)[:, flat]
        parts = [self._logs @ counts, self.ranks.add(low, mass, self._rng)]
        parts += [self._pair(first, second) for first, second in self._places(states)]
        known = np.where(live, contexts, -1)
        parts += [self._place_sum(known[other], states[own]) for own, other in OWN_AND_OTHER]
        parts.append(leak_logs(self._gains, self._tokens, self.vocab_size, counts))
        self._before = states
        self._settled(parts, self._price @ counts.reshape(self.p.shape).sum(1), mass)
        return self.log_e

    def _places(self, states: Ints) -> list[tuple[Ints, Ints]]:
        pairs = [(states[:, :-lag], states[:, lag:]) for lag in range(1, MOST_LAG + 1)]
        pairs.append((states[:-1], states[1:]))
        before = self._before
        if before is None:
            return [*pairs, (states[:0], states[:0])]
        rows, length = min(len(before), len(states)), min(before.shape[1], states.shape[1])
        return [*pairs, (before[:rows, :length], states[:rows, :length])]

    def _pair(self, first: Ints, second: Ints) -> Array:
        both = (first >= 0) & (second >= 0)
        one, two = first[both], second[both]
        if self._pairs is not None:
            counted = np.bincount(one * self.p.size + two, minlength=self.p.size**2)
            found: Array = self._pairs @ counted
            return found
        split = [(s // self.vocab_size, s % self.vocab_size) for s in (one, two)]
        summed: Array = self._pair_logs(split[0], split[1]).sum(-1)
        return summed


class StreamWatch(_Watch):
    """Tokens with their laws beside them, over a vocabulary of any size."""

    def __init__(self, with_q: bool, vocab_size: int, *, seed: int = 0, logit_tolerance: float = 0.0) -> None:
        super().__init__(with_q, vocab_size, seed, logit_tolerance)
        self.with_q = with_q
        self._independent = sum(a.family in ("fault", "direction") for a in self.process.alternatives)
        self._before: tuple[Drawn, Ints] | None = None

    def _settle(self, p: Array, q: Array | None, x: Ints, places: Ints) -> tuple[Array, Array, Array, Array]:
        """Logarithms of bets on single tokens, summed over those at ``places`` (n, 2): on faults and directions, and on leaks;
        with the tokens' F(x-) (orders, n) and the price of the former.
        """
        at = tuple(places.T)
        flat_p, flat_x = p[at], x[at]
        flat_q = flat_p if q is None else q[at]
        rows = Rows(flat_p, flat_q)
        faults, tilts = payoffs(rows, At(rows, flat_x[:, None]), self.with_q)
        logs = _levels(faults[..., 0], tilts[..., 0])
        leaks = leak_logs(leak_gains(class_mass(flat_p, flat_x)), flat_x, self.vocab_size)
        price = np.zeros(0)
        if self.logit_tolerance > 0:
            with np.errstate(divide="ignore", invalid="ignore"):
                everywhere = payoffs(rows, At.everywhere(rows), self.with_q)
            whole, leaning = (np.where(flat_p > 0, one, 0.0) for one in everywhere)
            each, made = prices(flat_p, whole, leaning, self.logit_tolerance)
            logs, price = np.where(made, logs, 0.0), each.sum(-1)
        return logs.sum(-1), leaks, lower_at(flat_p, flat_q if self.with_q else None, flat_x), price

    def add(self, p: Array, q: Array | None, tokens: Ints) -> float:
        """Rows of one call: laws p and q (R, L, V) that governed tokens (R, L), -1 where a sequence had ended."""
        live = tokens >= 0
        x = np.maximum(tokens, 0)
        mass = np.take_along_axis(p, x[..., None], -1)[..., 0]
        self.impossible += int((live & (mass <= 0)).sum())
        live = live & (mass > 0)
        places = np.argwhere(live)
        block = max(1, BLOCK // p.shape[-1])
        settled = [self._settle(p, q, x, places[i : i + block]) for i in range(0, len(places), block)]
        logs = sum((part for part, _, _, _ in settled), np.zeros(self._independent))
        leaks = sum((part for _, part, _, _ in settled), np.zeros(len(leak_alternatives(self.vocab_size))))
        low_at = (
            np.concatenate([lows for _, _, lows, _ in settled], axis=1) if settled else np.zeros((len(self.ranks.counts), 0))
        )
        parts = [logs, self.ranks.add(low_at, mass[live], self._rng)]
        low = np.zeros(tokens.shape)
        low[live] = low_at[0]
        drawn, shown = Drawn(low, mass), np.where(live, x, -1)
        everything, lags = slice(None), range(1, MOST_LAG + 1)
        parts += [
            _pair_sum(drawn, shown, drawn, shown, p, (everything, slice(None, -lag)), (everything, slice(lag, None)))
            for lag in lags
        ]
        parts.append(_pair_sum(drawn, shown, drawn, shown, p, (slice(None, -1),), (slice(1, None),)))
        if self._before is None:
            parts.append(np.zeros(len(BETS)))
        else:
            before, known = self._before
            part = (slice(0, min(len(known), len(shown))), slice(0, min(known.shape[1], shown.shape[1])))
            parts.append(_pair_sum(before, known, drawn, shown, p, part, part))
        parts += [_place_sum(p, shown, mass, own, other) for own, other in OWN_AND_OTHER]
        parts.append(leaks)
        self._before = (drawn, shown)
        price = sum((part for _, _, _, part in settled if len(part)), np.zeros(self._independent))
        self._settled(parts, price, mass[live])
        return self.log_e


def _pair_sum(one: Drawn, x: Ints, two: Drawn, y: Ints, p: Array, first: tuple[slice, ...], second: tuple[slice, ...]) -> Array:
    """Sum of ln(1 + l payoff) (20,) over the pairs of the tokens at ``first`` and those at ``second``."""
    a, b = x[first], y[second]
    both = (a >= 0) & (b >= 0)
    repeated = np.take_along_axis(p[second], np.maximum(a, 0)[..., None], -1)[..., 0][both]
    paid = pair_payoffs(
        Drawn(one.low[first][both], one.mass[first][both]),
        Drawn(two.low[second][both], two.mass[second][both]),
        (a == b)[both] * 1.0,
        repeated,
    )
    summed: Array = log_payoffs(paid).sum(-1)
    return summed


def _place_sum(p: Array, x: Ints, mass: Array, own: tuple[slice, slice], other: tuple[slice, slice]) -> Array:
    """Sum of ln(1 + l (p'/p - 1)) (5,) over the tokens x (R, L) at ``own``, with the laws p (R, L, V) at ``other``."""
    used = (x[own] >= 0) & (x[other] >= 0)
    elsewhere = np.take_along_axis(p[other], np.maximum(x[own], 0)[..., None], -1)[..., 0]
    summed: Array = place_logs(elsewhere[used], mass[own][used]).sum(-1)
    return summed
