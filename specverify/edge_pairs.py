"""Which pairs lie at an edge? p equal to q exactly and up to one unit in the last place, zeros, one-hots, ties, V = 2.

All are small and context-dependent. Those that differ by one unit in the last place (ulp) do so in the precision that a
subject declares: its copy of the laws is then p <= q everywhere with p < q somewhere, so that a rejection is possible and
nothing is left to recover from.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specverify.laws import Array, Pair, TableModel
from specverify.pairs import hardened

DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of precision by the name of a dtype."""
DYADIC = {2: [[3, 5], [5, 3]], 3: [[3, 3, 2], [2, 3, 3], [3, 2, 3]]}
"""Weights out of 8: these laws are the same numbers in every precision."""
UNEVEN = {2: [[1, 2], [2, 1], [1, 4]], 3: [[1, 2, 3], [3, 1, 2], [2, 4, 1]]}
"""Weights whose laws are rounded in every precision."""


def zeros_pair(k: int) -> Pair:
    """Four tokens with exact zeros at both ends of p, under tokens that q drafts, and in q where p has some."""
    target = [[0, 2, 1, 0], [1, 0, 0, 2], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 1, 3]]
    draft = [[1, 1, 0, 1], [1, 1, 1, 0], [2, 0, 1, 1], [0, 2, 1, 1], [1, 0, 2, 1]]
    return Pair(TableModel.from_weights(target), TableModel.from_weights(draft), k, (0,), f"zeros, V = 4, K = {k}")


def moved_one_ulp(laws: Array, columns: list[int], dtype: str, up: bool = True) -> Array:
    """The laws with one entry per row (its column) moved by one ulp, up or down, once they are rounded to ``dtype``.

    In half precision a law one ulp off does not sum to 1 within what a table allows. There the entry moves by a little more
    than half an ulp, so that it is rounded to the neighbour, and other entries make up for it by less than half of theirs,
    so that they are rounded to where they were. Errors: ValueError when they cannot.
    """
    out = laws.astype(np.float64).copy()
    for row, column in enumerate(columns):
        x = out[row, column]
        if DIGITS[dtype] > 11:
            kind = np.float32 if dtype == "float32" else np.float64
            out[row, column] = float(np.nextafter(kind(x), kind(2.0 if up else 0.0)))
            continue
        sign = 1 if up else -1
        left = 0.51 * _spacing(x, dtype, up)
        out[row, column] = x + sign * left
        for other in range(laws.shape[1]):
            if other != column and out[row, other] > 0:
                step = min(left, 0.45 * _spacing(out[row, other], dtype, not up))
                out[row, other] -= sign * step
                left -= step
        if left > 0:
            raise ValueError(
                f"row {row} cannot be moved by one ulp of {dtype}: the other entries are too small to make up for it"
            )
    return out


def _spacing(x: float, dtype: str, up: bool) -> float:
    """Distance from x > 0 to its neighbour above or below in a precision."""
    mantissa, exponent = np.frexp(x)
    step = float(2.0 ** (int(exponent) - DIGITS[dtype]))
    return step / 2 if not up and mantissa == 0.5 else step


def _ulp_pairs(k: int, vocab_size: int, dtype: str) -> list[Pair]:
    """Pairs whose draft is the target up to one ulp: nothing left of p - q, or an ulp of one token."""
    dyadic, uneven = DYADIC[vocab_size], UNEVEN[vocab_size]
    threes = [row.index(3) for row in dyadic]
    moves = [("above", dyadic, threes, True), ("below", dyadic, threes, False)]
    if DIGITS[dtype] > 11:
        moves += [("above", uneven, [row.index(choice(row)) for row in uneven], True) for choice in (min, max)]
    made = []
    for where, weights, columns, up in moves:
        target = TableModel.from_weights(weights)
        draft = TableModel(moved_one_ulp(target.laws, columns, dtype, up))
        entry = "largest" if all(row[c] == max(row) for row, c in zip(weights, columns, strict=True)) else "smallest"
        name = f"q one ulp of {dtype} {where} p at the {entry} entry, {'in eighths' if weights is dyadic else 'rounded'}"
        made.append(Pair(target, draft, k, (0,), f"{name}, V = {vocab_size}, K = {k}"))
    return made


def edge_pairs(k: int, vocab_size: int, dtype: str = "float64") -> list[Pair]:
    """All edges for K = k and 2 or 3 tokens, in a precision."""
    uneven = UNEVEN[vocab_size]
    if vocab_size == 2:
        hots, others = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
        disjoint, tied = (hots, others), ([[1, 1], [1, 1]], [[1, 1], [1, 1]])
    else:
        hots, others = [[1, 0, 0], [0, 0, 1], [0, 1, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
        disjoint = ([[1, 2, 0], [0, 1, 0], [2, 0, 1]], [[0, 0, 1], [1, 0, 1], [0, 1, 0]])
        tied = ([[2, 2, 1], [1, 2, 2], [2, 1, 2]], [[1, 2, 2], [2, 2, 1], [2, 2, 1]])
    named = {
        "disjoint supports": disjoint,
        "p = q": (uneven, uneven),
        "the same one-hots": (hots, hots),
        "other one-hots": (hots, others),
        "target one-hot": (hots, uneven),
        "draft one-hot": (uneven, hots),
        "ties": tied,
    }
    made = [
        Pair(TableModel.from_weights(p), TableModel.from_weights(q), k, (0,), f"{name}, V = {vocab_size}, K = {k}")
        for name, (p, q) in named.items()
    ]
    ties = made[-1]
    made.append(replace(hardened(ties), name=f"ties at T = 0, V = {vocab_size}, K = {k}"))
    return [*made, *_ulp_pairs(k, vocab_size, dtype)]
