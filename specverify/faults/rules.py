"""What does each wrong rule do? One short function per fault, as an engine would run it.

Every rule has the shape of a verification step: draft_tokens (B, K) int64, draft_probs (B, K, V), target_probs
(B, K+1, V) -> tokens (B, K+1) padded with -1, counts (B,). A round stops at the first rejection; after K acceptances a
bonus token is drawn from the last target row, rightly so in every rule: only the K draft positions are wrong here.
The laws that come out are in :mod:`specverify.faults.laws`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.faults.laws import DELTA, EPS, LENIENCY
from specverify.faults.rounds import (
    at,
    below_ratio,
    draft_round,
    draw,
    finish,
    or_target,
    residual,
    token_rejection,
    uniforms,
    with_bonus,
)
from specverify.subjects import Model

Output = tuple[Tensor, Tensor]


def resample_from_target(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Reject rightly, then draw from the whole target law instead of the residual."""
    return finish(draft_tokens, below_ratio(draft_tokens, draft_probs, target_probs), target_probs)


def resample_excluding(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Reject rightly, then draw from the target law without the rejected token."""
    target = target_probs[:, :-1]
    others = or_target(target.scatter(2, draft_tokens[..., None], 0), target)
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    return finish(draft_tokens, accept, with_bonus(others, target_probs))


def absolute_residual(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Reject rightly, then draw from |p - q| instead of its positive part."""
    target = target_probs[:, :-1]
    gaps = or_target((target - draft_probs).abs(), target)
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    return finish(draft_tokens, accept, with_bonus(gaps, target_probs))


def argmax_residual(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Reject rightly, then emit the largest entry of the residual instead of drawing from it."""
    gap = target_probs[:, :-1] - draft_probs
    best = one_hot(gap.argmax(-1), gap.shape[-1]).to(gap.dtype)
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    return finish(draft_tokens, accept, with_bonus(best, target_probs))


def softmax_residual(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Reject rightly, then hand the normalised residual to a sampler that expects logits."""
    left = residual(draft_probs, target_probs)
    squashed = (left / left.sum(-1, keepdim=True)).softmax(-1)
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    return finish(draft_tokens, accept, with_bonus(squashed, target_probs))


def inverted_ratio(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept with min(1, q/p) instead of min(1, p/q)."""
    ratio = at(draft_probs, draft_tokens) / at(target_probs, draft_tokens)
    accept = uniforms(ratio) < ratio.clamp(max=1)
    return finish(draft_tokens, accept, with_bonus(residual(draft_probs, target_probs), target_probs))


def accept_always(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:  # noqa: ARG001
    """Accept every drafted token."""
    return finish(draft_tokens, torch.ones_like(draft_tokens, dtype=torch.bool), target_probs)


def accept_if_likelier(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept iff p(x) >= q(x), without a coin, else draw from the residual."""
    accept = at(target_probs, draft_tokens) >= at(draft_probs, draft_tokens)
    return finish(draft_tokens, accept, with_bonus(residual(draft_probs, target_probs), target_probs))


def accept_if_likelier_else_target(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept iff p(x) >= q(x), without a coin, else draw from the target."""
    accept = at(target_probs, draft_tokens) >= at(draft_probs, draft_tokens)
    return finish(draft_tokens, accept, target_probs)


def naive_accept(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:  # noqa: ARG001
    """Accept iff the draft is the target's most likely token, else emit that token."""
    best = target_probs[:, :-1].argmax(-1)
    certain = one_hot(best, target_probs.shape[-1]).to(target_probs.dtype)
    return finish(draft_tokens, draft_tokens == best, with_bonus(certain, target_probs))


def naive_accept_resample(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:  # noqa: ARG001
    """Accept iff the draft is the target's most likely token, else draw from the target."""
    return finish(draft_tokens, draft_tokens == target_probs[:, :-1].argmax(-1), target_probs)


def match_then_redraw(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:  # noqa: ARG001
    """Draw from the target and accept iff it equals the draft; on a mismatch throw the draw away and draw again."""
    wanted = torch.stack([draw(target_probs[:, j]) for j in range(draft_tokens.shape[1])], dim=1)
    return finish(draft_tokens, wanted == draft_tokens, target_probs)


def match_with_residual(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Accept with probability p(x), as for a one-hot draft, but recover from the residual of the soft q."""
    p = at(target_probs, draft_tokens)
    return finish(draft_tokens, uniforms(p) < p, with_bonus(residual(draft_probs, target_probs), target_probs))


def lenience(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, leniency: float = LENIENCY) -> Output:
    """Judge the draft as if it had been drawn from l q, 0 < l < 1: accept more, recover from (p - l q)+."""
    scaled = leniency * draft_probs
    accept = below_ratio(draft_tokens, scaled, target_probs)
    return finish(draft_tokens, accept, with_bonus(residual(scaled, target_probs), target_probs))


def typical(
    draft_tokens: Tensor,
    draft_probs: Tensor,  # noqa: ARG001 - the signature of every rule
    target_probs: Tensor,
    eps: float = EPS,
    delta: float = DELTA,
) -> Output:
    """Accept iff p(x) > min(eps, delta exp(-H(p))), else draw from the target."""
    target = target_probs[:, :-1]
    entropy = -torch.special.xlogy(target, target).sum(-1)
    accept = at(target, draft_tokens) > (delta * (-entropy).exp()).clamp(max=eps)
    return finish(draft_tokens, accept, target_probs)


def greedy_draft(target: Model, draft: Model, prefix: Tensor, k: int) -> Output:
    """Draft the most likely token of q but declare q as the law it was drawn from; verify by token rejection.

    A whole round: models as in :class:`specverify.subjects.Model`, prefix (B, T).
    """
    return token_rejection(*draft_round(target, draft, prefix, k, lambda q: q.argmax(-1)))
