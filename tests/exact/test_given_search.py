"""What bisection of given numbers finds is right to the last digit, and what it cannot measure is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import given_subjects as given
import numpy as np
import pytest
import torch
from torch import Tensor

from specverify import verifier
from specverify.errors import OpaqueRandomness, PathBudgetExceeded, SubjectError
from specverify.exact import induced_law_given, verifier_emission
from specverify.exact.given import law_of, space_of
from specverify.exact.given_run import explore_given
from specverify.given import read_given
from specverify.laws import Array, Pair, TableModel, complete, sequence_law
from specverify.pairs import named_pair

TOLERANCE = 1e-12


@pytest.fixture(autouse=True)
def _warnings_of_division():
    with np.errstate(all="ignore"):
        yield


def random_tree(rng: np.random.Generator, uniforms: int, depth: int, path: tuple[int, ...] = ()) -> Any:
    """A decision tree over uniforms: (number, threshold, below, above), or at the end the path, so that all ends differ."""
    if depth == 0 or (path and rng.random() < 0.2):
        return path
    parts = (random_tree(rng, uniforms, depth - 1, (*path, side)) for side in (0, 1))
    return int(rng.integers(uniforms)), float(rng.random()), *parts


def follow(tree: Any, u: Array) -> tuple[int, ...]:
    """The end that numbers lead to."""
    while len(tree) == 4 and isinstance(tree[1], float):
        tree = tree[2] if u[tree[0]] < tree[1] else tree[3]
    return tuple(tree)


def law_of_tree(tree: Any, low: tuple[float, ...], high: tuple[float, ...]) -> dict[tuple[int, ...], float]:
    """Its law by cutting the box along the tree, each number used as often as it stands there."""
    if not (len(tree) == 4 and isinstance(tree[1], float)):
        return {tuple(tree): float(np.prod(np.subtract(high, low)))}
    i, t = tree[0], min(max(tree[1], low[tree[0]]), high[tree[0]])
    out = law_of_tree(tree[2], low, (*high[:i], t, *high[i + 1 :]))
    for end, mass in law_of_tree(tree[3], (*low[:i], t, *low[i + 1 :]), high).items():
        out[end] = out.get(end, 0.0) + mass
    return out


@pytest.mark.parametrize("seed", range(20))
def test_decision_trees_have_their_law(seed: int) -> None:
    """Trees that compare any of three uniforms with thresholds, some several times, are measured to rounding."""
    tree = random_tree(np.random.default_rng(seed), 3, 4)
    found = induced_law_given(lambda u: follow(tree, u), (3,)).pmf
    right = law_of_tree(tree, (0.0,) * 3, (1.0,) * 3)
    assert set(found) <= set(right)
    assert max(abs(found.get(end, 0.0) - mass) for end, mass in right.items()) < TOLERANCE


@pytest.mark.parametrize("seed", range(8))
def test_races_have_the_law_of_their_weights(seed: int) -> None:
    """A coin chooses between two races of six, with zeros and weights down to 1e-9; written in three ways, one law."""
    rng = np.random.default_rng(seed)
    weights = rng.random((2, 6)) * (rng.random((2, 6)) < 0.7) * 10.0 ** -rng.integers(0, 10, (2, 6))
    weights[:, 0] = 1.0
    coin = rng.random()
    ways: list[Callable[[Array, Array], int]] = [
        lambda w, e: int(np.argmin(e / w)),
        lambda w, e: int(np.argmax(w / e)),
        lambda w, e: int(np.argmax(np.log(w) - np.log(e))),
    ]
    for way in ways:
        law = induced_law_given(lambda u, e, way=way: (int(u < coin), way(weights[int(u < coin)], e)), (), (6,)).pmf
        for side, share in ((1, coin), (0, 1 - coin)):
            for token in range(6):
                expected = share * weights[side, token] / weights[side].sum()
                assert law.get((side, token), 0.0) == pytest.approx(expected, abs=TOLERANCE)
                assert ((side, token) in law) == (expected > 0)


def test_tokens_that_share_an_outcome_share_its_mass() -> None:
    """Races whose winners are told apart only in part still give the outcome's whole mass."""
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    law = induced_law_given(lambda e: int(np.argmin(e / weights)) % 2, None, (4,)).pmf
    assert law == pytest.approx({0: 0.4, 1: 0.6}, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("f", "law"),
    [
        (lambda u: bool(u.min() < 0.25), {True: 1 - 0.75**2, False: 0.75**2}),
        (lambda u: bool((u[0] < 0.3) ^ (u[1] < 0.6)), {True: 0.3 * 0.4 + 0.7 * 0.6, False: 0.3 * 0.6 + 0.7 * 0.4}),
        (lambda u: bool((u > 1 - 1e-3).all()), {True: 1e-6, False: 1 - 1e-6}),
        (lambda u: int(u[0] * 8) % 2, {0: 0.5, 1: 0.5}),
        (lambda u: bool(1 - (2 * u[0] - 1) ** 2 < 0.75), {True: 0.5, False: 0.5}),
    ],
    ids=["least", "either", "corner", "teeth", "parabola"],
)
def test_shapes_beyond_one_threshold_each(f: Callable[[Array], Any], law: dict[Any, float]) -> None:
    """Unions of boxes, several intervals of one outcome, and maps that are not monotone are measured too."""
    found = induced_law_given(f, (2,)).pmf
    assert found == pytest.approx(law, abs=TOLERANCE)


