"""Every comparison of a uniform has the right law or is refused: against the same code run on a fine grid."""

from __future__ import annotations

import itertools
import math
import operator
import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law

GRID = 4001
"""Points at which the code is run for real; a law of one threshold is then known to 1/GRID."""
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.3, 2.5, -0.7, 1e-12, math.inf, -math.inf, math.nan)
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
MAPS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "u": lambda u, _c: u,
    "1-u": lambda u, _c: 1 - u,
    "u+c": lambda u, c: u + c,
    "c-u": lambda u, c: c - u,
    "u*c": lambda u, c: u * c,
    "u/c": lambda u, c: u / c,
    "c/u": lambda u, c: c / u,
    "-u": lambda u, _c: -u,
    "1/u": lambda u, _c: u.reciprocal(),
    "log": lambda u, _c: torch.log(u),
    "log1p": lambda u, _c: torch.log1p(-u),
    "exp": lambda u, _c: u.exp(),
    "min": lambda u, c: u.clamp(min=c),
    "max": lambda u, c: torch.clamp(u, max=c),
    "clip": lambda u, c: u.clip(0.2, c),
    "in place": lambda u, c: u.clone().mul_(c).add_(0.5).clamp_(-1.0, 1.0),
}


def on_a_grid(decision: Callable[[Tensor], Tensor]) -> float:
    """Share of an even grid of numbers in (0, 1) for which the decision is true, run with torch itself."""
    u = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    return float(decision(u).double().mean())


def exactly(decision: Callable[[Tensor], Tensor]) -> float:
    """Probability that the decision is true, by the exact engine."""
    law = induced_law(lambda: decision(torch.rand(1, dtype=torch.float64)))
    assert abs(law.mass - 1) < 1e-12
    return law.pmf.get((True,), 0.0)


@pytest.mark.parametrize("sign", COMPARISONS)
@pytest.mark.parametrize("threshold", SPECIAL)
def test_every_direction_and_threshold_of_a_plain_comparison_is_exact(sign: str, threshold: float) -> None:
    """A uniform is compared with any number, from either side, as real numbers are."""
    compare = COMPARISONS[sign]
    below = min(max(threshold, 0.0), 1.0)
    expected = 0.0 if math.isnan(threshold) else below if sign[0] == "<" else 1 - below
    assert exactly(lambda u: compare(u, threshold)) == pytest.approx(expected, abs=1e-12)
    assert exactly(lambda u: compare(u, torch.tensor([threshold], dtype=torch.float64))) == pytest.approx(expected, abs=1e-12)
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[sign]
    assert exactly(lambda u: COMPARISONS[turned](torch.tensor([threshold], dtype=torch.float64), u)) == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize("first", MAPS)
def test_chains_of_two_maps_are_exact_or_refused(first: str) -> None:
    """No chain of maps with zeros, signs, infinities and NaN among its constants has a wrong law."""
    rng = random.Random(first)
    followed = 0
    for second, sign in rng.sample(list(itertools.product(MAPS, COMPARISONS)), 30):
        a, b, t = (rng.choice(SPECIAL) for _ in range(3))

        def decision(u: Tensor, a: float = a, b: float = b, t: float = t, s: str = second, sign: str = sign) -> Tensor:
            return COMPARISONS[sign](MAPS[s](MAPS[first](u, a), b), t)

        try:
            law = exactly(decision)
        except OpaqueRandomness:
            continue
        followed += 1
        assert law == pytest.approx(on_a_grid(decision), abs=2 / GRID), f"{second} after {first}: {a}, {b} {sign} {t}"
    assert followed > 5


def test_chains_with_ordinary_constants_are_followed() -> None:
    """Chains of three maps with plain constants are exact, and seldom refused."""
    rng = random.Random(5)
    refused = 0
    for _ in range(80):
        names = [rng.choice(list(MAPS)) for _ in range(3)]
        constants = [rng.choice((0.25, 0.5, 2.0, 3.0)) for _ in range(3)]
        sign, t = rng.choice(list(COMPARISONS)), rng.uniform(-2, 3)

        def decision(
            u: Tensor, names: list[str] = names, constants: list[float] = constants, sign: str = sign, t: float = t
        ) -> Tensor:
            for name, c in zip(names, constants, strict=True):
                u = MAPS[name](u, c)
            return COMPARISONS[sign](u, t)

        try:
            law = exactly(decision)
        except OpaqueRandomness:
            refused += 1
            continue
        assert law == pytest.approx(on_a_grid(decision), abs=2 / GRID), f"{names} {constants} {sign} {t}"
    assert refused < 35


