"""An engine whose law is not known, speculation on against off. Certify it with ``specverify certify THIS_FILE``."""

import torch
from torch import Tensor

import specverify

# Both modes take prompts (B, T) and a seed and return new tokens (B, max_new_tokens). The seed must reach the sampler of
# both; say seeded=False where one seed does not replay. eos_id= and prompts= ((N, T) ids) may be given as well.
# Where the engine tells log-probabilities, ``specverify init decoder`` says more with fewer tokens.

# --- yours from here: replace the toy models and the bodies of the two functions by calls of your engine
VOCABULARY = 3
TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
DRAFT = torch.tensor([[0.4, 0.4, 0.2], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])


def with_speculation(prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
    """New tokens (B, max_new_tokens), with one draft a round."""
    generator, rows = torch.Generator().manual_seed(seed), torch.arange(len(prompts))
    new = torch.empty(len(prompts), 0, dtype=torch.long)
    last = prompts[:, -1]
    for _ in range(max_new_tokens):
        p, q = TARGET[last], DRAFT[last]
        x = torch.multinomial(q, 1, generator=generator)[:, 0]
        accepted = torch.rand(len(x), generator=generator) * q[rows, x] < p[rows, x]
        recovered = torch.multinomial((p - q).clamp(min=0), 1, generator=generator)[:, 0]
        last = torch.where(accepted, x, recovered)
        new = torch.cat([new, last[:, None]], 1)
    return new


def without_speculation(prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
    """New tokens (B, max_new_tokens), each drawn from the main model."""
    generator = torch.Generator().manual_seed(seed)
    new, last = torch.empty(len(prompts), 0, dtype=torch.long), prompts[:, -1]
    for _ in range(max_new_tokens):
        last = torch.multinomial(TARGET[last], 1, generator=generator)[:, 0]
        new = torch.cat([new, last[:, None]], 1)
    return new


# --- to here

subject = specverify.on_off(with_speculation, without_speculation, vocab_size=VOCABULARY, name="my engine")
