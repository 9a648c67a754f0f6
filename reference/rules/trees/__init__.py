"""Which lossless rules there are for trees of drafts: one module each, with NAME, SOURCE and verify in it.

``verify(tree, target_probs (B, N+1, V), noise) -> Emitted`` judges one round. Row 0 of the target's laws follows the
prefix, row i+1 the path of node i. What is emitted is the tokens of an accepted path and one more. CHILDREN lists the
ways of drawing siblings for which a rule is lossless, as :data:`specverify.trees.Children` names them.
"""

from __future__ import annotations

from typing import Protocol, cast

from torch import Tensor

from reference.noise import Noise
from reference.rules import found
from reference.rules.trees import k_seq, top_k, traversal, with_replacement, without_replacement
from specverify.subjects import Emitted
from specverify.trees import Children, Tree


class TreeRule(Protocol):
    """What the module of a tree rule offers."""

    NAME: str
    SOURCE: str
    CHILDREN: tuple[Children, ...]

    def verify(self, tree: Tree, target_probs: Tensor, noise: Noise) -> Emitted:
        """Judge one round."""
        ...


_MODULES = (with_replacement, without_replacement, k_seq, top_k, traversal)
TREE_RULES: dict[str, TreeRule] = {m.NAME: cast("TreeRule", m) for m in _MODULES}


def tree_rule_named(name: str) -> TreeRule:
    """Return the tree rule called ``name``. Errors: ValueError that lists the rules there are."""
    return found("tree rule", name, TREE_RULES)
