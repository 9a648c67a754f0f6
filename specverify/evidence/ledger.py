"""How is the false-alarm budget spent? One total for the whole certificate, split over tests before any of them runs.

Guarantee. If every test refutes a correct subject with probability at most its share, the whole certificate does so with
probability at most the total (union bound). Shares are equal, fixed by the plan, and never moved afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specverify.errors import UsageError

DEFAULT_ALPHA = 1e-8


@dataclass(frozen=True)
class Ledger:
    """The total false-alarm probability and each test's share; exact tests need none."""

    alpha: float
    shares: Mapping[str, float]

    @classmethod
    def split(cls, alpha: float, statistical_tests: Iterable[str]) -> Ledger:
        """Give every statistical test the same share of ``alpha``. Errors: UsageError when alpha is not in [1e-100, 0.5]."""
        if not 1e-100 <= alpha <= 0.5:
            raise UsageError(
                f"alpha is the false-alarm probability of the whole certificate and must lie in [1e-100, 0.5], got {alpha}"
            )
        names = list(statistical_tests)
        if len(set(names)) != len(names):
            raise ValueError("two tests of one name in the ledger")
        return cls(alpha, {name: alpha / len(names) for name in names})

    def share(self, test: str) -> float:
        """The share of one test; 0 for an exact test."""
        return self.shares.get(test, 0.0)

    @property
    def spent(self) -> float:
        """Sum of all shares; never above the total."""
        return sum(self.shares.values())

    def to_json(self) -> dict[str, Any]:
        """Total and shares."""
        return {"alpha": self.alpha, "shares": dict(self.shares)}
