"""What came of a decoder's speculation on against off? All sequences, the wealth they give, and what a pass would have shown.

The sequences themselves are stored, so that whoever judges again recomputes every bet. Contaminated sequences are recomputed
as well: one stored batch without speculation for each call, some of its tokens replaced by numbers that the seed fixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.evidence.judging import Judgement
from specverify.evidence.two_sample import PairedBets
from specverify.laws import Array, Ints

REPLACED = (0.3, 0.1, 0.03)
"""Shares of tokens that the controls replace, largest first."""


@dataclass(frozen=True, eq=False)
class Call:
    """One pair of calls: the prompts' numbers (R,), and sequences (R, L) with speculation, without, and of the control.

    The control's are a third batch, without speculation and independent of the others; None while there is none.
    """

    prompts: Ints
    with_speculation: Ints
    without: Ints
    control: Ints | None = None


@dataclass(frozen=True, eq=False)
class Path:
    """How the wealth went: pairs used so far (C,), and the highest ln of the wealth so far (C,), after each call."""

    pairs: Ints
    highest: Array
    view: str = ""

    def reached(self, level: float) -> int | None:
        """Pairs after which ln of the wealth first was at a level; None when it never was."""
        over = np.flatnonzero(self.highest >= level)
        return int(self.pairs[over[0]]) if len(over) else None

    def likely(self, level: float) -> int | None:
        """Pairs likely needed to reach a level if the wealth goes on as in the second half; None when that did not grow."""
        if len(self.pairs) < 2:
            return None
        half = len(self.pairs) // 2
        rate = (self.highest[-1] - self.highest[half - 1]) / (self.pairs[-1] - self.pairs[half - 1])
        return math.ceil(self.pairs[-1] + (level - self.highest[-1]) / rate) if rate > 0 else None


@dataclass(frozen=True, eq=False)
class OnOffMeasurement:
    """Pairs of calls with speculation and without, in their order; seed: of the control's replaced tokens.

    Guarantee: see :class:`~specverify.evidence.two_sample.PairedBets`. The wealth may be looked at after every call, so its
    highest moment decides.
    """

    label: str
    vocab_size: int
    calls: tuple[Call, ...]
    seed: int
    kind = "on_off"

    @property
    def pairs(self) -> int:
        """How many pairs of sequences there are."""
        return sum(len(call.prompts) for call in self.calls)

    @cached_property
    def path(self) -> Path:
        """The wealth of bets on the calls as they were made."""
        return path_of(self.vocab_size, [(c.with_speculation, c.without, c.prompts) for c in self.calls])

    @cached_property
    def controls(self) -> dict[float, Path]:
        """The wealth of the same bets on batches whose tokens were replaced, by the share of these."""
        found = {}
        for share in REPLACED:
            pairs = [
                (replaced(call.control, share, self.vocab_size, self.seed, number), call.without, call.prompts)
                for number, call in enumerate(self.calls)
                if call.control is not None
            ]
            found[share] = path_of(self.vocab_size, pairs)
        return found

    def judge(self, alpha: float) -> Judgement:
        """Refuted when the wealth ever was at 1 / alpha; else certified if the control was refuted, else inconclusive."""
        path = self.path
        highest = float(path.highest[-1]) if self.calls else 0.0
        level = math.log(1 / alpha) if alpha > 0 else math.inf
        numbers = {
            "p": math.exp(-max(highest, 0.0)),
            "log_e": highest,
            "pairs": float(self.pairs),
            "draws": 2.0 * self.pairs,
        }
        if not self.calls:
            return Judgement("inconclusive", f"{self.label}: no pair of sequences came", numbers)
        if (used := path.reached(level)) is not None:
            said = f"{self.label}: evidence of e^{highest:.0f} after {used} pairs that on and off differ"
            return Judgement("refuted", f"{said}; seen best in: {path.view}; {self._furthest()}", numbers)
        return self._not_refuted(level, numbers)

    def _not_refuted(self, level: float, numbers: dict[str, float]) -> Judgement:
        """What a run without a refutation means, by its own controls."""
        if any(call.control is None for call in self.calls):
            said = f"{self.label}: nothing tells on from off, but the control did not run over all {self.pairs} pairs"
            return Judgement("inconclusive", said, numbers)
        shown = {share: used for share, path in self.controls.items() if (used := path.reached(level)) is not None}
        if not shown:
            coarse = max(REPLACED)
            more = self.controls[coarse].likely(level)
            needed = f"about {more} are likely needed" if more else "how many more are needed cannot be told from so few"
            said = (
                f"{self.label}: {self.pairs} pairs are too few to say anything: a decoder that replaces {coarse:.0%} of its "
                f"tokens would not have been refuted by them; {needed}"
            )
            return Judgement("inconclusive", said, numbers)
        share = min(shown)
        numbers |= {"replaced": share, "replaced_pairs": float(shown[share])}
        said = (
            f"{self.label}: nothing tells on from off in {self.pairs} pairs; a decoder that replaces {share:.0%} of its tokens "
            f"would have been refuted in {shown[share]} pairs"
        )
        return Judgement("certified", said, numbers)

    def _furthest(self) -> str:
        """The token at a place whose counts with and without lie furthest apart, in standard deviations."""
        with_, without = (np.concatenate([getattr(c, n) for c in self.calls]) for n in ("with_speculation", "without"))
        length = with_.shape[1]
        keys = [(x + self.vocab_size * np.arange(length)).reshape(-1) for x in (with_, without)]
        known, where = np.unique(np.concatenate(keys), return_inverse=True)
        on, off = (np.bincount(part, minlength=len(known)) for part in np.split(where.reshape(-1), 2))
        worst = int((np.abs(on - off) / np.sqrt(on + off)).argmax())
        place, token = divmod(int(known[worst]), self.vocab_size)
        return f"furthest apart is token {token} at place {place + 1}: {on[worst]} times on, {off[worst]} times off"

    def to_json(self) -> dict[str, Any]:
        """Every sequence: tokens with blanks between them, rows with commas, one text per call."""
        control = [c.control for c in self.calls]
        return {
            "kind": self.kind,
            "label": self.label,
            "vocab_size": self.vocab_size,
            "seed": self.seed,
            "prompts": [_written(c.prompts[None]) for c in self.calls],
            "with": [_written(c.with_speculation) for c in self.calls],
            "without": [_written(c.without) for c in self.calls],
            "control": [None if x is None else _written(x) for x in control],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> OnOffMeasurement:
        """Rebuild from :meth:`to_json`. Errors: ValueError when the sequences do not fit each other."""
        size = int(data["vocab_size"])
        columns = [data[name] for name in ("prompts", "with", "without", "control")]
        calls = []
        for prompts, on, off, third in zip(*columns, strict=True):
            call = Call(_read(prompts)[0], _read(on), _read(off), None if third is None else _read(third))
            for batch in (call.with_speculation, call.without, *(() if call.control is None else (call.control,))):
                if batch.shape != call.without.shape or len(batch) != len(call.prompts):
                    raise ValueError("the batches of a call have different shapes")
                if batch.min() < 0 or batch.max() >= size:
                    raise ValueError(f"a token lies outside 0..{size - 1}")
            calls.append(call)
        return cls(data["label"], size, tuple(calls), int(data["seed"]))


def path_of(vocab_size: int, calls: Sequence[tuple[Ints, Ints, Ints]]) -> Path:
    """The wealth of bets on calls: batches with speculation and without, (R, L) each, and their prompts' numbers (R,)."""
    bets = PairedBets(vocab_size)
    pairs, highest = [], []
    for with_speculation, without, prompts in calls:
        bets.add(with_speculation, without, prompts)
        pairs.append(bets.pairs)
        highest.append(bets.highest)
    return Path(np.array(pairs, np.int64), np.array(highest, float), bets.leader)


def replaced(batch: Ints, share: float, vocab_size: int, seed: int, number: int) -> Ints:
    """Replace each token of a batch (R, L) by an evenly drawn one with probability ``share``.

    The numbers depend on the seed, the number of the call and the place in it alone, the same on every machine.
    """
    u = uniforms(seed, number << 32, batch.size).reshape(batch.shape)
    drawn = np.minimum((u / share * vocab_size).astype(np.int64), vocab_size - 1)  # u / share is uniform where u < share
    out: Ints = np.where(u < share, drawn, batch)
    return out


def uniforms(seed: int, start: int, count: int) -> Array:
    """Numbers (count,) of [0, 1) from a counter (SplitMix64; Steele, Lea, Flood 2014), beginning at ``start``."""
    at: NDArray[np.uint64] = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = at + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    found: Array = (z >> np.uint64(11)).astype(float) / 2**53
    return found


def _written(rows: Ints) -> str:
    return ",".join(" ".join(map(str, row)) for row in rows.tolist())


def _read(text: str) -> Ints:
    if not isinstance(text, str):
        raise TypeError(f"sequences are texts, not {type(text).__name__}")
    return np.array([[int(token) for token in row.split(" ")] for row in text.split(",")], np.int64)
