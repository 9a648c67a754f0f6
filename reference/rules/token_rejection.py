"""Which drafted tokens rejection sampling keeps: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192, Algorithm 1, proof
in appendix A.1) and Chen et al. 2023 (arXiv 2302.01318, Algorithm 2, Theorem 1).

Accept x_j with probability min(1, p_j(x_j) / q_j(x_j)). At the first rejection emit a token of the residual law
(p_j - q_j)+ normalised; after K acceptances emit a bonus token of p_{K+1}. A place then emits t with probability
min(p, q)(t) + (1 - sum min(p, q)) (p - q)+(t) / (1 - sum min(p, q)) = p(t).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "token_rejection"
SOURCE = "Leviathan, Kalman, Matias 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318)"


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    B, K = draft_tokens.shape
    drafted = draft_tokens[..., None]
    p = target_probs[:, :K].gather(2, drafted)[..., 0]  # (B, K)
    q = draft_probs.gather(2, drafted)[..., 0]
    # Strict, and without dividing: u = 0 must not accept a token of probability 0, nor q = 0 make a NaN.
    accept = noise.uniforms(B, K, q.dtype) * q < p
    accepted = accept.long().cumprod(1).sum(1)  # (B,)
    rows = torch.arange(B)
    p_final = target_probs[rows, accepted]  # (B, V)
    # With q = 0 after the last place the residual there is p itself: the bonus needs no case of its own.
    residual = (p_final - functional.pad(draft_probs, (0, 0, 0, 1))[rows, accepted]).clamp(min=0)
    mass = residual.sum(1, keepdim=True)
    # p = q up to rounding may leave no residual; being here then had a probability of rounding size, so p will do.
    final = noise.choose(torch.where(mass > 0, residual / mass, p_final))
    return emit(draft_tokens, accepted, final)
