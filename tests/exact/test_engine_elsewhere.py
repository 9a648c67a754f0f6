"""Draws of Python's random and of numpy: followed by their modules, re-seeded streams repeat, the rest is refused."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from specverify.errors import OpaqueRandomness
from specverify.exact import elsewhere, induced_law

P = np.array([0.5, 0.2, 0.3])
CUMULATIVE = P.cumsum()
GENERATOR = np.random.default_rng(3)
LEGACY = np.random.RandomState(3)


def inverted(u: float) -> int:
    """Inverse distribution function by a loop."""
    for i, c in enumerate(CUMULATIVE):
        if u < c:
            return i
    return len(P) - 1


CHOICES: dict[str, Callable[[], object]] = {
    "random.random": lambda: inverted(random.random()),
    "random.uniform": lambda: inverted(random.uniform(0, 1)),
    "random.choices": lambda: random.choices(range(3), [5, 2, 3])[0],
    "Random": lambda: inverted(random.Random(5).random()),
    "np.random.rand": lambda: int(np.searchsorted(CUMULATIVE, np.random.rand())),
    "np.random.random": lambda: int((np.random.random() > CUMULATIVE).sum()),
    "np.random.choice": lambda: int(np.random.choice(3, p=P)),
    "np.random.uniform": lambda: int(np.digitize(np.random.uniform(), CUMULATIVE)),
    "np.random.multinomial": lambda: int(np.random.multinomial(1, P).argmax()),
    "Generator": lambda: int(np.random.default_rng().choice(3, p=P)),
    "module Generator": lambda: int(np.searchsorted(CUMULATIVE, GENERATOR.random(), side="right")),
    "module RandomState": lambda: int(LEGACY.choice(3, p=P)),
    "gumbel": lambda: int(np.argmax(np.log(P) + GENERATOR.gumbel(size=3))),
    "exponential": lambda: int((GENERATOR.exponential(size=3) / P).argmin()),
    "scaled exponential": lambda: int(GENERATOR.exponential(1 / P).argmin()),
    "array in torch": lambda: int((torch.from_numpy(P) / torch.from_numpy(GENERATOR.standard_exponential(3))).argmax()),
    "argmax of cumsum": lambda: int(np.argmax(GENERATOR.random() < CUMULATIVE)),
    "list in torch": lambda: int((torch.tensor([random.random()]).double() >= torch.from_numpy(CUMULATIVE)).sum()),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_have_the_law_they_should(name: str) -> None:
    """However a token is drawn from p with Python or numpy, it has the law p."""
    assert induced_law(CHOICES[name]).pmf == pytest.approx(dict(enumerate(P)), abs=1e-12)


EVEN: dict[str, Callable[[], object]] = {
    "randrange": lambda: random.randrange(3),
    "randint": lambda: random.randint(0, 2),
    "choice": lambda: random.choice([0, 1, 2]),
    "int": lambda: int(random.random() * 3),
    "floor": lambda: math.floor(random.random() * 3),
    "sample": lambda: random.sample([0, 1, 2], 1)[0],
    "np integers": lambda: int(GENERATOR.integers(3)),
    "np randint": lambda: int(np.random.randint(0, 3)),
    "np choice": lambda: int(np.random.choice([0, 1, 2])),
    "permutation": lambda: int(GENERATOR.permutation(3)[1]),
    "torch randint": lambda: torch.randint(3, (1,))[0],
    "torch randperm": lambda: torch.randperm(3)[2],
    "torch long": lambda: (torch.rand(1) * 3).long()[0],
}


@pytest.mark.parametrize("name", EVEN)
def test_integers_are_equally_likely(name: str) -> None:
    """One of three, each with probability 1/3."""
    assert induced_law(EVEN[name]).pmf == pytest.approx(dict.fromkeys(range(3), 1 / 3), abs=1e-12)


def test_logarithms_of_python_are_followed() -> None:
    """Log u < log p - log q as a loop over floats writes it."""
    law = induced_law(lambda: math.log(random.random()) < math.log(0.3) - math.log(0.6)).pmf
    assert law == pytest.approx({True: 0.5, False: 0.5}, abs=1e-12)


def test_arrays_compare_and_map_elementwise() -> None:
    """Maps, indices, comparisons from either side and masks of an array keep its numbers apart."""
    t = np.array([0.25, 0.5])
    law = {(a, b): (0.25 if a else 0.75) * 0.5 for a, b in itertools.product((True, False), repeat=2)}
    codes: list[Callable[[], object]] = [
        lambda: GENERATOR.random(2) < t,
        lambda: t > np.random.rand(2),
        lambda: (1 - GENERATOR.uniform(size=2)) >= 1 - t,
        lambda: np.log(GENERATOR.random(2)) <= np.log(t),
        lambda: [bool(u < c) for u, c in zip(GENERATOR.random(2), t, strict=True)],
        lambda: np.where(GENERATOR.random((1, 2))[0] * 2 < t * 2, True, False),
        lambda: GENERATOR.random(4)[[1, 3]].astype(np.float64).reshape(2) < t,
    ]
    for code in codes:
        assert induced_law(code).pmf == pytest.approx(law, abs=1e-12)


def test_a_stream_that_is_seeded_again_repeats() -> None:
    """random.seed, numpy seeds and new generators with the same seed hand out the same numbers: it is seen."""

    def twice(draw: Callable[[int], object]) -> dict[object, float]:
        return dict(induced_law(lambda: (draw(1), draw(1))).pmf)

    def by_seed(seed: int) -> bool:
        random.seed(seed)
        return random.random() < 0.25

    def by_instance(seed: int) -> bool:
        return random.Random(seed).random() < 0.25

    def by_generator(seed: int) -> bool:
        return bool(np.random.default_rng(seed).random() < 0.25)

    for draw in (by_seed, by_instance, by_generator):
        assert twice(draw) == pytest.approx({(True, True): 0.25, (False, False): 0.75}, abs=1e-12)
        apart = induced_law(lambda d=draw: (d(1), d(2))).pmf
        assert apart[(True, True)] == pytest.approx(1 / 16, abs=1e-12)


def test_uses_that_cannot_be_followed_are_refused() -> None:
    """float(), arithmetic between numbers, unknown functions of numpy, and large integers that decide."""
    refused: list[Callable[[], object]] = [
        lambda: float(random.random()) < 0.5,
        lambda: math.sin(random.random()) < 0.5,
        lambda: random.gauss(0, 1) < 0,
        lambda: np.asarray(GENERATOR.random(2))[0] < 0.5,
        lambda: GENERATOR.random(2).sum() < 1,
        lambda: np.sum(GENERATOR.random(2)) < 1,
        lambda: GENERATOR.random(2).round(),
        lambda: GENERATOR.choice(4, 2, replace=False),
        lambda: GENERATOR.beta(1, 1) < 0.5,
        lambda: random.getrandbits(40) % 2,
        lambda: random.random() < random.random(),
    ]
    for code in refused:
        with pytest.raises(OpaqueRandomness):
            induced_law(code)


def test_the_functions_are_themselves_again_afterwards() -> None:
    """After a walk, and after a refusal, random and numpy draw as they did."""
    names = [(random, "random"), (random, "getrandbits"), (np.random, "random"), (np.random, "default_rng"), (math, "log")]
    before = [getattr(home, name) for home, name in names]
    own = GENERATOR
    induced_law(lambda: random.random() < 0.5)
    with pytest.raises(OpaqueRandomness):
        induced_law(lambda: float(random.random()))
    assert [getattr(home, name) for home, name in names] == before
    assert GENERATOR is own
    assert isinstance(random.Random(1).random(), float)
    assert isinstance(GENERATOR.random(), float)


def test_a_law_inside_a_law_follows_what_stands_in_modules_too() -> None:
    """The inner law finds the stand-ins that the outer one put there, and the next law finds the generators again."""

    def code() -> tuple[bool, float]:
        elsewhere._modules["at"] = -math.inf  # as if the last look at the modules was long ago
        return bool(GENERATOR.random() < 0.25), induced_law(lambda: bool(GENERATOR.random() < 0.5)).pmf[True]

    assert induced_law(code).pmf == pytest.approx({(True, 0.5): 0.25, (False, 0.5): 0.75}, abs=1e-12)
    assert induced_law(lambda: bool(GENERATOR.random() < 0.5)).pmf == pytest.approx({True: 0.5, False: 0.5}, abs=1e-12)


SEEDED: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.Generator().manual_seed(torch.randint(2**40, (1,)).item()),
    "list": lambda: torch.Generator().manual_seed((torch.randint(2**40, (2,)).tolist()[1] + 7 * 3) % 2**32),
    "global": lambda: torch.manual_seed(int.__add__(random.randrange(2**32), 0)) and None,
    "python": lambda: torch.Generator().manual_seed(random.getrandbits(31)),
    "numpy": lambda: torch.Generator().manual_seed(int.__add__(np.random.randint(2**31), 0)),
}


@pytest.mark.parametrize("name", SEEDED)
def test_drawn_seeds_may_seed_streams(name: str) -> None:
    """A stream seeded by chance hands out fresh numbers."""
    law = induced_law(lambda: bool(torch.rand(1, generator=SEEDED[name]()) < 0.25)).pmf
    assert law == pytest.approx({True: 0.25, False: 0.75}, abs=1e-12)


def test_drawn_seeds_may_decide_nothing() -> None:
    """A seed that is compared, reduced to few values, or made a plain number of is refused."""
    refused: list[Callable[[], object]] = [
        lambda: torch.randint(2**40, (1,)).item() % 2 == 0,
        lambda: torch.randint(2**40, (1,)).item() < 2**39,
        lambda: int(torch.randint(2**40, (1,)).item()) % 1000,
        lambda: (torch.randint(2**40, (1,)) % 2).item(),
        lambda: torch.randint(2**40, (1,)) < 5,
        lambda: torch.randint(2**40, (1,)).item() / 2**40 < 0.5,
        lambda: random.randrange(2**40) & 1,
        lambda: [1, 2][random.randrange(2**40) >> 39],
        lambda: str(random.randrange(2**40))[-1],
    ]
    for code in refused:
        with pytest.raises(OpaqueRandomness):
            induced_law(code)
    assert induced_law(lambda: random.randrange(2**40) >= 0).pmf == {True: 1.0}
