"""Which drafted tokens are kept when the draft counts as certain: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192,
Algorithm 1) with a one-hot draft law, as for n-grams, prompt lookup and greedy drafts.

Accept x_j with probability p_j(x_j); at the first rejection emit a token of p_j without x_j, renormalised; after K
acceptances a bonus token of p_{K+1}. Given the drafted token a place then emits x_j with probability p(x_j) and t with
(1 - p(x_j)) p(t) / (1 - p(x_j)) = p(t): exact however x_j was found. A draft that was sampled may be treated so too; it only
loses acceptances, sum p q in place of sum min(p, q).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "one_hot_draft"
SOURCE = "Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), with a one-hot draft law"


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:  # noqa: ARG001
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    B, K = draft_tokens.shape
    p = target_probs[:, :K].gather(2, draft_tokens[..., None])[..., 0]  # (B, K)
    accept = noise.uniforms(B, K, p.dtype) < p
    accepted = accept.long().cumprod(1).sum(1)  # (B,)
    rows = torch.arange(B)
    p_final = target_probs[rows, accepted]  # (B, V)
    # After the last place no token is excluded: a drafted "token V" of which a law with V + 1 entries has none.
    excluded = functional.pad(draft_tokens, (0, 1), value=p_final.shape[1])[rows, accepted]
    others = functional.pad(p_final, (0, 1)).scatter(1, excluded[:, None], 0.0)[:, :-1]
    mass = others.sum(1, keepdim=True)
    # p(x) = 1 up to rounding may leave nothing; being here then had a probability of rounding size, so p will do.
    return emit(draft_tokens, accepted, noise.choose(torch.where(mass > 0, others / mass, p_final)))
