"""Which of several distinct drafts is kept: Chen et al. 2024, Sequoia (arXiv 2402.12374), recursive rejection for
siblings drawn without replacement.

As :mod:`reference.rules.trees.with_replacement`, and after each rejection the rejected token is also taken out of q and
the rest renormalised, since the next sibling was drawn from that. Told is the drafter's own q (the law of the first
sibling); the rule takes out tokens itself. Where q has nothing left, the next sibling was drawn evenly from the tokens
not drawn yet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.top_down import descend
from reference.rules.trees.with_replacement import accepts, residual
from specverify.subjects import Emitted
from specverify.trees import Children, Tree

NAME = "without_replacement"
SOURCE = "Chen et al. 2024, Sequoia (arXiv 2402.12374)"
CHILDREN: tuple[Children, ...] = ("without replacement",)


def judge(target: Tensor, tokens: Tensor, laws: Tensor, u: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Judge the children of one node, see :data:`reference.rules.trees.top_down.Judge`."""
    accepted = torch.full_like(tokens[:, 0], -1)
    q, untried = laws[:, 0], torch.ones_like(target)
    for i in range(tokens.shape[1]):
        accept = accepts(u[:, i], tokens[:, i], target, q, live)
        accepted = torch.where(accept, i, accepted)
        live = live & ~accept
        target = residual(target, q)
        q, untried = (law.scatter(1, tokens[:, i : i + 1], 0.0) for law in (q, untried))
        q = torch.where(q.sum(1, keepdim=True) > 0, q, untried)
        # All V tokens may have been tried; then no sibling is left, and the maximum only keeps 0/0 away.
        q = q / q.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
    return accepted, target


def verify(tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: tree of N nodes, target_probs (B, N+1, V) -> tokens (B, depth+1)."""
    return descend(tree, target_probs, judge, noise)
