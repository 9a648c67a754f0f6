"""What law does code have that takes its random numbers as arguments? Bisection of its thresholds, whatever it is made of.

The outcome is a function of the numbers given. Where it is decided by comparing single numbers with thresholds, and by races
argmin E / w of exponentials, it is constant on boxes: they are found by probing, their sides by bisection to the last digit,
the weights of a race by bisection of E_i / E_r, and the probability of an outcome is the volume of its boxes. The code may be
numpy, plain Python or a compiled kernel. One number may be compared many times, and one noise may serve many races of which a
path uses one; whatever depends on several numbers jointly is refused.

Guarantee. Cuts and weights are right to the last digits of the dtype. A part of a box with another outcome can be missed only
if 32 random points of that box, its two corners, the ends of lines through them and thousands of random settings all miss it:
on mass d in all with probability at most (1 - d)**8192, or (1 - d)**2048 with one row per call. Before a refutation is
believed, up to 200,000 settings more are tried (:class:`specverify.exact.rounds.Emission`). Never missed is an outcome that
fills one interval of a line that was probed, however short, such as a token of an inverse distribution function.

The numbers are those that a verifier is handed in its dtype, multiples of 2**-53 in float64 and 2**-24 in float32, and a box
has the probability of its grid points: ``u <= 0`` has probability 2**-53 here. So probabilities differ from those of real
uniforms by at most one grid step per threshold, which :func:`specverify.evidence.measurements.law_tolerance` allows for. The
ends of every range are probed too, u = 0 and the largest u below 1: code that fails there fails here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch

from specverify.errors import RowsCoupled, SubjectError
from specverify.exact.engine import DEFAULT_MAX_PATHS, Law
from specverify.exact.given_run import Regions, explore_given
from specverify.exact.given_space import Points, Space
from specverify.given import Numbers
from specverify.laws import Array, Ints
from specverify.subjects import DTYPES

ROWS_PER_CALL = 4096
CHECKS, CHECKS_ALONE = 8192, 2048
"""Random settings that must agree with what was found, in calls of many rows and of one row."""
REGIONS_ALONE = 3000
"""Most regions found with one row per call: each takes one to two hundred calls."""


def space_of(given: Sequence[Numbers], k: int, vocab_size: int, dtype: torch.dtype) -> Space:
    """Every number that one row takes."""
    sizes = {
        kind: sum(math.prod(n.shape(k, vocab_size)) for n in given if n.kind == kind) for kind in ("uniforms", "exponentials")
    }
    return Space(sizes["uniforms"], sizes["exponentials"] // vocab_size, vocab_size, dtype)


def tensors_of(space: Space, points: Points, given: Sequence[Numbers], k: int, vocab_size: int) -> list[torch.Tensor]:
    """The numbers at these points as the arguments (N, ...) that were declared."""
    n = len(points)
    flat = {"uniforms": space.values(points.steps), "exponentials": points.noise.reshape(n, -1)}
    at = dict.fromkeys(flat, 0)
    out = []
    for one in given:
        shape = one.shape(k, vocab_size)
        start, size = at[one.kind], math.prod(shape)
        at[one.kind] = start + size
        values = np.ascontiguousarray(flat[one.kind][:, start : start + size].reshape(n, *shape))
        out.append(torch.from_numpy(values).to(space.dtype))
    return out


def given_regions(
    run: Callable[[Ints, list[torch.Tensor]], Sequence[Hashable]],
    given: Sequence[Numbers],
    weights: Sequence[float],
    *,
    k: int,
    vocab_size: int,
    dtype: torch.dtype,
    max_batch: int | None,
    max_paths: int,
) -> tuple[Regions, str | None]:
    """Regions of one outcome for each of several problems, mixed with ``weights``, and why rows had to be asked one by one.

    ``run(problems, numbers)`` gives an outcome per row. Guarantee and errors: :func:`specverify.exact.given_run.explore_given`.
    """
    space = space_of(given, k, vocab_size, dtype)

    def evaluate(problems: Ints, points: Points) -> Sequence[Hashable]:
        return run(problems, tensors_of(space, points, given, k, vocab_size))

    rows = min(ROWS_PER_CALL, max_batch or ROWS_PER_CALL)
    coupled = None
    if rows > 1:
        try:
            return explore_given(evaluate, space, weights, rows=rows, checks=CHECKS, max_regions=max_paths), None
        except RowsCoupled as error:
            coupled = str(error)
    fewer = min(max_paths, REGIONS_ALONE)
    return explore_given(evaluate, space, weights, rows=1, checks=CHECKS_ALONE, max_regions=fewer), coupled


def law_of(regions: Regions) -> list[tuple[Any, float]]:
    """Every outcome with its probability over problems and numbers."""
    masses: dict[int, list[float]] = {}
    for weight, leaves in zip(regions.weights, regions.leaves, strict=True):
        for leaf in leaves:
            masses.setdefault(leaf.outcome, []).append(weight * leaf.region.probability)
    return [(regions.asker.outcomes[outcome], math.fsum(parts)) for outcome, parts in masses.items()]


def induced_law_given(
    f: Callable[..., Any],
    shape: Sequence[int] = (),
    exponentials: Sequence[int] | None = None,
    *,
    dtype: str = "float64",
    max_paths: int = DEFAULT_MAX_PATHS,
) -> Law:
    """Exact law of ``f(uniforms)``, or of ``f(uniforms, exponentials)``, over independent numbers, for any callable.

    ``uniforms`` is a numpy array of ``shape`` and ``exponentials`` one of the shape given, whose last dimension is the one that
    races; without uniforms (``shape`` None) ``f`` takes the exponentials alone. It returns numbers, arrays, lists or tuples.
    Guarantee: thresholds are found to the last digit of the dtype, and 2,048 random settings agree with the boxes found:
    boxes wrong on probability d pass with probability at most (1 - d)**2048. Errors: OpaqueRandomness when the outcome is not
    decided by single numbers and races; PathBudgetExceeded.
    """
    parts = [("uniforms", shape)] if shape is not None else []
    parts += [("exponentials", exponentials)] if exponentials is not None else []
    clocks = exponentials[-1] if exponentials else 1
    sizes = [(kind, tuple(size)) for kind, size in parts]
    space = Space(
        sum(math.prod(size) for kind, size in sizes if kind == "uniforms"),
        sum(math.prod(size) // clocks for kind, size in sizes if kind == "exponentials"),
        clocks,
        DTYPES[dtype],
    )

    def evaluate(_problems: Ints, points: Points) -> list[Hashable]:
        arrays = {"uniforms": space.values(points.steps), "exponentials": points.noise}
        return [_hashable(f(*(_cast(arrays[kind][0].reshape(size), dtype) for kind, size in sizes)))]

    regions = explore_given(evaluate, space, [1.0], rows=1, checks=CHECKS_ALONE, max_regions=max_paths)
    return Law(dict(law_of(regions)), len(regions.leaves[0]), regions.asker.calls)


def _cast(values: Array, dtype: str) -> Any:
    """Numbers in the dtype; float64 stands in for bfloat16, which numpy has not."""
    return values.copy() if dtype == "bfloat16" else values.astype(dtype)


def _hashable(value: Any) -> Hashable:
    """An outcome as nested tuples of numbers. Errors: SubjectError for what cannot be compared."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    try:
        hash(value)
    except TypeError:
        raise SubjectError(f"returned a {type(value).__name__}; return numbers, arrays, lists or tuples") from None
    return "nan" if isinstance(value, float) and math.isnan(value) else value
