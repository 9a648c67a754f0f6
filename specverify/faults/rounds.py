"""How does a round end? The parts that every rule of the catalogue shares: drafting, the recovered token, the output.

Shapes: B rows, K draft tokens, V tokens. Draws put the row in dimension 0, so that rows can be followed one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.subjects import Model


def at(probs: Tensor, tokens: Tensor) -> Tensor:
    """Probability of each token: probs (B, N, V) with N >= K, tokens (B, K) -> (B, K)."""
    return probs[:, : tokens.shape[1]].gather(2, tokens[..., None])[..., 0]


def uniforms(like: Tensor) -> Tensor:
    """Draw one uniform for each entry of ``like`` (B, K), in its dtype."""
    return torch.rand(like.shape, dtype=like.dtype)


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One token per row from weights (B, V) that need not sum to 1: (B,)."""
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def or_target(weights: Tensor, target: Tensor) -> Tensor:
    """Weights (B, K, V) with the target's law in place of rows that are all 0 and cannot be drawn from."""
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, target)


def residual(draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """(p - q)+ per position, not normalised, (B, K, V); p itself where nothing is left."""
    target = target_probs[:, : draft_probs.shape[1]]
    return or_target((target - draft_probs).clamp(min=0), target)


def with_bonus(weights: Tensor, target_probs: Tensor) -> Tensor:
    """Append the bonus law: weights (B, K, V) for rejections, target_probs (B, K+1, V) -> (B, K+1, V)."""
    return torch.cat([weights, target_probs[:, -1:]], dim=1)


def assemble(draft_tokens: Tensor, accepted: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Put one token after the accepted drafts: (B, K), accepted (B,), last (B,) -> tokens (B, K+1), counts (B,)."""
    columns = torch.arange(draft_tokens.shape[1] + 1)
    padded = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    tokens = torch.where(columns < accepted[:, None], padded, -1)
    return tokens.scatter(1, accepted[:, None], last[:, None]), accepted + 1


def finish(draft_tokens: Tensor, accept: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """End the round at the first position that is not accepted and draw the token that stands there.

    draft_tokens (B, K), accept (B, K) bool, weights (B, K+1, V): row j for a rejection at j, row K for the bonus.
    Returns tokens (B, K+1) padded with -1 and counts (B,).
    """
    accepted = accept.long().cumprod(1).sum(1)
    last = draw(weights[torch.arange(len(accepted)), accepted])
    return assemble(draft_tokens, accepted, last)


def below_ratio(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Judge each draft token by token rejection: u < min(1, p(x)/q(x)), bool (B, K)."""
    ratio = at(target_probs, draft_tokens) / at(draft_probs, draft_tokens)
    return uniforms(ratio) < ratio.clamp(max=1)


def token_rejection(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Verify losslessly, the rule that the repaired cases use (Leviathan et al. 2023, arXiv 2211.17192)."""
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    return finish(draft_tokens, accept, with_bonus(residual(draft_probs, target_probs), target_probs))


def draft_round(
    target: Model, draft: Model, prefix: Tensor, k: int, choose: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Draft k tokens, each ``choose(q (B, V)) -> (B,)``, and read both laws along them.

    prefix (B, T) with T >= 1. Returns draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V).
    """
    ids, laws = prefix, []
    for _ in range(k):
        law = draft(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, choose(law)[:, None]], dim=1)
        laws.append(law)
    length = prefix.shape[1]
    return ids[:, length:], torch.stack(laws, dim=1), target(ids)[:, length - 1 :].softmax(-1)
