"""Which wrong rules are known, what is their law, and how are they repaired? The catalogue, light to import.

Each entry holds the closed-form law of one position and a way to make the rule itself as a subject; the rules are
imported only then. Fault laws serve as alternatives of the statistics, the rules as negative controls. More faults, which are
no controls, are in :mod:`specverify.faults.more` and :mod:`specverify.faults.several`; :func:`fault` knows all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from specverify.errors import UsageError
from specverify.faults import laws
from specverify.faults.more import MORE_FAULTS, RoundFault
from specverify.faults.several import NOISE_FAULTS, TREE_FAULTS
from specverify.laws import Array

if TYPE_CHECKING:
    from specverify.subjects import Step, Verifier
    from specverify.trees import TreeVerifier

COMMON = "common error"
MIXED = "common error: parts of two sound rules mixed"
DETERMINISTIC = "common error: the acceptance coin replaced by a threshold"
GREEDY_RULE = "common error: the rule for greedy decoding (T = 0) used while sampling"
STEP_K = 2
"""Draft tokens of a step that is loaded by name."""


@dataclass(frozen=True)
class Fault:
    """One wrong rule.

    summary says what it does, advice how to repair it, source where rules of this kind are known from. law(p, q) is the
    law (..., V) that one draft position emits, for float64 laws (..., V). make(k) builds the rule as a subject for k
    draft tokens. lossy_by_design: published as an approximation, so that a refutation is expected.
    """

    name: str
    summary: str
    advice: str
    source: str
    law: Callable[[Array, Array], Array]
    make: Callable[[int], Verifier | Step]
    lossy_by_design: bool = False


def _verifier(name: str, lossy: bool, k: int) -> Verifier:  # noqa: ARG001 - one verifier serves every k
    from specverify.faults import rules
    from specverify.subjects import Facts, Verifier

    return Verifier(name, getattr(rules, name), Facts(rule=name, lossy=lossy))


def _step(name: str, lossy: bool, k: int) -> Step:
    from specverify.faults import rules
    from specverify.subjects import Facts, Step

    return Step(name, partial(getattr(rules, name), k=k), k, Facts(rule=name, lossy=lossy, max_k=k))


def _entry(
    name: str, summary: str, advice: str, source: str, *, lossy: bool = False, drafts: bool = False
) -> tuple[str, Fault]:
    build = _step if drafts else _verifier
    return name, Fault(name, summary, advice, source, getattr(laws, name), partial(build, name, lossy), lossy)


CATALOGUE: dict[str, Fault] = dict(
    (
        _entry(
            "resample_from_target",
            "Rejects rightly, but draws the recovered token from the target p instead of the residual.",
            "After a rejection draw from (p - q)+ normalised: acceptance has already supplied the rest of p.",
            COMMON,
        ),
        _entry(
            "resample_excluding",
            "Rejects rightly, but draws the recovered token from p without the rejected token.",
            "Excluding x is right only for a draft that was certain; for a sampled one draw from (p - q)+ normalised.",
            MIXED,
        ),
        _entry(
            "absolute_residual",
            "Draws the recovered token from |p - q| instead of (p - q)+.",
            "Clamp p - q at 0 before normalising, in place of taking its absolute value.",
            COMMON,
        ),
        _entry(
            "argmax_residual",
            "Emits the largest entry of the residual instead of drawing from the residual.",
            "Draw the recovered token from (p - q)+ normalised; argmax belongs to greedy decoding only.",
            COMMON,
        ),
        _entry(
            "softmax_residual",
            "Hands the normalised residual to a sampler that applies softmax to it.",
            "Hand a sampler of logits the logarithm of the residual, or draw from the residual as it is.",
            COMMON,
        ),
        _entry(
            "inverted_ratio",
            "Accepts with min(1, q/p) instead of min(1, p/q).",
            "Divide the target's probability by the draft's.",
            "public bug report",
        ),
        _entry(
            "accept_always",
            "Never rejects a drafted token.",
            "Compare a uniform with min(1, p/q) for each drafted token and check that the rejection mask can be true.",
            COMMON,
        ),
        _entry(
            "accept_if_likelier",
            "Accepts exactly when p(x) >= q(x), and otherwise draws from the residual.",
            "Where p(x) < q(x), accept with probability p(x)/q(x) instead of never.",
            DETERMINISTIC,
        ),
        _entry(
            "accept_if_likelier_else_target",
            "Accepts exactly when p(x) >= q(x), and otherwise draws from the target.",
            "Accept with probability min(1, p(x)/q(x)) and recover from (p - q)+ normalised.",
            DETERMINISTIC,
        ),
        _entry(
            "naive_accept",
            "Accepts exactly when the draft is the target's most likely token, and otherwise emits that token.",
            "Keep this rule for T = 0; when sampling, use token rejection, or draw from p and accept if the draw is x.",
            GREEDY_RULE,
        ),
        _entry(
            "naive_accept_resample",
            "Accepts exactly when the draft is the target's most likely token, and otherwise draws from the target.",
            "Compare the draft with a draw from p instead of argmax p and emit that draw, or use token rejection.",
            GREEDY_RULE,
        ),
        _entry(
            "match_then_redraw",
            "Draws from the target, accepts when the draw equals the draft, and on a mismatch draws again.",
            "Emit the draw that was compared; a second draw forgets that the first one missed.",
            COMMON,
        ),
        _entry(
            "match_with_residual",
            "Accepts with probability p(x), as for a certain draft, but recovers from the residual of a sampled one.",
            "Use one q in both places: soft q with min(1, p/q) and (p - q)+, or one-hot q with p(x) and p without x.",
            MIXED,
        ),
        _entry(
            "lenience",
            "Accepts with min(1, p/(l q)) for a leniency l < 1 (here 0.5) and recovers from (p - l q)+.",
            "Set the leniency to 1; below it the output law differs from p by design.",
            "Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), lenience; lossy by design",
            lossy=True,
        ),
        _entry(
            "typical",
            "Accepts exactly when p(x) exceeds a threshold that falls with the entropy of p, else draws from p.",
            "Use token rejection with the law of the heads as q; a threshold on p(x) cannot keep the law.",
            "Medusa (arXiv 2401.10774), typical acceptance; lossy by design",
            lossy=True,
        ),
        _entry(
            "greedy_draft",
            "Drafts argmax q but declares the soft q to the rule.",
            "Declare what was done: a one-hot q for a greedy draft, or sample the draft from q.",
            "public bug report",
            drafts=True,
        ),
    )
)


def all_faults() -> dict[str, Fault | RoundFault]:
    """Every known wrong rule by name: those of the catalogue, then those of the tables beside it."""
    return {**CATALOGUE, **MORE_FAULTS, **TREE_FAULTS, **NOISE_FAULTS}


def fault(name: str) -> Fault | RoundFault:
    """Find a fault of any table by name. Errors: UsageError that lists the known names."""
    known = all_faults()
    try:
        return known[name]
    except KeyError:
        raise UsageError(f"no fault is called {name!r}; known are {', '.join(known)}") from None


@cache
def subject(name: str) -> Verifier | Step | TreeVerifier:
    """Return the rule of a fault as a subject; one that drafts itself drafts ``STEP_K`` tokens, a tree has that depth."""
    return fault(name).make(STEP_K)
