"""What does each wrong rule for several drafts do? One short function per fault, and a race whose noise is used twice.

Tree rules have the shape of :class:`specverify.trees.TreeVerifier`: a tree of N nodes and target_probs (B, N+1, V) -> tokens
(B, depth+1) padded with -1, counts (B,). The laws that come out at one position are in :mod:`specverify.faults.several_laws`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.faults.rounds import assemble, below_ratio, draft_round, draw, residual
from specverify.subjects import Model
from specverify.trees import Tree, TreeShape

Output = tuple[Tensor, Tensor]
Told = Callable[[Tree, int], Tensor]
"""The law (B, V) by which a node is judged."""


def chance(law: Tensor, x: Tensor) -> Tensor:
    """Probability (B,) of tokens x (B, 1) under laws (B, V)."""
    return law.gather(1, x)[:, 0]


def left(law: Tensor, q: Tensor) -> Tensor:
    """(P - q)+ normalised, (B, V); P itself where nothing is left."""
    excess = (law - q).clamp(min=0)
    mass = excess.sum(1, keepdim=True)
    return torch.where(mass > 0, excess / mass, law)


def end(tree: Tree, node: Tensor, law: Tensor) -> Output:
    """Emit the tokens down to ``node`` (B,), -1 for none, and a token drawn from ``law`` (B, V)."""
    paths = [(), *tree.shape.paths]
    lengths = torch.tensor([len(path) for path in paths])
    padded = torch.tensor([[*path, *[0] * (tree.shape.depth - len(path))] for path in paths])
    return assemble(tree.tokens.gather(1, padded[node + 1]), lengths[node + 1], draw(law))


def recursive(tree: Tree, target_probs: Tensor, told: Told, *, each: bool = True) -> Output:
    """Recursive rejection from the root down, a node judged by the law that ``told`` gives.

    Lossless when that is the law the node was drawn from. each: the residual is taken after every rejection; otherwise only
    after that of the last sibling.
    """
    u = torch.rand(tree.tokens.shape, dtype=target_probs.dtype)
    at, law = torch.full_like(tree.tokens[:, 0], -1), target_probs[:, 0]
    for node, parent in enumerate(tree.shape.parents):
        x, q, here = tree.tokens[:, node : node + 1], told(tree, node), at == parent
        accept = u[:, node] * chance(q, x) < torch.where(here, chance(law, x), 0.0)
        if each or node == tree.shape.children(parent)[-1]:
            law = torch.where((here & ~accept)[:, None], left(law, q), law)
        law = torch.where(accept[:, None], target_probs[:, node + 1], law)
        at = torch.where(accept, node, at)
    return end(tree, at, law)


def own_law(tree: Tree, node: int) -> Tensor:
    """The law that the node was drawn from."""
    return tree.laws[:, node]


def drafter_law(tree: Tree, node: int) -> Tensor:
    """The drafter's law at the node's parent, siblings or not."""
    return tree.drafter_probs[:, tree.shape.parents[node] + 1]


def without_siblings(tree: Tree, node: int) -> Tensor:
    """The drafter's law without the tokens of earlier siblings, renormalised; as it is where nothing would be left."""
    law = drafter_law(tree, node)
    reduced = law
    for sibling in tree.shape.earlier_siblings(node):
        reduced = reduced.scatter(1, tree.tokens[:, sibling : sibling + 1], 0.0)
    mass = reduced.sum(1, keepdim=True)
    return torch.where(mass > 0, reduced / mass, law)


def k_tries(tree: Tree, target_probs: Tensor) -> Output:
    """Judge every draft against the first p, and recover from (p - q)+ after the last."""
    return recursive(tree, target_probs, own_law, each=False)


def stale_q(tree: Tree, target_probs: Tensor) -> Output:
    """Judge siblings that were drawn without replacement by the drafter's q, the same for all."""
    return recursive(tree, target_probs, drafter_law)


def removed_q(tree: Tree, target_probs: Tensor) -> Output:
    """Judge siblings that were drawn independently as if without replacement: q without the earlier ones."""
    return recursive(tree, target_probs, without_siblings)


def top_k_sampled(tree: Tree, target_probs: Tensor) -> Output:
    """Judge children that are the likeliest tokens of q as if they had been drawn from q."""
    return recursive(tree, target_probs, drafter_law)


def stale_parent(tree: Tree, target_probs: Tensor) -> Output:
    """Traverse from the leaves up without changing a parent when a child of it is deleted."""
    return traverse(tree, target_probs, update=False)


def traverse(tree: Tree, target_probs: Tensor, *, update: bool = True) -> Output:
    """Traversal verification (Weng et al. 2025, arXiv 2505.12398), lossless with ``update``.

    reached[n] (B,) is the a of a node, after[n] (B, V) its P.
    """
    u = torch.rand(tree.tokens.shape, dtype=target_probs.dtype)
    reached = {-1: torch.ones_like(target_probs[:, 0, 0])}
    after = dict(enumerate(target_probs.unbind(1), start=-1))
    at, law = torch.full_like(tree.tokens[:, 0], -1), after[-1]
    live = torch.ones_like(at, dtype=torch.bool)
    for entering, node in _visits(tree.shape, -1):
        parent, q = tree.shape.parents[node], own_law(tree, node)
        a, P = reached[parent], after[parent]
        if entering:
            x = tree.tokens[:, node : node + 1]
            reached[node] = torch.where(chance(q, x) > 0, a * chance(P, x) / chance(q, x), 0.0).clamp(max=1)
            continue
        accept = u[:, node] < torch.where(live, reached[node], 0.0)
        at, law = torch.where(accept, node, at), torch.where(accept[:, None], after[node], law)
        live = live & ~accept
        if update:
            mass = (a[:, None] * P - q).clamp(min=0).sum(1)
            reached[parent] = torch.where(mass + 1 > a, mass / (mass + 1 - a), 1.0)
            after[parent] = torch.where(mass[:, None] > 0, (a[:, None] * P - q).clamp(min=0) / mass[:, None], P)
    return end(tree, at, torch.where(live[:, None], after[-1], law))


def _visits(shape: TreeShape, node: int) -> list[tuple[bool, int]]:
    """(entering, node) depth first, each node left when its children have been."""
    return [v for c in shape.children(node) for v in ((True, c), *_visits(shape, c), (False, c))]


def shared_noise(target: Model, draft: Model, prefix: Tensor, k: int) -> Output:
    """Draft by the race argmin E / q, verify by token rejection, recover by the race argmin E / r with the same E.

    A whole round: models as in :class:`specverify.subjects.Model`, prefix (B, T).
    """
    clocks: list[Tensor] = []

    def race(q: Tensor) -> Tensor:
        clocks.append(torch.empty(q.shape, dtype=q.dtype).exponential_())
        return (clocks[-1] / q).argmin(1)

    tokens, q, p = draft_round(target, draft, prefix, k, race)
    accepted = below_ratio(tokens, q, p).long().cumprod(1).sum(1)
    r = residual(q, p)
    recovered = [(clock / r[:, j]).argmin(1) for j, clock in enumerate(clocks)]
    last = torch.stack([*recovered, draw(p[:, -1])], 1).gather(1, accepted[:, None])[:, 0]
    return assemble(tokens, accepted, last)
