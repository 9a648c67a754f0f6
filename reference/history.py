"""What is known of every row while it is decoded: its tokens, what the main model's states were, which tokens it has seen.

Only accepted tokens enter. What depends on drafted ones is computed beside it and dropped with them, so that nothing of a
rejected draft can be left behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass
class Text:
    """Tokens ids (B, C), of which row b has its first ``lengths[b]`` >= 1.

    hidden (B, C, E): the main model's states at all places but the last of each row, if a drafter reads them. seen (B, V),
    bool: which tokens occur in a row, if a processor asks.
    """

    ids: Tensor
    lengths: Tensor
    hidden: Tensor | None = None
    seen: Tensor | None = None
    newest: Tensor | None = None
    """The last token (B, 1) of every row where it was appended alone."""

    @property
    def last(self) -> Tensor:
        """The last token (B, 1) of every row, the only one that the main model has not read."""
        return self.ids.gather(1, self.lengths[:, None] - 1) if self.newest is None else self.newest

    def after(self, read: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the tokens (B, n) that follow the first ``read`` (B,), padded on the right, and how many each row has;
        None for the latter when all have n.
        """
        if len(read) == 1:  # all that is missing, as it stands
            return self.ids[:, int(read) : int(self.lengths)], None
        missing = self.lengths - read
        n = int(missing.max())
        places = read[:, None] + torch.arange(n)
        counts = None if bool((missing == n).all()) else missing
        return self.ids.gather(1, places.clamp(max=self.ids.shape[1] - 1)).clamp(min=0), counts

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Let row b go on with its first ``counts[b]`` of tokens (B, n)."""
        if tokens.shape[1] == 1:
            self.ids.scatter_(1, self.lengths[:, None], tokens)
            self.seen = None if self.seen is None else self.seen | occurring(tokens, self.seen.shape[1])[:, 0]
            self.lengths, self.newest = self.lengths + 1, tokens
            return
        self.newest = None
        places = torch.arange(tokens.shape[1])
        if self.seen is not None:
            real = torch.where(places < counts[:, None], tokens, self.seen.shape[1])
            self.seen = self.seen | occurring(real, self.seen.shape[1]).any(1)
        self.ids.scatter_(1, self.lengths[:, None] + places, tokens)
        self.lengths = self.lengths + counts

    def seen_along(self, tokens: Tensor, follows: Tensor | None = None) -> Tensor | None:
        """Return which tokens have been seen after the text and after each of tokens (B, n), (B, n+1, V).

        follows (n, n), bool: which of the tokens each one comes after, itself among them; by default they are a chain. None
        when no processor asks.
        """
        if self.seen is None:
            return None
        n = tokens.shape[1]
        follows = torch.ones(n, n, dtype=torch.bool).tril() if follows is None else follows
        among = torch.einsum("ij,bjv->biv", follows.float(), occurring(tokens, self.seen.shape[1]).float()) > 0
        return self.seen[:, None] | functional.pad(among, (0, 0, 1, 0))

    def remember(self, hidden: Tensor) -> None:
        """Write states (B, n, E) of the last token of each row and the n - 1 after it."""
        assert self.hidden is not None
        rows = torch.arange(len(hidden))[:, None]
        self.hidden[rows, self.lengths[:, None] - 1 + torch.arange(hidden.shape[1])] = hidden

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        self.ids, self.lengths, self.newest = self.ids[kept], self.lengths[kept], None
        self.hidden = None if self.hidden is None else self.hidden[kept]
        self.seen = None if self.seen is None else self.seen[kept]


def occurring(tokens: Tensor, vocab_size: int) -> Tensor:
    """Return tokens (B, n) as (B, n, V) of bool; a token V, which stands for none, has no place."""
    return functional.one_hot(tokens, vocab_size + 1)[..., :-1].bool()


def read_prompts(prompts: Tensor, lengths: Tensor, room: int, vocab_size: int, *, seen: bool) -> Text:
    """Begin texts with prompts (B, T), of which row b has ``lengths[b]``, leaving ``room`` tokens to come."""
    ids = functional.pad(prompts, (0, room))
    text = Text(ids, lengths)
    if seen:
        real = torch.where(torch.arange(prompts.shape[1]) < lengths[:, None], prompts, vocab_size)
        text.seen = torch.stack([occurring(row[None], vocab_size)[0].any(0) for row in real])
    return text
