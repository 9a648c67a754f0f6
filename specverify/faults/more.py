"""Which wrong rules are known that one position does not tell apart, or that go wrong around the rule? Light to import.

The catalogue proper (:mod:`specverify.faults.catalogue`) holds the faults of one position that every run uses as controls;
these are known by name beside them. ``specverify.faults:<name>`` is the rule as a subject here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from specverify.faults import laws
from specverify.laws import Array

if TYPE_CHECKING:
    from specverify.subjects import Step, Verifier
    from specverify.trees import TreeVerifier

Law = Callable[[Array, Array], Array]
COMMON = "common error"
BLOCK = "common error: block verification (Sun et al. 2024, arXiv 2403.10444) mixed with token rejection"
REPORT = "public bug report"


@dataclass(frozen=True)
class RoundFault:
    """One wrong rule whose law is that of a round.

    name, summary, advice, source, make and lossy_by_design as in :class:`specverify.faults.catalogue.Fault`.
    law(p, q) is the law (..., V) of a draft position that the round reaches, None where that depends on other positions.
    bonus(p, before) is the law (..., V) of the bonus token for its right law p and the target's law one place before; None
    where it is right. shows_from: least K at which the law of a round is not the target's on some pair.
    """

    name: str
    summary: str
    advice: str
    source: str
    make: Callable[[int], Verifier | Step | TreeVerifier]
    law: Law | None = None
    bonus: Law | None = None
    shows_from: int = 1
    lossy_by_design: bool = False


def _verifier(module: str, name: str, k: int) -> Verifier:  # noqa: ARG001 - one verifier serves every k
    from specverify.subjects import Facts, Verifier

    return Verifier(name, getattr(import_module(f"specverify.faults.{module}"), name), Facts(rule=name))


def step_of(module: str, name: str, k: int) -> Step:
    """The rule of that name in a module of faults, as a step that drafts k tokens."""
    from specverify.subjects import Facts, Step

    return Step(name, partial(getattr(import_module(f"specverify.faults.{module}"), name), k=k), k, Facts(rule=name, max_k=k))


MORE_FAULTS: dict[str, RoundFault] = {
    known.name: known
    for known in (
        RoundFault(
            "draft_filtered",
            "Drafts from q restricted to its likeliest tokens but declares the unrestricted q to the rule.",
            "Declare the law that was sampled: filter and normalise q before the draft is drawn, and hand that q on.",
            REPORT,
            partial(step_of, "chain", "draft_filtered"),
            law=laws.draft_filtered,
        ),
        RoundFault(
            "draft_temperature",
            "Drafts from q but declares q at another temperature to the rule.",
            "Sample the draft and compute q for the rule at the same temperature.",
            COMMON,
            partial(_verifier, "chain", "draft_temperature"),
            law=laws.draft_temperature,
        ),
        RoundFault(
            "target_unwarped",
            "Applies the request's temperature to the bonus row only and verifies drafts against the raw law.",
            "Apply temperature, top-k and top-p to all K + 1 target rows before verifying.",
            REPORT,
            partial(_verifier, "chain", "target_unwarped"),
            law=laws.target_unwarped,
        ),
        RoundFault(
            "bonus_unwarped",
            "Draws the bonus token from the law without the request's temperature.",
            "Apply temperature, top-k and top-p to the bonus row too.",
            REPORT,
            partial(_verifier, "chain", "bonus_unwarped"),
            law=laws.target,
            bonus=laws.target_unwarped,
        ),
        RoundFault(
            "bonus_stale",
            "Draws the bonus token from the target row before its own.",
            "Read row K, the law after the last drafted token, for the bonus.",
            COMMON,
            partial(_verifier, "chain", "bonus_stale"),
            law=laws.target,
            bonus=laws.stale,
        ),
        RoundFault(
            "one_uniform",
            "Judges every draft of a block with the same uniform.",
            "Draw K uniforms per row.",
            COMMON,
            partial(_verifier, "chain", "one_uniform"),
            shows_from=2,
        ),
        RoundFault(
            "block_early_stop",
            "Runs the block rule but stops at the first prefix that is not accepted.",
            "Judge all K prefixes and keep the longest that is accepted.",
            BLOCK,
            partial(_verifier, "block", "block_early_stop"),
            shows_from=2,
        ),
        RoundFault(
            "block_token_residual",
            "Accepts as the block rule does but recovers from (p - q)+, the residual of token rejection.",
            "Recover from (P p - q)+ normalised, P the surviving probability of the accepted prefix.",
            BLOCK,
            partial(_verifier, "block", "block_token_residual"),
            shows_from=2,
        ),
        RoundFault(
            "block_last_product",
            "Accepts the whole block with min(1, prod p/q), without capping the product at 1 after every token.",
            "Cap the running product at 1 after every token: P_i = min(1, P_{i-1} p/q).",
            BLOCK,
            partial(_verifier, "block", "block_last_product"),
            shows_from=2,
        ),
    )
}
"""Wrong rules on one drafted path beside those of the catalogue."""
