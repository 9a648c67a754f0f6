"""Races of exponentials and Gumbels: every form in which code writes them, and noise that is used twice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law
from specverify.exact.races import again_law, first_law, last_law

W = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
R = torch.tensor([0.1, 0.4, 0.0, 0.5], dtype=torch.float64)


def exponential() -> Tensor:
    """Four clocks in a tensor made before they are drawn."""
    return torch.empty(4, dtype=torch.float64).exponential_()


def gumbel() -> Tensor:
    """Four Gumbels from uniforms."""
    return -torch.log(-torch.log(torch.rand(4, dtype=torch.float64)))


def _twice(scores: Tensor) -> Tensor:
    """The winner, asked for in two ways that must agree."""
    assert int(scores.argmax()) == int(scores.max(0).indices)
    return scores.argmax()


D = torch.distributions
FORMS: dict[str, Callable[[], Tensor]] = {
    "w / E": lambda: (W / exponential()).argmax(),
    "E / w": lambda: (exponential() / W).argmin(),
    "E * (1 / w)": lambda: (exponential() * W.reciprocal()).min(0).indices,
    "in place": lambda: W.clone().div_(exponential()).argmax(),
    "out": lambda: torch.div(W, exponential(), out=torch.empty(4, dtype=torch.float64)).argmax(),
    "log w - log E": lambda: (W.log() - exponential().log()).argmax(),
    "log E - log w": lambda: (exponential().log_() - W.log()).argmin(),
    "log w + g": lambda: (W.log() + gumbel()).argmax(),
    "temperature": lambda: ((W.log() / 0.5 + gumbel() / 0.5) / 2).max(dim=0)[1],
    "-E": lambda: (-exponential() / W).topk(1).indices[0],
    "exp of log": lambda: (W.log() + gumbel()).exp().argmax(),
    "log u / w": lambda: (torch.rand(4, dtype=torch.float64).log() / W).argmax(),
    "log(1 - u)": lambda: (torch.log1p(-torch.rand(4, dtype=torch.float64)) / W).argmax(),
    "u ** (1 / w)": lambda: (torch.rand(4, dtype=torch.float64) ** (1 / W)).argmax(),
    "unnormalised": lambda: (7 * W / exponential()).argmax(),
    "clamped noise": lambda: (W / exponential().clamp(min=1e-20)).argmax(),
    "masked": lambda: (W.clamp(min=0.1).log() + gumbel()).masked_fill(torch.tensor([0, 1, 1, 0]).bool(), -math.inf).argmax(),
    "where": lambda: torch.where(W > 0.25, W / exponential(), 0.0).argmax(),
    "Gumbel": lambda: (W.log() + D.Gumbel(torch.zeros(4).double(), torch.ones(4).double()).sample()).argmax(),
    "Exponential": lambda: (W / D.Exponential(torch.ones(4).double()).sample()).argmax(),
    "rate 3": lambda: (W / torch.empty(4, dtype=torch.float64).exponential_(3.0)).argmax(),
    "argsort": lambda: (W / exponential()).argsort(descending=True)[0],
    "argmax twice": lambda: _twice(W / exponential()),
    "Categorical": lambda: D.Categorical(W).sample(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_race_chooses_by_weight(form: str) -> None:
    """Token i wins with probability w_i / sum w, whatever the race looks like; one of weight 0 never wins."""
    weights = torch.where(W > 0.25, W, 0.0) if form in ("masked", "where") else W
    expected = {i: float(w / weights.sum()) for i, w in enumerate(weights) if w > 0}
    assert induced_law(FORMS[form]).pmf == pytest.approx(expected, abs=1e-12)


def test_a_race_in_float32_is_exact_to_its_rounding() -> None:
    """Weights of float32 are taken as they are."""
    w = W.float()
    law = induced_law(lambda: (w / torch.empty(4).exponential_()).argmax()).pmf
    assert law == pytest.approx({0: 0.5, 2: 0.2, 3: 0.3}, abs=1e-7)


def test_rows_race_apart() -> None:
    """Races along the last dimension of (2, 4) are independent; along the first they are between rows."""
    both = torch.stack([W, R])
    law = induced_law(lambda: (both / torch.empty(2, 4, dtype=torch.float64).exponential_()).argmax(-1)).pmf
    expected = {(i, j): float(W[i] * R[j]) for i in range(4) for j in range(4) if W[i] * R[j] > 0}
    assert law == pytest.approx(expected, abs=1e-12)
    across = induced_law(lambda: (both / torch.empty(2, 4, dtype=torch.float64).exponential_()).argmax(0, keepdim=True)[0, 0])
    assert across.pmf == pytest.approx({0: 5 / 6, 1: 1 / 6}, abs=1e-12)


def test_the_order_of_several_winners_is_sampling_without_replacement() -> None:
    """Topk of Gumbel scores is successive sampling: the second among the rest by weight."""
    law = induced_law(lambda: (W.log() + gumbel()).topk(2).indices).pmf
    expected = {(i, j): float(W[i] * W[j] / (1 - W[i])) for i, j in itertools.permutations((0, 2, 3), 2)}
    assert law == pytest.approx(expected, abs=1e-12)


def test_degenerate_races_do_as_torch_does() -> None:
    """All weights 0: the first; a NaN: the NaN; an infinite weight: it wins; one clock: that one."""
    nan, inf = math.nan, math.inf
    for weights in ([0.0, 0.0, 0.0, 0.0], [0.1, nan, 0.2, nan], [1.0, 2.0, inf, 3.0], [0.0, 0.0, 3.0, 0.0]):
        w = torch.tensor(weights, dtype=torch.float64)
        for score in (lambda w=w: w / exponential(), lambda w=w: w.log() + gumbel()):
            law = induced_law(lambda s=score: s().argmax()).pmf
            assert law == {int(score().argmax()): 1.0}, weights


@pytest.mark.parametrize("rates", [[1.0], [1.0, 1.0], [0.2, 1.5, 0.7], [3.0, 0.1, 0.4, 2.0, 0.9]])
def test_the_law_of_the_last_clock_is_that_of_its_integral(rates: list[float]) -> None:
    """P(i last) = integral of r_i exp(-r_i t) prod_{j != i} (1 - exp(-r_j t))."""
    law = last_law(np.array(rates))
    for i, rate in enumerate(rates):

        def density(t: float, i: int = i, rate: float = rate) -> float:
            return rate * math.exp(-rate * t) * math.prod(1 - math.exp(-r * t) for j, r in enumerate(rates) if j != i)

        assert law[i] == pytest.approx(integrate.quad(density, 0, np.inf, epsabs=1e-12)[0], abs=1e-9)
    assert law.sum() == pytest.approx(1, abs=1e-12)


def test_the_largest_of_scaled_exponentials_is_followed_too() -> None:
    """Argmax of E * w is a mistake that code makes: its law is that of the last clock."""
    w = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    law = induced_law(lambda: (torch.empty(3, dtype=torch.float64).exponential_() * w).argmax()).pmf
    assert law == pytest.approx(dict(enumerate(last_law(1 / w.numpy()))), abs=1e-12)


def _by_quadrature(before: np.ndarray, winner: int, rates: np.ndarray) -> np.ndarray:
    """The law of the second winner by integrating over the time of the first race, as an independent check.

    Given that time T, clock j rings in the second race at before_j T / r_j plus a fresh exponential of rate r_j, and the
    winner of the first at before_g T / r_g exactly.
    """
    total, n = before.sum(), len(rates)
    law = np.zeros(n)
    others = [k for k in range(n) if k != winner and rates[k] > 0]

    def survival(x: float, t: float, skip: int) -> float:
        return math.exp(-sum(max(rates[k] * x - before[k] * t, 0.0) for k in others if k != skip))

    for i in range(n):
        if rates[i] == 0:
            continue
        if i == winner:
            end = before[i] / rates[i]
            law[i] = integrate.quad(lambda t, e=end: total * math.exp(-total * t) * survival(e * t, t, -1), 0, np.inf)[0]
            continue
        limit = before[winner] / rates[winner] if rates[winner] > 0 else np.inf

        def given(t: float, i: int = i, limit: float = limit) -> float:
            start, stop = before[i] * t / rates[i], min(limit * t, before[i] * t / rates[i] + 60 / rates[i])
            if stop <= start:
                return 0.0
            kinks = sorted(before[k] * t / rates[k] for k in others if start < before[k] * t / rates[k] < stop)
            return integrate.quad(
                lambda x: rates[i] * math.exp(-(rates[i] * x - before[i] * t)) * survival(x, t, i),
                start,
                stop,
                points=kinks or None,
                limit=100,
            )[0]

        law[i] = integrate.quad(lambda t, g=given: total * math.exp(-total * t) * g(t), 0, 40 / total, limit=200)[0]
    return law


@pytest.mark.parametrize("seed", range(5))
def test_a_second_race_with_the_same_clocks_has_the_law_of_its_integral(seed: int) -> None:
    """The closed form agrees with quadrature over the time of the first race, with zeros on either side."""
    rng = np.random.default_rng(seed)
    before, rates = rng.integers(0, 4, 4).astype(float), rng.integers(0, 4, 4).astype(float)
    before[0], rates[-1] = before[0] or 1.0, rates[-1] or 1.0
    for winner in np.flatnonzero(before):
        law = again_law(before, int(winner), rates)
        assert law.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(law, _by_quadrature(before, int(winner), rates), atol=1e-7)


def test_a_second_race_at_the_same_rates_has_the_same_winner() -> None:
    """Nothing changed, so nothing changes; and clocks that did not run before are fresh."""
    rates = np.array([0.5, 0.2, 0.3])
    np.testing.assert_allclose(again_law(rates, 1, 3 * rates), [0, 1, 0], atol=1e-12)
    fresh = again_law(np.array([1.0, 0.0, 0.0]), 0, np.array([0.0, 0.4, 0.6]))
    np.testing.assert_allclose(fresh, first_law(np.array([0.0, 0.4, 0.6])), atol=1e-12)


def test_noise_used_twice_is_coupled_as_it_is() -> None:
    """The law of two choices with one noise agrees with a simulation, and its margins are the weights."""

    def code() -> tuple[Tensor, Tensor]:
        noise = exponential()
        return (W / noise).argmax(), (R / noise).argmax()

    law = induced_law(code).pmf
    rng = np.random.default_rng(1)
    clocks = rng.exponential(size=(400_000, 4))
    with np.errstate(divide="ignore"):
        first, second = (W.numpy() / clocks).argmax(1), (R.numpy() / clocks).argmax(1)
    for i, j in itertools.product(range(4), repeat=2):
        seen, p = float(((first == i) & (second == j)).mean()), law.get((i, j), 0.0)
        assert abs(seen - p) <= 5 * math.sqrt(p * (1 - p) / 400_000) + 1e-12
    for j in range(4):
        assert sum(p for (_, b), p in law.items() if b == j) == pytest.approx(float(R[j]), abs=1e-12)
    # The chance that both choose alike, as published for drafter-invariant coupling.
    alike = sum(1 / sum(max(W[y] / W[x], R[y] / R[x]) for y in range(4)) for x in range(4) if W[x] > 0 and R[x] > 0)
    assert sum(p for (i, j), p in law.items() if i == j) == pytest.approx(float(alike), abs=1e-12)


def test_noise_that_cannot_be_followed_is_refused() -> None:
    """A third race, races of products, shifted logarithms, coarse noise, and thresholds on raced noise are refused."""

    def thrice() -> tuple[Tensor, ...]:
        noise = exponential()
        return tuple((w / noise).argmax() for w in (W, R, W.flip(0)))

    def in_parts() -> tuple[Tensor, ...]:
        noise = exponential()
        all_of_it, left, right = (torch.tensor(w).double() for w in ([1.0, 1, 1, 1], [1.0, 2, 0, 0], [0.0, 0, 1, 2]))
        return tuple((w / noise).argmax() for w in (all_of_it, left, right))

    def compared() -> tuple[Tensor, Tensor]:
        noise = exponential()
        return (W / noise).argmax(), noise < 1

    def cut() -> tuple[Tensor, Tensor]:
        noise = exponential()
        below = noise < 1
        return below, (W / noise).argmax()

    refused: list[Callable[[], object]] = [
        thrice,
        in_parts,
        compared,
        cut,
        lambda: (W.log() - torch.log(-torch.log(torch.rand(4).double() + 1e-3))).argmax(),
        lambda: (W.bfloat16() / torch.empty(4, dtype=torch.bfloat16).exponential_()).argmax(),
        lambda: (W + exponential()).argmax(),
        lambda: (W * torch.rand(4).double()).argmax(),
        lambda: (exponential() - 1).argmax() if bool((W / exponential()).max() > 1) else 0,
    ]
    for code in refused:
        with pytest.raises(OpaqueRandomness):
            induced_law(code)


def test_a_token_whose_clock_was_a_coin_may_race_with_weight_0() -> None:
    """Noise that decided by a threshold and cannot win any more does no harm to the others."""

    def code() -> int:
        noise = exponential()
        if bool(noise[0] < 1):
            return 0
        weights = W.clone()
        weights[0] = 0
        return int((weights / noise).argmax())

    law = induced_law(code).pmf
    kept = math.exp(-1)
    assert law == pytest.approx({0: 1 - kept, 2: kept * 0.4, 3: kept * 0.6}, abs=1e-12)