@pytest.mark.parametrize(
    "decision",
    [
        lambda u: torch.log(u - 0.5) < 0.1,
        lambda u: 1 / (u - 0.5) < 3,
        lambda u: (u - 0.9).reciprocal() > -2,
        lambda u: 2 / torch.log(u) < -1,
        lambda u: torch.log1p(-2 * u) < -0.1,
        lambda u: (u - 0.5).clamp(min=0) / 0 >= 3,
        lambda u: u / 0 * 0 < 1,
        lambda u: u / -0.0 < 1,
        lambda u: u * 1e-17 + 1 > 1,
        lambda u: torch.clamp(torch.tensor(0.3), u, 1.0) < 0.5,
    ],
)
def test_maps_that_are_not_monotone_are_exact_or_refused(decision: Callable[[Tensor], Tensor]) -> None:
    """Reciprocals and logarithms of numbers of both signs, 0/0 and lost digits are never taken for monotone maps."""
    try:
        law = exactly(decision)
    except OpaqueRandomness:
        return
    assert law == pytest.approx(on_a_grid(decision), abs=2 / GRID)


def test_acceptance_in_logarithms_with_zero_probabilities_is_exact() -> None:
    """Log u < log p - log q accepts with min(1, p/q), with 0 where p = 0, and always where q = 0 < p."""
    p, q = torch.tensor([0.0, 0.2, 0.5, 0.3]).double(), torch.tensor([0.4, 0.4, 0.2, 0.0]).double()
    for i, expected in enumerate((0.0, 0.5, 1.0, 1.0)):
        law = induced_law(lambda i=i: bool(torch.log(torch.rand(1).double()) < p[i].log() - q[i].log()))
        assert law.pmf.get(True, 0.0) == pytest.approx(expected, abs=1e-12)
        law = induced_law(lambda i=i: bool(torch.rand(()).double() * q[i] < p[i]))
        assert law.pmf.get(True, 0.0) == pytest.approx(expected, abs=1e-12)


def test_ties_at_the_bound_of_a_clamp_follow_the_strictness() -> None:
    """max(u, 1/2) equals 1/2 half of the time: <= sees it and < does not."""
    for compare, expected in ((operator.lt, 0.0), (operator.le, 0.5), (operator.gt, 0.5), (operator.ge, 1.0)):
        assert exactly(lambda u, c=compare: c(u.clamp(min=0.5), 0.5)) == pytest.approx(expected, abs=1e-12)
    for compare, expected in ((operator.lt, 0.5), (operator.le, 1.0), (operator.gt, 0.0), (operator.ge, 0.5)):
        assert exactly(lambda u, c=compare: c(u.clamp_max(0.5), 0.5)) == pytest.approx(expected, abs=1e-12)


def test_the_same_uniform_compared_again_remembers() -> None:
    """Three comparisons of one number split [0, 1) into its four intervals and nothing else."""

    def code() -> tuple[bool, ...]:
        u = torch.rand(1, dtype=torch.float64)
        return bool(u < 0.5), bool(1 - u > 0.8), bool(u.item() >= 0.7)

    law = induced_law(code)
    expected = {
        (True, True, False): 0.2,
        (True, False, False): 0.3,
        (False, False, False): 0.2,
        (False, False, True): 0.3,
    }
    assert law.pmf == pytest.approx(expected, abs=1e-12)


def test_a_uniform_spread_over_thresholds_is_one_number() -> None:
    """An expanded uniform below ascending thresholds gives an inverse distribution function."""
    cdf = torch.tensor([0.1, 0.1, 0.6, 1.0], dtype=torch.float64)
    expected = pytest.approx({0: 0.1, 2: 0.5, 3: 0.4}, abs=1e-12)
    codes: list[Callable[[], int]] = [
        lambda: int((torch.rand(1).double().expand(4) >= cdf).sum()),
        lambda: int((cdf > torch.rand(())).double().argmax()),
        lambda: int(torch.searchsorted(cdf, torch.rand(1).double())),
        lambda: int(torch.searchsorted(cdf, torch.rand(1).double(), right=True)),
        lambda: int(torch.searchsorted(3 * cdf, torch.rand(1).double() * 3.0)),
        lambda: int(torch.bucketize(torch.rand(1).double(), cdf)),
        lambda: int(torch.searchsorted(cdf.expand(2, 4), torch.rand(2, 1).double())[1, 0]),
    ]
    for code in codes:
        assert induced_law(code).pmf == expected


