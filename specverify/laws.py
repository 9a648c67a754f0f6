"""What law should come out? Laws as arrays: table models, the target law of a sequence, completion, distances.

Nothing here needs torch. A *law* over sequences of length L with V tokens is an array of shape (V,) * L that sums to 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Tokens = tuple[int, ...]
Outcome = TypeVar("Outcome", bound=Hashable)


@dataclass(frozen=True, eq=False)
class TableModel:
    """A language model given as a table: the law of the next token depends on the whole prefix through a small hash.

    ``laws`` has shape (n, V). The prefix x_0 .. x_{t-1} selects row ``(t + sum_i (1 + i mod (n-1)) x_i) mod n``, so the law
    changes with the position, with every earlier token (no coefficient is 0 mod n when n is prime; tokens that are equal
    mod n are not told apart), and with the order of neighbours when n > 2 (tokens n - 1 places apart do commute). With
    n = 1 the model forgets its prefix.

    ``weights`` (n, V), when given, are the integers the laws came from; the laws are then exact fractions.
    """

    laws: Array
    weights: Ints | None = None

    def __post_init__(self) -> None:
        if self.laws.ndim != 2 or self.laws.shape[1] < 1:
            raise ValueError(f"laws must have shape (n, V), got {self.laws.shape}")
        if not np.isfinite(self.laws).all() or (self.laws < 0).any():
            raise ValueError("laws must be finite and not negative")
        if not np.allclose(self.laws.sum(1), 1, atol=1e-6):
            raise ValueError(f"every law must sum to 1, got sums {self.laws.sum(1)}")

    @classmethod
    def from_weights(cls, weights: Sequence[Sequence[int]] | Ints) -> TableModel:
        """Make a model from integer weights (n, V); row i is the law weights[i] / sum(weights[i])."""
        given = np.asarray(weights)
        table = given.astype(np.int64)
        if table.ndim != 2 or (table != given).any() or (table < 0).any() or (table.sum(1) == 0).any():
            raise ValueError("weights must be a table (n, V) of integers >= 0 with at least one positive entry per row")
        return cls(table / table.sum(1, keepdims=True), table)

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return int(self.laws.shape[1])

    @property
    def size(self) -> int:
        """n, the number of different laws."""
        return int(self.laws.shape[0])

    def context(self, prefix: Sequence[int]) -> int:
        """Row of ``laws`` that governs the token after ``prefix``."""
        n = self.size
        period = max(n - 1, 1)
        return (len(prefix) + sum((1 + i % period) * int(x) for i, x in enumerate(prefix))) % n

    def next_law(self, prefix: Sequence[int]) -> Array:
        """Law (V,) of the token after ``prefix``."""
        law: Array = self.laws[self.context(prefix)]
        return law

    def contexts_along(self, ids: Ints) -> Ints:
        """Rows of ``laws`` for every prefix of every sequence: ids (B, T) -> (B, T+1), entry t for the prefix ids[:, :t]."""
        ids = np.asarray(ids, dtype=np.int64)
        n, (_rows, length) = self.size, ids.shape
        coefficients = 1 + np.arange(length) % max(n - 1, 1)
        sums = np.concatenate([np.zeros((len(ids), 1), np.int64), np.cumsum(ids * coefficients, axis=1)], axis=1)
        contexts: Ints = (np.arange(length + 1) + sums) % n
        return contexts

    def laws_along(self, ids: Ints) -> Array:
        """Laws along sequences: ids (B, T) -> (B, T+1, V); entry t is the law of the token after ids[:, :t]."""
        along: Array = self.laws[self.contexts_along(ids)]
        return along

    def fractions(self, prefix: Sequence[int]) -> tuple[Fraction, ...]:
        """The law after ``prefix`` as exact fractions (of the integer weights when known, else of the floats)."""
        row = self.context(prefix)
        if self.weights is not None:
            total = int(self.weights[row].sum())
            return tuple(Fraction(int(w), total) for w in self.weights[row])
        return tuple(Fraction(float(x)) for x in self.laws[row])

    def to_json(self) -> dict[str, Any]:
        """Exact and readable: integer weights when known, else hexadecimal floats."""
        if self.weights is not None:
            return {"weights": self.weights.tolist()}
        return {"laws": [[float(x).hex() for x in row] for row in self.laws]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableModel:
        """Inverse of :meth:`to_json`."""
        if "weights" in data:
            return cls.from_weights(data["weights"])
        return cls(np.array([[float.fromhex(x) for x in row] for row in data["laws"]]))


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft model over the same vocabulary, a prompt, and the number K of draft tokens per round."""

    target: TableModel
    draft: TableModel
    k: int
    prompt: Tokens = (0,)
    name: str = ""

    def __post_init__(self) -> None:
        if self.target.vocab_size != self.draft.vocab_size:
            raise ValueError(f"target has {self.target.vocab_size} tokens, draft has {self.draft.vocab_size}")
        if self.k < 1:
            raise ValueError(f"K must be at least 1, got {self.k}")

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return self.target.vocab_size

    def to_json(self) -> dict[str, Any]:
        """Everything needed to rebuild the pair exactly."""
        return {
            "name": self.name,
            "k": self.k,
            "prompt": list(self.prompt),
            "target": self.target.to_json(),
            "draft": self.draft.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pair:
        """Inverse of :meth:`to_json`."""
        return cls(
            TableModel.from_json(data["target"]),
            TableModel.from_json(data["draft"]),
            int(data["k"]),
            tuple(int(x) for x in data["prompt"]),
            str(data.get("name", "")),
        )


def all_sequences(vocab_size: int, length: int) -> Ints:
    """Every sequence of ``length`` tokens, (V**length, length), in the order of a law's flattened array."""
    grids = np.indices((vocab_size,) * length).reshape(length, vocab_size**length)
    sequences: Ints = np.ascontiguousarray(grids.T).astype(np.int64).reshape(vocab_size**length, length)
    return sequences


def sequence_law(model: TableModel, length: int, prompt: Sequence[int] = ()) -> Array:
    """Law of the next ``length`` tokens after ``prompt``: array of shape (V,) * length, by the chain rule."""
    law = np.ones((1,))
    start = np.asarray([list(prompt)], dtype=np.int64).reshape(1, len(prompt))
    for depth in range(length):
        suffixes = all_sequences(model.vocab_size, depth)
        ids = np.concatenate([np.repeat(start, len(suffixes), 0), suffixes], axis=1)
        law = (law[:, None] * model.laws[model.contexts_along(ids)[:, -1]]).reshape(-1)
    return law.reshape((model.vocab_size,) * length)


def masses(outcomes: Iterable[tuple[Outcome, float]]) -> dict[Outcome, float]:
    """Return the probability of every outcome, given the masses of the paths that lead to it.

    Each sum is rounded once: added up one by one, the masses of ten thousand paths drift by more than the 32 units of rounding
    per token that a law in float64 is allowed.
    """
    found: defaultdict[Outcome, list[float]] = defaultdict(list)
    for outcome, mass in outcomes:
        found[outcome].append(mass)
    return {outcome: math.fsum(parts) for outcome, parts in found.items()}


def complete(emitted: Mapping[Tokens, float], model: TableModel, length: int, prompt: Sequence[int] = ()) -> Array:
    """Extend what a round emitted to ``length`` tokens with the target, and return the law of the result.

    ``emitted`` maps token sequences of any length to their probability. Longer ones are cut at ``length`` (keeping the
    first tokens of a sequence does not condition on anything); shorter ones are continued by the target law, as a
    product of probabilities. A rule is lossless iff the result equals ``sequence_law(model, length, prompt)``.
    """
    V = model.vocab_size
    law = np.zeros((V,) * length)
    by_length: dict[int, list[tuple[Tokens, float]]] = {}
    for tokens, mass in emitted.items():
        head = tokens[:length]
        if any(not 0 <= x < V for x in head):
            raise ValueError(f"emitted tokens {tokens} are not all in 0..{V - 1}")
        law_index = tuple(head)
        if len(head) == length:
            law[law_index] += mass
        else:
            by_length.setdefault(len(head), []).append((head, mass))
    cache: dict[tuple[int, tuple[int, ...]], Array] = {}
    for missing in ((length - n, items) for n, items in by_length.items()):
        for head, mass in missing[1]:
            key = (missing[0], head)
            if key not in cache:
                cache[key] = sequence_law(model, missing[0], (*prompt, *head))
            law[head] += mass * cache[key]
    return law


def total_variation(p: Array, q: Array) -> float:
    """Half the L1 distance between two laws of the same shape."""
    return float(np.abs(np.asarray(p) - np.asarray(q)).sum() / 2)


def kl_divergence(p: Array, q: Array) -> float:
    """KL(p || q) in nats; infinite when p puts mass where q has none."""
    p, q = np.asarray(p, float).ravel(), np.asarray(q, float).ravel()
    used = p > 0
    if (q[used] == 0).any():
        return float("inf")
    return float(np.sum(p[used] * np.log(p[used] / q[used])))


def overlap(p: Array, q: Array) -> float:
    """Beta = sum min(p, q) = 1 - TV: the acceptance probability of token rejection at one position."""
    return float(np.minimum(p, q).sum())


def marginals(law: Array) -> list[Array]:
    """Laws of the first 1, 2, .. L tokens of a sequence law."""
    return [law.sum(axis=tuple(range(n, law.ndim))) for n in range(1, law.ndim + 1)]


def first_difference(law: Array, target: Array, tolerance: float) -> tuple[Tokens, int] | None:
    """Shortest prefix after which the two laws part by more than ``tolerance``; None when they never do.

    Returns (prefix, token): the context and the token whose probability differs most there.
    """
    for ours, right in zip(marginals(law), marginals(target), strict=True):
        gap = np.abs(ours - right)
        worst = np.unravel_index(int(gap.argmax()), gap.shape)
        if gap[worst] > tolerance:
            index = tuple(int(i) for i in worst)
            return index[:-1], index[-1]
    return None


def first_impossible(model: TableModel, tokens: Sequence[int], prompt: Sequence[int] = ()) -> int | None:
    """Place of the first token that the model gives probability 0 after ``prompt`` and those before it; None without one.

    Negative entries are padding and are passed over.
    """
    for place, token in enumerate(tokens):
        if token >= 0 and model.next_law((*prompt, *tokens[:place]))[token] == 0:
            return place
    return None


def as_fractions(law: Iterable[float], limit: int = 10_000) -> list[Fraction]:
    """Nearest fractions with small denominators, for showing a law to a person."""
    return [Fraction(float(x)).limit_denominator(limit) for x in law]
