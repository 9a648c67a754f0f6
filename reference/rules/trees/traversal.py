"""Which path of a tree is kept when it is judged from the leaves up: Weng et al. 2025, traversal verification (arXiv
2505.12398). On a chain it is block verification.

Every node carries the probability a with which it is reached by what the target can use, and the law P of the token
after it: a = 1 and P = p at the root; a child x drawn from q has a = min(1, a P(x) / q(x)), with the a and P of its
parent, and P = p there. Take the first leaf: with probability a accept its path and emit a token of P. Otherwise delete
it and let, at its parent, S = sum (a P - q)+, P := (a P - q)+ / S and a := S / (S + 1 - a). A parent without children
left is a leaf; the root is accepted with certainty. Leaves come in order of their drawing, so that a child of several
meets its parent as its elder siblings left it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.trees.emitting import emit_path
from specverify.subjects import Emitted
from specverify.trees import Children, Tree, TreeShape

NAME = "traversal"
SOURCE = "Weng et al. 2025, traversal verification (arXiv 2505.12398)"
CHILDREN: tuple[Children, ...] = ("with replacement", "without replacement", "top-k")


def visits(shape: TreeShape, node: int = -1) -> Iterator[tuple[bool, int]]:
    """Yield (entering, node) depth first: a node is left when all its children have been left."""
    for child in shape.children(node):
        yield True, child
        yield from visits(shape, child)
        yield False, child


def verify(tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
    """Judge one round: tree of N nodes, target_probs (B, N+1, V) -> tokens (B, depth+1)."""
    laws, parents = tree.laws, tree.shape.parents
    u = noise.uniforms(len(target_probs), tree.shape.size, target_probs.dtype)
    reached = {-1: torch.ones_like(target_probs[:, 0, 0])}  # a (B,) of every node
    after = dict(enumerate(target_probs.unbind(1), start=-1))  # P (B, V) of every node
    node = torch.full_like(tree.tokens[:, 0], -1)
    law, live = after[-1], torch.ones_like(node, dtype=torch.bool)
    for entering, child in visits(tree.shape):
        parent, q = parents[child], laws[:, child]
        if entering:
            reached[child] = survival(reached[parent], after[parent], q, tree.tokens[:, child : child + 1])
            continue
        # Strict, so that u = 0 does not accept what has a = 0.
        accept = u[:, child] < torch.where(live, reached[child], 0.0)
        node = torch.where(accept, child, node)
        law = torch.where(accept[:, None], after[child], law)
        live = live & ~accept
        reached[parent], after[parent] = without_child(reached[parent], after[parent], q)
    return emit_path(tree, node, noise.choose(torch.where(live[:, None], after[-1], law)))


def survival(a: Tensor, law: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """Return min(1, a P(x) / q(x)), (B,), for x (B, 1). A token with q = 0 is never drafted and is not kept."""
    drawn = q.gather(1, x)[:, 0]
    return torch.where(drawn > 0, (a * law.gather(1, x)[:, 0] / drawn).clamp(max=1), 0.0)


def without_child(a: Tensor, law: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return a (B,) and P (B, V) of a node after one of its children, drawn from q, was deleted."""
    left = (a[:, None] * law - q).clamp(min=0)
    mass = left.sum(1)
    short = mass + 1 - a
    # Where a = 1 and nothing is left, P = q: the child would have been kept, so what stands here does not matter.
    return torch.where(short > 0, mass / short, 1.0), torch.where(mass[:, None] > 0, left / mass[:, None], law)
