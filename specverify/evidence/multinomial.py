"""Do counts fit a law? A test with a finite-sample guarantee, and the classical chi-square beside it.

Guarantee. For counts n of N draws from a law p, and a Dirichlet law D with parameters c p, the likelihood ratio

    E = integral of prod_i (t_i / p_i)^n_i dD(t)

has mean 1 under p, whatever N, p and c are; so has a mixture over several c, and a product over groups of cells whose totals
are fixed or given. By Markov's inequality P(1/E <= alpha) <= alpha. :func:`fit_test` returns p = min(1, 1/E): refuting when it
is at most alpha has a false-alarm probability of at most alpha for every sample size, every law and every alpha, also at
1e-12, where the chi-square approximation has no meaning. Power: with c near N over the relative excess of chi-square, ln E
follows the Chernoff exponent of the chi-square test, dof/2 (d - ln(1 + d)) for an excess of d dof, less the logarithm of the
number of c tried (:data:`SPREADS`); the twin :func:`draws_to_refute` says how many draws that takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

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
    p: 1/E, a p-value that holds for every sample size. chi_square, chi_square_p: the classical companions, for reading only.
    """

    divergence: float
    dof: int
    p: float
    chi_square: float
    chi_square_p: float
    total: int
    log_e: float = 0.0
    """ln E itself, which p rounds to 0 beyond 745."""


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


SPREADS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Alternatives as wide as this many times the sampling noise of their group: c = N / spread."""
CONCENTRATIONS = (3.0, 30.0, 300.0, 3_000.0, 30_000.0)
"""Alternatives of the same relative width in every group, however many draws it has: c itself."""


def log_evidence(groups: Sequence[CellGroup]) -> float:
    """Logarithm of the mixture E over all groups together (see the module's guarantee)."""
    used = [g for g in groups if g.total > 0 and len(g.counts) > 1]
    if not used:
        return 0.0
    sizes = [len(g.counts) for g in used]
    counts = np.concatenate([np.asarray(g.counts, float) for g in used])
    probs = np.concatenate([np.asarray(g.probs) / sum(g.probs) for g in used])
    totals = np.array([g.total for g in used], float)
    log_null = float(np.sum(counts * np.log(probs)))
    logs = []
    for c in [*(totals / spread for spread in SPREADS), *(np.full(len(used), c) for c in CONCENTRATIONS)]:
        mass = np.repeat(c, sizes) * probs
        whole = special.gammaln(c) - special.gammaln(c + totals)
        logs.append(float(np.sum(whole) + np.sum(special.gammaln(mass + counts) - special.gammaln(mass)) - log_null))
    return float(special.logsumexp(logs)) - math.log(len(logs))


def refuting_divergence(dof: int, alpha: float) -> float:
    """The value of n KL(observed || law), in nats, at which :func:`fit_test` reaches ``alpha``, to leading order.

    Solves dof/2 (d - ln(1 + d)) = ln(m / alpha) for the excess d, with m the number of alternatives: n KL is about half of
    chi-square, dof (1 + d) / 2.
    """
    dof = max(dof, 1)
    needed = math.log((len(SPREADS) + len(CONCENTRATIONS)) / alpha) * 2 / dof
    low, high = 0.0, 2 * needed + 10
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle - math.log1p(middle) < needed else (low, middle)
    return dof * (1 + high) / 2


def draws_to_refute(divergence_per_draw: float, dof: int, alpha: float) -> float:
    """Draws after which a law at this KL distance (nats per draw) is refuted on average: the twin of :func:`fit_test`."""
    if divergence_per_draw <= 0:
        return math.inf
    # Under the wrong law the mean of n KL(observed || law) is n times the divergence, plus about dof / 2.
    return max(0.0, refuting_divergence(dof, alpha) - max(dof, 1) / 2) / divergence_per_draw


def detectable_tv(draws: int, dof: int, alpha: float) -> float:
    """Total variation from which every deviation of the cells' law would be refuted by so many draws, on average.

    By Pinsker's inequality a law at distance TV has a divergence of at least 2 TV^2. Concentrated deviations show far earlier.
    """
    if draws <= 0 or dof <= 0:
        return 1.0
    return min(1.0, math.sqrt(draws_to_refute(1.0, dof, alpha) / draws / 2))


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
    log_e = log_evidence(groups)
    return FitTest(divergence, dof, min(1.0, math.exp(min(0.0, -log_e))), chi_square, classical, total, log_e)
