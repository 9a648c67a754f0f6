"""Does the comparison of two decoders keep its promises? False alarms at the worst moment, power, valid p-values."""

from __future__ import annotations

import copy
import math
from collections import Counter

import numpy as np
import pytest

from specverify.evidence.two_sample import STRENGTHS, PairedBets, hamming_mmd, permutation_p
from specverify.evidence.two_sample_views import VIEWS
from specverify.laws import Array, Ints

BIGRAM = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.5, 0.2]])
OTHER = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]])


def texts(law: Array, starts: Ints, rng: np.random.Generator, length: int = 8) -> Ints:
    """Sequences (R, length) of a bigram law after prompts of one token each (R,)."""
    out, last = [], starts
    for _ in range(length):
        last = (law[last].cumsum(1) <= rng.random((len(last), 1))).sum(1)
        out.append(last)
    return np.stack(out, axis=1)


def text(law: Array, start: int, rng: np.random.Generator, length: int = 8) -> list[int]:
    """One such sequence."""
    return [int(token) for token in texts(law, np.array([start]), rng, length)[0]]


def run(law: Array, pairs: int, seed: int, rows: int = 4) -> PairedBets:
    """Calls of so many rows over prompts that differ, the plain decoder following BIGRAM."""
    rng = np.random.default_rng(seed)
    bets = PairedBets(3)
    for call in range(pairs // rows):
        which = np.arange(rows) // 2 + call % 3
        bets.add(texts(law, which % 3, rng), texts(BIGRAM, which % 3, rng), which)
    return bets


@pytest.mark.parametrize(("rows", "pairs"), [(1, 15), (4, 80)])
def test_false_alarms_at_the_worst_moment(rows: int, pairs: int) -> None:
    """Of 300 comparisons of a law with itself, looked at after every call, few ever reach 1 / 0.05."""
    alarms = sum(run(BIGRAM, pairs, seed, rows).refutes(0.05) for seed in range(300))
    assert alarms / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_rows_of_a_call_may_depend_on_each_other() -> None:
    """All rows of a call equal, in both decoders: betting row by row would find each other row again, whole calls do not."""
    alarms = 0
    for seed in range(150):
        rng, bets = np.random.default_rng(seed), PairedBets(3)
        for _ in range(20):
            one, two = (texts(BIGRAM, np.zeros(1, np.int64), rng).repeat(6, axis=0) for _ in range(2))
            bets.add(one, two)
        alarms += bets.refutes(0.05)
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
    base = run(OTHER, 160, 5)
    rng = np.random.default_rng(8)
    which = np.array([0, 0, 1, 1])
    one, two = texts(OTHER, which, rng), texts(BIGRAM, which, rng)
    gains = []
    for first, second in ((one, two), (two, one)):
        bets = copy.deepcopy(base)
        before = bets._logs.copy()
        bets.add(first, second, which)
        gains.append(np.exp(bets._logs - before))
    np.testing.assert_allclose((gains[0] + gains[1]) / 2, 1, atol=1e-12)
    assert (np.abs(gains[0] - 1) > 1e-6).sum() > 20  # what averages to 1 are stakes that were really risked


def test_the_labels_are_no_more_than_labels() -> None:
    """Exchanging with and without throughout leaves the wealth as it is."""
    rng = np.random.default_rng(3)
    one, two = PairedBets(3), PairedBets(3)
    for call in range(40):
        which = np.arange(4) // 2 + call % 3
        first, second = texts(OTHER, which % 3, rng), texts(BIGRAM, which % 3, rng)
        assert one.add(first, second, which) == pytest.approx(two.add(second, first, which), abs=1e-9)
    assert one.log_e > 1


def test_a_bet_pays_what_plain_counting_gives() -> None:
    """The view of tokens after one token, against counts kept in dictionaries."""
    rng = np.random.default_rng(6)
    bets, counts = PairedBets(3), (Counter[tuple[int, ...]](), Counter[tuple[int, ...]]())
    strength, expected = STRENGTHS[0], 0.0

    def likelier(batch: Ints) -> float:
        total = 0.0
        for row in batch.tolist():
            for key, token in zip([-1, *row], row, strict=False):
                n, t = [c[key, token] for c in counts], [c[(key,)] for c in counts]
                pooled = (sum(n) + 1 / 3) / (sum(t) + 1)
                first, second = ((a + strength * pooled) / (b + strength) for a, b in zip(n, t, strict=True))
                total += math.log(first / second)
        return total

    for _ in range(30):
        starts = np.zeros(3, np.int64)
        batches = texts(OTHER, starts, rng), texts(BIGRAM, starts, rng)
        expected += math.log(2 / (1 + math.exp(likelier(batches[1]) - likelier(batches[0]))))
        for counter, batch in zip(counts, batches, strict=True):
            for row in batch.tolist():
                counter.update([*zip([-1, *row], row, strict=False), *((key,) for key in [-1, *row[:-1]])])
        bets.add(*batches)
    at = 1 + VIEWS.index("token after one")
    assert bets._logs[at] == pytest.approx(expected, abs=1e-9)


def repeating(seed: int) -> PairedBets:
    """Speculation whose every second request repeats the one before, each request's own law being right."""
    rng, bets, which = np.random.default_rng(seed), PairedBets(3), np.array([0, 1])
    kept = texts(BIGRAM, which, rng)
    for call in range(150):
        kept = texts(BIGRAM, which, rng) if call % 2 == 0 else kept
        bets.add(kept, texts(BIGRAM, which, rng), which)
    return bets


def test_requests_that_repeat_each_other_are_seen() -> None:
    """The agreement with the last requests of a prompt finds it."""
    bets = repeating(2)
    assert bets.refutes(1e-8)
    assert bets._logs[1 + VIEWS.index("agreement with the last requests of the prompt")] > 18
    assert bets._logs[1 + VIEWS.index("token by prompt and place")] < 3


def test_tokens_that_never_came_before_tell_where_counts_cannot() -> None:
    """With 32,000 tokens, evenly drawn ones in place of a tenth are seen by their rarity."""
    rng, size = np.random.default_rng(4), 32_000
    cumulative = (1 / np.arange(1, size + 1) ** 1.1).cumsum()

    def batch(share: float) -> Ints:
        likely = np.searchsorted(cumulative / cumulative[-1], rng.random((8, 12)))
        return np.where(rng.random((8, 12)) < share, rng.integers(0, size, (8, 12)), likely)

    bets = PairedBets(size)
    while bets.pairs < 3_000 and not bets.refutes(1e-8):
        bets.add(batch(0.1), batch(0.0), np.arange(8))
    assert bets.refutes(1e-8)
    assert bets.leader.startswith(("rarity", "several"))


def test_permutation_p_values_are_valid() -> None:
    """Under exchange P(p <= t) <= t for every t that can come, at few permutations too, and never 0."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        drawn: Ints = np.array([text(BIGRAM, 0, rng, 4) for _ in range(24)])
        labels = np.tile([1, 0], 12)
        found.append(permutation_p(hamming_mmd(drawn), labels, 9, rng, paired=True))
    for t in (0.1, 0.2, 0.5):
        assert np.mean(np.array(found) <= t) <= t + 3 * math.sqrt(t * (1 - t) / 300)
    assert min(found) >= 0.1


def test_permutations_see_a_different_law() -> None:
    """Sequences of two laws, paired or not, get the least p that so many permutations allow."""
    rng = np.random.default_rng(1)
    drawn: Ints = np.array([text(law, 0, rng) for _ in range(150) for law in (np.roll(BIGRAM, 1, axis=1), BIGRAM)])
    labels = np.tile([1, 0], 150)
    for paired in (True, False):
        assert permutation_p(hamming_mmd(drawn), labels, 99, rng, paired=paired) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="at least one"):
        permutation_p(hamming_mmd(drawn), labels, 0, rng)
