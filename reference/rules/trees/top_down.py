"""How a tree is judged from the root down with a rule for one position: Miao et al. 2024, SpecInfer (arXiv 2305.09781,
Algorithm 2, Theorem 4.2).

At each node the rule either accepts one of the children, whereupon that child is judged next, or rejects all of them and
leaves a law; the token emitted last is drawn from the law that is left, at a node without children from the target's. If the
rule emits the target's law at one position, the path does so by induction: a node is reached by tokens alone, and the drafts
below it are drawn independently of how it was reached. Different nodes may use different rules.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.emitting import emit_path
from specverify.subjects import Emitted
from specverify.trees import Tree

Judge = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``judge(target (B, V), tokens (B, n), laws (B, n, V), u (B, n), live (B,)) -> (accepted (B,), rest (B, V))``.

Child i was drawn from laws[:, i] and has the uniform u[:, i]. accepted is the number of the accepted child, -1 for none, rest
the law of the token that is emitted then. Rows that are not live accept nothing.
"""


def descend(tree: Tree, target_probs: Tensor, judge: Judge, noise: Noise) -> Emitted:
    """Judge one round with ``judge`` at every node; see :data:`reference.rules.trees.TREE_RULES` for the shapes."""
    laws, shape = tree.laws, tree.shape
    # All at once, so that a row draws as often whatever becomes of its batch-mates.
    u = noise.uniforms(len(target_probs), shape.size, target_probs.dtype)
    node = torch.full((len(target_probs),), -1)
    law = target_probs[:, 0]
    for parent in range(-1, shape.size):  # parents come before their children
        children = list(shape.children(parent))
        here = node == parent
        if not children or not here.any():
            continue
        accepted, rest = judge(target_probs[:, parent + 1], tree.tokens[:, children], laws[:, children], u[:, children], here)
        moved = here & (accepted >= 0)
        node = torch.where(moved, torch.tensor(children)[accepted], node)
        law = torch.where(here[:, None], rest, law)
        law = torch.where(moved[:, None], target_probs[torch.arange(len(node)), node + 1], law)
    return emit_path(tree, node, noise.choose(law))
