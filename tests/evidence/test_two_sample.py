"""Does the comparison of two decoders keep its promises? False alarms at the worst moment, power, valid p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specverify.evidence.two_sample import PairedBets, hamming_mmd, permutation_p
from specverify.laws import Array, Ints

BIGRAM = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.5, 0.2]])
OTHER = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]])


def text(law: Array, start: int, rng: np.random.Generator, length: int = 8) -> list[int]:
    """A sequence of a bigram law after a prompt of one token."""
    out, last = [], start
    for _ in range(length):
        last = int(rng.choice(3, p=law[last]))
        out.append(last)
    return out


def run(law: Array, pairs: int, seed: int) -> PairedBets:
    """Pairs over prompts that differ, the plain decoder following BIGRAM."""
    rng = np.random.default_rng(seed)
    bets = PairedBets(3)
    for i in range(pairs):
        bets.add(text(law, i % 3, rng), text(BIGRAM, i % 3, rng))
    return bets


def test_false_alarms_at_the_worst_moment() -> None:
    """Of 150 comparisons of a law with itself, looked at after every prompt, few ever reach 1 / 0.05."""
    alarms = sum(run(BIGRAM, 40, seed).refutes(0.05) for seed in range(150))
    assert alarms / 150 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


def test_two_laws_are_told_apart() -> None:
    """At alpha = 1e-6 within some hundred prompts, in every run."""
    assert all(run(OTHER, 1_500, seed).refutes(1e-6) for seed in range(3))


def test_right_marginals_with_another_joint_law_are_told_apart() -> None:
    """Independent tokens of the stationary law against the bigram."""
    stationary = np.linalg.matrix_power(BIGRAM, 60)
    assert run(stationary, 800, 1).refutes(1e-6)


def test_every_single_bet_is_fair() -> None:
    """Whichever of the two is called the one with speculation, the payoffs average to 1, whatever was learned."""
    base = run(OTHER, 40, 5)
    rng = np.random.default_rng(8)
    one, two = text(OTHER, 0, rng), text(BIGRAM, 0, rng)
    import copy

    gains = []
    for first, second in ((one, two), (two, one)):
        bets = copy.deepcopy(base)
        before = bets._logs.copy()
        bets.add(first, second)
        gains.append(np.exp(bets._logs - before))
    np.testing.assert_allclose((gains[0] + gains[1]) / 2, 1, atol=1e-12)


def test_permutation_p_values_are_valid() -> None:
    """Under exchange P(p <= t) <= t for every t that can come, at few permutations too, and never 0."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        texts: Ints = np.array([text(BIGRAM, 0, rng, 4) for _ in range(24)])
        labels = np.tile([1, 0], 12)
        found.append(permutation_p(hamming_mmd(texts), labels, 9, rng, paired=True))
    for t in (0.1, 0.2, 0.5):
        assert np.mean(np.array(found) <= t) <= t + 3 * math.sqrt(t * (1 - t) / 300)
    assert min(found) >= 0.1


def test_permutations_see_a_different_law() -> None:
    """Sequences of two laws, paired or not, get the least p that so many permutations allow."""
    rng = np.random.default_rng(1)
    texts: Ints = np.array([text(law, 0, rng) for _ in range(150) for law in (np.roll(BIGRAM, 1, axis=1), BIGRAM)])
    labels = np.tile([1, 0], 150)
    for paired in (True, False):
        assert permutation_p(hamming_mmd(texts), labels, 99, rng, paired=paired) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="at least one"):
        permutation_p(hamming_mmd(texts), labels, 0, rng)
