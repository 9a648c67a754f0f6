"""Which drafted tokens typical acceptance keeps: Cai et al. 2024, Medusa (arXiv 2401.10774, section 2.3.1). NOT lossless:
it trades the main model's law for speed, and is here to be refuted.

Accept x_j while p_j(x_j) > min(eps, delta exp(-H(p_j))), H the entropy of p_j; then emit a token of the main model's law at
the first place that was not accepted. Kept tokens follow the draft wherever it is typical, not the target: at one place the
law is q 1[A] + q(not A) p, with A the typical tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.noise import Noise
from reference.rules.emitting import emit
from specverify.subjects import Emitted

NAME = "typical_acceptance"
SOURCE = "Cai et al. 2024 (arXiv 2401.10774)"
EPSILON, DELTA = 0.09, 0.3
"""The thresholds of the paper's experiments: eps, and delta = sqrt(eps)."""


def typical(law: Tensor) -> Tensor:
    """Return which tokens of laws (..., V) are typical, (..., V) bool."""
    entropy = torch.special.entr(law).sum(-1, keepdim=True)
    return law > (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:  # noqa: ARG001
    """Judge one round: draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) -> tokens (B, K+1)."""
    K = draft_tokens.shape[1]
    accept = typical(target_probs[:, :K]).gather(2, draft_tokens[..., None])[..., 0]
    accepted = accept.long().cumprod(1).sum(1)
    return emit(draft_tokens, accepted, noise.choose(target_probs[torch.arange(len(accepted)), accepted]))
