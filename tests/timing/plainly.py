"""A plain speculative decoder over models handed in: token rejection, one row at a time, no cache. It has no timing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specverify.subjects import Generated


class PlainDecoder:
    """Drafts K tokens, judges them by one call of the target; counts what it calls."""

    def __init__(self, target: Any, draft: Any, k: int) -> None:
        self.target, self.draft, self.k = target, draft, k
        self.vocab_size = target.vocab_size

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        """Generate (B, N) and report the accepted counts."""
        draws = torch.Generator().manual_seed(seed)
        made = [self._row(prompt[None], max_new_tokens, draws) for prompt in prompts]
        rounds = max(len(counts) for _, counts in made)
        accepted = torch.tensor([counts + [-1] * (rounds - len(counts)) for _, counts in made])
        return Generated(torch.cat([tokens for tokens, _ in made]), accepted)

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws of the target."""
        return self.target(ids).log_softmax(-1)

    def _row(self, prompt: Tensor, n: int, draws: torch.Generator) -> tuple[Tensor, list[int]]:
        text, counts = prompt, []
        while text.shape[1] < prompt.shape[1] + n:
            start, q = text.shape[1], []
            for _ in range(self.k):
                q.append(self.draft(text)[:, -1].softmax(-1))
                text = torch.cat([text, torch.multinomial(q[-1], 1, generator=draws)], 1)
            p = self.target(text)[:, start - 1 :].softmax(-1)
            kept = 0
            while kept < self.k:
                token = text[0, start + kept]
                if torch.rand((), generator=draws) * q[kept][0, token] >= p[0, kept, token]:
                    break
                kept += 1
            left = (p[:, kept] - q[kept]).clamp(min=0) if kept < self.k else p[:, kept]
            left = left if left.sum() > 0 else p[:, kept]
            text = torch.cat([text[:, : start + kept], torch.multinomial(left, 1, generator=draws)], 1)
            counts.append(kept)
        return text[:, prompt.shape[1] :][:, :n], counts
