"""Do tokens follow the law of another place? Bets on the laws of positions before and of rows beside, mixed into the right one.

y = (1 - l) p + l p' with p' the target's own law at the other place, which stands fixed before the token comes: the laws of
rows beside depend on their tokens before this position. Tokens that p' has and p has not refute by themselves.
"""

from __future__ import annotations

import numpy as np

from specverify.evidence.eprocess import FLOOR, Alternative
from specverify.laws import Array

SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)
PLACES = ("position before", "second position before", "row before", "row after")
OWN_AND_OTHER: tuple[tuple[tuple[slice, slice], tuple[slice, slice]], ...] = (
    ((slice(None), slice(1, None)), (slice(None), slice(None, -1))),
    ((slice(None), slice(2, None)), (slice(None), slice(None, -2))),
    ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
    ((slice(None, -1), slice(None)), (slice(1, None), slice(None))),
)
"""For each place: which tokens of rows (R, L) have one, and where it is."""


def place_alternatives() -> list[Alternative]:
    """One for each place and share, place by place; weights within the family."""
    return [Alternative("place", f"law of the {place}", share, 1.0) for place in PLACES for share in SHARES]


def place_logs(other: Array, own: Array) -> Array:
    """ln(1 + l (p'/p - 1)) (5, ...) of tokens with probabilities ``other`` = p' and ``own`` = p > 0."""
    with np.errstate(divide="ignore"):
        logs = np.stack([np.log1p(share * (other / own - 1)) for share in SHARES])
    bounded: Array = np.maximum(logs, FLOOR)
    return bounded
