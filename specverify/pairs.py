"""Which (p, q) should be tried? Hypothesis strategies for context-dependent pairs, and the fixed pairs every run uses.

Laws come from small integer weights, so that a failing pair shrinks to fractions a person can check by hand. Exact zeros,
one-hot laws, disjoint supports, p == q and p == q up to one ulp are all among them.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np

from specverify.laws import Array, Pair, TableModel
from specverify.randomness import stream

PRIME_SIZES = (1, 2, 3, 5)
"""Numbers of different laws in a table model; primes, so that every earlier token matters (see TableModel)."""


def weight_rows(vocab_size: int, largest: int = 6) -> st.SearchStrategy[list[int]]:
    """One law as integer weights (V,), at least one of them positive; shrinks towards small numbers."""
    free = st.lists(st.integers(0, largest), min_size=vocab_size, max_size=vocab_size)
    one_hot = st.integers(0, vocab_size - 1).map(lambda hot: [int(i == hot) for i in range(vocab_size)])
    return st.one_of(free.filter(any), one_hot)


@st.composite
def table_models(draw: st.DrawFn, vocab_size: int) -> TableModel:
    """A context-dependent table model with exact rational laws."""
    size = draw(st.sampled_from(PRIME_SIZES))
    return TableModel.from_weights([draw(weight_rows(vocab_size)) for _ in range(size)])


def _disjoint(model: TableModel) -> TableModel:
    """A model whose laws have no token in common with those of ``model`` (where it leaves any token free)."""
    assert model.weights is not None
    free = (model.weights == 0).astype(np.int64)
    free[free.sum(1) == 0] = 1
    return TableModel.from_weights(free)


def one_ulp_off(laws: Array, dtype: str = "float64") -> Array:
    """The same laws with the largest entry of each row one unit in the last place off, in the given precision.

    It is moved up, except from 1, where it is moved down.
    """
    kind = np.float32 if dtype == "float32" else np.float64
    nudged = laws.astype(kind)
    rows = np.arange(len(nudged))
    top = nudged.argmax(1)
    largest = nudged[rows, top]
    nudged[rows, top] = np.nextafter(largest, np.where(largest < 1, kind(2), kind(0)))
    return nudged.astype(np.float64)


def hardened(pair: Pair) -> Pair:
    """The same pair at temperature 0: every target law a one-hot at its largest weight, the lowest token among equals."""
    table = np.zeros_like(pair.target.laws, dtype=np.int64)
    table[np.arange(len(table)), pair.target.laws.argmax(1)] = 1
    return replace(pair, target=TableModel.from_weights(table))


@st.composite
def pairs(
    draw: st.DrawFn,
    *,
    max_vocab: int = 4,
    max_k: int = 3,
    dtype: str = "float64",
    min_k: int = 1,
    min_vocab: int = 2,
    ulp: bool = True,
) -> Pair:
    """A target and a draft over min_vocab..max_vocab tokens, K from min_k to max_k, in one of five relations to each other."""
    vocab_size = draw(st.integers(min_vocab, max(max_vocab, min_vocab)))
    k = draw(st.integers(min_k, max(max_k, min_k)))
    target = draw(table_models(vocab_size))
    relation = draw(st.sampled_from(("free", "free", "free", "equal", "disjoint", *(("ulp",) if ulp else ()))))
    if relation == "free":
        draft = draw(table_models(vocab_size))
    elif relation == "equal":
        draft = target
    elif relation == "disjoint":
        draft = _disjoint(target)
    else:
        draft = TableModel(one_ulp_off(target.laws, dtype))
    prompt = (draw(st.integers(0, vocab_size - 1)),)
    return Pair(target, draft, k, prompt, relation)


def random_model(
    rng: np.random.Generator, vocab_size: int, *, size: int = 5, largest: int = 6, zeros: float = 0.15
) -> TableModel:
    """A random table model with integer weights and a share of exact zeros."""
    weights = rng.integers(1, largest + 1, (size, vocab_size)) * (rng.random((size, vocab_size)) >= zeros)
    empty = weights.sum(1) == 0
    weights[empty, rng.integers(0, vocab_size, int(empty.sum()))] = 1
    return TableModel.from_weights(weights)


def named_pair(vocab_size: int, k: int, *, seed: int = 0, zeros: float = 0.15) -> Pair:
    """The fixed pair called ``V{V}-K{K}``: five laws each, zeros, token 0 in use, acceptance neither rare nor certain."""
    rng = stream(seed, "pair", vocab_size, k)
    target = random_model(rng, vocab_size, zeros=zeros)
    draft = random_model(rng, vocab_size, zeros=zeros)
    return Pair(target, draft, k, (0,), f"V{vocab_size}-K{k}" + (f", seed {seed}" if seed else ""))


def pair_for(rule: str | None, pair: Pair) -> Pair:
    """The pair as a rule may be judged on it: greedy verification is exact at temperature 0 only."""
    return hardened(pair) if rule == "greedy" else pair
