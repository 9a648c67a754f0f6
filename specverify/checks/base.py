"""What is a check? One question asked of a subject, the tests it consists of, and the measurements it returns.

Every check module has the same shape: ``NAME``, ``QUESTION``, ``plan(part, settings)`` which lists its tests or says why it
does not apply, and ``run(planned, context)`` which returns measurements. Planning looks at declarations only and runs
nothing, so that the false-alarm budget is split before the first draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specverify.errors import UsageError
from specverify.evidence.ledger import DEFAULT_ALPHA
from specverify.evidence.measurements import AnyMeasurement
from specverify.runs.shards import UNKEPT, Shards
from specverify.subjects import Decoder, DecoderLike, Step, Verifier
from specverify.trees import TreeVerifier
from specverify.unknown_law import OnOff


@dataclass(frozen=True)
class Budget:
    """How much work a certificate may cost.

    sequences: sampled per statistical test where a call takes many rows; single: where it takes one row.
    generated: pairs that Hypothesis generates per exact test. large: whether V = 6, K = 4 is walked exactly. tokens: the most
    that are sampled where sampling goes on until every known fault would have been refuted; share and single_share: of the
    tokens that follow the fault, where a call takes many rows of table models and elsewhere. probabilities: the most that the
    laws of a decoder's own models are asked for. pairs: sequences with speculation, and as many
    without, where the target law is unknown.
    """

    name: str
    sequences: int
    single: int
    generated: int
    large: bool
    tokens: int
    share: float
    single_share: float
    probabilities: int
    pairs: int


BUDGETS = {
    "smoke": Budget("smoke", 6_000, 1_500, 15, False, 200_000, 0.3, 1.0, 100_000_000, 5_000),
    "standard": Budget("standard", 40_000, 6_000, 60, True, 500_000, 0.3, 1.0, 400_000_000, 12_000),
    "certify": Budget("certify", 200_000, 30_000, 250, True, 2_000_000, 0.1, 0.3, 2_000_000_000, 25_000),
}


@dataclass(frozen=True)
class Settings:
    """What a run was asked for. alpha: false-alarm probability of the whole certificate. timeout: seconds per test.

    max_tokens: the most that are sampled per test that goes on until it has seen enough; None for what the budget says.
    """

    budget: Budget = BUDGETS["standard"]
    alpha: float = DEFAULT_ALPHA
    seed: int = 0
    timeout: float = 300.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens <= 10**12:
            raise UsageError(f"the most tokens must lie between 1 and 10^12, got {self.max_tokens}")
        if not 0.01 <= self.timeout <= 1e6:
            raise UsageError(f"the timeout must lie between 0.01 and a million seconds, got {self.timeout}")

    @property
    def tokens(self) -> int:
        """The most tokens that a test samples while it goes on."""
        return self.budget.tokens if self.max_tokens is None else self.max_tokens

    @property
    def probabilities(self) -> float:
        """The most probabilities that a decoder's own models are asked for in such a test; as many as it takes when the
        tokens were given.
        """
        return self.budget.probabilities if self.max_tokens is None else math.inf


def budget_named(name: str) -> Budget:
    """The budget of that name. Errors: UsageError listing the names."""
    if name not in BUDGETS:
        raise UsageError(f"no budget is called {name!r}; there are {', '.join(BUDGETS)}")
    return BUDGETS[name]


Part = Verifier | Step | Decoder | TreeVerifier | OnOff
Round = Verifier | Step | TreeVerifier
"""Parts that emit a single round."""


@dataclass(frozen=True)
class Planned:
    """One test to run: ``check/part/variant``. statistical tests get a share of the ledger; controls must be refuted."""

    check: str
    part: str
    variant: str
    statistical: bool
    params: Mapping[str, Any] = field(default_factory=dict)
    expected: Literal["certified", "refuted"] = "certified"

    @property
    def test(self) -> str:
        """Unique name of the test."""
        return f"{self.check}/{self.part}/{self.variant}"


@dataclass(frozen=True)
class Skipped:
    """A check that does not apply to a part, and why."""

    check: str
    part: str
    reason: str


@dataclass(frozen=True)
class Counterexample:
    """A small case that shows a fault, for a person.

    context: the tokens before the deviating one. token: the token whose probability is off most there. lines: the same in
    words and fractions. snippet: runnable code that prints it.
    """

    pair: Mapping[str, Any]
    context: tuple[int, ...]
    token: int
    got: float
    right: float
    lines: tuple[str, ...]
    snippet: str

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "pair": dict(self.pair),
            "context": list(self.context),
            "token": self.token,
            "got": self.got,
            "right": self.right,
            "lines": list(self.lines),
            "snippet": self.snippet,
        }


@dataclass(frozen=True)
class Found:
    """What running a test gave."""

    measurements: tuple[AnyMeasurement, ...]
    counterexample: Counterexample | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Context:
    """What a check may use while it runs: the part, the name under which a user loads it, settings, its own seed and share."""

    part: Part
    spec: str
    settings: Settings
    seed: int
    alpha: float
    opened: DecoderLike | None = None
    """The decoder with its own models, opened once per run; None for everything but decoders, and for mere factories."""
    shards: Shards = UNKEPT
    """Where what is drawn is kept, shard by shard, so that a killed run can be gone on with."""
