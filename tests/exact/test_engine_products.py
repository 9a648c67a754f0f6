"""Are products of uniforms followed exactly? Closed forms of their laws, every way to multiply, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law, verifier_emission
from specverify.faults import block
from specverify.pairs import named_pair
from specverify.subjects import Facts, Verifier

THRESHOLDS = (0.7, 0.35, 0.1)


def below(n: int, t: float) -> float:
    """P(u_1 ... u_n < t) = t sum_{k<n} (-log t)^k / k!."""
    return t * sum((-math.log(t)) ** k / math.factorial(k) for k in range(n))


def cumprod() -> Any:
    """At once."""
    return torch.rand(3, dtype=torch.float64).cumprod(0) < torch.tensor(THRESHOLDS, dtype=torch.float64)


def by_logarithms() -> Any:
    """As a sum of logarithms."""
    return torch.rand(3).log().cumsum(0) < torch.tensor(THRESHOLDS).log()


def loop_of_tensors() -> Any:
    """One factor after the other."""
    product, out = torch.ones(()), []
    for t in THRESHOLDS:
        product = product * torch.rand(())
        out.append(bool(product < t))
    return out


def loop_of_numbers() -> Any:
    """As Python floats."""
    product, out = 1.0, []
    for t in THRESHOLDS:
        product *= torch.rand(()).item()
        out.append(product < t)
    return out


def scaled_in_place() -> Any:
    """With factors of its own, along a dimension that was moved."""
    u = torch.rand(3, 1).movedim(0, 1) * 2
    u /= 4
    return (u.cumprod(1)[0] * torch.tensor([2.0, 4.0, 8.0]) < torch.tensor(THRESHOLDS)).tolist()


WAYS: tuple[Callable[[], Any], ...] = (cumprod, by_logarithms, loop_of_tensors, loop_of_numbers, scaled_in_place)


def joint_law() -> dict[tuple[bool, ...], float]:
    """Law of (u1 < a, u1 u2 < b, u1 u2 u3 < c) for a > b > c, by integrating over u1 and u2 with closed antiderivatives."""
    a, b, c = THRESHOLDS

    # With x = u1, y = u1 u2: x has density 1, y given x has density 1/x on [0, x], P(u3 y < c) = min(1, c / y).
    def inner(low: float, high: float, x: float) -> tuple[float, float]:
        """Mass of y in [low, high) given x, and the part of it with the last product below c."""
        low, high = min(low, x), min(high, x)
        mass = (high - low) / x
        sure = (min(high, c) - min(low, c)) / x
        rest = c / x * math.log(max(high, c) / max(low, c))
        return mass, sure + rest

    law = dict.fromkeys(itertools.product((True, False), repeat=3), 0.0)
    places, gauss = np.polynomial.legendre.leggauss(20)
    nodes, weights = ((places + 1) / 2).tolist(), (gauss / 2).tolist()
    kinks = [0.0, c, b, a, 1.0]
    for start, end in itertools.pairwise(kinks):
        pieces = 60
        edges = [start + (end - start) * (i / pieces) ** 3 for i in range(pieces + 1)]
        for left, right in itertools.pairwise(edges):
            for node, weight in zip(nodes, weights, strict=True):
                x = left + (right - left) * node
                for second, (low, high) in ((True, (0.0, b)), (False, (b, 1.0))):
                    mass, last = inner(low, high, x)
                    law[(x < a, second, True)] += weight * (right - left) * last
                    law[(x < a, second, False)] += weight * (right - left) * (mass - last)
    return law


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_multiply_has_the_joint_law(way: Callable[[], Any]) -> None:
    """The joint law of three running products, found by quadrature over the first."""
    expected = joint_law()
    assert math.isclose(sum(expected.values()), 1, abs_tol=1e-9)
    found = induced_law(way).pmf
    for outcome, mass in expected.items():
        assert abs(found.get(outcome, 0.0) - mass) < 1e-6, outcome  # float32 thresholds


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("t", [0.5, 0.03, 0.999, 1e-6])
def test_a_whole_product_has_its_closed_form(n: int, t: float) -> None:
    """Of up to six factors, down to thresholds of 1e-6."""
    found = induced_law(lambda: bool(torch.rand(n, dtype=torch.float64).prod() < t)).pmf
    assert math.isclose(found[True], below(n, t), rel_tol=1e-12)
    logs = induced_law(lambda: bool(torch.rand(2, n).log().sum(1)[1] >= math.log(t))).pmf
    assert math.isclose(logs[False], below(n, t), rel_tol=1e-6)


def test_what_was_known_of_the_first_factor_stays_known() -> None:
    """U < 1/2 and then u v < 1/4: P = P(u < 1/4) + E[1/(4u); 1/4 <= u < 1/2]."""

    def code() -> tuple[bool, bool]:
        u = torch.rand((), dtype=torch.float64)
        first = bool(u < 0.5)
        return first, bool(u * torch.rand((), dtype=torch.float64) < 0.25)

    found = induced_law(code).pmf
    assert math.isclose(found[True, True], 0.25 + math.log(2) / 4, rel_tol=1e-12)
    assert math.isclose(found[True, False], 0.25 - math.log(2) / 4, rel_tol=1e-12)
    assert math.isclose(found[False, True], math.log(2) / 4, rel_tol=1e-12)


def test_the_same_comparison_twice_has_one_answer() -> None:
    """What was decided of a product stays decided after a longer one was compared."""

    def code() -> bool:
        v = torch.rand(3).cumprod(0)
        first = v < 0.3
        return bool(((v < 0.3) == first).all())

    assert induced_law(code).pmf == {True: pytest.approx(1)}


def _itself() -> bool:
    u = torch.rand(())
    return bool(u * u < 0.5)


def _alone_afterwards() -> bool:
    u = torch.rand(2)
    return bool(u.prod() < 0.5) and bool(u[1] < 0.5)


def _shorter_afterwards() -> bool:
    v = torch.rand(2).cumprod(0)
    return bool(v[1] < 0.5) and bool(v[0] < 0.6)


def _two_branches() -> bool:
    u = torch.rand(3)
    return bool(u[0] * u[1] < 0.5) and bool(u[0] * u[2] < 0.5)


def _branch_of_a_running_product() -> bool:
    v = torch.rand(3).cumprod(0)
    return bool(v[1] * torch.rand(()) < 0.5) and bool(v[2] < 0.3)


def _one_minus() -> bool:
    return bool((1 - torch.rand(2)).prod() < 0.5)


def _race_of_factors() -> int:
    u = torch.rand(2)
    low = bool(u.prod() < 0.5)
    return int(u.log().argmax()) + 2 * low


def _sum() -> bool:
    return bool(torch.rand(2).sum() < 0.5)


def _searched() -> int:
    return int(torch.searchsorted(torch.tensor([0.2, 0.6]), torch.rand(2).cumprod(0))[1])


@pytest.mark.parametrize(
    "code",
    [
        _itself,
        _alone_afterwards,
        _shorter_afterwards,
        _two_branches,
        _branch_of_a_running_product,
        _one_minus,
        _race_of_factors,
        _sum,
        _searched,
    ],
)
def test_what_has_no_such_law_is_refused(code: Callable[[], Any]) -> None:
    """With the line, never with a law of numbers taken for fresh."""
    with pytest.raises(OpaqueRandomness, match=r"test_engine_products\.py"):
        induced_law(code)


def test_products_over_many_rows_are_those_of_each_row() -> None:
    """The block rule with products of uniforms (C14): the vectorised walk agrees with one row at a time, and is wrong."""
    pair = named_pair(3, 3)
    packed = verifier_emission(Verifier("products", block.products_of_uniforms), pair)

    def one(tokens: Any, q: Any, p: Any) -> Any:
        rho = p[0, range(3), tokens[0]] / q[0, range(3), tokens[0]]
        accepted, product, bound = 0, 1.0, 1.0
        for i in range(3):
            product, bound = product * torch.rand(()).item(), bound * float(rho[i])
            accepted = i + 1 if product <= bound else accepted
        rest = p[0, 3] if accepted == 3 else (p[0, accepted] - q[0, accepted]).clamp(min=0)
        rest = rest if rest.sum() > 0 else p[0, accepted]
        return [[*tokens[0, :accepted].tolist(), int(torch.multinomial(rest, 1))]]

    alone = verifier_emission(Verifier("one", one, Facts(max_batch=1)), pair)
    assert packed.calls < alone.calls
    for tokens in {*packed.tokens, *alone.tokens}:
        assert math.isclose(packed.tokens.get(tokens, 0), alone.tokens.get(tokens, 0), abs_tol=1e-12)
