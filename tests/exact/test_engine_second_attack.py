"""Code that got a wrong law from an engine that had passed a first attack: the law is right now, or the code is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law

BF16 = torch.bfloat16
W = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
TABLE = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)


def clocks(like: Tensor) -> Tensor:
    """Fresh exponentials."""
    return torch.empty_like(like).exponential_()


def _until_high(c: float) -> int:
    n = 0
    while torch.rand((), dtype=torch.float64) < c:
        n += 1
    return min(n, 2)


def _redrawn() -> int:
    while True:
        x = int(torch.randint(0, 3, (1,)))
        if x:
            return x


def _after_copy() -> bool:
    u = torch.rand(2, dtype=torch.float64)
    v = torch.tensor(u)
    v[0] = 0.1
    return bool(u[0] < 0.3)


def _after_numpy_copy() -> bool:
    u = np.random.random(2)
    v = torch.tensor(u)
    v.mul_(0.5)
    return bool(u[0] < 0.3)


def _into(buffer: Callable[[Tensor, Tensor], Any]) -> bool:
    b = torch.empty(1, dtype=BF16)
    buffer(b, torch.rand(1, dtype=torch.float64))
    return bool(b <= 0.5)


RIGHT: dict[str, tuple[Callable[[], Any], dict[Any, float]]] = {
    "argmin of minus u^(1/w)": (lambda: int((-(torch.rand(3).double() ** (1 / W))).argmin()), dict(enumerate(W.tolist()))),
    "argmin of 1 - u^(1/w)": (lambda: int((1 - torch.rand(3).double() ** (1 / W)).argmin()), dict(enumerate(W.tolist()))),
    "largest of minus u^(1/w), last": (
        lambda: int((-(torch.rand(2).double() ** (1 / W[:2]))).argmax()),
        {0: 1 - 0.5 / 0.8, 1: 0.5 / 0.8},
    ),
    "noise of scale 0": (lambda: int((torch.tensor([1.0, 2.0]) - 0.0 * clocks(W[:2]).log()).argmax()), {1: 1.0}),
    "uniforms times 0": (lambda: int((torch.rand(3) * 0).argmax()), {0: 1.0}),
    "clocks to the power of 0": (lambda: int((W * clocks(W) ** 0).argmin()), {2: 1.0}),
    "argmax along an axis": (
        lambda: tuple((TABLE / clocks(TABLE)).argmax(axis=-1).tolist()),
        {(0, 0): 0.09, (0, 1): 0.81, (1, 0): 0.01, (1, 1): 0.09},
    ),
    "keepdims": (lambda: tuple((W / clocks(W)).argmax(dim=-1, keepdims=True).tolist()), {(0,): 0.5, (1,): 0.3, (2,): 0.2}),
    "keepdim without dim": (lambda: tuple((W / clocks(W)).argmax(keepdim=True).shape), {(1,): 1.0}),
    "sorted along an axis": (
        lambda: tuple(torch.argsort(torch.rand(2, 2), axis=0)[:, 0].tolist()),
        {(0, 1): 0.5, (1, 0): 0.5},
    ),
    "bfloat16 searched from the left": (
        lambda: int(torch.searchsorted(torch.tensor([0.25, 0.5, 0.75], dtype=BF16), torch.rand(1, dtype=BF16))),
        {0: 0.2529296875, 1: 0.2509765625, 2: 0.25, 3: 0.24609375},
    ),
    "copied into bfloat16": (lambda: _into(Tensor.copy_), {True: 0.501953125, False: 0.498046875}),
    "assigned to bfloat16": (
        lambda: _into(lambda b, u: b.__setitem__(slice(None), u)),
        {True: 0.501953125, False: 0.498046875},
    ),
    "a Python number under a bfloat16 one": (
        lambda: bool(random.random() < torch.tensor(0.3, dtype=BF16)),
        {True: 0.2998046875, False: 0.7001953125},
    ),
    "a copy by torch.tensor": (_after_copy, {True: 0.3, False: 0.7}),
    "a copy of an array by torch.tensor": (_after_numpy_copy, {True: 0.3, False: 0.7}),
    "asked whether it is an array": (
        lambda: int(u[0] < 0.3) if isinstance(u := np.random.random(2), np.ndarray) else 9,
        {0: 0.7, 1: 0.3},
    ),
    "asked whether it is a float": (
        lambda: int(u < 0.3) if isinstance(u := random.random(), float) else 9,
        {0: 0.7, 1: 0.3},
    ),
    "an array squeezed along an axis": (lambda: np.shape(np.squeeze(np.random.random((1, 1)), axis=0)), {(1,): 1.0}),
    "an array from behind": (lambda: bool(np.random.random(3)[::-1][0] < 0.3), {True: 0.3, False: 0.7}),
    "an array with a list": (
        lambda: tuple((np.random.random(2) < [0.3, 0.6]).tolist()),
        {(True, True): 0.18, (True, False): 0.12, (False, True): 0.42, (False, False): 0.28},
    ),
    "order of all of an array": (
        lambda: int(np.argsort(np.random.random((1, 2)), axis=None)[0]),
        {0: 0.5, 1: 0.5},
    ),
    "coins of an integer tensor": (
        lambda: int(torch.bernoulli(torch.zeros(1, dtype=torch.int64), 0.3)),
        {0: 0.7, 1: 0.3},
    ),
    "a filled tensor transposed in place": (
        lambda: bool(torch.empty(2, 3).uniform_().t_()[2, 1] < 0.5),
        {True: 0.5, False: 0.5},
    ),
    "a loop that goes on while a number is low": (lambda: _until_high(0.5), {0: 0.5, 1: 0.25, 2: 0.25}),
    "a loop that redraws an integer": (_redrawn, {1: 0.5, 2: 0.5}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_law_is_that_of_the_code(name: str) -> None:
    """Against the closed form, or the enumeration of the coarse grid."""
    code, expected = RIGHT[name]
    found = induced_law(code).pmf
    for outcome in {*found, *expected}:
        assert abs(found.get(outcome, 0.0) - expected.get(outcome, 0.0)) < 1e-6, (outcome, found)


def _caught(code: Callable[[], Any]) -> Callable[[], Any]:
    def guarded() -> Any:
        try:
            return code()
        except Exception:
            return 7

    return guarded


def _assigned() -> int:
    b = torch.zeros(2)
    b[0] = torch.rand(1).item()
    return int(b[0] < 0.3)


def _reseeded() -> bool:
    one = torch.ones(1, 1, 1)
    x = torch.nn.functional.scaled_dot_product_attention(one, one, one, dropout_p=1e-9)  # so rare that no walk shows it
    torch.seed()
    return bool(x == 0)


def _memory() -> bool:
    n = np.zeros(2)
    torch.from_numpy(n).uniform_()
    return bool((n < 0.002).any())


def _least_then_largest(noise: Callable[[], Tensor]) -> Callable[[], Any]:
    def code() -> tuple[int, int]:
        u = noise()
        return int(u.argmin()), int(u.argmax())

    return code


REFUSED: dict[str, Callable[[], Any]] = {
    "least, then largest uniform": _least_then_largest(lambda: torch.rand(3)),
    "least, then largest exponential": _least_then_largest(lambda: clocks(W)),
    "powers shifted differently": lambda: int((torch.rand(3).double() ** (1 / W) + torch.tensor([0, 0.5, 0])).argmax()),
    "uniforms over 0": lambda: int((torch.rand(3) / 0).argmax()),
    "clamped and searched from the left": lambda: int(
        torch.searchsorted(torch.tensor([0.3, 0.6]), torch.rand(1).clamp(max=0.6))
    ),
    "bfloat16 times what it does not hold": lambda: bool(torch.rand((), dtype=BF16) * 0.9 < 0.54),
    "log1p of bfloat16": lambda: bool(torch.rand((), dtype=BF16).log1p() < 0.3),
    "bfloat16 between other ends": lambda: bool(torch.empty((), dtype=BF16).uniform_(0.3, 0.9) <= 0.5),
    "a Python number times a bfloat16 one": lambda: bool(random.random() * torch.tensor(0.7, dtype=BF16) < 0.35),
    "a draw under vmap": lambda: tuple(
        torch.vmap(lambda x: x + (torch.rand(()) < 0.5), randomness="different")(torch.zeros(2)).tolist()
    ),
    "a complaint of torch that was caught": _caught(lambda: int(torch.full((1,), torch.rand(1).item())[0] < 0.3)),
    "a list of random and other numbers": _caught(lambda: int(torch.tensor([random.random(), 0.5])[0] < 0.3)),
    "an assignment that was caught": _caught(_assigned),
    "text of a tensor": lambda: str(torch.rand(1))[:7],
    "text of a number": lambda: f"{random.random():.1f}",
    "an array in Fortran's order": lambda: bool(np.ravel(np.random.random((2, 2)), order="F")[1] < 0.5),
    "columns chosen": lambda: int(np.random.default_rng().choice(np.eye(2), axis=1)[0]),
    "columns permuted": lambda: int(np.random.default_rng().permutation(np.eye(2), axis=1)[0, 0]),
    "numbers drawn unseen before a seed": _reseeded,
    "memory read past torch": _memory,
    "a sum into bfloat16 by out=": lambda: bool(torch.mul(torch.rand(1), W[:1], out=torch.empty(1, dtype=BF16)) <= 0.35),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_never_given_a_law(name: str) -> None:
    """Whatever the code makes of the refusal."""
    with pytest.raises(OpaqueRandomness):
        induced_law(REFUSED[name])


def test_a_walk_under_a_profiler_leaves_it_running() -> None:
    """CProfile cannot be put back with sys.setprofile alone."""
    import cProfile
    import sys

    profile = cProfile.Profile()
    profile.enable()
    try:
        induced_law(lambda: bool(torch.rand(()) < 0.5))
        assert sys.getprofile() is profile
    finally:
        profile.disable()
