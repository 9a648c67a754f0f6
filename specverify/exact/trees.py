"""What law does a tree verifier emit? All drafted trees enumerated outside, the rule walked over its own randomness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specverify.exact.engine import DEFAULT_MAX_PATHS
from specverify.exact.rounds import Emission, mixed_emission, step_rounds
from specverify.laws import Pair
from specverify.subjects import Emitted, Step
from specverify.tree_drafts import all_trees, drawn_from
from specverify.trees import Tree, TreeVerifier


def tree_emission(verifier: TreeVerifier, pair: Pair, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of one verification of a tree that the pair's draft made; the pair's own K is not used."""
    drafted = all_trees(verifier.shape, verifier.children, pair)
    tree, target = drafted.tensors()

    def call(at: Tensor) -> Emitted:
        drawn = None if tree.draft_probs is None else tree.draft_probs[at]
        return verifier(Tree(tree.shape, tree.tokens[at], drawn, tree.drafter_probs[at]), target[at])

    return mixed_emission(call, drafted.weights.tolist(), verifier.facts.max_batch, max_paths)


def drafting_step(verifier: TreeVerifier) -> Step:
    """The whole round as a step: drafts the declared tree with the models it is given, then verifies it."""
    shape = verifier.shape

    def step(target: Any, draft: Any, prefix: Tensor) -> Emitted:
        tokens = torch.zeros(len(prefix), shape.size, dtype=torch.int64)

        def law_after(model: Any, node: int) -> Tensor:
            law: Tensor = model(torch.cat([prefix, tokens[:, list(shape.path(node))]], 1))[:, -1].exp()
            return law

        drawn = []
        for node, parent in enumerate(shape.parents):
            earlier = tokens[:, list(shape.earlier_siblings(node))].numpy()
            law = law_after(draft, parent)
            drawn.append(torch.from_numpy(drawn_from(verifier.children, law.double().numpy(), earlier)))
            tokens[:, node] = torch.multinomial(drawn[-1], 1)[:, 0]
        places = range(-1, shape.size)
        drafter = torch.stack([law_after(draft, node) for node in places], 1)
        laws = None if verifier.children == "top-k" else torch.stack(drawn, 1)
        return verifier(Tree(shape, tokens, laws, drafter), torch.stack([law_after(target, node) for node in places], 1))

    return Step(verifier.name, step, verifier.k, verifier.facts)


def tree_rounds(verifier: TreeVerifier, pair: Pair, length: int, *, max_paths: int = DEFAULT_MAX_PATHS) -> Emission:
    """Exact law of the first ``length`` tokens of a tree verifier used round after round."""
    return step_rounds(drafting_step(verifier), pair, length, max_paths=max_paths)
