"""Which weights does a race have? The code picks argmin E_i / w_i from given exponentials E; w is found by bisection.

With every other clock far away, token i beats token r exactly while E_i / E_r < w_i / w_r. Coroutines as in
:mod:`specverify.exact.given_search`.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import torch

from specverify.errors import OpaqueRandomness
from specverify.exact.given_space import Points, Region, Space
from specverify.laws import Array, Ints

RACES_RUN = 64
"""Random races whose outcome the weights found must predict."""

NO_RACE = (
    "given exponentials decide otherwise than by a race argmin E / w with one weight for each token, for instance in two races "
    "on one path; to be analysable, use every clock in one race per path, or take uniforms"
)


def race_weights(region: Region, base: Points, race: int, rng: np.random.Generator) -> Generator[Points, Ints, Array]:
    """Weights (V,) of one race at ``base``, the largest 1; a token that cannot win has weight 0.

    Guarantee: ratios are right to the last digits of the dtype, and ``RACES_RUN`` random races end as the weights predict:
    code that ends otherwise with probability f passes with probability (1 - f)**RACES_RUN. Errors: OpaqueRandomness.
    """
    wins = yield from _winners(region.space, base, race)
    runners = np.flatnonzero(wins >= 0)
    kinds = set(wins[runners].tolist())
    if len(kinds) < 2:
        raise OpaqueRandomness(NO_RACE)
    # Two tokens with the same outcome cannot be told apart: each is weighed against one whose outcome differs.
    first = int(runners[0])
    second = int(next(i for i in runners if wins[i] != wins[first]))
    rivals = np.array([first if wins[i] != wins[first] else second for i in runners])
    ratios = yield from _ratios(region.space, base, race, runners, rivals, wins)
    weights = np.zeros(region.space.runners)
    weights[runners] = ratios
    # ``second`` is weighed against ``first``, the tokens that share the outcome of ``first`` against ``second``.
    against_second = runners[rivals == second]
    weights[against_second] *= weights[second]
    weights[first] = 1.0
    weights /= weights.max()
    yield from _run_races(region, base, race, weights, wins, rng)
    return weights


def _winners(space: Space, base: Points, race: int) -> Generator[Points, Ints, Ints]:
    """The outcome when each token wins, (V,); -1 for tokens that never do.

    Token i rings first by far, r second, the others last. If i can win, the outcome is the same whatever r is; if it cannot,
    the outcome is that of r, and differs between two tokens r that can win with different outcomes.
    """
    V = space.runners
    order = [(i, r) for i in range(V) for r in range(V) if r != i]
    clocks = np.full((len(order), V), 2.0**space.reach)
    for row, (i, r) in enumerate(order):
        clocks[row, i], clocks[row, r] = 2.0**-space.reach, 1.0
    outcomes = (yield base.with_race(race, clocks)).reshape(V, V - 1)
    alone = (outcomes == outcomes[:, :1]).all(1)
    return np.where(alone, outcomes[:, 0], -1)


def _ratios(space: Space, base: Points, race: int, runners: Ints, rivals: Ints, wins: Ints) -> Generator[Points, Ints, Array]:
    """w_i / w_r for each runner i and its rival r, (n,), by bisection over all numbers of the dtype."""
    rows = np.arange(len(runners))
    clocks = np.full((len(runners), space.runners), 2.0**space.reach)
    clocks[rows, rivals] = 1.0
    far = 2.0 ** (space.reach // 2)
    low, high = (np.full(len(runners), int(_ordinals(np.array([x]), space.dtype)[0])) for x in (1 / far, far))
    ends = []
    for bound in (low, high):
        clocks[rows, runners] = _numbers(bound, space.dtype)
        ends.append((yield base.with_race(race, clocks)))
    if (ends[0] != wins[runners]).any() or (ends[1] != wins[rivals]).any():
        raise OpaqueRandomness(NO_RACE)
    while (high - low > 1).any():
        mid = low + (high - low) // 2  # the sum of two bit patterns would overflow
        clocks[rows, runners] = _numbers(mid, space.dtype)
        outcomes = yield base.with_race(race, clocks)
        won, lost = outcomes == wins[runners], outcomes == wins[rivals]
        if not (won | lost).all():
            raise OpaqueRandomness(NO_RACE)
        low, high = np.where(won, mid, low), np.where(won, high, mid)
    return _numbers(high, space.dtype)


def _run_races(
    region: Region, base: Points, race: int, weights: Array, wins: Ints, rng: np.random.Generator
) -> Generator[Points, Ints, None]:
    """Insist that random races end as predicted. Errors: OpaqueRandomness."""
    clocks = region.clocks(race, RACES_RUN, rng)
    used = np.flatnonzero(weights > 0)
    times = clocks[:, used] / weights[used]
    predicted = wins[used[times.argmin(1)]]
    outcomes = yield base.with_race(race, clocks)
    if (outcomes != predicted)[~region.space.unclear(times)].any():
        raise OpaqueRandomness(NO_RACE)


def _ordinals(values: Array, dtype: torch.dtype) -> Ints:
    """Positive numbers of a dtype as integers that count them in ascending order: their bit patterns."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    return torch.from_numpy(values).to(dtype).view(kind).to(torch.int64).numpy()


def _numbers(ordinals: Ints, dtype: torch.dtype) -> Array:
    """Inverse of :func:`_ordinals`."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    return torch.from_numpy(ordinals).to(kind).view(dtype).to(torch.float64).numpy()
