"""Which outcome does a region of given numbers have, or into which parts does it fall? One region at a time, by probing.

Every function here is a coroutine: it yields points that it wants evaluated and is sent their outcomes (as small integers),
so that the probes of many regions share one call of the subject. Nothing is assumed about the code: what probes find is
tested for the shape that can be measured (flat cuts, races), and anything else is refused.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

import numpy as np

from specverify.errors import OpaqueRandomness
from specverify.exact.given_races import race_weights
from specverify.exact.given_space import Points, Region, join
from specverify.laws import Ints

RANDOM_POINTS = 32
"""Random points that must agree before a region is taken to have one outcome."""
BASES = 3
"""Random points from which every number is moved along its whole range."""
STOPS = 2
"""Random stops on the way along a range, one in each equal part of it, beside both of its ends."""
MOST_CUTS = 256
"""Most thresholds on one line: more look like noise."""
NEAR = (8, 12)
"""How near, as powers of 1/2 of a range, the surroundings of a threshold are probed."""

Search = Generator[Points, Ints, list[Region] | int]

JOINT = (
    "the outcome depends on several given numbers jointly, for instance on a product of uniforms or on noise that decides two "
    "races; to be analysable, compare each number with a threshold, or race E / w once per path"
)


def examine(region: Region, rng: np.random.Generator, witness: Points | None = None) -> Search:
    """Return the outcome of a region that has one, or the regions it falls into.

    ``witness``, a point, is known to differ from other points of the region. Guarantee: a region is given one outcome only
    if ``RANDOM_POINTS`` random points of it agree, and all stops on lines through ``BASES`` of them and through two corners;
    a part of the region with another outcome that takes the share f of it is missed with probability at most
    (1 - f)**RANDOM_POINTS. Errors: OpaqueRandomness when outcomes differ and no flat cut and no race explains it.
    """
    points = region.sample(RANDOM_POINTS, rng)
    first = yield from _try_lines(region, points.take([0]), rng)
    if first:
        return first
    again = yield from _try_lines(region, join([points.take(slice(1, BASES)), *_corners(region, points)]), rng)
    if again:
        return again
    others = join([points, *_race_corners(region, points.take([0]), rng), *([] if witness is None else [witness])])
    outcomes = yield others
    different = np.flatnonzero(outcomes != outcomes[0])
    if not len(different):
        return int(outcomes[0])
    return (yield from _between(region, others.take([0]), others.take(different[:1]), rng))


def _corners(region: Region, points: Points) -> list[Points]:
    """The least and the largest uniforms, with random clocks."""
    low, high = np.array([region.low], np.int64), np.array([region.high], np.int64) - 1
    return [Points(low, points.noise[BASES : BASES + 1]), Points(high, points.noise[BASES + 1 : BASES + 2])]


def _race_corners(region: Region, base: Points, rng: np.random.Generator) -> list[Points]:
    """Settings in which every token wins every open race, or comes second in every decided one."""
    reach, runners = region.space.reach, region.space.runners
    out = []
    for race in range(region.space.races):
        clocks = np.full((runners, runners), 2.0**reach)
        if race in region.won:
            decided = region.won[race]
            second = np.where(decided.weights > 0, decided.weights, 1.0)
            clocks[range(runners), range(runners)] = second
            clocks[:, decided.winner] = decided.weights[decided.winner] / 4
        else:
            clocks = region.clocks(race, runners, rng)
            clocks[range(runners), range(runners)] = 2.0**-reach
        out.append(base.with_race(race, region.space.rounded(clocks)))
    return out


def _try_lines(region: Region, bases: Points, rng: np.random.Generator) -> Generator[Points, Ints, list[Region]]:
    """Cut the region where a line through one of ``bases`` shows a change; empty when none does.

    Errors: OpaqueRandomness when lines change but none at a place that stays when the other numbers move a little.
    """
    free = [i for i in range(region.space.uniforms) if region.high[i] - region.low[i] > 1]
    if not free:
        return []
    lines = [(i, bases.take([b]), _stops(region, i, rng)) for i in free for b in range(len(bases))]
    outcomes = yield join([base.along(i, stops) for i, base, stops in lines])
    at, changed = 0, []
    for i, base, stops in lines:
        seen = dict(zip(stops, outcomes[at : at + len(stops)].tolist(), strict=True))
        at += len(stops)
        if len(set(seen.values())) > 1:
            changed.append((i, base, seen))
    for i, base, seen in changed:
        parts = yield from _cut(region, i, base, seen, rng)
        if parts:
            return parts
    if changed and len(bases) > 1:
        raise OpaqueRandomness(JOINT)
    return []


def _stops(region: Region, i: int, rng: np.random.Generator) -> list[int]:
    """Both ends of a range and a random step in each of ``STOPS`` equal parts, ascending."""
    low, high = region.low[i], region.high[i]
    inner = [low + int((part + rng.random()) / STOPS * (high - low)) for part in range(STOPS)]
    return sorted({low, high - 1, *(min(step, high - 1) for step in inner)})


def _cut(
    region: Region, i: int, base: Points, seen: dict[int, int], rng: np.random.Generator
) -> Generator[Points, Ints, list[Region]]:
    """Find every threshold between stops that differ, to the last digit, and cut at those that are flat.

    Between two stops that differ, bisection ends at neighbouring steps that differ; so no outcome between them is missed
    that has one interval of the line to itself.
    """
    while mids := [(a + b) // 2 for a, b in pairwise(sorted(seen)) if seen[a] != seen[b] and b - a > 1]:
        outcomes = yield base.along(i, mids)
        seen.update(zip(mids, outcomes.tolist(), strict=True))
        if len(mids) > MOST_CUTS:
            raise OpaqueRandomness(f"more than {MOST_CUTS} thresholds on one given number; " + JOINT)
    thresholds = [b for a, b in pairwise(sorted(seen)) if seen[a] != seen[b]]
    flat = yield from _flat(region, i, base, thresholds, rng)
    return region.cut(i, flat) if flat else []


def _flat(
    region: Region, i: int, base: Points, thresholds: Sequence[int], rng: np.random.Generator, n: int = 8
) -> Generator[Points, Ints, list[int]]:
    """Those thresholds at which the outcome still changes, at the very same step, when all other numbers move a little.

    A threshold that moves by s times the others' shift is dropped unless s < 2**(12 - bits): cuts that are kept are wrong by
    no more than rounding. One that stands is lost only if its end lies within 2**-12 of the line in every direction tried.
    """
    if region.space.uniforms == 1 and not region.space.races:
        return list(thresholds)
    probes = []
    for threshold in thresholds:
        near = join([region.near(base, i, shift, n, rng) for shift in NEAR])
        for step in (threshold - 1, threshold):
            at = near.steps.copy()
            at[:, i] = step
            probes.append(Points(at, near.noise))
    outcomes = (yield join(probes)).reshape(len(thresholds), 2, -1)
    return [t for t, (below, above) in zip(thresholds, outcomes, strict=True) if (below != above).any()]


def _between(region: Region, a: Points, b: Points, rng: np.random.Generator) -> Generator[Points, Ints, list[Region]]:
    """Find a number on the way from one point to another that changes the outcome, and split the region there."""
    uniforms, races = region.space.uniforms, region.space.races
    way = [a]
    for number in range(uniforms + races):
        steps, noise = way[-1].steps.copy(), way[-1].noise.copy()
        if number < uniforms:
            steps[:, number] = b.steps[:, number]
        else:
            noise[:, number - uniforms] = b.noise[:, number - uniforms]
        way.append(Points(steps, noise))
    outcomes = yield join(way)
    for number in np.flatnonzero(outcomes[1:] != outcomes[:-1]).tolist():
        before, after = way[number], way[number + 1]
        if number < uniforms:
            seen = {int(before.steps[0, number]): int(outcomes[number]), int(after.steps[0, number]): int(outcomes[number + 1])}
            for stop in (region.low[number], region.high[number] - 1):
                seen.setdefault(stop, int((yield before.along(number, [stop]))[0]))
            parts = yield from _cut(region, number, before, seen, rng)
            if parts:
                return parts
        elif number - uniforms not in region.won:
            race = number - uniforms
            weights = yield from race_weights(region, before, race, rng)
            return region.decided(race, weights)
    raise OpaqueRandomness(JOINT)
