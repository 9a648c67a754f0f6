"""Laws of table models are what their definitions say: against enumeration in rational arithmetic."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from specverify.laws import (
    Pair,
    TableModel,
    all_sequences,
    as_fractions,
    complete,
    first_difference,
    kl_divergence,
    marginals,
    masses,
    overlap,
    sequence_law,
    total_variation,
)
from specverify.pairs import named_pair
from specverify.randomness import derive, stream
from specverify.tables import TorchTable, torch_models

PRIMES = (2, 3, 5, 7)


def counting(n: int, vocab_size: int = 3) -> TableModel:
    """Make a model whose n laws are all different."""
    return TableModel.from_weights([[1 + i, *range(1, vocab_size)] for i in range(n)])


@pytest.mark.parametrize("n", PRIMES)
def test_every_earlier_token_and_the_position_matter(n: int) -> None:
    """With n prime, changing one token by less than n, or dropping one token 0, selects another law."""
    model = counting(n)
    for length in range(1, 7):
        for prefix in itertools.product(range(min(n, 3)), repeat=length):
            here = model.context(prefix)
            for i, d in itertools.product(range(length), range(1, n)):
                assert model.context((*prefix[:i], prefix[i] + d, *prefix[i + 1 :])) != here
            if prefix[-1] == 0:
                assert model.context(prefix[:-1]) != here


@pytest.mark.parametrize("n", [3, 5, 7])
def test_the_order_of_neighbours_matters(n: int) -> None:
    """Exchanging two neighbours that differ selects another law when n > 2; tokens n - 1 places apart do commute."""
    model = counting(n)
    for prefix in itertools.product(range(3), repeat=5):
        for i in range(4):
            swapped = (*prefix[:i], prefix[i + 1], prefix[i], *prefix[i + 2 :])
            assert (model.context(swapped) == model.context(prefix)) == (prefix[i] == prefix[i + 1])
    apart = [1, *[0] * (n - 2), 2]
    assert model.context(apart) == model.context(apart[::-1])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_laws_along_sequences_agree_with_laws_of_prefixes(n: int) -> None:
    """The array, the single-prefix and the torch form of a model are the same function, for every prefix."""
    model = counting(n)
    ids = all_sequences(3, 5)
    along = model.laws_along(ids)
    logits = TorchTable(model)(torch.from_numpy(ids)).exp().numpy()
    for row, sequence in enumerate(ids.tolist()):
        for t in range(6):
            assert (along[row, t] == model.next_law(sequence[:t])).all()
    assert np.abs(logits - along[:, 1:]).max() < 1e-15


def test_the_law_of_a_sequence_is_the_product_of_fractions() -> None:
    """Chain rule in rational arithmetic, for every sequence of four tokens and several prompts."""
    model = named_pair(3, 2).target
    for prompt in ((), (0,), (2, 1, 0)):
        law = sequence_law(model, 4, prompt)
        assert law.shape == (3,) * 4
        for sequence in itertools.product(range(3), repeat=4):
            exact = Fraction(1)
            for t in range(4):
                exact *= model.fractions((*prompt, *sequence[:t]))[sequence[t]]
            assert law[sequence] == pytest.approx(float(exact), abs=1e-15)
    assert sequence_law(model, 0).shape == ()


def test_sequences_come_in_the_order_of_a_flattened_law() -> None:
    """Row i of all_sequences is the index of entry i; no length and one token work too."""
    for V, length in ((3, 4), (1, 3), (2, 0), (5, 1)):
        expected = list(itertools.product(range(V), repeat=length))
        assert [tuple(s) for s in all_sequences(V, length).tolist()] == expected


def test_completion_cuts_long_and_continues_short_tuples() -> None:
    """Against a sum in fractions over tuples shorter than, as long as and longer than the length asked for."""
    model, prompt = named_pair(3, 2).target, (1,)
    emitted = {(): 0.125, (2,): 0.25, (0, 1): 0.125, (0, 1, 2): 0.25, (0, 1, 2, 2, 1): 0.125, (0, 1, 0, 0): 0.125}
    law = complete(emitted, model, 3, prompt)
    for sequence in itertools.product(range(3), repeat=3):
        expected = 0.0
        for tokens, mass in emitted.items():
            n = min(len(tokens), 3)
            if tokens[:n] == sequence[:n]:
                rest = [float(model.fractions((*prompt, *sequence[:t]))[sequence[t]]) for t in range(n, 3)]
                expected += mass * math.prod(rest)
        assert law[sequence] == pytest.approx(expected, abs=1e-15)
    assert law.sum() == pytest.approx(1)
    assert np.abs(complete({(): 1.0}, model, 3, prompt) - sequence_law(model, 3, prompt)).max() < 1e-15


def test_completion_refuses_tokens_that_are_none() -> None:
    """A padding of -1 among the tokens is not the last token of the vocabulary."""
    model = counting(2)
    for tokens in ((-1,), (0, -1), (0, 3)):
        with pytest.raises(ValueError, match="not all in"):
            complete({tokens: 1.0}, model, 2)


def test_distances_are_those_of_their_definitions() -> None:
    """Total variation, overlap and KL on laws with zeros; KL is infinite where q has no mass."""
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert total_variation(p, q) == 0.5 == 1 - overlap(p, q)
    assert kl_divergence(p, q) == pytest.approx(math.log(2))
    assert kl_divergence(q, p) == math.inf
    assert kl_divergence(p, p) == 0 == total_variation(p, p)


def test_marginals_and_the_first_difference() -> None:
    """The shortest prefix after which two laws part is found, with the token that differs most; small gaps are none."""
    model = named_pair(3, 2).target
    law = sequence_law(model, 3)
    assert [m.shape for m in marginals(law)] == [(3,), (3, 3), (3, 3, 3)]
    assert first_difference(law, law, 0.0) is None
    other = law.copy()
    other[1, 2, 0] += 0.05
    other[1, 2, 1] -= 0.05
    assert first_difference(other, law, 0.01) in (((1, 2), 0), ((1, 2), 1))
    other[0, 1] += 0.01
    other[0, 2] -= 0.02
    other[0, 0] -= 0.01 * 0
    prefix, token = first_difference(other, law, 0.01) or ((), -1)
    assert (prefix, token) == ((), 0)
    assert first_difference(other, law, 0.2) is None


def test_models_and_pairs_survive_json() -> None:
    """Integer weights stay integers, floats keep every bit, and a pair keeps its prompt, K and name."""
    floats = TableModel(np.array([[1 / 3, 2 / 3], [0.1, 0.9], [np.nextafter(0.5, 1), np.nextafter(0.5, 0)]]))
    pair = Pair(counting(3, 2), floats, 3, (1, 0), "name")
    again = Pair.from_json(json.loads(json.dumps(pair.to_json())))
    assert (again.k, again.prompt, again.name) == (3, (1, 0), "name")
    assert (again.draft.laws == floats.laws).all()
    assert again.draft.weights is None
    assert again.target.weights is not None
    assert (again.target.laws == pair.target.laws).all()
    assert again.target.fractions((0,)) == pair.target.fractions((0,))
    assert sum(floats.fractions(())) == Fraction(1 / 3) + Fraction(2 / 3)


@pytest.mark.parametrize(
    "laws",
    [
        np.array([0.5, 0.5]),
        np.array([[0.5, 0.6]]),
        np.array([[1.5, -0.5]]),
        np.array([[np.nan, 1.0]]),
        np.zeros((2, 0)),
    ],
)
def test_tables_that_are_no_laws_are_refused(laws: np.ndarray) -> None:
    """Wrong shapes, sums, signs and NaN raise ValueError."""
    with pytest.raises(ValueError, match=r"laws must|every law"):
        TableModel(laws)


@pytest.mark.parametrize("weights", [[[0, 0]], [[1, -1]], [1, 2], [[0.5, 0.5]], [[1.5, 2]]])
def test_weights_that_are_no_weights_are_refused(weights: list[list[int]]) -> None:
    """Empty rows, negative numbers, a single row and numbers that are no integers raise ValueError."""
    with pytest.raises(ValueError, match="weights must"):
        TableModel.from_weights(weights)


def test_pairs_that_do_not_fit_are_refused() -> None:
    """Different vocabularies and K = 0 raise ValueError."""
    with pytest.raises(ValueError, match="tokens, draft has"):
        Pair(counting(2, 2), counting(2, 3), 1)
    with pytest.raises(ValueError, match="K must"):
        Pair(counting(2), counting(2), 0)


def test_torch_models_take_the_precision_asked_for() -> None:
    """Zeros are -inf, and log-laws come in the given precision."""
    target, _ = torch_models(Pair(TableModel.from_weights([[0, 1]]), counting(1, 2), 1), torch.float32)
    logits = target(torch.tensor([[0]]))
    assert logits.dtype == torch.float32
    assert logits.tolist() == [[[-math.inf, 0.0]]]


def test_fractions_shown_to_a_person_are_the_nearest_small_ones() -> None:
    """1/3 is shown as 1/3."""
    assert as_fractions([1 / 3, 0.25]) == [Fraction(1, 3), Fraction(1, 4)]


def test_seeds_depend_on_every_name_and_on_their_bounds() -> None:
    """Streams of different names differ, equal names agree, and joined names are not the same as separate ones."""
    names = [(), ("a",), ("a", "b"), ("b", "a"), ("ab",), (1,), ("1", 2), (12,)]
    seeds = {derive(0, *n) for n in names} | {derive(1, *n) for n in names}
    assert len(seeds) == 2 * len(names)
    assert all(0 <= s < 2**63 for s in seeds)
    assert derive(0, 1) == derive(0, "1")
    assert stream(3, "x").random() == stream(3, "x").random() != stream(3, "y").random()


def test_masses_of_many_paths_do_not_drift() -> None:
    """300,007 equal masses add up to 1 within rounding, by outcome as well; one by one they would be 4.9e-12 off."""
    paths = 300_007
    law = masses((path % 3, 1 / paths) for path in range(paths))
    assert abs(sum(law.values()) - 1) < 4e-16
    assert law == {rest: pytest.approx(len(range(rest, paths, 3)) / paths, abs=1e-16) for rest in range(3)}
    one_by_one = list(itertools.accumulate(1 / paths for _ in range(paths)))[-1]
    assert abs(one_by_one - 1) > 1e-12
