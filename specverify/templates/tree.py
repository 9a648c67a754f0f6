"""A rule for a tree of drafts. Certify it with ``specverify certify THIS_FILE``, then put your own code where it says so."""

import torch
from torch import Tensor

import specverify

# The decorator says which trees are drafted for the rule: parents=(-1, -1, 0) is two children of the root, the first with a
# child of its own; branching=(2, 1) would be two children with one child each. children="with replacement", "without
# replacement" or "top-k" says how siblings are drawn, returns="tokens", "nodes", "flat", "best path" or "distribution" what
# the rule gives back (docs/subjects.md).
#
# For B rows and N nodes the rule is handed
#     tree.tokens (B, N); tree.draft_probs (B, N, V), the law each node was really drawn from, None for top-k
#     tree.shape, with children(node), path(node), leaves and depth; the root is -1
#     target_probs (B, N+1, V): row 0 after the prefix, row i+1 after the path of node i


@specverify.tree_verifier(
    name="my tree rule", parents=(-1, -1, 0), children="without replacement", returns="tokens", max_batch=1
)
def subject(tree: specverify.Tree, target_probs: Tensor) -> list[list[int]]:
    """Emit the tokens of the accepted path and one more."""
    # --- yours from here: one row, since max_batch=1; without it a batch of rows is handed
    assert tree.draft_probs is not None
    node, law, emitted = -1, target_probs[0, 0], []
    walking = True
    while walking:
        walking = False
        for child in tree.shape.children(node):
            x, q = int(tree.tokens[0, child]), tree.draft_probs[0, child]
            if torch.rand((), dtype=law.dtype) * q[x] < law[x]:
                emitted.append(x)
                node, law, walking = child, target_probs[0, child + 1], True
                break
            residual = (law - q).clamp(min=0)
            law = residual / residual.sum() if residual.sum() > 0 else law
    emitted.append(int(torch.multinomial(law, 1)))
    # --- to here
    return [emitted]
