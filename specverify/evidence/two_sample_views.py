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
BITS = 17
"""Each view has a table of 2**BITS entries."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, near 2**64 over the golden ratio: neighbouring keys land far apart (Knuth, volume 3, section 6.4)."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Where the tokens of a batch are counted, (views, R, L) each: the context, and the symbol after it."""

    contexts: Ints
    symbols: Ints


class Seen:
    """How often each symbol followed each context, with speculation and without, and the last requests of every prompt."""

    def __init__(self) -> None:
        size = len(VIEWS) << BITS
        self._contexts = np.zeros((2, size), np.int32)
        self._symbols = np.zeros((2, size), np.int32)
        self.last: dict[int, tuple[Ints, Ints]] = {}

    def counts(self, cells: Cells) -> tuple[Ints, Ints]:
        """Counts of the symbols and totals of the contexts of a batch, (2, views, R, L) each; with speculation first."""
        return self._symbols[:, cells.symbols].astype(np.int64), self._contexts[:, cells.contexts].astype(np.int64)

    def often(self, view: int, symbols: Hashes) -> Ints:
        """How often symbols (R, L) of a view came in either decoder, as classes 0, 1, 2-3, 4-7, ... in powers of two."""
        total = self._symbols[:, _place(view, symbols)].sum(0)
        classes: Ints = np.ceil(np.log2(total + 1)).astype(np.int64)
        return classes

    def learn(self, with_: Cells, without: Cells, first: Ints, second: Ints, prompts: Ints) -> None:
        """Count two batches, and keep their sequences (R, L) as the last ones of their prompts."""
        for side, cells in enumerate((with_, without)):
            np.add.at(self._contexts[side], cells.contexts.reshape(-1), 1)
            np.add.at(self._symbols[side], cells.symbols.reshape(-1), 1)
        for prompt, one, two in zip(prompts.tolist(), first, second, strict=True):
            self.last[prompt] = (one, two)


def _mixed(*keys: Ints | Hashes | int) -> Hashes:
    """One hash of several keys that broadcast together."""
    out: Hashes = np.ones((), np.uint64)
    for key in keys:
        with np.errstate(over="ignore"):
            out = (out ^ (np.asarray(key).astype(np.uint64) + np.uint64(1))) * MULTIPLIER
            out = out ^ (out >> np.uint64(29))
    return np.asarray(out)


def _place(view: int, hashed: Hashes) -> Ints:
    """Where a hash is counted in the table of a view."""
    with np.errstate(over="ignore"):
        short = (hashed * MULTIPLIER) >> np.uint64(64 - BITS)
    return short.astype(np.int64) + (view << BITS)


def _before(tokens: Ints, by: int) -> Ints:
    """The token ``by`` places earlier (R, L), -1 where there is none; shifted by one so that it can be a key."""
    padded = np.pad(tokens, ((0, 0), (by, 0)), constant_values=-1)
    return padded[:, : tokens.shape[1]] + 1


def _histories(tokens: Ints, prompts: Ints) -> Hashes:
    """One hash (R, L) of the prompt's number and all tokens before each place."""
    now, out = _mixed(prompts), []
    for at in range(tokens.shape[1]):
        out.append(now)
        now = _mixed(now, tokens[:, at])
    return np.stack(out, axis=1)


def _agreements(tokens: Ints, prompts: Ints, seen: Seen) -> Ints:
    """Whether each token (R, L) is that of the prompt's last request: 1 with, 2 without, 3 both, 0 neither, 4 no request yet."""
    out = np.full(tokens.shape, 4, np.int64)
    for row, prompt in enumerate(prompts.tolist()):
        if prompt in seen.last:
            with_, without = seen.last[prompt]
            if with_.shape == tokens[row].shape:
                out[row] = (tokens[row] == with_) + 2 * (tokens[row] == without)
    return out


def _runs(agreements: Ints) -> Ints:
    """What all earlier tokens of a row agree with (R, L): the bits that were set everywhere before."""
    start = np.full((len(agreements), 1), 3, np.int64)
    return np.bitwise_and.accumulate(np.concatenate([start, agreements & 3], axis=1), axis=1)[:, :-1]


def cells_of(tokens: Ints, prompts: Ints, seen: Seen) -> Cells:
    """Contexts and symbols of every view, for sequences (R, L) after the prompts numbered (R,)."""
    rows, length = tokens.shape
    place = np.broadcast_to(np.arange(length), tokens.shape)
    prompt = np.broadcast_to(prompts[:, None], tokens.shape)
    nothing = np.zeros_like(tokens)
    one, two = _before(tokens, 1), _before(tokens, 2)
    history = _histories(tokens, prompts)
    contexts: list[Hashes] = [
        _mixed(nothing),
        _mixed(one),
        _mixed(one, two),
        _mixed(place),
        _mixed(place, one),
        _mixed(place, one, two),
        _mixed(prompt, place),
        _mixed(prompt, place, one),
        history,
    ]
    symbols: list[Hashes] = [_mixed(context, tokens) for context in contexts]
    for view, context in ((0, nothing), (1, nothing), (6, place), (8, place)):
        rare = _mixed(context)
        contexts.append(rare)
        symbols.append(_mixed(rare, seen.often(view, symbols[view])))
    agreements = _agreements(tokens, prompts, seen)
    above = np.concatenate([np.full((1, length), 2), tokens[1:] == tokens[:-1]]) if rows > 1 else nothing
    for context, symbol in ((_runs(agreements), agreements), (nothing, above)):
        contexts.append(_mixed(context))
        symbols.append(_mixed(_mixed(context), symbol))
    return Cells(
        np.stack([_place(view, x) for view, x in enumerate(contexts)]),
        np.stack([_place(view, x) for view, x in enumerate(symbols)]),
    )
