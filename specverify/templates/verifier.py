"""A verification step. Certify it with ``specverify certify THIS_FILE``, then put your own code where it says so."""

import torch
from torch import Tensor

import specverify

# For B rows, K drafted tokens and V token ids the step is handed
#     draft_tokens (B, K) int64, drawn from draft_probs
#     draft_probs  (B, K, V), the law each draft was drawn from
#     target_probs (B, K+1, V), the law of the main model at every place, that of the bonus token last
# It may return ids (B, n) ended by -1; (ids, counts); ragged lists; with counts="accepted" (ids, accepted).
#
# Declare what differs from this: takes="logits" (log-probabilities are handed), dtype="float32" (a kernel without float64),
# max_batch=1 (one row per call), max_k=4 (no more drafts than that).


@specverify.verifier(name="my verifier")
def subject(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> list[list[int]]:
    """Emit, for every row, the accepted drafts and one more token."""
    # --- yours from here: call your step; reshape its arguments and its result if they look otherwise
    rows, (B, K) = torch.arange(len(draft_tokens)), draft_tokens.shape
    p = target_probs[:, :K].gather(2, draft_tokens[..., None])[..., 0]
    q = draft_probs.gather(2, draft_tokens[..., None])[..., 0]
    accepted = torch.rand(B, K, dtype=p.dtype) * q < p
    kept = accepted.long().cumprod(1).sum(1)
    residual = (target_probs[:, :K] - draft_probs).clamp(min=0)
    law = torch.cat([residual, target_probs[:, K:]], 1)[rows, kept]
    law = torch.where(law.sum(1, keepdim=True) > 0, law, target_probs[rows, kept])  # p = q up to rounding leaves nothing
    last = torch.multinomial(law, 1)[:, 0]
    # --- to here
    return [[*row[:n], token] for row, n, token in zip(draft_tokens.tolist(), kept.tolist(), last.tolist(), strict=True)]
