"""Which drafted tokens the target's own sampling keeps: Stern, Shazeer, Uszkoreit 2018 (arXiv 1811.03115, section 3),
with samples in place of maxima.

At each place draw s from p_j and emit it; go on while s equals the drafted token, since only then is p_{j+1} the law
after s. The draft decides how far a round gets, never what it emits: this is the target's own sampling, exact whatever
the draft's law was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "sample_and_match"
SOURCE = "Stern et al. 2018 (arXiv 1811.03115), with samples for maxima"


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:  # noqa: ARG001
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    B, K = draft_tokens.shape
    accepted = torch.zeros(B, dtype=torch.int64)
    final = torch.zeros(B, dtype=torch.int64)
    live = torch.ones(B, dtype=torch.bool)
    for place in range(K + 1):
        sample = noise.choose(target_probs[:, place], live)
        final = torch.where(live, sample, final)
        if place < K:
            live = live & (sample == draft_tokens[:, place])
            accepted = accepted + live
        if not live.any():
            break
    return emit(draft_tokens, accepted, final)
