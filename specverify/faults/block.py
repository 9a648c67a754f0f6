"""What happens when the block rule is got nearly right? Block verification itself, and four ways to miss it.

Block verification (Sun et al. 2024, arXiv 2403.10444): rho_j = p(x_j) / q(x_j), P_0 = 1, P_i = min(1, P_{i-1} rho_i). Every
prefix i is judged by a uniform of its own against h_i, the longest accepted one is emitted, and then a token of
(P_i p - q)+ normalised. The faults show from two drafted tokens on: with one, the block rule is token rejection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.faults.rounds import assemble, at, draw, or_target, residual, uniforms, with_bonus

Output = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Block:
    """What the block rule computes. rho (B, K); thresholds h_1 .. h_K (B, K); weights (B, K+1, V) of the token that follows
    i accepted ones, row K for the bonus.
    """

    rho: Tensor
    thresholds: Tensor
    weights: Tensor


def block_of(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Block:
    """Return the ratios, thresholds and residuals of block verification."""
    K = draft_tokens.shape[1]
    rho = at(target_probs, draft_tokens) / at(draft_probs, draft_tokens)
    surviving = [torch.ones_like(rho[:, 0])]
    for ratio in rho.unbind(1):
        surviving.append((surviving[-1] * ratio).clamp(max=1))
    P = torch.stack(surviving, dim=1)  # (B, K+1)
    left = (P[:, :K, None] * target_probs[:, :K] - draft_probs).clamp(min=0)
    S = left.sum(-1)[:, 1:]
    short = S + 1 - P[:, 1:K]
    thresholds = torch.cat([torch.where(short > 0, S / short, 1.0), P[:, K:]], dim=1)
    return Block(rho, thresholds, with_bonus(or_target(left, target_probs[:, :K]), target_probs))


def longest(accept: Tensor) -> Tensor:
    """Length (B,) of the longest accepted prefix: the largest i with accept[:, i - 1], 0 without any; accept (B, K)."""
    return (accept * torch.arange(1, accept.shape[1] + 1)).amax(1)


def end(draft_tokens: Tensor, accepted: Tensor, weights: Tensor) -> Output:
    """Emit ``accepted`` (B,) drafts and a token of their row of weights (B, K+1, V)."""
    return assemble(draft_tokens, accepted, draw(weights[torch.arange(len(accepted)), accepted]))


def block_verification(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Verify losslessly: the longest accepted prefix, then its own residual."""
    block = block_of(draft_tokens, draft_probs, target_probs)
    accept = uniforms(block.rho) < block.thresholds
    return end(draft_tokens, longest(accept), block.weights)


def block_early_stop(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Stop at the first prefix that is not accepted, as token rejection does."""
    block = block_of(draft_tokens, draft_probs, target_probs)
    accept = uniforms(block.rho) < block.thresholds
    return end(draft_tokens, accept.long().cumprod(1).sum(1), block.weights)


def block_token_residual(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept as the block rule does, then draw from (p - q)+, the residual of token rejection."""
    accept = uniforms(draft_probs[..., 0]) < block_of(draft_tokens, draft_probs, target_probs).thresholds
    return end(draft_tokens, longest(accept), with_bonus(residual(draft_probs, target_probs), target_probs))


def block_last_product(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Judge the whole block by min(1, prod rho) instead of P_K, which was capped at 1 on the way."""
    block = block_of(draft_tokens, draft_probs, target_probs)
    whole = block.rho.prod(1, keepdim=True).clamp(max=1)
    accept = uniforms(block.rho) < torch.cat([block.thresholds[:, :-1], whole], dim=1)
    return end(draft_tokens, longest(accept), block.weights)


def products_of_uniforms(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept the longest prefix with prod rho >= prod u, then draw from (p - q)+."""
    rho = at(target_probs, draft_tokens) / at(draft_probs, draft_tokens)
    accept = rho.cumprod(1) >= uniforms(rho).cumprod(1)
    return end(draft_tokens, longest(accept), with_bonus(residual(draft_probs, target_probs), target_probs))
