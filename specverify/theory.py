"""How often may a correct rule accept? Exact acceptance laws on a pair, by enumeration of the drafts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specverify.laws import Array, Ints, Pair, all_sequences, overlap


def _ratios(pair: Pair) -> tuple[Array, Array, Ints]:
    """Weights (N,) of the possible drafts, their ratios rho (N, K) = p/q along the draft, and the drafts (N, K)."""
    drafts = all_sequences(pair.vocab_size, pair.k)
    ids = np.concatenate([np.tile(np.asarray(pair.prompt, np.int64), (len(drafts), 1)), drafts], axis=1)
    start = len(pair.prompt)
    index = drafts[..., None]
    q = np.take_along_axis(pair.draft.laws_along(ids)[:, start : start + pair.k], index, 2)[..., 0]
    p = np.take_along_axis(pair.target.laws_along(ids)[:, start : start + pair.k], index, 2)[..., 0]
    used = (q > 0).all(1)
    return q[used].prod(1), p[used] / q[used], drafts[used]


def token_rejection_tail(pair: Pair) -> Array:
    """P(tau >= i) for i = 1..K under token rejection: E_q prod_{j<=i} min(1, rho_j) (Leviathan et al. 2023)."""
    weights, rho, _ = _ratios(pair)
    tail: Array = (weights[:, None] * np.minimum(rho, 1).cumprod(1)).sum(0)
    return tail


def block_tail(pair: Pair) -> Array:
    """P(tau >= i) for i = 1..K under block verification: E_q min_{0<=k<=i} prod_{k<j<=i} rho_j (Sun et al. 2024).

    No rule that verifies one drafted path accepts more tokens on average.
    """
    weights, rho, _ = _ratios(pair)
    best = np.ones(len(rho))
    tail = []
    for i in range(pair.k):
        best = np.minimum(1.0, best * rho[:, i])
        tail.append(float((weights * best).sum()))
    return np.array(tail)


def several_drafts_bound(p: Array, drafts: Mapping[frozenset[int], float]) -> float:
    """Return 1 + min over H of [p(H) - P(all drafts in H)]: the most that one of several drafts can be accepted.

    p (V,) is the target law, ``drafts`` the probability of each set of drafted tokens. Whoever accepts emits a drafted token,
    so all drafts in H and a token outside H exclude acceptance, and P(A and B) >= P(A) + P(B) - 1 (Sun et al. 2023, arXiv
    2310.15141, the dual of optimal transport between the drafts and the target).
    """
    masks = {sum(1 << t for t in tokens): mass for tokens, mass in drafts.items()}
    inside = [sum(float(p[t]) for t in range(len(p)) if h >> t & 1) for h in range(1 << len(p))]
    return 1 + min(inside[h] - sum(mass for m, mass in masks.items() if m & ~h == 0) for h in range(1 << len(p)))


def first_overlap(pair: Pair) -> float:
    """1 - TV at the first draft position: the most that one draft can be accepted there."""
    return overlap(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt))
