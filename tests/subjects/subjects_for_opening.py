"""A right decoder over a table, to which attributes are given that do not suit it."""

import torch
from torch import Tensor


class Chain:
    """Every token depends on the one before; sampled one by one."""

    vocab_size = 3
    laws = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws of the next token."""
        return self.laws[ids].log()

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """One token after the other."""
        generator, ids = torch.Generator().manual_seed(seed), prompts
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, torch.multinomial(self.laws[ids[:, -1]], 1, generator=generator)], 1)
        return ids[:, prompts.shape[1] :]
