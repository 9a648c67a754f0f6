"""How a round's outcome becomes a padded block of tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specverify.subjects import Emitted


def emit(draft_tokens: Tensor, accepted: Tensor, final: Tensor) -> Emitted:
    """Emit the first ``accepted`` (B,) of draft_tokens (B, K), then ``final`` (B,), then -1."""
    end = accepted[:, None]
    before_end = torch.arange(draft_tokens.shape[1] + 1) < end
    tokens = torch.where(before_end, functional.pad(draft_tokens, (0, 1)), -1).scatter(1, end, final[:, None])
    return Emitted(tokens, accepted + 1, accepted)
