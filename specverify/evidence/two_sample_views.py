"""How is a batch of sequences looked at when two decoders are compared? Contexts and symbols, counted with and without.

A *view* turns every token of a batch into a symbol after a context. Any function of a whole batch and of earlier calls may be
a view, since two batches of one law can be exchanged as wholes: so views may look at other rows and at earlier requests too.
Contexts are hashed into tables of fixed size. Where two fall together their counts are shared, which can cost power and
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specverify.laws import Ints

Hashes = NDArray[np.uint64]

VIEWS = (
    "token",
    "token after one",
    "token after two",
    "token by place",
    "token by place after one",
    "token by place after two",
    "token by prompt and place",
    "token by prompt and place after one",
    "token after prompt and all before",
    "rarity of the token",
    "rarity of the token after one",
    "rarity by prompt and place",
    "rarity by prompt after all before",
    "agreement with the last requests of the prompt",
    "agreement with the row above",
)
"""What is counted, in the order of the first axis of :class:`Cells`."""
RARITY_OF = (0, 1, 6, 8)
"""The views whose symbols the four views of rarity count."""
BITS = 17
"""Each view has a table of 2**BITS entries."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, near 2**64 over the golden ratio: neighbouring keys land far apart (Knuth, volume 3, section 6.4)."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Where the tokens of two batches are counted, (views, 2, R, L) each: the context, and the symbol after it.

    The second axis holds the batches with speculation and without.
    """

    contexts: Ints
    symbols: Ints


class Seen:
    """How often each symbol followed each context, with speculation and without, and the last requests of every prompt."""

    def __init__(self) -> None:
        size = len(VIEWS) << BITS
        self._contexts = np.zeros((2, size), np.int32)
        self._symbols = np.zeros((2, size), np.int32)
        self.last: dict[int, Ints] = {}
        """By prompt, its last sequences (2, L)."""

    def counts(self, cells: Cells) -> tuple[Ints, Ints]:
        """Counts of the symbols and totals of the contexts, (2, views, 2, R, L) each; counted with speculation first."""
        return self._symbols[:, cells.symbols].astype(np.int64), self._contexts[:, cells.contexts].astype(np.int64)

    def often(self, places: Ints) -> Ints:
        """How often symbols came in either decoder, as classes 0, 1, 2-3, 4-7, ... in powers of two; any shape."""
        classes: Ints = np.ceil(np.log2(self._symbols[:, places].sum(0) + 1)).astype(np.int64)
        return classes

    def learn(self, cells: Cells, batches: Ints, prompts: Ints) -> None:
        """Count two batches (2, R, L), and keep their sequences as the last ones of their prompts (R,)."""
        for side in range(2):
            np.add.at(self._contexts[side], cells.contexts[:, side].reshape(-1), np.int32(1))
            np.add.at(self._symbols[side], cells.symbols[:, side].reshape(-1), np.int32(1))
        self.last.update(zip(prompts.tolist(), batches.swapaxes(0, 1), strict=True))


def _mixed(first: Ints | Hashes, *keys: Ints | Hashes | int) -> Hashes:
    """One hash of several keys that broadcast against the first."""
    out = first.astype(np.uint64) * MULTIPLIER
    for key in keys:
        out = ((out ^ (out >> np.uint64(29))) + np.asarray(key).astype(np.uint64) + np.uint64(1)) * MULTIPLIER
    return out ^ (out >> np.uint64(32))


def _places(hashed: Hashes, first: int) -> Ints:
    """Where hashes (n, ...) are counted: one after the other in the tables of the views from ``first`` on."""
    short = (hashed * MULTIPLIER) >> np.uint64(64 - BITS)
    tables = np.arange(first, first + len(hashed)) << BITS
    return short.astype(np.int64) + tables.reshape(-1, *[1] * (hashed.ndim - 1))


def _before(tokens: Ints, by: int) -> Ints:
    """The token ``by`` places earlier (..., L), counted from 1; 0 where there is none."""
    out = np.zeros_like(tokens)
    out[..., by:] = tokens[..., :-by] + 1
    return out


def _histories(tokens: Ints, prompts: Ints) -> Hashes:
    """One hash (2, R, L) of the prompt's number and all tokens before each place."""
    now, out = _mixed(np.broadcast_to(prompts, tokens.shape[:2])), []
    for at in range(tokens.shape[-1]):
        out.append(now)
        now = _mixed(now, tokens[..., at])
    return np.stack(out, axis=-1)


def _agreements(tokens: Ints, prompts: Ints, seen: Seen) -> Ints:
    """Whether each token (2, R, L) is that of the prompt's last request: 1 with, 2 without, 3 both, 0 neither, 4 none yet."""
    out = np.full(tokens.shape, 4, np.int64)
    for row, prompt in enumerate(prompts.tolist()):
        last = seen.last.get(prompt)
        if last is not None and last.shape[-1] == tokens.shape[-1]:
            out[:, row] = (tokens[:, row] == last[0]) + 2 * (tokens[:, row] == last[1])
    return out


def _runs(agreements: Ints) -> Ints:
    """What all earlier tokens of a row agree with (2, R, L): the bits that were set everywhere before."""
    start = np.full((*agreements.shape[:-1], 1), 3, np.int64)
    before = np.concatenate([start, agreements[..., :-1] & 3], axis=-1)
    runs: Ints = np.bitwise_and.accumulate(before, axis=-1)
    return runs


def cells_of(tokens: Ints, prompts: Ints, seen: Seen) -> Cells:
    """Contexts and symbols of every view, for two batches (2, R, L) after the prompts numbered (R,)."""
    nothing = np.zeros_like(tokens)
    place, prompt = nothing + np.arange(tokens.shape[-1]), nothing + prompts[:, None]
    one, two = _before(tokens, 1), _before(tokens, 2)
    whole = _histories(tokens, prompts).astype(np.int64)
    keys = (
        (nothing, one, one, place, place, place, prompt, prompt, whole),
        (nothing, nothing, two, nothing, one, one, place, place, nothing),
        (nothing, nothing, nothing, nothing, nothing, two, nothing, one, nothing),
    )
    contexts = _mixed(*(np.stack(each) for each in keys))
    symbols = _mixed(contexts, tokens)
    known = _places(symbols, 0)
    agreements = _agreements(tokens, prompts, seen)
    above = nothing.copy()
    above[:, 1:] = 1 + (tokens[:, 1:] == tokens[:, :-1])
    more = _mixed(np.stack([nothing, nothing, place, place, _runs(agreements), nothing]))
    after = _mixed(more, np.concatenate([seen.often(known[list(RARITY_OF)]), np.stack([agreements, above])]))
    first = len(contexts)
    return Cells(np.concatenate([_places(contexts, 0), _places(more, first)]), np.concatenate([known, _places(after, first)]))
