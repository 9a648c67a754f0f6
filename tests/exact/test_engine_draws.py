"""All of torch's draws are followed exactly or refused, and streams are what they really are."""

from __future__ import annotations

import itertools
import math
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact import induced_law

HALF = {(True,): 0.5, (False,): 0.5}


def test_multinomial_of_one_row_and_of_several_rows_is_exact() -> None:
    """One token per row, weights need not sum to 1, and tokens of weight 0 never come."""
    one = induced_law(lambda: torch.multinomial(torch.tensor([1.0, 0.0, 3.0]), 1))
    assert one.pmf == pytest.approx({(0,): 0.25, (2,): 0.75}, abs=1e-12)
    assert one.paths == 2
    two = induced_law(lambda: torch.multinomial(torch.tensor([[1.0, 1.0], [1.0, 3.0]]), 1))
    assert two.pmf == pytest.approx({((a,), (b,)): 0.5 * (0.25, 0.75)[b] for a in range(2) for b in range(2)}, abs=1e-12)


def test_several_samples_with_and_without_replacement_are_exact() -> None:
    """Samples with replacement are independent; without, each is drawn from the weights left, in the order drawn."""
    w = [0.2, 0.3, 0.5]
    weights = torch.tensor(w, dtype=torch.float64)
    again = induced_law(lambda: torch.multinomial(weights, 2, replacement=True)).pmf
    assert again == pytest.approx({(a, b): w[a] * w[b] for a in range(3) for b in range(3)}, abs=1e-12)
    apart = induced_law(lambda: torch.multinomial(weights, 2)).pmf
    assert apart == pytest.approx({(a, b): w[a] * w[b] / (1 - w[a]) for a in range(3) for b in range(3) if a != b}, abs=1e-12)


def test_multinomial_without_replacement_agrees_with_torch_itself() -> None:
    """100,000 real draws lie within 5.5 standard deviations of every cell (false alarm below 1e-6 over 6 cells)."""
    weights, n = torch.tensor([0.2, 0.3, 0.5]), 100_000
    generator = torch.Generator().manual_seed(11)
    seen = Counter(map(tuple, torch.multinomial(weights.expand(n, 3), 2, generator=generator).tolist()))
    for outcome, p in induced_law(lambda: torch.multinomial(weights, 2)).pmf.items():
        assert abs(seen[outcome] / n - p) < 5.5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize(
    ("weights", "samples"),
    [
        ([0.0, 0.0], 1),
        ([-1.0, 2.0], 1),
        ([math.nan, 1.0], 1),
        ([math.inf, 1.0], 1),
        ([1.0, 1.0], 3),
        ([[[1.0]]], 1),
        ([1, 1], 1),
    ],
)
def test_weights_that_torch_refuses_are_an_error_of_the_subject(weights: list[float], samples: int) -> None:
    """Bad weights raise in torch's own words, with the probability of the path on which it happened."""
    with pytest.raises((RuntimeError, IndexError)) as real:
        torch.multinomial(torch.tensor(weights), samples)
    with pytest.raises(SubjectError, match=r"probability 0\.5") as found:
        induced_law(lambda: bool(torch.rand(1) < 0.5) and torch.multinomial(torch.tensor(weights), samples))
    assert str(real.value).split(":")[0][:40] in str(found.value)


def test_more_samples_than_positive_weights_are_refused() -> None:
    """What torch returns then is no law of the weights, so the engine does not guess."""
    with pytest.raises(OpaqueRandomness):
        induced_law(lambda: torch.multinomial(torch.tensor([0.0, 1.0]), 2))


def test_bernoulli_in_every_form_is_exact_and_refuses_bad_probabilities() -> None:
    """torch.bernoulli and the method, with a tensor or one number; probabilities outside [0, 1] are torch's error."""
    p = torch.tensor([0.25, 1.0, 0.0], dtype=torch.float64)
    want = {(1.0, 1.0, 0.0): 0.25, (0.0, 1.0, 0.0): 0.75}
    for code in (lambda: torch.bernoulli(p), p.bernoulli, lambda: torch.bernoulli(p.float())):
        assert induced_law(code).pmf == pytest.approx(want, abs=1e-12)
    assert induced_law(lambda: torch.bernoulli(torch.empty(1), 0.25)).pmf == pytest.approx(
        {(1.0,): 0.25, (0.0,): 0.75}, abs=1e-12
    )
    with pytest.raises(SubjectError, match="Expected p_in"):
        induced_law(lambda: torch.bernoulli(torch.tensor([1.5])))
    with pytest.raises(OpaqueRandomness, match="out="):
        induced_law(lambda: torch.bernoulli(p, out=torch.zeros(3)))