def test_shapes_and_indices_keep_each_number_apart() -> None:
    """Every way of picking elements of a (2, 3) draw sees the same six independent numbers."""
    t = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]).double()
    picks: list[Callable[[Tensor], Tensor]] = [
        lambda u: u,
        lambda u: u.T.T,
        lambda u: u.reshape(-1).view(2, 3),
        lambda u: torch.stack(list(u)),
        lambda u: torch.cat([u[:1], u[1:]]),
        lambda u: u[torch.tensor([0, 1])],
        lambda u: u[torch.ones(2, 3).bool()].view(2, 3),
        lambda u: u.gather(1, torch.arange(3).expand(2, 3)),
        lambda u: u.flip(0).flip(0),
        lambda u: u[None].squeeze(0),
        lambda u: torch.stack(u.unbind(1), 1),
        lambda u: torch.cat(u.chunk(3, 1), 1),
        lambda u: (u * 2)[:, [0, 1, 2]] / 2,
        lambda u: u.to(torch.float64).clone().detach().contiguous(),
        lambda u: u.index_select(0, torch.tensor([0, 1])),
        lambda u: torch.stack([torch.stack([u[i, j] for j in range(len(u[i]))]) for i in range(u.size(0))]),
    ]
    want = induced_law(lambda: tuple(tuple(bool(torch.rand(()) < t[i, j]) for j in range(3)) for i in range(2))).pmf
    for pick in picks:
        got = induced_law(lambda pick=pick: pick(torch.rand(2, 3, dtype=torch.float64)) < t).pmf
        assert got == pytest.approx(want, abs=1e-12)


