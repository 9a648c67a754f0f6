"""Which drafted tokens greedy decoding keeps: Stern, Shazeer, Uszkoreit 2018 (arXiv 1811.03115, section 3).
By induction each kept token is the one that greedy decoding would have chosen.

Accept while x_j = argmax p_j; at the first mismatch, or after K acceptances, emit the argmax there. For temperature 0,
where p_j has one token; for other laws it is not lossless. A tie goes to the lowest id, as in
:mod:`reference.processors`.
"""

from __future__ import annotations

from torch import Tensor

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "greedy"
SOURCE = "Stern, Shazeer, Uszkoreit 2018 (arXiv 1811.03115)"


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:  # noqa: ARG001
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    best = target_probs.argmax(2)  # (B, K+1)
    accepted = (draft_tokens == best[:, :-1]).long().cumprod(1).sum(1)
    return emit(draft_tokens, accepted, best.gather(1, accepted[:, None])[:, 0])
