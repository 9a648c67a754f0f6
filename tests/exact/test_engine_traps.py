"""Code that once got a wrong law, or would with a careless engine: the law is right, or the code is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law

RNG = np.random.default_rng(11)
IMPORTED = np.random.random


def _rows(first: Callable[[Tensor], object], second: Callable[[Tensor], object]) -> Tensor:
    rows = torch.empty(2, 3)
    first(rows[0])
    second(rows[1])
    return rows


def _copied() -> tuple[bool, bool]:
    b = torch.empty(2)
    b.uniform_()
    b[0] = 0.9995
    c = torch.empty(2)
    c.copy_(b)
    return bool(c[0] > 0.999), bool(c[1] < 0.5)


def _after_assignment() -> bool:
    u = torch.rand(2)
    u[0] = 0.7
    return bool((u <= torch.tensor([0.7, 0.7]))[0])


def _masked(value: float, mask: bool = True) -> Tensor:
    return torch.rand(2).masked_fill(torch.tensor([mask, False]), value)


def _filled_then_set() -> bool:
    b = torch.empty(2).uniform_()
    b[0] = 0.7
    return bool((b < 0.7)[0])


TRUE: dict[str, tuple[Callable[[], object], float]] = {
    "a second row of another kind": (lambda: bool(_rows(Tensor.uniform_, Tensor.exponential_)[0, 0] < 0.5), 0.5),
    "a second row of another rate": (
        lambda: bool(_rows(lambda r: r.exponential_(1.0), lambda r: r.exponential_(4.0))[0, 0] < 0.5),
        1 - math.exp(-0.5),
    ),
    "a second row of another range": (
        lambda: bool(_rows(lambda r: r.uniform_(0, 1), lambda r: r.uniform_(0, 4))[0, 0] < 0.5),
        0.5,
    ),
    "a clamp met by a tensor": (lambda: bool(torch.rand(1).clamp(max=0.7) <= torch.tensor([0.7])), 1.0),
    "a clamp from below": (lambda: bool(torch.rand(1).clamp(min=0.1) < torch.tensor([0.1])), 0.0),
    "maximum": (lambda: bool(torch.maximum(torch.rand(1), torch.full((1,), 0.3)) <= 0.3), 0.3),
    "masked_fill": (lambda: bool((_masked(0.1) < torch.tensor([0.1, 0.1]))[0]), 0.0),
    "masked_fill, then divided": (lambda: bool((_masked(0.3) / torch.tensor([0.5, 0.5]) >= torch.tensor([0.6, 0.6]))[0]), 1.0),
    "where": (lambda: bool(torch.where(torch.tensor([False]), torch.rand(1), 0.7) <= torch.tensor([0.7])), 1.0),
    "where of a plain tensor": (
        lambda: bool(torch.full((2,), 0.7).where(torch.tensor([True, False]), torch.rand(2))[1] < 0.3),
        0.3,
    ),
    "where of a random tensor": (
        lambda: bool(torch.rand(2).where(torch.tensor([True, False]), torch.tensor(0.7))[1] <= 0.7),
        1.0,
    ),
    "assignment": (_after_assignment, 1.0),
    "assignment into a filled tensor": (_filled_then_set, 0.0),
    "nothing left of it": (lambda: bool(torch.rand(1) * 0 + 0.7 <= torch.tensor([0.7])), 1.0),
    "randint high=": (lambda: bool(torch.randint(2, high=5, size=(1,)) >= 2), 1.0),
    "endpoint by position": (lambda: bool(RNG.integers(0, 2, None, np.int64, True) == 2), 1 / 3),
    "a race of logarithms": (lambda: bool((torch.tensor([0.5, 0.5]) / torch.empty(2).exponential_()).log().argmax() == 0), 0.5),
    "a generator with a drawn seed": (lambda: bool(np.random.default_rng(RNG.integers(2**40)).random() < 0.25), 0.25),
}


@pytest.mark.parametrize("name", TRUE)
def test_the_law_is_that_of_the_code(name: str) -> None:
    """The probability that the code says True is the one worked out by hand."""
    code, right = TRUE[name]
    assert induced_law(code).pmf.get(True, 0.0) == pytest.approx(right, abs=1e-6)


def test_what_was_copied_keeps_its_ordinary_numbers() -> None:
    """A copy of a partly random tensor is random where the original is, and nowhere else."""
    assert induced_law(_copied).pmf == pytest.approx({(True, True): 0.5, (True, False): 0.5}, abs=1e-9)


COARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "scalar": lambda u: u < 0.7,
    "at most a scalar": lambda u: u <= 0.3,
    "a number without dimensions": lambda u: u < torch.tensor(0.6999),
    "a product": lambda u: u * torch.tensor([0.7], dtype=torch.bfloat16) < torch.tensor([0.3], dtype=torch.bfloat16),
    "a sum": lambda u: u + 1 <= 1.0,
    "below zero": lambda u: u - 1 < -0.3,
    "a difference": lambda u: 1 - u <= 0.3,
}


@pytest.mark.parametrize("name", COARSE)
def test_bfloat16_is_rounded_after_every_operation(name: str) -> None:
    """The law is that of all bfloat16 uniforms, each weighed by the float32 uniforms that become it."""
    grid = (torch.arange(2**24) / 2**24).to(torch.bfloat16)
    grid = torch.where(grid == 1, 0.0, grid)
    right = float(COARSE[name](grid).double().mean())
    law = induced_law(lambda: bool(COARSE[name](torch.rand(1, dtype=torch.bfloat16)))).pmf
    assert law.get(True, 0.0) == pytest.approx(right, abs=1e-6)


def _swallowed(code: Callable[[], object]) -> object:
    try:
        return code()
    except Exception:
        return None


def _shuffled() -> tuple[bool, tuple[int, ...]]:
    u, x = np.random.random(), [0, 1, 2]
    np.random.shuffle(x)
    return bool(u < 0.5), tuple(x)


def _put_back() -> bool:
    state = np.random.get_state()
    a = IMPORTED()
    np.random.set_state(state)
    return bool(a < 0.5)


def _forked() -> bool:
    with torch.random.fork_rng(devices=[]):
        out = torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 4, 4)] * 3, dropout_p=0.5)
    return bool(out.sum() > 16)


def _relaid() -> tuple[bool, bool]:
    g = torch.Generator().manual_seed(5)
    a = torch.rand(3, 2, generator=g)
    g.manual_seed(5)
    b = torch.empty(2, 3).t()
    b.uniform_(generator=g)
    return bool(a[0, 1] < 0.5), bool(b[0, 1] < 0.5)


def _out() -> bool:
    numbers = np.zeros(2)
    RNG.random(out=numbers)
    return bool(numbers[0] < 1e-3)


class _Box:
    generator = np.random.default_rng(2)


def _rarely(box: type[_Box]) -> int:
    weights = torch.cat([torch.tensor([0.5, 0.3]), torch.full((62,), 0.2 / 62)])
    return int(box.generator.random() < 0.5) if int(torch.multinomial(weights, 1)) == 1 else 2


def _twice() -> Tensor:
    return torch.tensor([0.3, math.nan, 0.5]).double() / torch.empty(3, dtype=torch.float64).exponential_()


REFUSED: dict[str, Callable[[], object]] = {
    "randint out": lambda: torch.randint(0, 3, (1,), out=torch.zeros(1, dtype=torch.int64)),
    "randperm out": lambda: torch.randperm(3, out=torch.zeros(3, dtype=torch.int64)),
    "normal out": lambda: torch.normal(torch.zeros(1), torch.ones(1), out=torch.zeros(1)) < 0.5,
    "numpy out": _out,
    "a shuffle after a draw": _shuffled,
    "a binomial after a draw": lambda: (np.random.random() < 0.5, np.random.binomial(1, 0.5)),
    "a method of a generator after a draw": lambda: (RNG.random() < 0.5, RNG.binomial(1, 0.5)),
    "a function imported by name after a draw": lambda: (np.random.rand() < 0.5, IMPORTED() < 0.5),
    "a state that is put back": _put_back,
    "a draw inside a forked stream": _forked,
    "a swallowed refusal of a number": lambda: _swallowed(lambda: int((random.random() - 0.5) * 1e9) > 0),
    "a swallowed refusal of an array": lambda: _swallowed(lambda: int((np.random.random(3) * np.array([1.0, 2, 3])).argmax())),
    "the bits of a number": lambda: torch.rand(2).view(torch.int32)[0] > 0x3F000000,
    "the bits of a filled tensor": lambda: torch.empty(1).uniform_().view(torch.int32)[0] > 0x3F000000,
    "a uniform from a large integer": lambda: random.getrandbits(53) * 2.0**-53 < 0.005,
    "the hash of a seed": lambda: hash(random.getrandbits(40)) % 251 == 0,
    "the complement of a seed": lambda: ~random.getrandbits(40) % 251 == 0,
    "streams of which some share a seed": lambda: (
        torch.rand(1, generator=torch.Generator().manual_seed(random.getrandbits(40) & (1 << 16))) < 0.5
    ),
    "the data of seeds": lambda: torch.randint(0, 2**31, (1,)).data % 251 == 0,
    "bytes": lambda: random.randbytes(8)[0] == 0,
    "a filled number in a full tensor": lambda: torch.full_like(torch.zeros(2), torch.empty(1).uniform_()[0]) < 1e-3,
    "numbers handed out in another order": _relaid,
    "a rare draw elsewhere": lambda: _rarely(_Box),
    "the order of NaN": lambda: _twice().sort().indices,
    "the least with NaN": lambda: _twice().topk(1, largest=False).indices,
    "the order of tokens that cannot win": lambda: (
        (torch.tensor([0.0, -math.inf, -math.inf]).double() - torch.empty(3).double().exponential_().log()).topk(2).indices
    ),
    "a range too large for a list": lambda: RNG.integers(0, 2**40, size=2) % 2,
    "float16 beyond its range": lambda: (torch.rand(1) * 1e5).half() < 1e5,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_never_given_a_law(name: str) -> None:
    """Each of these is refused, however the code hides it."""
    with pytest.raises(OpaqueRandomness):
        induced_law(REFUSED[name])


def test_a_list_of_filled_numbers_is_a_tensor_of_them() -> None:
    """torch.tensor of elements of a filled tensor keeps the numbers."""

    def code() -> Tensor:
        b = torch.empty(2, dtype=torch.float64).uniform_()
        return torch.tensor([b[0], b[1]]) < torch.tensor([0.25, 0.5])

    assert induced_law(code).pmf[(True, True)] == pytest.approx(0.125, abs=1e-7)


def test_numbers_with_and_without_constants_can_be_joined() -> None:
    """Parts that were masked differently are one tensor afterwards."""

    def code() -> Tensor:
        parts = [torch.rand(2).double().masked_fill(torch.tensor([m, False]), 0.0) for m in (True, False)]
        return torch.cat(parts) < 0.5

    law = induced_law(code).pmf
    assert all(outcome[0] for outcome in law)
    assert law[(True, True, True, True)] == pytest.approx(0.125, abs=1e-12)
