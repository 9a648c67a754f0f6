"""Which of the draft's likeliest tokens is kept: Li et al. 2024, EAGLE-2 (arXiv 2406.16858), whose dynamic trees hold
the likeliest tokens and no samples, with the recursive rejection of SpecInfer (arXiv 2305.09781, Algorithm 2) for
certain drafts.

Children that were not drawn are certain, q = 1. Let P be the target's law. For each child x: accept it with probability
P(x), otherwise let P(x) := 0, renormalise and go on; after the last rejection emit a token of P. Child by child this
asks a draw from P whether it is x, so what is emitted is a draw from the target, whichever tokens were proposed: exact
for drawn children too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.top_down import descend
from specverify.subjects import Emitted
from specverify.trees import Children, Tree

NAME = "top_k"
SOURCE = "Li et al. 2024, EAGLE-2 (arXiv 2406.16858)"
CHILDREN: tuple[Children, ...] = ("top-k", "without replacement", "with replacement")


def judge(target: Tensor, tokens: Tensor, laws: Tensor, u: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Judge the children of one node, see :data:`reference.rules.trees.top_down.Judge`."""
    accepted = torch.full_like(tokens[:, 0], -1)
    for i in range(tokens.shape[1]):
        x = tokens[:, i : i + 1]
        accept = u[:, i] < torch.where(live, target.gather(1, x)[:, 0], 0.0)
        accepted = torch.where(accept, i, accepted)
        live = live & ~accept
        others = target.scatter(1, x, 0.0)
        mass = others.sum(1, keepdim=True)
        # P(x) = 1 up to rounding may leave nothing; being here then had a probability of rounding size, so P will do.
        target = torch.where(mass > 0, others / mass, target)
    return accepted, target


def verify(tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: tree of N nodes, target_probs (B, N+1, V) -> tokens (B, depth+1)."""
    return descend(tree, target_probs, judge, noise)
