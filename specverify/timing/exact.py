"""Are as many drafts accepted as the laws along these very texts say? Measured tokens per round against the exact value.

Where beta is the probability with which a draft is accepted given everything before it, the draft itself not, accepted - beta
has mean 0 whatever came before: a martingale difference. Its sum over all tested places thus has mean 0 and variance
sum beta (1 - beta), however the texts went, which makes (sum of differences) / (root of that variance) nearly standard normal.
For token rejection beta = 1 - TV(p, q) = sum min(p, q).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.timing.predict import Rounds, unbiased_rounds

ROUNDING = 1e-3
"""How far outside [0, 1] a probability may lie by rounding."""
SURE = 1e-9
"""Variance below which nothing was left to chance, as at temperature 0."""


@dataclass(frozen=True, eq=False)
class Places:
    """Sums over the tested places of some rounds, by position 1..K in a round: how many, how many accepted, and exact sums.

    tested, accepted, beta and variance are (K,); the last two are NaN where no exact value is known. A place is tested when
    every draft before it in its round was accepted.
    """

    rounds: int
    tested: npt.NDArray[np.float64]
    accepted: npt.NDArray[np.float64]
    beta: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]

    def __add__(self, other: Places) -> Places:
        """Pool the rounds of two runs of one K."""
        return Places(
            self.rounds + other.rounds,
            self.tested + other.tested,
            self.accepted + other.accepted,
            self.beta + other.beta,
            self.variance + other.variance,
        )


@dataclass(frozen=True)
class Against:
    """Tokens per round: measured, exact along the texts, the Monte-Carlo error of their difference, and that difference in
    errors (infinite where nothing was left to chance and yet something else came out).
    """

    measured: float
    exact: float
    error: float
    z: float


def places_of(accepted: Rounds, tokens: int, k: int, betas: Tensor | None = None) -> Places:
    """Sums over the tested places of one run, over the same rounds that :func:`unbiased_rounds` keeps.

    accepted: counts of every row. betas (B, R, K): exact acceptance at every tested place, anything elsewhere; None where not
    known. Errors: SubjectError where a tested place has no probability.
    """
    exact = None if betas is None else _read(betas, accepted, k)
    tested, taken, beta, variance = (np.zeros(k) for _ in range(4))
    rounds = 0
    for row, counts in enumerate(accepted):
        for index, count in enumerate(unbiased_rounds(counts, tokens, k)):
            rounds += 1
            reached = min(count + 1, k)
            tested[:reached] += 1
            taken[:count] += 1
            if exact is not None:
                here = exact[row, index, :reached]
                if not np.all((here >= -ROUNDING) & (here <= 1 + ROUNDING)):
                    raise SubjectError(
                        f"exact_acceptance gave {here.tolist()} for the drafts tested in row {row}, round {index + 1}; "
                        "give the probability of acceptance wherever a draft was tested"
                    )
                here = here.clip(0, 1)
                beta[:reached] += here
                variance[:reached] += here * (1 - here)
    if exact is None:
        beta, variance = np.full(k, np.nan), np.full(k, np.nan)
    return Places(rounds, tested, taken, beta, variance)


def _read(betas: Tensor, accepted: Rounds, k: int) -> npt.NDArray[np.float64]:
    longest = max(map(len, accepted))
    shape = tuple(betas.shape) if isinstance(betas, Tensor) else type(betas).__name__
    if not isinstance(betas, Tensor) or betas.dim() != 3 or len(betas) != len(accepted) or betas.shape[2] != k:
        raise SubjectError(f"exact_acceptance gave {shape} for {len(accepted)} rows; expected (B, R, {k})")
    if betas.shape[1] < longest:
        raise SubjectError(f"exact_acceptance gave {shape}, fewer rounds than the {longest} that were run")
    return betas.detach().to("cpu", torch.float64).numpy()


def pooled(runs: Iterable[Places]) -> Places:
    """Pool several runs of one K. Errors: ValueError for none."""
    first, *rest = runs
    for one in rest:
        first = first + one
    return first


def against_exact(places: Places) -> Against | None:
    """Tokens per round against their exact value, None where that is not known or no round counts."""
    if places.rounds == 0 or bool(np.isnan(places.beta).any()):
        return None
    apart = float(places.accepted.sum() - places.beta.sum())
    variance = float(places.variance.sum())
    if variance > SURE:
        z = apart / math.sqrt(variance)
    else:
        z = 0.0 if abs(apart) <= ROUNDING * places.rounds else math.copysign(math.inf, apart)
    return Against(
        1 + float(places.accepted.sum()) / places.rounds,
        1 + float(places.beta.sum()) / places.rounds,
        math.sqrt(variance) / places.rounds,
        z,
    )


def rates_by_position(places: Places) -> Sequence[tuple[int, float | None, float | None]]:
    """For every position 1..K: places tested, the share accepted, and their exact mean, each None where there is none."""
    found: list[tuple[int, float | None, float | None]] = []
    for tested, taken, beta in zip(places.tested, places.accepted, places.beta, strict=True):
        exact = None if tested == 0 or math.isnan(beta) else float(beta / tested)
        found.append((int(tested), None if tested == 0 else float(taken / tested), exact))
    return found