JOINT: list[tuple[str, Callable[..., Any], tuple[int, ...] | None, tuple[int, ...] | None]] = [
    ("product", lambda u: bool(u[0] * u[1] < 0.3), (2,), None),
    ("sum", lambda u: bool(u.sum() < 0.9), (3,), None),
    ("order", lambda u: bool(u[0] < u[1]), (2,), None),
    ("slightly joint", lambda u: bool(u[0] + 1e-9 * u[1] < 0.5), (2,), None),
    ("circle", lambda u: bool(((u - 0.5) ** 2).sum() < 0.1), (2,), None),
    ("coin from noise", lambda u, e: bool(u < e[0] / (1 + e[0])), (), (2,)),
    ("clock against a threshold", lambda e: bool(e[0] < 1), None, (3,)),
    ("second place", lambda e: tuple(np.argsort(e / [0.5, 0.3, 0.2])[:2].tolist()), None, (3,)),
    ("a race of sums", lambda e: int(np.argmin([e[0] + e[1], e[2]])), None, (3,)),
    ("a race across places", lambda e: int(np.argmin(e.reshape(-1))), None, (2, 2)),
    ("clocks with a shift", lambda e: int(np.argmin(e + np.arange(3) / 10)), None, (3,)),
    ("parity of digits", lambda u: int(u[0] * 1e9) % 2, (1,), None),
]


@pytest.mark.parametrize(("f", "shape", "clocks"), [x[1:] for x in JOINT], ids=[x[0] for x in JOINT])
def test_joint_dependence_is_refused(f: Callable[..., Any], shape: Any, clocks: Any) -> None:
    """What is neither boxes nor one race per path is named as such, and no law is given."""
    with pytest.raises(OpaqueRandomness, match=r"jointly|otherwise than by a race"):
        induced_law_given(f, shape, clocks)


def test_squares_of_clocks_race_with_the_roots_of_their_weights() -> None:
    """The rule argmin E**2 / w is argmin E / sqrt(w): a race all the same, and measured as the one it is."""
    roots = np.sqrt([0.5, 0.3, 0.2])
    law = induced_law_given(lambda e: int(np.argmin(e**2 / roots**2)), None, (3,)).pmf
    assert law == pytest.approx(dict(enumerate(roots / roots.sum())), abs=TOLERANCE)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_products_of_uniforms_are_refused_where_they_matter(k: int) -> None:
    """``prod u < prod rho`` is a single threshold for one draft and measured; from two drafts on it is refused."""
    pair = named_pair(3, k)
    if k == 1:
        law = complete(verifier_emission(given.numpy_twin("products"), pair).tokens, pair.target, 2, pair.prompt)
        assert np.abs(law - sequence_law(pair.target, 2, pair.prompt)).max() < TOLERANCE
        return
    with pytest.raises(OpaqueRandomness, match="product of uniforms"):
        verifier_emission(given.numpy_twin("products"), pair)


def test_one_noise_for_two_races_on_a_path_is_refused() -> None:
    """Sample-and-match on one noise decides the second place by a race that the first has already bent."""
    with pytest.raises(OpaqueRandomness, match="two races on one path"):
        verifier_emission(given.match_on_one_noise, named_pair(3, 2))


def simulated(subject: Any, pair: Pair, n: int) -> Counter[tuple[int, ...]]:
    """What ``n`` real runs emitted, drafts drawn from the pair's draft."""
    rng = np.random.default_rng(0)
    start = len(pair.prompt)
    ids = np.tile(np.array(pair.prompt), (n, 1))
    for _ in range(pair.k):
        q = pair.draft.laws[pair.draft.contexts_along(ids)[:, -1]]
        drafted = (q.cumsum(1) <= rng.random((n, 1)) * q.sum(1, keepdims=True)).sum(1)
        ids = np.concatenate([ids, drafted[:, None]], 1)
    q, p = pair.draft.laws_along(ids)[:, start : start + pair.k], pair.target.laws_along(ids)[:, start:]
    generator = torch.Generator().manual_seed(1)
    found = subject(torch.from_numpy(ids[:, start:]), torch.from_numpy(q), torch.from_numpy(p), generator=generator)
    return Counter(found.rows())


