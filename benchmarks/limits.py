"""How many tokens would any test need that knows a defect exactly? KL of its joint law, from exact laws of its code.

The law of one round after every context comes from running the code on every outcome of its randomness; rounds are then put
together by summing over all ways in which they can cut a sequence. With r = P_defect / P_target of a whole sequence,
KL = E_target[r ln r - r + 1], an average of numbers that are never negative, over sequences drawn from the target.
"""

from __future__ import annotations

import numpy as np
from defects import Defect

from specverify.exact import emission
from specverify.laws import Array, Ints, Pair
from specverify.subjects import Verifier

SEQUENCES = 200_000


def _prompts(pair: Pair) -> dict[tuple[int, int], tuple[int, ...]]:
    """A prompt for each context and phase of the coefficients: all that a round depends on."""
    n = pair.target.size
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    phase_of = max(n - 1, 1)
    for length in range(1, 2 * phase_of + 1):
        for last in range(min(n, pair.vocab_size)):
            prompt = (0,) * (length - 1) + (last,)
            found.setdefault((pair.target.context(prompt), length % phase_of), prompt)
    return found


def _blocks(defect: Defect, pair: Pair) -> dict[tuple[int, int], list[Array]]:
    """Law of the tokens of one round, by number of tokens m: (V,) * m, after each context and phase."""
    found = {}
    v = pair.vocab_size
    rule = Verifier(defect.name, defect.alike or defect)
    for state, prompt in _prompts(pair).items():
        law = emission(rule, Pair(pair.target, pair.draft, pair.k, prompt))
        tables = [np.zeros((v,) * m) for m in range(1, pair.k + 2)]
        for tokens, mass in law.tokens.items():
            tables[len(tokens) - 1][tokens] += mass
        found[state] = tables
    return found


def divergence(defect: Defect, pair: Pair, length: int, rng: np.random.Generator) -> tuple[float, float] | None:
    """KL in nats per token of sequences of so many tokens, and its standard error; None where rows or rounds act together."""
    if defect.together:
        return None
    if pair.target.size != pair.draft.size:
        raise ValueError("both models must take their contexts from the same prefixes")
    blocks = _blocks(defect, pair)
    start, n = len(pair.prompt), pair.target.size
    ids = np.zeros((SEQUENCES, start + length), np.int64)
    ids[:, :start] = pair.prompt
    target = np.ones(SEQUENCES)
    for at in range(start, start + length):
        laws = pair.target.laws[pair.target.contexts_along(ids[:, :at])[:, -1]]
        ids[:, at] = np.minimum((laws.cumsum(1) <= rng.random((SEQUENCES, 1))).sum(1), laws.shape[1] - 1)
        target *= np.take_along_axis(laws, ids[:, at : at + 1], 1)[:, 0]
    ratio = _probabilities(blocks, ids, start, pair.target.contexts_along(ids), max(n - 1, 1)) / target
    values = ratio * np.log(np.where(ratio > 0, ratio, 1.0)) - ratio + 1
    return float(values.mean()) / length, float(values.std()) / length / SEQUENCES**0.5


def _probabilities(blocks: dict[tuple[int, int], list[Array]], ids: Ints, start: int, contexts: Ints, phase_of: int) -> Array:
    """Probability (N,) of ids[:, start:], whatever rounds cut it; the last round may go on past the end."""
    total = ids.shape[1]
    begins = np.zeros((total + 1, len(ids)))
    begins[start] = 1.0
    out = np.zeros(len(ids))
    for at in range(start, total):
        for context in np.unique(contexts[:, at]):
            rows = np.flatnonzero(contexts[:, at] == context)
            for m, table in enumerate(blocks[int(context), at % phase_of], 1):
                kept = min(m, total - at)
                shorter = table.sum(tuple(range(kept, m)))
                mass = begins[at, rows] * shorter[tuple(ids[rows, at : at + kept].T)]
                if at + m >= total:
                    out[rows] += mass
                else:
                    begins[at + m, rows] += mass
    return out
