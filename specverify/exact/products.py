"""How does a product of uniforms compare with thresholds? Exactly: -log(u_1 ... u_i) is the i-th arrival of a Poisson stream.

Its density, given how earlier products compared, is exp(-s) times a function that is a polynomial on each of few pieces; the
next one's is exp(-s) times the integral of that function. All terms are positive, so nothing cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb, factorial, gammainc

from specverify.exact.refusals import opaque

Coefficients = NDArray[np.float64]


@dataclass(frozen=True)
class _Piece:
    """Where s - ``start`` lies in [0, ``length``), the function is the polynomial with these coefficients, lowest first."""

    start: float
    length: float
    coefficients: Coefficients

    def mass(self) -> float:
        """Integral of exp(-s) times the function."""
        powers = np.arange(len(self.coefficients))
        parts = self.coefficients * factorial(powers) * gammainc(powers + 1, self.length)
        return math.exp(-self.start) * float(parts.sum())

    def part(self, start: float, end: float) -> _Piece | None:
        """The piece within [start, end)."""
        low, high = max(start, self.start), min(end, self.start + self.length)
        if low >= high:
            return None
        shift, n = low - self.start, len(self.coefficients)
        moved = [sum(self.coefficients[k] * comb(k, j) * shift ** (k - j) for k in range(j, n)) for j in range(n)]
        return _Piece(low, high - low, np.array(moved))


@dataclass
class Product:
    """A product of uniforms, known only to lie in an interval: s = -log of it lies in [low, high)."""

    low: float = 0.0
    high: float = math.inf
    before: Product | None = None
    """The product without its last factor."""
    settled: bool = False
    """Whether a longer product was compared: from then on what is not certain already is no longer of this simple law."""
    extended: bool = False
    """Whether a longer product exists."""
    _pieces: list[_Piece] = field(default_factory=list)

    @classmethod
    def of_one(cls, low: float, high: float) -> Product:
        """One uniform on [low, high)."""
        return cls(-math.log(high), math.inf if low == 0 else -math.log(low))

    def share_below(self, threshold: float) -> float:
        """Conditional probability that the product lies below the threshold."""
        if threshold >= 1:
            return 1.0
        at = math.inf if threshold <= 0 else -math.log(threshold)
        if at <= self.low:
            return 1.0
        if at >= self.high:
            return 0.0
        if self.settled:
            raise opaque("comparing a product of random numbers after a longer one", "compare shorter products first")
        far, near = (sum(p.mass() for p in self._within(*ends)) for ends in ((at, math.inf), (0.0, at)))
        return far / (far + near)

    def cut(self, threshold: float, below: bool) -> None:
        """Note how a comparison that was not certain came out."""
        at = -math.log(threshold)
        self.low, self.high = (at, self.high) if below else (self.low, at)
        self._pieces = self._within(self.low, self.high)

    def _within(self, low: float, high: float) -> list[_Piece]:
        return [part for piece in self._law() if (part := piece.part(low, high)) is not None]

    def _law(self) -> list[_Piece]:
        if not self._pieces and self.before is None:
            self._pieces = [_Piece(self.low, self.high - self.low, np.ones(1))]
        elif not self._pieces and self.before is not None:
            self.before.settled = True
            self._pieces = _integral(self.before._law())
            self.low = self._pieces[0].start
        return self._pieces


def _integral(pieces: list[_Piece]) -> list[_Piece]:
    """The integral from 0 to s of a function given in adjoining pieces, from where it is positive on."""
    reached, found = 0.0, []
    for piece in pieces:
        risen = piece.coefficients / np.arange(1, len(piece.coefficients) + 1)
        found.append(_Piece(piece.start, piece.length, np.array([reached, *risen])))
        if math.isinf(piece.length):
            return found
        reached += float(sum(c * piece.length ** (k + 1) for k, c in enumerate(risen)))
    end = pieces[-1].start + pieces[-1].length
    return [*found, _Piece(end, math.inf, np.array([reached]))]