@pytest.mark.parametrize("subject", [given.numpy_twin("products"), given.match_on_one_noise], ids=lambda s: s.name)
def test_what_is_not_refused_is_measured_rightly(subject: Any) -> None:
    """Where zeros leave one threshold or one race of a joint rule, its law agrees with 100,000 real runs within 6 sigma."""
    measured = refused = 0
    n = 100_000
    for pair in [named_pair(v, 2, seed=s, zeros=0.4) for s in range(1, 9) for v in (2, 3)]:
        try:
            law = verifier_emission(subject, pair).tokens
        except OpaqueRandomness:
            refused += 1
            continue
        measured += 1
        seen = simulated(subject, pair, n)
        for outcome in {*seen, *law}:
            mass = law.get(outcome, 0.0)
            assert abs(seen[outcome] / n - mass) < 6 * (mass * (1 - mass) / n) ** 0.5 + 1 / n
    assert measured
    assert refused


@pytest.mark.parametrize("seed", range(10))
def test_islands_are_measured_or_refused_but_not_overlooked(seed: int) -> None:
    """A box of mass 1 % anywhere inside is missed with probability below 1e-8: here it is always measured to rounding."""
    corner = np.random.default_rng(seed).random(2) * 0.9
    found = induced_law_given(lambda u: bool(((u >= corner) & (u < corner + 0.1)).all()), (2,)).pmf
    assert found[True] == pytest.approx(0.01, abs=TOLERANCE)


def test_what_a_search_missed_is_seen_when_a_refutation_is_confirmed() -> None:
    """Of islands of mass 1e-5 some are missed; trying 2.3 million settings again sees every one of those."""
    missed = 0
    for seed in range(3):
        corner = np.random.default_rng(seed).random(2) * 0.9
        given_two = read_given({"u": "uniforms (B, K)"})

        def evaluate(_problems: Any, points: Any, corner: Array = corner) -> list[bool]:
            u = np.ldexp(points.steps.astype(float), -53)
            return [bool(x) for x in ((u >= corner) & (u < corner + 1e-5**0.5)).all(1)]

        found = explore_given(
            evaluate, space_of(given_two, 2, 1, torch.float64), [1.0], rows=4096, checks=1000, max_regions=100, seed=seed
        )
        if not dict(law_of(found)).get(True):
            missed += 1
            with pytest.raises(OpaqueRandomness):
                found.confirm(2_300_000)
    assert missed > 0


def other_draws(kind: str) -> Any:
    """The numpy rule with a coin of its own beside those given, which accepts now and then."""
    sources = {
        "torch": lambda: float(torch.rand(())),
        "numpy": lambda: float(np.random.rand()),
        "python": random.random,
    }
    counter = [0]

    def draws() -> float:
        if kind == "counter":
            counter[0] += 1
            return (counter[0] * 0.618) % 1
        return sources[kind]()

    def rule(x: Any, q: Any, p: Any, u: Any) -> Any:
        if draws() < 0.3:
            u = u * 0
        return given.numpy_rule(x, q, p, u)

    return verifier(given="uniforms", hands="numpy", name=kind)(rule)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python", "counter"])
def test_randomness_beside_the_given_numbers_is_refused(kind: str) -> None:
    """Draws of the code's own, and state between calls, are named as the reason."""
    with pytest.raises(OpaqueRandomness, match=r"of its own beside|not a function of the numbers"):
        verifier_emission(other_draws(kind), named_pair(2, 1))


def test_rows_that_meet_are_asked_alone() -> None:
    """A rule that mixes rows falls back to one row per call, says so, and has the law of a row alone."""

    def least(x: Any, q: Any, p: Any, u: Any) -> Any:
        tokens, counts = given.numpy_rule(x, q, p, u)
        return tokens, np.minimum(counts, counts.min())

    pair = named_pair(2, 2)
    found = verifier_emission(verifier(given="uniforms", hands="numpy", name="least")(least), pair)
    assert found.coupled
    law = complete(found.tokens, pair.target, 3, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, 3, pair.prompt)).max() < TOLERANCE


def test_limits_and_failures_are_named() -> None:
    """Too many regions, outcomes that cannot be compared, and exceptions of the code come back as errors that say so."""
    with pytest.raises(PathBudgetExceeded, match="regions"):
        verifier_emission(given.numpy_rejection, named_pair(3, 2), max_paths=20)
    with pytest.raises(SubjectError, match="returned a set"):
        induced_law_given(lambda u: {float(u)})

    def fails_at_zero(x: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Any:
        if bool((u == 0).any()):
            raise ZeroDivisionError("no coin")
        return x

    with pytest.raises(SubjectError, match="no coin") as caught:
        verifier_emission(verifier(given="uniforms", name="fails")(fails_at_zero), named_pair(2, 1))
    assert "given uniforms" in caught.value.inputs


def test_a_single_certain_outcome() -> None:
    """Where nothing depends on the numbers there is one outcome of mass 1."""
    assert induced_law_given(lambda u, e: [[1, 2]], (2,), (3,)).pmf == {((1, 2),): 1.0}
    model = TableModel.from_weights([[0, 1]])
    assert verifier_emission(given.races, Pair(model, model, 2)).tokens == {(1, 1, 1): 1.0}
