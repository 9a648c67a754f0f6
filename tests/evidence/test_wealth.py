"""Is the wealth of all bets a measurement that anyone can judge again? Verdicts, diagnosis, round trips, changed numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specverify.checks.pair_tokens import wealth
from specverify.checks.sampling import Sample
from specverify.evidence.counted import Counted
from specverify.evidence.measurements import WealthMeasurement, from_json
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.watch import TableWatch
from specverify.evidence.wealth import calls_of, measured
from specverify.laws import Array, Pair
from specverify.pairs import named_pair, random_model

P = np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1]])
Q = np.array([[0.2, 0.5, 0.2, 0.1], [0.3, 0.3, 0.2, 0.2]])


def stream(law: Array, tokens: int, seed: int = 0) -> WealthMeasurement:
    """Tokens of a law over both contexts, 50 rows a call, watched against P and Q."""
    rng = np.random.default_rng(seed)
    watch = TableWatch(P, Q, seed=seed)
    for _ in range(tokens // 500):
        contexts = rng.integers(0, 2, (50, 10))
        below = law.cumsum(1)[contexts] <= rng.random((50, 10, 1))
        watch.add(contexts, np.minimum(below.sum(-1), 3))
    return measured("stream", watch)


def fault(name: str) -> Array:
    """Law of a fault on the two contexts."""
    return FAULT_LAWS[name](At.everywhere(Rows(P, Q)))


def test_an_exact_stream_passes_and_says_what_may_be_hidden() -> None:
    """Certified, with a bound on the share of every fault that would have been seen, and the names of the others."""
    judged = stream(P, 20_000).judge(1e-6)
    assert judged.verdict == "certified"
    assert judged.numbers["faults_seen"] + judged.numbers["faults_unseen"] == sum(
        np.abs(fault(n) - P).max() > 1e-5 for n in FAULT_LAWS
    )
    assert 0 < judged.numbers["contamination"] < 0.6
    assert "at most" in judged.reason
    few = stream(P, 500).judge(1e-6)
    assert few.numbers["faults_unseen"] > judged.numbers["faults_unseen"]
    assert "too few to see" in few.reason


@pytest.mark.parametrize("name", ["lenience", "match_with_residual", "accept_if_likelier_else_target"])
def test_a_fault_is_refuted_and_named(name: str) -> None:
    """With how much more wealth it has than the next."""
    judged = stream(fault(name), 10_000).judge(1e-8)
    assert judged.verdict == "refuted"
    assert f"fits best: {name}, e^" in judged.reason
    assert "; furthest off is token " in judged.reason


def test_two_faults_of_one_law_are_both_named() -> None:
    """Two tries against the first p are the law of drawing again from the target."""
    judged = stream(fault("k_tries"), 10_000).judge(1e-8)
    assert "resample_from_target or k_tries" in judged.reason or "k_tries or resample_from_target" in judged.reason


def test_without_counts_the_bound_is_the_next_level_up() -> None:
    """A stream of which only the wealth is known gets a coarser bound that still covers, or none."""
    one = stream(P, 20_000)
    fine, coarse = one.judge(1e-6), replace(one, counted=None).judge(1e-6)
    assert coarse.verdict == "certified"
    assert coarse.numbers["contamination"] in (0.01, 0.03, 0.1, 0.3)
    assert coarse.numbers["faults_seen"] <= fine.numbers["faults_seen"]
    assert "not excluded: " in coarse.reason
    assert "too few to exclude any" in replace(stream(P, 500), counted=None).judge(1e-12).reason


def test_an_impossible_token_refutes_at_any_alpha() -> None:
    """Even at alpha 0, and p is 0."""
    watch = TableWatch(np.array([[1.0, 0.0]]))
    watch.add(np.zeros((1, 1), int), np.array([[1]]))
    judged = measured("x", watch).judge(0.0)
    assert judged.verdict == "refuted"
    assert judged.numbers["p"] == 0


def test_the_measurement_survives_writing_and_reading() -> None:
    """Every number comes back, and the same judgement follows."""
    for one in (stream(P, 2_000), stream(Q, 2_000), replace(stream(P, 500), counted=None)):
        again = from_json(json.loads(json.dumps(one.to_json())))
        assert isinstance(again, WealthMeasurement)
        assert again.to_json() == one.to_json()
        assert again.judge(1e-6) == one.judge(1e-6)


def test_wealth_that_does_not_follow_from_the_counts_is_an_error() -> None:
    """A changed count or a changed wealth is noticed, whatever it would have said."""
    one = stream(Q, 2_000)
    assert one.counted is not None
    counts = one.counted.counts.copy()
    counts[0, 0] += 5
    changed = replace(one, counted=Counted(counts, P, Q))
    assert changed.judge(1e-6).verdict == "error"
    poorer = replace(one, bets=tuple((a, min(log, 0.0)) for a, log in one.bets))
    assert poorer.judge(1e-6).verdict == "error"


@pytest.mark.parametrize("draft_size", [5, 3])
def test_tokens_of_a_sample_are_counted_under_the_laws_that_governed_them(draft_size: int) -> None:
    """Contexts of target and draft are found again from the sequences, also where the models have different sizes."""
    base = named_pair(4, 2)
    draft = random_model(np.random.default_rng(1), 4, size=draft_size)
    pair = Pair(base.target, draft, 2, (0, 1), "x")
    rng = np.random.default_rng(2)
    sequences = []
    for _ in range(30):
        tokens: tuple[int, ...] = ()
        for _ in range(4):
            tokens = (*tokens, int(rng.choice(4, p=base.target.next_law((0, 1, *tokens)))))
        sequences.append(tokens)
    found = wealth(Sample(sequences=sequences, calls=[10, 20]), pair, pair.target, 0)
    assert found.tokens == 120
    assert found.impossible == 0
    assert found.counted is not None
    expected: dict[tuple[bytes, bytes, int], int] = {}
    for tokens in sequences:
        for i, token in enumerate(tokens):
            prefix = (0, 1, *tokens[:i])
            key = (pair.target.next_law(prefix).tobytes(), pair.draft.next_law(prefix).tobytes(), token)
            expected[key] = expected.get(key, 0) + 1
    counted: dict[tuple[bytes, bytes, int], int] = {}
    c = found.counted
    assert c.q is not None
    for context, token in zip(*np.nonzero(c.counts), strict=True):
        key = (c.p[context].tobytes(), c.q[context].tobytes(), int(token))
        counted[key] = counted.get(key, 0) + int(c.counts[context, token])
    assert counted == expected


def test_rows_of_each_call_stay_together() -> None:
    """Sequences are split as the calls were made."""
    parts = calls_of([(0,), (1,), (2,)], [2, 1])
    assert [part.tolist() for part in parts] == [[[0], [1]], [[2]]]


@pytest.mark.parametrize(
    ("mixed", "tolerance", "verdict", "said"),
    [
        (0.1, 0.2, "certified", "so rounding of that size shows"),
        (0.0, 0.05, "certified", "so no rounding shows either"),
        (1.0, 0.02, "refuted", "beyond what logits off by 0.02 explain"),
    ],
)
def test_rounding_and_algorithm_are_two_questions(mixed: float, tolerance: float, verdict: str, said: str) -> None:
    """A declared tolerance decides the verdict, and the words say what would be seen without it."""
    rng = np.random.default_rng(3)
    watch = TableWatch(P, Q, logit_tolerance=tolerance)
    law = (1 - mixed) * P + mixed * Q
    for _ in range(40):
        contexts = rng.integers(0, 2, (50, 10))
        watch.add(contexts, np.minimum((law.cumsum(1)[contexts] <= rng.random((50, 10, 1))).sum(-1), 3))
    one = measured("stream", watch)
    judged = one.judge(1e-8)
    assert judged.verdict == verdict
    assert said in judged.reason
    assert judged.numbers["log_e_without_tolerance"] > one.process().log_e
    again = from_json(json.loads(json.dumps(one.to_json())))
    assert again.judge(1e-8) == judged
    assert replace(one, logit_tolerance=tolerance / 2).judge(1e-8).verdict == "error"


def test_numbers_that_cannot_be_are_errors() -> None:
    """More tokens than were counted, which would make a pass of too few; a share of the tokens that nobody bets at."""
    one = replace(stream(P, 2_000), until=0.3)
    assert one.judge(1e-8).verdict == "inconclusive"
    for changed in (replace(one, tokens=10**9), replace(one, until=0.25)):
        judged = changed.judge(1e-8)
        assert judged.verdict == "error"
        assert "does not follow from the counts" in judged.reason


def test_no_bound_is_given_with_a_tolerance() -> None:
    """It would hold for the target's own logits only."""
    plain, tolerant = TableWatch(P, Q), TableWatch(P, Q, logit_tolerance=0.01)
    rng = np.random.default_rng(0)
    for _ in range(20):
        contexts = rng.integers(0, 2, (50, 10))
        tokens = np.minimum((P.cumsum(1)[contexts] <= rng.random((50, 10, 1))).sum(-1), 3)
        for watch in (plain, tolerant):
            watch.add(contexts, tokens)
    assert "contamination" in measured("x", plain).judge(1e-6).numbers
    assert "contamination" not in measured("x", tolerant).judge(1e-6).numbers
