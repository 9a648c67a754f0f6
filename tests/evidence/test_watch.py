"""Does the wealth of all bets together keep its promise? False alarms, power near the limit, names, large vocabularies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specverify.evidence.bets import divergences
from specverify.evidence.eprocess import Alternative, EProcess, information_limit, tokens_to_refute, weighted
from specverify.evidence.pointwise import FAULT_LAWS, At, Rows
from specverify.evidence.rounding import widened_by
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.laws import Array, Ints
from specverify.pairs import named_pair


def models(v: int = 8) -> tuple[Array, Array]:
    """Target and draft laws (C, V) of a pair, all positive."""
    pair = named_pair(v, 3)
    n = min(pair.target.size, pair.draft.size)
    p, q = pair.target.laws[:n] + 0.02, pair.draft.laws[:n] + 0.02
    return p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)


def draw(law: Array, contexts: Ints, rng: np.random.Generator) -> Ints:
    """Tokens of these contexts."""
    cumulative = law.cumsum(1)[contexts]
    below = cumulative <= rng.random(contexts.shape)[..., None]
    tokens: Ints = np.minimum(below.sum(-1), law.shape[1] - 1)
    return tokens


def test_false_alarms_at_the_worst_moment() -> None:
    """Of 400 exact streams looked at after every call, at most 0.05 plus three standard errors ever reach 1 / 0.05."""
    p, q = models()
    alarms = 0
    for run in range(400):
        rng = np.random.default_rng(run)
        watch = TableWatch(p, q, seed=run)
        for _ in range(30):
            contexts = rng.integers(0, len(p), (4, 8))
            watch.add(contexts, draw(p, contexts, rng))
        alarms += watch.process.refutes(0.05)
    assert alarms / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("name", FAULT_LAWS)
def test_every_catalogued_fault_is_refuted_near_the_limit(name: str) -> None:
    """Within four times what any test needs on average, and the wealth lies with it or with laws that are nearly the same."""
    p, q = models()
    rows = Rows(p, q)
    y = FAULT_LAWS[name](At.everywhere(rows))
    divergence = float(divergences(rows, with_q=True)[name].mean())
    limit = information_limit(divergence, 1e-6)
    rng = np.random.default_rng(3)
    watch = TableWatch(p, q)
    while watch.process.tokens < 4 * limit and not watch.process.refutes(1e-6):
        contexts = rng.integers(0, len(p), (4, max(1, int(limit / 80))))
        watch.add(contexts, draw(y, contexts, rng))
    assert watch.process.refutes(1e-6)
    weight = sum(a.weight for a in watch.process.alternatives if (a.name, a.level) == (name, 1.0))
    assert tokens_to_refute(divergence, weight, 1e-6) < 1.6 * limit
    contexts = rng.integers(0, len(p), (4, int(limit) + 50))
    watch.add(contexts, draw(y, contexts, rng))
    (family, best), share = next(iter(watch.process.posterior().items()))
    assert family == "fault"
    alike = np.abs(FAULT_LAWS[best](At.everywhere(rows)) - y).sum(1).mean() / 2
    assert best == name or alike < 0.03, (best, share)


def test_tables_and_streams_see_the_same() -> None:
    """The counted and the token-by-token way give every bet the same wealth, with and without the draft."""
    p, q = models(5)
    for draft in (q, None):
        rng = np.random.default_rng(1)
        table, stream = TableWatch(p, draft, seed=9), StreamWatch(draft is not None, 5, seed=9)
        for rows in (3, 4, 2):
            contexts = rng.integers(0, len(p), (rows, 9))
            tokens = draw(p, contexts, rng)
            tokens[0, 7:] = -1
            table.add(contexts, tokens)
            stream.add(p[contexts], None if draft is None else draft[contexts], tokens)
        np.testing.assert_allclose(table.process.logs, stream.process.logs, atol=1e-9)
        assert table.process.tokens == stream.process.tokens == 9 * 9 - 6


def test_pairs_are_settled_alike_with_and_without_a_table() -> None:
    """Models with too many states for a table of pairs give the same wealth."""
    p, q = models(5)
    rng = np.random.default_rng(1)
    small, large = TableWatch(p, q, seed=2), TableWatch(p, q, seed=2)
    large._pairs = None
    for _ in range(3):
        contexts = rng.integers(0, len(p), (3, 9))
        tokens = draw(p, contexts, rng)
        assert small.add(contexts, tokens) == pytest.approx(large.add(contexts, tokens))


@pytest.mark.parametrize(
    ("kind", "place"), [("same uniform", "1 back"), ("same uniform", "row before"), ("same token", "request before")]
)
def test_shared_noise_is_seen_though_every_law_is_right(kind: str, place: str) -> None:
    """One uniform for two positions, for two rows, and a request that repeats the one before: refuted and named."""
    p, q = models()
    rng = np.random.default_rng(5)
    watch = TableWatch(p, q)
    contexts = rng.integers(0, len(p), (6, 10))
    kept = rng.random((6, 10))
    for _ in range(40):
        contexts = contexts if place == "request before" else rng.integers(0, len(p), (6, 10))
        u = kept if place == "request before" else rng.random((6, 10))
        if place == "row before":
            u = np.repeat(u[:1], 6, axis=0)
        elif place == "1 back":
            u[:, 1::2] = u[:, ::2]
        tokens = np.minimum((p.cumsum(1)[contexts] <= u[..., None]).sum(-1), p.shape[1] - 1)
        watch.add(contexts, tokens)
    assert watch.process.refutes(1e-8)
    (family, name), _ = next(iter(watch.process.posterior().items()))
    assert family == "dependence"
    assert place in name


@pytest.mark.parametrize("tolerance", [0.01, 0.1])
def test_laws_within_the_logit_tolerance_are_not_refuted(tolerance: float) -> None:
    """The bound holds at every token for logits moved by that much, and such streams give no alarm; others still do."""
    p, q = models()
    rng = np.random.default_rng(0)
    for _ in range(200):
        moved = p * np.exp(rng.choice([-tolerance, tolerance], p.shape))
        moved = moved / moved.sum(1, keepdims=True)
        assert (np.log(moved / p) <= widened_by(p, tolerance) + 1e-12).all()
    toward = p * np.exp(np.where(q > p, tolerance, -tolerance))
    toward = toward / toward.sum(1, keepdims=True)
    strict, lenient, wrong = TableWatch(p, q), *(TableWatch(p, q, logit_tolerance=tolerance) for _ in range(2))
    for _ in range(60):
        contexts = rng.integers(0, len(p), (64, 32))
        tokens = draw(toward, contexts, rng)
        strict.add(contexts, tokens)
        lenient.add(contexts, tokens)
        wrong.add(contexts, draw(q, contexts, rng))
    assert not lenient.process.refutes(0.05)
    assert wrong.process.refutes(1e-8)
    assert strict.process.refutes(1e-8) or tolerance < 0.05


def test_a_tolerance_that_makes_no_sense_is_refused() -> None:
    """Below 0, or not a number."""
    for tolerance in (-0.1, math.nan, 50.0):
        with pytest.raises(ValueError, match="logit tolerance"):
            TableWatch(np.array([[0.5, 0.5]]), logit_tolerance=tolerance)


def test_ranks_do_not_share_the_seed_of_the_tokens() -> None:
    """Tokens drawn with numpy's generator of the same seed are an exact stream all the same."""
    rng = np.random.default_rng(0)
    watch = TableWatch(np.array([[0.5, 0.3, 0.2]]), seed=0)
    for _ in range(30):
        watch.add(np.zeros((1, 10), int), rng.choice(3, size=(1, 10), p=[0.5, 0.3, 0.2]))
    assert watch.process.highest < math.log(100)


