"""A race run twice with the same clocks: the closed form against quadrature, simulation and the rule itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from fault_pairs import CORNERS, corner, plain_pair, random_pairs
from scipy.integrate import quad

from specverify.exact import step_emission
from specverify.faults import NOISE_FAULTS, fault, several_laws
from specverify.laws import Array, Pair, total_variation
from specverify.loading import load_subject
from specverify.subjects import Step
from specverify.tables import torch_models

DRAWS = 400_000
PAIRS = [plain_pair(1), corner("draft misses the support"), corner("disjoint"), *random_pairs(6, 1)]


def laws_of(pair: Pair) -> tuple[Array, Array]:
    """Laws of target and draft after the prompt."""
    return pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)


def by_quadrature(p: Array, q: Array) -> Array:
    """The law with rho_i = E_T P(i rings first), both integrals done numerically, T ~ Exp(1) by t = -ln u."""
    r = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
    racing = [i for i in range(len(p)) if r[i] > 0]
    starts = {i: q[i] / r[i] for i in racing}
    rho = np.zeros(len(p))
    for i in racing:

        def rings_first(t: float, i: int = i) -> float:
            later = sorted({t * c for c in starts.values() if c > starts[i]})

            def density(s: float) -> float:
                return r[i] * float(np.exp(-sum(r[j] * max(s - t * starts[j], 0) for j in racing)))

            borders = [t * starts[i], *later, np.inf]
            return sum(quad(density, a, b, epsabs=1e-12)[0] for a, b in pairwise(borders))

        rho[i] = quad(lambda t, f=rings_first: np.exp(-t) * f(t), 0, np.inf, epsabs=1e-11)[0]
    return np.minimum(p, q) + np.maximum(q - p, 0).sum() * rho


@pytest.mark.parametrize("pair", [plain_pair(1), corner("draft misses the support")], ids=lambda p: p.name)
def test_closed_form_is_the_integral(pair: Pair) -> None:
    """Summed in closed form, the race has the law that numerical integration gives to 1e-10."""
    np.testing.assert_allclose(several_laws.shared_noise(*laws_of(pair)), by_quadrature(*laws_of(pair)), atol=1e-10)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_closed_form_agrees_with_simulation(pair: Pair) -> None:
    """Four hundred thousand races in plain numpy agree within five standard deviations."""
    p, q = laws_of(pair)
    rng = np.random.default_rng(3)
    clocks = rng.exponential(size=(DRAWS, len(p)))
    with np.errstate(divide="ignore"):
        x = (clocks / q).argmin(1)
        keep = rng.random(DRAWS) * q[x] < p[x]
        r = np.maximum(p - q, 0)
        again = (clocks / (r if r.sum() > 0 else p)).argmin(1)
    seen = np.bincount(np.where(keep, x, again), minlength=len(p)) / DRAWS
    y = several_laws.shared_noise(p, q)
    assert y.sum() == pytest.approx(1, abs=1e-12)
    assert (np.abs(seen - y) <= 5 * np.sqrt(y * (1 - y) / DRAWS) + 1e-12).all(), (seen, y)


def test_law_is_a_law_of_every_row() -> None:
    """Laws (..., V) are taken row by row, sum to 1 and are the target's where p = q or the recovered token is certain."""
    pairs = [p for p in random_pairs(40, 1) if p.vocab_size == 4]
    p, q = np.stack([x.target.laws for x in pairs]), np.stack([x.draft.laws for x in pairs])
    y = several_laws.shared_noise(p, q)
    assert y.shape == p.shape
    assert (y >= 0).all()
    np.testing.assert_allclose(y.sum(-1), 1, atol=1e-12)
    np.testing.assert_array_equal(y[3, 2], several_laws.shared_noise(p[3, 2], q[3, 2]))
    np.testing.assert_allclose(several_laws.shared_noise(p, p), p, atol=1e-12)
    for name in CORNERS:
        p1, q1 = laws_of(corner(name))
        if (p1 > q1).sum() == 1:
            np.testing.assert_allclose(several_laws.shared_noise(p1, q1), p1, atol=1e-12)


def test_fault_changes_the_law() -> None:
    """On a stated pair the law is not the target's, by more than one part in a hundred."""
    p, q = np.array([0.2, 0.4, 0.4]), np.array([0.9, 0.1, 0.0])
    assert total_variation(several_laws.shared_noise(p, q), p) > 0.01


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_rule_follows_its_law(pair: Pair) -> None:
    """A hundred thousand rounds of the rule itself agree with the closed form within five standard deviations."""
    rows = 100_000
    step = fault("shared_noise").make(1)
    assert isinstance(step, Step)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        emitted = step(*torch_models(pair), torch.tensor([pair.prompt]).repeat(rows, 1))
    seen = np.bincount(emitted.tokens[:, 0].numpy(), minlength=pair.vocab_size) / rows
    y = several_laws.shared_noise(*laws_of(pair))
    assert (np.abs(seen - y) <= 5 * np.sqrt(y * (1 - y) / rows) + 1e-12).all(), (seen, y)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_the_exact_law_of_the_rule_is_the_closed_form(pair: Pair) -> None:
    """The engine integrates the race that its noise has run before; the two derivations agree."""
    step = fault("shared_noise").make(1)
    assert isinstance(step, Step)
    law = np.zeros(pair.vocab_size)
    for tokens, mass in step_emission(step, replace(pair, k=1)).tokens.items():
        law[tokens[0]] += mass
    np.testing.assert_allclose(law, several_laws.shared_noise(*laws_of(pair)), atol=1e-12)


def test_rule_can_be_loaded_by_name() -> None:
    """``specverify.faults:shared_noise`` is a step of two drafts."""
    found = load_subject("specverify.faults:shared_noise")
    assert isinstance(found, Step)
    assert found.k == 2
    assert NOISE_FAULTS["shared_noise"] is fault("shared_noise")