def test_broadcast_products_may_be_viewed_flat() -> None:
    """The product of a column of uniforms and a row of numbers is an ordinary contiguous tensor."""
    law = induced_law(lambda: ((torch.rand(2, 1).double() * torch.tensor([1.0, 2.0]).double()).view(-1) < 0.5).view(2, 2))
    one = {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert law.pmf == pytest.approx({(a, b): one[a] * one[b] for a in one for b in one}, abs=1e-12)


def _changed_through_a_view(change: Callable[[Tensor], object]) -> Callable[[], bool]:
    def code() -> bool:
        u = torch.rand(2, 2, dtype=torch.float64)
        change(u)
        return bool(u[0, 0] < 0.25)

    return code


@pytest.mark.parametrize(
    "change",
    [
        lambda u: u[0].mul_(0.5),
        lambda u: u.view(-1).mul_(0.5),
        lambda u: u.data.mul_(0.5),
        lambda u: u.detach().mul_(0.5),
        lambda u: u.T.mul_(0.5),
        lambda u: u.double().mul_(0.5),
        lambda u: [row.mul_(0.5) for row in u],
        lambda u: u.contiguous().clamp_(min=0.3),
        lambda u: u.expand(3, 2, 2)[0].mul_(0.5),
    ],
)
def test_changes_through_a_view_reach_the_number_or_are_refused(change: Callable[[Tensor], object]) -> None:
    """In-place operations on a view change what it views; an engine that cannot follow this says so."""
    with pytest.raises(OpaqueRandomness):
        induced_law(_changed_through_a_view(change))


def test_changes_in_place_of_a_tensor_of_its_own_are_followed() -> None:
    """mul_, add_, clamp_, log_ and augmented assignment act as their plain forms do."""

    def code() -> Tensor:
        u = torch.rand(3, dtype=torch.float64)
        u *= 2
        u += 1
        u -= 1
        u /= 4
        u.clamp_(max=0.4).log_()
        return u < math.log(0.2)

    assert induced_law(code).pmf[(True, True, True)] == pytest.approx(0.4**3, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threshold", [0.0, 2.0**-5, 0.123, 0.3, 0.5, 0.75, 0.999])
def test_low_precision_uniforms_are_as_coarse_as_torch_makes_them(dtype: torch.dtype, threshold: float) -> None:
    """The law of a coarse uniform is that of all float32 uniforms rounded, of which those that become 1 become 0."""
    grid = (torch.arange(2**24) / 2**24).to(dtype).float()
    grid = torch.where(grid == 1, 0.0, grid)
    for name, compare in COMPARISONS.items():
        law = induced_law(lambda c=compare: bool(c(torch.rand((), dtype=dtype).float(), threshold))).pmf
        assert law.get(True, 0.0) == pytest.approx(float(compare(grid, threshold).double().mean()), abs=1e-6), name


def test_uniforms_of_32_bits_are_taken_as_real_numbers() -> None:
    """Their steps of 2**-24 are below every tolerance."""
    law = induced_law(lambda: bool(torch.rand((), dtype=torch.float32) < 0.3)).pmf
    assert law[True] == pytest.approx(0.3, abs=1e-7)


def test_item_and_tolist_give_numbers_that_compare() -> None:
    """Numbers taken out of a tensor shift, scale, divide and compare like floats, against tensors too."""
    codes: list[Callable[[], object]] = [
        lambda: 1 - torch.rand(()).item() <= 0.25,
        lambda: torch.rand(2).tolist()[1] < 0.25,
        lambda: 1 / torch.rand(1).item() > 4,
        lambda: -torch.rand(()).item() * 2 + 1 > 0.5,
        lambda: torch.rand(()).item() / 2 < 0.125,
        lambda: bool((torch.tensor([0.25]).double() > torch.rand(()).item())[0]),
    ]
    for code in codes:
        assert induced_law(code).pmf == pytest.approx({True: 0.25, False: 0.75}, abs=1e-12)


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "float": lambda u: float(u[0]),
    "int": lambda u: int(u[0] * 5),
    "bool": lambda u: bool(u[0]),
    "two": lambda u: u[0] < u[1],
    "sum": lambda u: u.sum(),
    "product": lambda u: u[0] * u[1],
    "eq": lambda u: u == 0.5,
    "numpy": lambda u: u.numpy(),
    "two items": lambda u: u[0].item() < u[1].item(),
    "item to float": lambda u: float(u[0].item()),
    "item as index": lambda u: [1, 2][u[0].item()],
    "item equality": lambda u: u[0].item() == 0.5,
    "item in a set": lambda u: {u[0].item()},
    "item written": lambda u: torch.zeros(2).__setitem__(0, u[0].item()),
    "alpha": lambda u: torch.add(u, 1, alpha=2) < 1,
    "lt_": lambda u: u.lt_(0.5),
    "unsorted": lambda u: torch.searchsorted(torch.tensor([0.9, 0.1]), u),
    "join": lambda u: torch.cat([u, torch.zeros(1)]) < 0.5,
    "returned": lambda u: u,
    "item returned": lambda u: u[0].item(),
    "type": lambda u: u.type("torch.LongTensor"),
    "index": lambda u: torch.arange(2)[u],
    "list of items sorted": lambda u: sorted(u.tolist()),
    "round": lambda u: round(u[0].item()),
    "range": lambda u: list(range(u[0].item())),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    """Uses of random numbers that have no finite law here raise OpaqueRandomness, never an answer or another error."""
    with pytest.raises(OpaqueRandomness):
        induced_law(lambda: REFUSED[name](torch.rand(2)))


def test_stand_ins_inside_vmap_and_compiled_code_are_refusals_not_crashes() -> None:
    """Errors that only the stand-in for a random tensor causes are not blamed on the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        below = torch.jit.trace(lambda u: u < 0.5, torch.ones(1))
    for code in (
        lambda: below(torch.rand(1)),
        lambda: torch.vmap(torch.bernoulli, randomness="different")(torch.ones(2) / 2),
        lambda: torch.rand(2) < np.array([0.25, 0.5]),
    ):
        with pytest.raises(OpaqueRandomness):
            induced_law(code)


def test_a_refusal_that_the_code_catches_is_still_a_refusal() -> None:
    """Code that catches every exception does not turn a refusal into a law."""
    for convert in (float, lambda u: float(u.item()), lambda u: u.sum(), lambda u: torch.poisson(torch.ones(1))):

        def code(convert: Callable[[Tensor], object] = convert) -> object:
            try:
                return bool(convert(torch.rand(1)) < 0.5)
            except Exception:
                return "swallowed"

        with pytest.raises(OpaqueRandomness):
            induced_law(code)


def test_a_refusal_names_the_operation_and_the_line() -> None:
    """The message says which operation met a random number, and in which file."""
    with pytest.raises(OpaqueRandomness, match=r"cumsum.*test_engine_comparisons\.py:\d+"):
        induced_law(lambda: torch.rand(2).cumsum(0) < 0.5)