def test_distributions_of_torch_are_exact() -> None:
    """Categorical, Bernoulli and Uniform sample through draws that are followed."""
    D = torch.distributions
    assert induced_law(lambda: D.Categorical(torch.tensor([1.0, 3.0])).sample()).pmf == pytest.approx({0: 0.25, 1: 0.75})
    assert induced_law(lambda: D.Categorical(logits=torch.zeros(2, 2)).sample((1,))).pmf[((0, 1),)] == pytest.approx(0.25)
    assert induced_law(lambda: D.Bernoulli(torch.tensor(0.25)).sample()).pmf == pytest.approx({1.0: 0.25, 0.0: 0.75})
    assert induced_law(lambda: bool(D.Uniform(2.0, 4.0).sample() < 2.5)).pmf == pytest.approx({True: 0.25, False: 0.75})


def draw_token(p: Tensor) -> Tensor:
    """Draw one token; compiled below, so that Python does not see it."""
    return torch.multinomial(p, 1)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(draw_token)


def _in_a_thread() -> bool:
    found = []
    thread = threading.Thread(target=lambda: found.append(bool(torch.rand(1) < 0.5)))
    thread.start()
    thread.join()
    return found[0]


D = torch.distributions
OTHER_DRAWS: dict[str, Callable[[], object]] = {
    "random_": lambda: torch.empty(1).random_(2),
    "poisson": lambda: torch.poisson(torch.ones(1)),
    "gumbel": lambda: torch.nn.functional.gumbel_softmax(torch.zeros(2)).argmax(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(1), 0.5),
    "Dropout": lambda: torch.nn.Dropout(0.5)(torch.ones(1)),
    "dropout2d": lambda: torch.nn.functional.dropout2d(torch.ones(1, 2, 2, 2)),
    "alpha": lambda: torch.nn.AlphaDropout(0.5)(torch.ones(1)),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 4, 4)] * 3, dropout_p=0.5).sum() > 4,
    "dirichlet": lambda: D.Dirichlet(torch.ones(2)).sample().argmax(),
    "gamma": lambda: D.Gamma(torch.tensor(1.0), torch.tensor(1.0)).sample() < 1,
    "scripted": lambda: scripted(torch.ones(2)),
    "thread": _in_a_thread,
    "init": lambda: torch.nn.Linear(1, 1).weight < 0,
    "own generator": lambda: torch._standard_gamma(torch.ones(1), generator=torch.Generator().manual_seed(1)) < 1,
}


@pytest.mark.parametrize("name", OTHER_DRAWS)
def test_other_draws_are_refused_and_never_made_silently(name: str) -> None:
    """Whatever else draws, in Python, in compiled code or in another thread, is refused."""
    with pytest.raises(OpaqueRandomness):
        induced_law(OTHER_DRAWS[name])


def test_dropout_that_does_not_draw_is_allowed() -> None:
    """Models in evaluation mode run as they are."""
    layer = torch.nn.Dropout(0.5).eval()
    assert induced_law(lambda: layer(torch.ones(1))).pmf == {(1.0,): 1.0}


