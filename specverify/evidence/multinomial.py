"""Do counts fit a law? G-test with a finite-sample guarantee, and the classical chi-square beside it.

Guarantee. For n draws from a law with k cells, ``n * KL(observed || law)`` has a moment generating function below that of a
Gamma(k - 1, 1) variable, hence for every x > k - 1

    P(n KL >= x) <= exp(-x) (e x / (k - 1))^(k - 1)

(R. Agrawal, Finite-sample concentration of the multinomial in relative entropy, 2020, theorem 1.2). :func:`multinomial_p`
returns that bound, so rejecting when it is at most alpha has a false-alarm probability of at most alpha for every n, every
law and every alpha, also at 1e-12, where the chi-square approximation has no meaning. For groups of cells whose totals are
fixed, or given, the bounds multiply and the degrees of freedom add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specverify.laws import Array, Ints


@dataclass(frozen=True)
class CellGroup:
    """Counts (k,) of draws in cells whose probabilities (k,), all positive, sum to 1; names (k,) are for reading."""

    label: str
    counts: tuple[int, ...]
    probs: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.probs) or not self.counts:
            raise ValueError(f"{self.label}: {len(self.counts)} counts for {len(self.probs)} probabilities")
        if min(self.probs) <= 0 or min(self.counts) < 0 or not math.isclose(sum(self.probs), 1, abs_tol=1e-6):
            raise ValueError(f"{self.label}: cells need positive probabilities that sum to 1 and counts >= 0")

    @property
    def total(self) -> int:
        """Number of draws in the group."""
        return sum(self.counts)


@dataclass(frozen=True)
class FitTest:
    """Outcome of a test of fit.

    divergence: n KL(observed || law) in nats, summed over groups (half the G statistic). dof: cells minus one, summed.
    p: finite-sample bound on the false-alarm probability. chi_square, chi_square_p: the classical companions, for reading only.
    """

    divergence: float
    dof: int
    p: float
    chi_square: float
    chi_square_p: float
    total: int


def pool_small(
    label: str,
    counts: Ints | Sequence[int],
    probs: Array | Sequence[float],
    names: Sequence[str],
    *,
    smallest: float = 5.0,
    total: int | None = None,
) -> CellGroup:
    """Make a group in which the cells whose expected count lies below ``smallest`` are one.

    counts, probs, names (k,); cells of probability 0 must not be given. ``total`` is the number of draws the expectation is
    of, by default the sum of the counts. Probabilities are normalised.
    """
    total = int(np.sum(counts)) if total is None else total
    scale = float(np.sum(probs))
    kept: list[tuple[int, float, str]] = []
    rest: list[tuple[int, float, str]] = []
    for cell in zip(map(int, counts), (float(p) / scale for p in probs), names, strict=True):
        (kept if total * cell[1] >= smallest else rest).append(cell)
    if rest:
        kept.append((sum(c for c, _, _ in rest), sum(p for _, p, _ in rest), rest[0][2] if len(rest) == 1 else "the rest"))
    return CellGroup(label, tuple(c for c, _, _ in kept), tuple(p for _, p, _ in kept), tuple(n for _, _, n in kept))


def divergence_tail(x: float, dof: int) -> float:
    """Bound on P(n KL >= x) with ``dof`` = cells - 1 (see the module's guarantee)."""
    if dof <= 0:
        return 1.0 if x <= 1e-9 else 0.0
    if x <= dof:
        return 1.0
    return math.exp(min(0.0, -x + dof * (1 + math.log(x / dof))))


def draws_to_refute(divergence_per_draw: float, dof: int, alpha: float) -> float:
    """Draws after which a law at this KL distance (nats per draw) is refuted on average: the twin of :func:`fit_test`."""
    if divergence_per_draw <= 0:
        return math.inf
    low, high = float(max(dof, 1)), float(max(dof, 1)) * 2 + 2
    while divergence_tail(high, dof) > alpha:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence_tail(middle, dof) > alpha else (low, middle)
    # Under the wrong law the mean of n KL(observed || law) is n times the divergence, plus about dof / 2.
    return max(0.0, high - dof / 2) / divergence_per_draw


def fit_test(groups: Sequence[CellGroup]) -> FitTest:
    """Test whether the counts of every group come from its law. See the module's docstring for the guarantee."""
    divergence = chi_square = 0.0
    dof = total = 0
    for group in groups:
        counts, probs = np.asarray(group.counts, float), np.asarray(group.probs)
        probs = probs / probs.sum()
        n = counts.sum()
        if n == 0:
            continue
        expected = n * probs
        used = counts > 0
        divergence += float(np.sum(counts[used] * np.log(counts[used] / expected[used])))
        chi_square += float(np.sum((counts - expected) ** 2 / expected))
        dof += len(counts) - 1
        total += int(n)
    divergence = max(divergence, 0.0)
    classical = float(stats.chi2.sf(chi_square, dof)) if dof > 0 else 1.0
    return FitTest(divergence, dof, divergence_tail(divergence, dof), chi_square, classical, total)
