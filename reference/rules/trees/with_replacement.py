"""Which of several independent drafts is kept: Miao et al. 2024, SpecInfer (arXiv 2305.09781, Algorithm 2, Theorem 4.2),
recursive rejection.

Let P be the target's law. For each draft x, drawn from q: accept it with probability min(1, P(x) / q(x)), otherwise let P :=
(P - q)+ normalised and go on; after the last rejection emit a token of P. One try emits min(P, q) and leaves (P - q)+, so that
a try followed by anything that emits its P emits the P before it; by induction the position emits the target's law. This asks
only that x was drawn from the q it is judged by, whatever its earlier siblings were: with siblings that were drawn otherwise
it is as lossless, as long as each is handed with the law it was drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.top_down import descend
from specverify.subjects import Emitted
from specverify.trees import Children, Tree

NAME = "with_replacement"
SOURCE = "Miao et al. 2024, SpecInfer (arXiv 2305.09781)"
CHILDREN: tuple[Children, ...] = ("with replacement", "without replacement", "top-k")


def judge(target: Tensor, tokens: Tensor, laws: Tensor, u: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Judge the children of one node, see :data:`reference.rules.trees.top_down.Judge`."""
    accepted = torch.full_like(tokens[:, 0], -1)
    for i in range(tokens.shape[1]):
        accept = accepts(u[:, i], tokens[:, i], target, laws[:, i], live)
        accepted = torch.where(accept, i, accepted)
        live = live & ~accept
        target = residual(target, laws[:, i])
    return accepted, target


def accepts(u: Tensor, x: Tensor, target: Tensor, q: Tensor, live: Tensor) -> Tensor:
    """Accept x (B,) with min(1, P(x) / q(x)), P and q (B, V), where a row is live."""
    drafted = x[:, None]
    # Strict, and without dividing: u = 0 must not accept a token of probability 0, nor q = 0 make a NaN.
    return u * q.gather(1, drafted)[:, 0] < torch.where(live, target.gather(1, drafted)[:, 0], 0.0)


def residual(target: Tensor, q: Tensor) -> Tensor:
    """Return (P - q)+ normalised, (B, V)."""
    left = (target - q).clamp(min=0)
    mass = left.sum(1, keepdim=True)
    # P = q up to rounding may leave nothing; being here then had a probability of rounding size, so P will do.
    return torch.where(mass > 0, left / mass, target)


def verify(tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: tree of N nodes, target_probs (B, N+1, V) -> tokens (B, depth+1)."""
    return descend(tree, target_probs, judge, noise)
