"""Where do given random numbers live? Points on their grid, regions of them, and how probable a region is.

Uniforms are integers here: step s stands for the number s * 2**-bits, one of the multiples that are handed out in a dtype
(53 bits in float64, 24 in float32), each equally likely. A region is a box of steps together with the races that were
decided in it; its probability is the share of grid points times the chances of the winners.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.given import GRID_BITS
from specverify.laws import Array, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Points:
    """N settings of all numbers of one row: steps (N, D) of the uniforms, noise (N, G, V) of the G races."""

    steps: Ints
    noise: Array

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Sequence[int] | Ints | slice) -> Points:
        """Some of the points."""
        return Points(self.steps[rows], self.noise[rows])

    def along(self, coordinate: int, steps: Sequence[int] | Ints) -> Points:
        """The one point of this set, moved along one uniform to each of ``steps``."""
        moved = np.repeat(self.steps, len(steps), 0)
        moved[:, coordinate] = steps
        return Points(moved, np.repeat(self.noise, len(steps), 0))

    def with_race(self, race: int, clocks: Array) -> Points:
        """The one point of this set with each of ``clocks`` (N, V) in one race."""
        noise = np.repeat(self.noise, len(clocks), 0)
        noise[:, race] = clocks
        return Points(np.repeat(self.steps, len(clocks), 0), noise)


def join(parts: Sequence[Points]) -> Points:
    """All points of several sets, in order."""
    return Points(np.concatenate([p.steps for p in parts]), np.concatenate([p.noise for p in parts]))


@dataclass(frozen=True)
class Space:
    """The numbers that one row takes: D uniforms and G races between V clocks, in the precision of ``dtype``."""

    uniforms: int
    races: int
    runners: int
    dtype: torch.dtype

    @property
    def bits(self) -> int:
        """Binary digits of a uniform."""
        return GRID_BITS[self.dtype]

    @property
    def reach(self) -> int:
        """2**reach and 2**-reach are as far apart as clocks may be set without overflow in the dtype."""
        return {torch.float64: 200, torch.float16: 13}.get(self.dtype, 50)

    @property
    def close(self) -> float:
        """Relative distance within which rounding in the dtype may decide which clock rings first."""
        return 16 * float(torch.finfo(self.dtype).eps)

    def values(self, steps: Ints) -> Array:
        """The uniforms that steps stand for."""
        numbers: Array = np.ldexp(steps.astype(np.float64), -self.bits)
        return numbers

    def rounded(self, clocks: Array) -> Array:
        """Clocks as the dtype holds them."""
        kept: Array = torch.from_numpy(np.ascontiguousarray(clocks)).to(self.dtype).to(torch.float64).numpy()
        return kept

    def unclear(self, times: Array) -> Flags:
        """Which races (N,) between clocks that ring at ``times`` (N, n) rounding may decide."""
        if times.shape[1] == 1:
            return np.zeros(len(times), np.bool_)
        first, second = np.partition(times, 1, axis=1)[:, :2].T
        return np.asarray(second <= first * (1 + self.close), np.bool_)

    def whole(self) -> Region:
        """All numbers there are."""
        return Region(self, (0,) * self.uniforms, (2**self.bits,) * self.uniforms)


@dataclass(frozen=True)
class Race:
    """A decided race: the token that wins, and the weights (V,) of all: the least of E_i / w_i wins."""

    winner: int
    weights: Array

    @property
    def chance(self) -> float:
        """Probability that exponentials of mean 1 let the winner win."""
        return float(self.weights[self.winner] / math.fsum(self.weights.tolist()))


@dataclass(frozen=True)
class Region:
    """The steps low <= s < high of every uniform, and the races decided so far."""

    space: Space
    low: tuple[int, ...]
    high: tuple[int, ...]
    won: Mapping[int, Race] = field(default_factory=dict)

    @property
    def probability(self) -> float:
        """How likely numbers fall in here."""
        shares = [math.ldexp(high - low, -self.space.bits) for low, high in zip(self.low, self.high, strict=True)]
        return math.prod(shares) * math.prod(race.chance for race in self.won.values())

    def cut(self, coordinate: int, steps: Sequence[int]) -> list[Region]:
        """The parts between the ascending steps on one uniform."""
        edges = [self.low[coordinate], *steps, self.high[coordinate]]

        def moved(bounds: tuple[int, ...], bound: int) -> tuple[int, ...]:
            return (*bounds[:coordinate], bound, *bounds[coordinate + 1 :])

        return [replace(self, low=moved(self.low, a), high=moved(self.high, b)) for a, b in pairwise(edges)]

    def decided(self, race: int, weights: Array) -> list[Region]:
        """The parts in which each token of positive weight wins a race."""
        return [replace(self, won={**self.won, race: Race(int(i), weights)}) for i in np.flatnonzero(weights > 0)]

    def clocks(self, race: int, n: int, rng: np.random.Generator) -> Array:
        """``n`` random settings (n, V) of one race's clocks, with the winner that was decided if any.

        Given that i wins, the first ring t = min E / w is exponential with rate sum w, and whatever the others have left
        after t is exponential again (no memory).
        """
        least = 2.0**-self.space.reach
        fresh = np.maximum(rng.exponential(size=(n, self.space.runners)), least)
        if race in self.won:
            winner, weights = self.won[race].winner, self.won[race].weights
            first = np.maximum(rng.exponential(size=n) / weights.sum(), least / weights[winner])
            # The others ring late enough for the winner to be the same in the dtype.
            fresh += (1 + 2 * self.space.close) * first[:, None] * weights
            fresh[:, winner] = first * weights[winner]
        return self.space.rounded(fresh)

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """``n`` random points of the region."""
        steps = rng.integers(np.array(self.low, np.int64), np.array(self.high, np.int64), (n, self.space.uniforms))
        noise = np.zeros((n, self.space.races, self.space.runners))
        for race in range(self.space.races):
            noise[:, race] = self.clocks(race, n, rng)
        return Points(steps.astype(np.int64), noise)

    def near(self, point: Points, coordinate: int, shift: int, n: int, rng: np.random.Generator) -> Points:
        """``n`` points of the region near one of it: all numbers but one uniform moved, by at most 2**-shift of their range."""
        low, high = np.array(self.low, np.int64), np.array(self.high, np.int64)
        widths = high - low
        # On a coarse grid, or in a thin region, a few steps are the least move that can be told from none.
        most = np.maximum(widths >> shift, np.minimum(widths // 2, 8))
        moves = rng.integers((most + 1) // 2, most + 1, (n, self.space.uniforms)) * rng.choice(
            (-1, 1), (n, self.space.uniforms)
        )
        moves[:, coordinate] = 0
        moved = point.steps + moves
        moved = np.where((moved < low) | (moved >= high), point.steps - moves, moved)
        noise = point.noise * (1 + np.ldexp(rng.uniform(-1, 1, (n, *point.noise.shape[1:])), -shift))
        return Points(moved, self.space.rounded(noise))

    def holds(self, points: Points) -> tuple[Flags, Flags]:
        """Which points lie in the region, and which lie so near the end of a race that rounding decides it: both (N,) bool."""
        within = (points.steps >= np.array(self.low)) & (points.steps < np.array(self.high))
        inside: Flags = np.asarray(within.all(1), np.bool_)
        unclear: Flags = np.zeros(len(points), np.bool_)
        for race, decided in self.won.items():
            used = np.flatnonzero(decided.weights > 0)
            times = points.noise[:, race, used] / decided.weights[used]
            inside &= used[times.argmin(1)] == decided.winner
            unclear |= self.space.unclear(times)
        return inside, unclear
