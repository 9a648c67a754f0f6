"""How a layer on the main model's hidden states drafts: Li et al. 2024, EAGLE (arXiv 2401.15077, section 4.1).

For each token it reads the state that the main model had before that token. At the places it drafts there is no such state
yet, and it goes on with the one it foresees itself; what it read so is read again, with the true states, in the next round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reference.caching import Cache
from reference.drafting import Chain, Laws, Model, at_end, drawn_on
from reference.history import Text
from reference.noise import Noise


class FeatureDraft:
    """A :class:`reference.heads.FeatureLayer`, or what has its two methods."""

    reads_hidden = True
    room = 0

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def begin(self, main: Model, cache: Cache, text: Text) -> FeatureDrafting:  # noqa: ARG002
        """Start a decode: the layer reads all but the last token of each row."""
        own: Cache = self.layer.start(cache.capacity, len(text.ids))
        longest = int(text.lengths.max())
        if longest > 1:
            assert text.hidden is not None
            before = torch.cat([text.hidden[:, -1:], text.hidden[:, : longest - 2]], 1)
            self.layer.extend(text.ids[:, : longest - 1], before, own, text.lengths - 1)
        return FeatureDrafting(self.layer, own)


class FeatureDrafting:
    """The layer during one decode: its cache holds what it read with true states, between rounds all but the last token
    or more.
    """

    def __init__(self, layer: Any, cache: Cache) -> None:
        self.layer, self.cache = layer, cache
        self.true = cache.lengths

    def propose(self, text: Text, k: int, process: Laws, noise: Noise) -> Chain:
        """Draft tokens (B, K)."""
        assert text.hidden is not None
        read = self.cache.lengths
        tokens, counts = text.after(read)
        # Place -1, where no state is ever written, stands for the state before the first token.
        places = read[:, None] - 1 + torch.arange(tokens.shape[1])
        before = text.hidden[torch.arange(len(tokens))[:, None], places]
        states, logits = self.layer.extend(tokens, before, self.cache, counts)
        self.true = text.lengths  # how many tokens were read with true states
        state = at_end(states, counts)[:, None]

        def go_on(token: Tensor) -> Tensor:
            nonlocal state
            state, found = self.layer.extend(token, state, self.cache)
            last: Tensor = found[:, 0]
            return last

        return drawn_on(at_end(logits, counts), k, go_on, text, process, noise)

    def settle(self, text: Text) -> None:  # noqa: ARG002
        """Keep what was read with true states; all of it is text."""
        self.cache.rollback(torch.minimum(self.true, self.cache.lengths))

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        self.cache.keep_rows(kept)
        self.true = self.true[kept]