def _seeded(*parts: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    def code() -> tuple[Tensor, ...]:
        out = []
        for part in parts:
            torch.manual_seed(3)
            out.append(part())
        return tuple(out)

    return code


def test_a_stream_seeded_again_hands_out_the_same_numbers() -> None:
    """torch.manual_seed, a generator's manual_seed and a restored state all repeat the draw; other seeds do not."""
    t = torch.tensor([0.25, 0.5])
    law = induced_law(_seeded(lambda: torch.rand(2) < t, lambda: torch.rand(1, 2)[0] < t)).pmf
    assert set(law) == {((a, b), (a, b)) for a in (True, False) for b in (True, False)}

    def by_state() -> tuple[Tensor, Tensor]:
        state = torch.get_rng_state()
        first = torch.rand(1) < 0.5
        torch.set_rng_state(state)
        return first, torch.rand(1) < 0.5

    def by_generator(one: int, two: int, fresh: bool) -> tuple[Tensor, Tensor]:
        a = torch.Generator().manual_seed(one)
        first = torch.rand(1, generator=a) < 0.5
        b = torch.Generator() if fresh else a
        return first, torch.rand(1, generator=b.manual_seed(two)) < 0.5

    def global_and_own() -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return torch.rand(1) < 0.5, torch.rand(1, generator=torch.Generator().manual_seed(3)) < 0.5

    same = pytest.approx({((True,), (True,)): 0.5, ((False,), (False,)): 0.5}, abs=1e-12)
    independent = pytest.approx({(a, b): 0.25 for a in HALF for b in HALF}, abs=1e-12)
    assert induced_law(by_state).pmf == same
    assert induced_law(global_and_own).pmf == same
    for fresh in (True, False):
        assert induced_law(lambda fresh=fresh: by_generator(5, 5, fresh)).pmf == same
        assert induced_law(lambda fresh=fresh: by_generator(5, 6, fresh)).pmf == independent
    assert induced_law(lambda: by_generator(1, 1 + 2**32, True)).pmf == same


@pytest.mark.parametrize(
    "parts",
    [
        (lambda: torch.rand(3) < 0.5, lambda: torch.rand(1) < 0.5),
        (lambda: torch.rand(1) < 0.5, lambda: torch.rand(3) < 0.5),
        (lambda: torch.rand(1) < 0.5, lambda: torch.rand(1, dtype=torch.float64) < 0.5),
        (lambda: torch.rand(1) < 0.5, lambda: torch.multinomial(torch.ones(2), 1)),
        (lambda: torch.multinomial(torch.ones(2), 1), lambda: torch.rand(1) < 0.5),
        (lambda: torch.multinomial(torch.ones(2), 1), lambda: torch.multinomial(torch.ones(3), 1)),
        (lambda: torch.multinomial(torch.ones(2), 2), lambda: torch.multinomial(torch.ones(2), 2)),
        (lambda: torch.bernoulli(torch.ones(1) / 2), lambda: torch.rand(1) < 0.5),
    ],
)
def test_numbers_shared_in_part_are_refused(parts: tuple[Callable[[], Tensor], ...]) -> None:
    """Different draws from one seed share their numbers in a way that is not followed."""
    with pytest.raises(OpaqueRandomness):
        induced_law(_seeded(*parts))


def test_two_generators_with_the_same_seed_choose_with_the_same_noise() -> None:
    """The draft and the verifier seeded alike is a real fault: torch chooses by a race, and both run it with one noise."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.2, 0.3], [0.1, 0.1, 0.8]))

    def code(seed: int) -> tuple[int, int]:
        one, two = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
        return int(torch.multinomial(p, 1, generator=one)), int(torch.multinomial(q, 1, generator=two))

    def really(seed: int) -> tuple[int, int]:
        one, two = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        return int(torch.multinomial(p, 1, generator=one)), int(torch.multinomial(q, 1, generator=two))

    law = induced_law(lambda: code(0)).pmf
    seen = dict.fromkeys(itertools.product(range(3), repeat=2), 0)
    for seed in range(20_000):
        seen[really(seed)] += 1
    for key, count in seen.items():
        p_key = law.get(key, 0.0)
        assert abs(count / 20_000 - p_key) <= 6 * math.sqrt(p_key * (1 - p_key) / 20_000), key
    independent = {(i, j): float(p[i] * q[j]) for i in range(3) for j in range(3)}
    assert induced_law(lambda: code(1)).pmf == pytest.approx(independent, abs=1e-12)


def test_streams_are_left_as_they_were() -> None:
    """The global stream, a kept generator, Python's and numpy's stand where they stood, also after errors."""
    kept = torch.Generator().manual_seed(7)
    numpy_state = np.random.get_state
    before = torch.get_rng_state(), kept.get_state(), random.getstate(), numpy_state()[1].tolist()

    def code(fail: bool) -> bool:
        torch.manual_seed(1)
        answer = bool(torch.rand(1, generator=kept) < 0.5) and bool(torch.rand(3)[0] < 0.5)
        return answer if not fail else bool(1 / 0)

    induced_law(lambda: code(False))
    with pytest.raises(SubjectError, match=r"ZeroDivisionError.*probability 1\)|ZeroDivisionError"):
        induced_law(lambda: code(True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(kept.get_state(), before[1])
    assert (random.getstate(), numpy_state()[1].tolist()) == before[2:]


@pytest.mark.parametrize("draw", [random.random, np.random.random, random.Random(1).random, random.SystemRandom().random])
def test_functions_imported_by_name_are_refused(draw: Callable[[], float]) -> None:
    """A method that was taken before the walk cannot be followed: it is noticed, even when it decides once in 1,000,000."""
    with pytest.raises(OpaqueRandomness):
        induced_law(lambda: draw() < 1e-6)


def test_a_numpy_generator_that_is_kept_elsewhere_is_refused() -> None:
    """A generator in a closure is seen to move, even when it decides once in 1,000,000."""
    kept = [np.random.default_rng(3)]
    with pytest.raises(OpaqueRandomness):
        induced_law(lambda: kept[0].random() < 1e-6)


def test_state_kept_between_calls_is_refused() -> None:
    """A counter that changes the answer, and numbers drawn once and kept, are not functions of what is drawn."""
    calls: list[int] = []
    kept: list[Tensor] = []

    def counting() -> bool:
        calls.append(1)
        return bool(torch.rand(1) < 0.5) ^ (len(calls) % 2 == 0)

    def keeping() -> Tensor:
        if not kept:
            kept.append(torch.rand(1))
        return kept[0] < 0.5

    for code in (counting, keeping):
        with pytest.raises(OpaqueRandomness):
            induced_law(code)


def test_code_without_randomness_has_one_outcome() -> None:
    """Arrays, tensors, tuples, NaN and numbers are read; what cannot be compared is an error of the subject."""
    assert induced_law(lambda: (torch.arange(2), np.arange(2), [1, 2.5], "x", None)).pmf == {
        ((0, 1), (0, 1), (1, 2.5), "x", None): 1.0
    }
    assert induced_law(lambda: [math.nan, torch.tensor(math.nan)]).pmf == {("nan", "nan"): 1.0}
    with pytest.raises(SubjectError, match="dict"):
        induced_law(lambda: {1: 2})


def test_the_budget_of_paths_is_kept() -> None:
    """A walk stops at the number of paths allowed, and says how much probability is left."""
    assert induced_law(lambda: torch.rand(3) < 0.5, max_paths=8).paths == 8
    partial = induced_law(lambda: torch.rand(3) < 0.5, max_paths=7)
    assert (partial.paths, partial.mass, partial.unexplored) == (7, 0.875, 0.125)


def test_laws_inside_laws_do_not_disturb_each_other() -> None:
    """The engine may run inside itself: the inner law is exact and the outer one unchanged."""

    def code() -> tuple[bool, float]:
        first = bool(torch.rand(1) < 0.25)
        inner = induced_law(lambda: bool(torch.rand(1) < 0.125)).pmf[True]
        return first and bool(torch.rand(1) < 0.5), inner

    assert induced_law(code).pmf == pytest.approx({(True, 0.125): 0.125, (False, 0.125): 0.875}, abs=1e-12)


def test_empty_draws_change_nothing() -> None:
    """A draw of no numbers neither moves the stream nor clashes with the next draw."""
    assert induced_law(lambda: (torch.rand(0) < 0.5, torch.rand(1) < 0.25)).pmf == pytest.approx(
        {((), (True,)): 0.25, ((), (False,)): 0.75}
    )


def test_a_walk_whose_time_is_up_has_walked_something() -> None:
    """With no time at all one call is made, and the rest is left, with what it weighs."""
    from specverify.exact.walk import stopping_after

    with stopping_after(-1.0):
        law = induced_law(lambda: torch.rand(4) < 0.5)
    assert (law.paths, law.mass, law.unexplored) == (1, 2.0**-4, 1 - 2.0**-4)
    right = dict.fromkeys(induced_law(lambda: torch.rand(4) < 0.5).pmf, 2.0**-4)
    assert law.deviation(right) == (0.0, 1 - 2.0**-4)