def test_an_impossible_token_is_the_end() -> None:
    """E is infinite, and the other bets stay finite numbers."""
    p = np.array([[0.5, 0.5, 0.0]])
    watch = TableWatch(p)
    assert watch.add(np.zeros((1, 2), int), np.array([[0, 2]])) == math.inf
    assert np.isfinite(watch.process.logs).all()
    assert watch.impossible == 1


def test_shards_merge_by_adding_logarithms() -> None:
    """Two halves merged have the wealth of their product, alternative by alternative; others are refused."""
    p, q = models()
    rng = np.random.default_rng(7)
    halves = [TableWatch(p, q, seed=i) for i in range(2)]
    for watch in halves:
        contexts = rng.integers(0, len(p), (4, 50))
        watch.add(contexts, draw(q, contexts, rng))
    both = halves[0].process.merged(halves[1].process)
    np.testing.assert_allclose(both.logs, halves[0].process.logs + halves[1].process.logs)
    assert both.tokens == 400
    with pytest.raises(ValueError, match="same alternatives"):
        both.merged(TableWatch(p).process)


def test_a_large_vocabulary_is_watched_token_by_token() -> None:
    """150,000 tokens, with q: a fault of the catalogue is refuted from single tokens and their laws."""
    v, rng = 150_000, np.random.default_rng(0)
    watch = StreamWatch(True, v)
    for _ in range(10):
        logits = rng.normal(size=(1, 2, v))
        p = np.exp(2 * logits)
        q = np.exp(2 * logits + rng.normal(size=(1, 2, v)))
        p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
        tokens = np.array([[int(rng.choice(v, p=row / row.sum())) for row in q[0]]])
        watch.add(p, q, tokens)
    assert watch.process.tokens == 20
    assert watch.log_e > 3
    assert next(iter(watch.process.posterior()))[0] == "fault"


def test_weights_sum_to_one_and_families_without_alternatives_give_theirs_up() -> None:
    """And weights that do not are refused."""
    given = [Alternative("a", "x", 1.0, 3.0), Alternative("a", "y", 1.0, 1.0), Alternative("b", "z", 1.0, 7.0)]
    made = weighted({"a": 0.3, "b": 0.3, "c": 0.4}, given)
    assert [a.weight for a in made] == pytest.approx([0.375, 0.125, 0.5])
    with pytest.raises(ValueError, match="sum to 1"):
        EProcess(given)
