"""Which drafted tokens are kept when draft and target race with the same clocks: Daliri, Musco, Suresh 2024 (arXiv
2408.07978), drafter-invariant speculative decoding.

At each place draw E_i, exponential with mean 1, for every token. The draft proposes argmin E_i / q_i, the target chooses
argmin E_i / p_i with the same clocks; emit the target's choice and go on while the two agree, after K agreements a bonus token
from clocks of its own. The target's choice has the law p whatever the draft does, and since a later place is entered by
emitted tokens alone, the path has the target's law. Both agree with probability sum_x 1 / sum_y max(p_y / p_x, q_y / q_x).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.noise import RacingNoise
from reference.rules.emitting import emit
from specverify.subjects import Emitted, Model

NAME = "coupled_races"
SOURCE = "Daliri, Musco, Suresh 2024 (arXiv 2408.07978)"


def clocks(like: Tensor) -> Tensor:
    """Draw one exponential of mean 1 for every entry of laws (B, V); torch never draws 0, so that 0/0 cannot happen."""
    return torch.empty(like.shape, dtype=like.dtype).exponential_()


def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: RacingNoise) -> Emitted:  # noqa: ARG001
    """Judge one round whose tokens (B, K) were chosen by races of ``noise``: target_probs (B, K+1, V) -> tokens (B, K+1).

    Errors: ValueError when there are not the clocks of K choices.
    """
    clocks, K = noise.taken(), draft_tokens.shape[1]
    if len(clocks) != K:
        raise ValueError(f"{K} tokens were drafted and {len(clocks)} races run; draft with the noise that is handed here")
    return emitted_by(draft_tokens, target_probs, [*clocks, noise.fresh(target_probs[:, K])])


def emitted_by(drafted: Tensor, target_probs: Tensor, clocks: Sequence[Tensor]) -> Emitted:
    """Let the target race with K+1 sets of clocks (B, V), and emit its choices up to the first that is not the draft's."""
    chosen = torch.stack([(e / target_probs[:, j]).argmin(1) for j, e in enumerate(clocks)], 1)
    accepted = (chosen[:, :-1] == drafted).long().cumprod(1).sum(1)
    return emit(drafted, accepted, chosen.gather(1, accepted[:, None])[:, 0])


def step(target: Model, draft: Model, prefix: Tensor, k: int) -> Emitted:
    """Draft k tokens after prefix (B, T) and judge them -> tokens (B, K+1)."""
    ids, noise = prefix, []
    for _ in range(k):
        q = draft(ids)[:, -1].softmax(-1)
        noise.append(clocks(q))
        ids = torch.cat([ids, (noise[-1] / q).argmin(1, keepdim=True)], 1)
    drafted = ids[:, prefix.shape[1] :]
    p = target(ids)[:, prefix.shape[1] - 1 :].softmax(-1)  # (B, K+1, V)
    return emitted_by(drafted, p, [*noise, clocks(p[:, -1])])
