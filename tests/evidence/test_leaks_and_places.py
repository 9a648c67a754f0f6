"""Bets on leaks to one token and on the laws of other places: fair under the target, and named when they are true."""

from __future__ import annotations

import numpy as np
import pytest

from specverify.evidence.leaks import LEAKS, class_mass, classes_of, leak_alternatives, leak_gains, leak_logs
from specverify.evidence.places import OWN_AND_OTHER, PLACES, SHARES, place_alternatives, place_logs
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.laws import Array, Ints

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(6), size=5)


def draw(law: Array, rng: np.random.Generator) -> Ints:
    """One token of each law (..., V)."""
    drawn: Ints = np.minimum((law.cumsum(-1) <= rng.random(law.shape[:-1])[..., None]).sum(-1), law.shape[-1] - 1)
    return drawn


@pytest.mark.parametrize("vocab_size", [6, 64, 100, 150])
def test_every_leak_bet_has_mean_one(vocab_size: int) -> None:
    """Enumerated over all tokens, also where 64 classes hold several ids each."""
    p = np.random.default_rng(vocab_size).dirichlet(np.ones(vocab_size))
    everything = np.arange(vocab_size)
    gains = leak_gains(class_mass(np.tile(p, (vocab_size, 1)), everything))
    pays = np.stack([np.exp(leak_logs(gains[:, [x]], everything[[x]], vocab_size)) for x in everything])
    np.testing.assert_allclose(p @ pays, 1.0, rtol=1e-12)
    assert pays.shape[1] == len(leak_alternatives(vocab_size)) == classes_of(vocab_size) * len(LEAKS)


def test_a_leak_bet_pays_what_its_law_says() -> None:
    """(1 - l) p + l delta over p, for every token and share."""
    p = P[0]
    for c in range(6):
        for number, level in enumerate(LEAKS):
            y = (1 - level) * p + level * (np.arange(6) == c)
            for x in range(6):
                logs = leak_logs(leak_gains(p[[x]]), np.array([x]), 6).reshape(6, -1)
                assert logs[c, number] == pytest.approx(np.log(y[x] / p[x]))


def test_place_bets_have_mean_at_most_one() -> None:
    """Exactly one where both laws have the same support; less where the other law has tokens of its own."""
    p, other = P[0], P[1]
    np.testing.assert_allclose(np.exp(place_logs(other, p)) @ p, 1.0, rtol=1e-12)
    assert len(place_alternatives()) == len(PLACES) * len(SHARES) == len(OWN_AND_OTHER) * 5
    short = np.array([0.0, *p[1:]]) / p[1:].sum()
    means = np.exp(place_logs(other[1:], short[1:])) @ short[1:]
    assert (means < 1).all()


@pytest.mark.parametrize("vocab_size", [6, 90])
def test_tables_and_streams_settle_leaks_and_places_alike(vocab_size: int) -> None:
    """Also where a table of places would be too large."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(vocab_size), size=5)
    table, direct, stream = TableWatch(p), TableWatch(p), StreamWatch(False, vocab_size)
    direct._elsewhere = None
    for rows in (3, 1, 4):
        contexts = rng.integers(0, 5, (rows, 7))
        tokens = draw(p[contexts], rng)
        tokens[0, 5:] = -1
        for watch in (table, direct):
            watch.add(contexts, tokens)
        stream.add(p[contexts], None, tokens)
    for watch in (direct, stream):
        np.testing.assert_allclose(table.process.logs, watch.process.logs, atol=1e-9)


@pytest.mark.parametrize("place", PLACES)
def test_tokens_of_another_place_are_refuted_and_named(place: str) -> None:
    """A third of the tokens follow the law of the position before, or of a row beside."""
    rng = np.random.default_rng(2)
    own, other = OWN_AND_OTHER[PLACES.index(place)]
    watch = TableWatch(P)
    for _ in range(40):
        contexts = rng.integers(0, 5, (4, 9))
        laws = P[contexts]
        wrong = rng.random(contexts[own].shape) < 0.33
        laws[own] = np.where(wrong[..., None], P[contexts[other]], laws[own])
        watch.add(contexts, draw(laws, rng))
    assert watch.process.refutes(1e-8)
    assert next(iter(watch.process.posterior())) == ("place", f"law of the {place}")


def test_a_leak_of_one_per_cent_is_refuted_and_named() -> None:
    """Token 3 comes one per cent more often whatever the context."""
    rng = np.random.default_rng(3)
    watch = TableWatch(P)
    for _ in range(100):
        contexts = rng.integers(0, 5, (64, 16))
        tokens = draw(P[contexts], rng)
        watch.add(contexts, np.where(rng.random(tokens.shape) < 0.01, 3, tokens))
    assert watch.process.refutes(1e-8)
    assert next(iter(watch.process.posterior())) == ("leak", "token 3")
