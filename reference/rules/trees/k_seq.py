"""Which of n independent drafts is kept when all are judged alike: Sun et al. 2023, SpecTr (arXiv 2310.15141), K-SEQ.

With b(c) = sum min(q, p/c) let c in [1, n] be the root of 1 - (1 - b)^n = c b and A = 1 - (1 - b)^n. Accept each draft
in turn with probability min(1, p(x) / (c q(x))); after n rejections emit a token of (p - min(q, p/c) A/b) / (1 - A). A
draft is accepted with probability b, so one of them with A, and the accepted token has the law min(q, p/c)/b: together
p. What is left is not negative as long as A/b <= c, which the root just keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.top_down import descend
from specverify.subjects import Emitted
from specverify.trees import Children, Tree

NAME = "k_seq"
SOURCE = "Sun et al. 2023, SpecTr (arXiv 2310.15141)"
CHILDREN: tuple[Children, ...] = ("with replacement",)
HALVINGS = 60
"""Steps of the bisection: [1, n] becomes narrower than the spacing of numbers in float64."""


def judge(target: Tensor, tokens: Tensor, laws: Tensor, u: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Judge the children of one node, see :data:`reference.rules.trees.top_down.Judge`."""
    n, q = tokens.shape[1], laws[:, 0]
    c = division_factor(target, q, n)
    drafted_q, drafted_p = q.gather(1, tokens), target.gather(1, tokens)  # (B, n)
    accepted = torch.full_like(tokens[:, 0], -1)
    for i in range(n):
        # Strict, and without dividing: u = 0 must not accept a token of probability 0, nor q = 0 make a NaN.
        accept = u[:, i] * (c * drafted_q[:, i]) < torch.where(live, drafted_p[:, i], 0.0)
        accepted = torch.where(accept, i, accepted)
        live = live & ~accept
    kept = torch.minimum(q, target / c[:, None])
    once, some = _acceptance(target, q, c, n)
    # Where p and q have no token in common nothing is accepted and all of p is left.
    share = torch.where(once > 0, some / once, 0.0)
    left = (target - kept * share[:, None]).clamp(min=0)
    mass = left.sum(1, keepdim=True)
    # p = q up to rounding may leave nothing; being here then had a probability of rounding size, so p will do.
    return accepted, torch.where(mass > 0, left / mass, target)


def _acceptance(target: Tensor, q: Tensor, c: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return b, the probability that one draft is accepted, and A, that one of n is, both (B,)."""
    once = torch.minimum(q, target / c[:, None]).sum(1).clamp(max=1)
    return once, -torch.expm1(n * torch.log1p(-once))


def division_factor(target: Tensor, q: Tensor, n: int) -> Tensor:
    """Return c (B,), the root of 1 - (1 - b)^n = c b in [1, n], never below it: the left side falls in c, the right rises."""
    low = torch.ones_like(target[:, 0])
    high = torch.full_like(low, n)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        once, some = _acceptance(target, q, middle, n)
        below = some > middle * once
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def verify(tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: tree of N nodes, target_probs (B, N+1, V) -> tokens (B, depth+1)."""
    return descend(tree, target_probs, judge, noise)
