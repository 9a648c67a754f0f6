"""How the text itself drafts: Saxena 2023, prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).

The last n tokens are looked for earlier in the text, the longest n first; what followed their latest occurrence is
proposed. The proposal is certain, so its law is one-hot, and it costs nothing but the search. Where nothing is found, or
the text ends, a place has no draft.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Cache
from reference.drafting import Chain, Laws, Model, NothingKept
from reference.history import Text
from reference.noise import Noise


class PromptLookup:
    """Repeats what followed the last ``longest`` tokens (or fewer, 1 at least) when they stood there before."""

    reads_hidden = False
    room = 0

    def __init__(self, vocab_size: int, longest: int = 4) -> None:
        if longest < 1:
            raise ValueError(f"longest is {longest}; look for at least one token")
        self.vocab_size, self.longest = vocab_size, longest

    def begin(self, main: Model, cache: Cache, text: Text) -> LookupDrafting:  # noqa: ARG002
        """Start a decode; there is nothing to read."""
        return LookupDrafting(self.vocab_size, self.longest)


class LookupDrafting(NothingKept):
    """A search during one decode."""

    def __init__(self, vocab_size: int, longest: int) -> None:
        self.vocab_size, self.longest = vocab_size, longest

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain:  # noqa: ARG002
        """Propose tokens (B, K); a place without a draft has token V."""
        tokens = continuation(text.ids, text.lengths, k, self.longest, self.vocab_size)
        return Chain(tokens, functional.one_hot(tokens, self.vocab_size + 1).float())


def continuation(ids: Tensor, lengths: Tensor, k: int, longest: int, none: int) -> Tensor:
    """Return the k tokens (B, K) that followed the latest earlier occurrence of each row's last tokens in ids (B, C).

    Up to ``longest`` last tokens must agree, the more the better; ``none`` stands where there is nothing to repeat.
    """
    rows, places = torch.arange(len(ids))[:, None], torch.arange(ids.shape[1])
    agreeing = torch.zeros_like(ids)  # how many tokens up to a place agree with as many at the end
    same = torch.ones_like(ids, dtype=torch.bool)
    for n in range(1, longest + 1):
        last = ids.gather(1, (lengths[:, None] - n).clamp(min=0))
        shifted = functional.pad(ids, (n - 1, 0), value=-1)[:, : ids.shape[1]]
        same = same & (shifted == last) & (lengths[:, None] >= n)
        agreeing = agreeing + same
    agreeing = torch.where(places < lengths[:, None] - 1, agreeing, 0)
    best = agreeing.amax(1, keepdim=True)
    latest = torch.where(agreeing == best, places, -1).amax(1, keepdim=True)
    wanted = latest + 1 + torch.arange(k)
    found = (best > 0) & (wanted < lengths[:, None])
    return torch.where(found, ids[rows, wanted.clamp(max=ids.shape[1] - 1)], none)
