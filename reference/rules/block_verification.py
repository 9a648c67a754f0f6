"""Which drafted tokens are kept when the block is judged as a whole: Sun et al. 2024, block verification (arXiv
2403.10444, Algorithm 2, Theorem 1). Of all rules that verify one drafted path it accepts the most tokens on average.

With rho_j = p_j(x_j) / q_j(x_j) let P_0 = 1 and P_i = min(1, P_{i-1} rho_i): the probability with which the first i tokens
survive. For i < K let S_i = sum_v (P_i p_{i+1}(v) - q_{i+1}(v))+ and h_i = S_i / (S_i + 1 - P_i); h_K = P_K. Draw every
eta_i; accepted are as many tokens as the largest i with eta_i < h_i, whatever became of the shorter ones. Then emit a token
of (P_i p_{i+1} - q_{i+1})+ normalised, after K acceptances a bonus token of p_{K+1}.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "block_verification"
SOURCE = "Sun et al. 2024 (arXiv 2403.10444)"


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    B, K = draft_tokens.shape
    survival = surviving(draft_tokens, draft_probs, target_probs)
    # With q = 0 after the last place the residual there is P_K p, the bonus law up to its mass.
    residual = (survival[..., None] * target_probs - functional.pad(draft_probs, (0, 0, 0, 1))).clamp(min=0)
    mass = residual.sum(2)  # (B, K+1); S_i at i < K
    # Where P = 1 and nothing is left, p = q: whoever got so far gets further, and no shorter block is ever wanted.
    left = mass[:, 1:K] + 1 - survival[:, 1:K]
    threshold = torch.cat([torch.where(left > 0, mass[:, 1:K] / left, 1.0), survival[:, K:]], 1)  # h_1 .. h_K
    # Strict, so that u = 0 does not accept what has h = 0.
    accept = noise.uniforms(B, K, survival.dtype) < threshold
    accepted = (accept * torch.arange(1, K + 1)).amax(1)
    rows = torch.arange(B)
    # p = q up to rounding may leave no residual; being here then had a probability of rounding size, so p will do.
    weights = torch.where(mass[..., None] > 0, residual / mass[..., None], target_probs)
    return emit(draft_tokens, accepted, noise.choose(weights[rows, accepted]))


def surviving(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Return P_0 .. P_K (B, K+1): how much of each drafted prefix the target can use. A token with q = 0 is never drafted
    and ends it.
    """
    drafted = draft_tokens[..., None]
    p = target_probs[:, :-1].gather(2, drafted)[..., 0]  # (B, K)
    q = draft_probs.gather(2, drafted)[..., 0]
    survival = [torch.ones_like(q[:, 0])]
    for p_j, q_j in zip(p.unbind(1), q.unbind(1), strict=True):
        survival.append(torch.where(q_j > 0, (survival[-1] * p_j / q_j).clamp(max=1), 0.0))
    return torch.stack(survival, 1)
