"""How an accepted node becomes a padded row of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.rules.emitting import emit
from specverify.subjects import Emitted
from specverify.trees import Tree


def emit_path(tree: Tree, node: Tensor, final: Tensor) -> Emitted:
    """Emit the tokens down to ``node`` (B,), -1 for none of them, then ``final`` (B,), then -1: tokens (B, depth+1)."""
    shape = tree.shape
    paths = torch.full((shape.size + 1, shape.depth), 0)
    lengths = torch.zeros(shape.size + 1, dtype=torch.int64)
    for n, path in enumerate(shape.paths):
        paths[n + 1, : len(path)] = torch.tensor(path)
        lengths[n + 1] = len(path)
    return emit(tree.tokens.gather(1, paths[node + 1]), lengths[node + 1], final)
