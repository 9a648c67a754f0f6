"""One round with its drafting. Certify it with ``specverify certify THIS_FILE``, then put your own code where it says so."""

import torch
from torch import Tensor

import specverify
from specverify.subjects import Model

K = 2  # tokens your step drafts

# target and draft are models that specverify hands in: they take ids (B, T) and return logits (B, T, V), where row t is the
# law of the token after ids[:, : t + 1]. Temperature and filters are in them already. A mistake on the drafting side, such as
# a draft that is not drawn from the law the rule is told, is seen here and not by a verifier.


@specverify.step(k=K, name="my step")
def subject(target: Model, draft: Model, prefix: Tensor) -> list[list[int]]:
    """Draft K tokens after every prefix (B, T) and emit the accepted ones and one more."""
    # --- yours from here
    ids = prefix
    for _ in range(K):
        ids = torch.cat([ids, torch.multinomial(draft(ids)[:, -1].softmax(-1), 1)], 1)
    drafted, place = ids[:, -K:], prefix.shape[1] - 1
    q = draft(ids)[:, place:-1].softmax(-1)
    p = target(ids)[:, place:].softmax(-1)
    emitted = []
    for row, tokens in enumerate(drafted.tolist()):
        law, kept = p[row, K], K
        for j, x in enumerate(tokens):
            if torch.rand((), dtype=p.dtype) * q[row, j, x] >= p[row, j, x]:
                residual = (p[row, j] - q[row, j]).clamp(min=0)
                law, kept = (residual if residual.sum() > 0 else p[row, j]), j  # p = q up to rounding leaves nothing
                break
        emitted.append([*tokens[:kept], int(torch.multinomial(law, 1))])
    # --- to here
    return emitted
