"""When does speculation pay? Acceptance rates from accepted counts, predicted speed-up, the best K and the losing K.

Times here are in units of one step of the target alone. With E tokens emitted per round, a round costs v(K) + K c + o
and the target alone would have needed E steps for the same tokens, so the speed-up is E / (v(K) + K c + o), and
speculation is slower whenever E < v(K) + K c + o (Leviathan et al. 2023, Theorem 3.8, is the case v = 1, o = 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Rounds = Sequence[Sequence[int]]
"""Accepted counts of one run: for every row, one count per round, without padding."""


@dataclass(frozen=True)
class Costs:
    """What a round is made of, in steps of the target: c one draft step, v the verify pass, o the rest of a round.

    parts are what o is the sum of, each timed on its own: the rule, taking tokens back, the loop around them.
    """

    c: float
    v: float
    o: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def of_round(self, k: int) -> float:
        """Cost of a round that drafts K tokens."""
        return self.v + k * self.c + self.o

    def speedup(self, tokens_per_round: float, k: int) -> float:
        """Predicted tokens per second with speculation over tokens per second of the cached target alone."""
        return tokens_per_round / self.of_round(k)

    def slower(self, tokens_per_round: float, k: int) -> bool:
        """Whether speculation loses: E < v(K) + K c + o."""
        return tokens_per_round < self.of_round(k)


@dataclass(frozen=True)
class Rates:
    """Acceptance over some rounds: per tested token, per drafted token (as engines report it), and E per round."""

    per_tested: float
    per_drafted: float
    tokens_per_round: float
    rounds: int


def unbiased_rounds(row: Sequence[int], tokens: int, k: int) -> Sequence[int]:
    """Return the rounds of one row that began with at least K + 2 of its ``tokens`` still to come.

    Such a round cannot have been cut at the end of the text, nor have drafted fewer tokens because of it (K + 1, and
    one more for decoders that emit a token before their first round). Whether a round is kept is known before it is
    drawn, so, for rounds of one law, the kept ones emit E each on average (Wald's identity). Dropping "the last round"
    would not do: it tends to be a long one, and E would come out too small.
    """
    emitted = 0
    for index, accepted in enumerate(row):
        if tokens - emitted < k + 2:
            return row[:index]
        emitted += accepted + 1
    return row


def acceptance_rates(runs: Iterable[Rounds], tokens: int, k: int) -> Rates:
    """Rates over runs of ``tokens`` tokens per row with K drafts per round, pooled over rows and runs.

    A round tests its accepted tokens and, unless all K were accepted, the one it rejected. Errors: ValueError when no
    round is left to count.
    """
    counts = [a for run in runs for row in run for a in unbiased_rounds(row, tokens, k)]
    if not counts:
        raise ValueError(f"no round began {k + 2} tokens before the end; generate more than {tokens} tokens")
    accepted, rounds = sum(counts), len(counts)
    tested = accepted + sum(a < k for a in counts)
    return Rates(accepted / tested, accepted / (rounds * k), 1 + accepted / rounds, rounds)


def expected_tokens(acceptance: float, k: int) -> float:
    """E of a round if every tested token were accepted with the same probability, independently: sum_{i<=K} a^i.

    Leviathan et al. 2023, equation 1. Real texts have easy and hard places, which makes E differ from it.
    """
    return float(sum(acceptance**i for i in range(k + 1)))


def best_k(speedups: Mapping[int, float]) -> int:
    """Return the K with the largest speed-up; of equals the smallest, which wastes least."""
    return min(speedups, key=lambda k: (-speedups[k], k))


def slower_from(speedups: Mapping[int, float]) -> int | None:
    """Return the smallest K from which on every K given is slower than the baseline, None if the largest is not."""
    losing: int | None = None
    for k in sorted(speedups, reverse=True):
        if speedups[k] >= 1:
            break
        losing = k
    return losing
