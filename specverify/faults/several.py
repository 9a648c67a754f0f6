"""Which wrong rules are known for several drafts per position, and for noise that is used twice? Light to import.

Beside :mod:`specverify.faults.catalogue` and :mod:`specverify.faults.more`, and known by name in the same way. A run whose
subject holds a tree verifier takes ``TREE_FAULTS`` among its controls.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from specverify.faults import several_laws
from specverify.faults.more import COMMON, REPORT, RoundFault, step_of

if TYPE_CHECKING:
    from specverify.trees import Children, TreeVerifier


def _tree(name: str, children: Children, k: int, drafts: int = several_laws.DRAFTS) -> TreeVerifier:
    """Make the rule on trees of depth k with ``drafts`` children at every node."""
    from specverify.subjects import Facts
    from specverify.trees import TreeShape, TreeVerifier

    shape = TreeShape.branching((drafts,) * k)
    return TreeVerifier(
        name, getattr(import_module("specverify.faults.tree_rules"), name), shape, children, facts=Facts(rule=name)
    )


TREE_FAULTS: dict[str, RoundFault] = {
    known.name: known
    for known in (
        RoundFault(
            "k_tries",
            "Tries several drafts of a position, each against the first p, and recovers from (p - q)+.",
            "After each rejection let P be (P - q)+ normalised and judge the next draft by it, or use K-SEQ.",
            COMMON,
            partial(_tree, "k_tries", "with replacement"),
            law=several_laws.k_tries,
        ),
        RoundFault(
            "stale_q",
            "Draws siblings without replacement but judges all of them by the unreduced q.",
            "After each rejection take the token out of q and renormalise, as Sequoia (arXiv 2402.12374) does.",
            COMMON,
            partial(_tree, "stale_q", "without replacement"),
        ),
        RoundFault(
            "removed_q",
            "Draws siblings independently but judges them as if they had been drawn without replacement.",
            "Keep q as it is for drafts with replacement, or draw them without replacement.",
            COMMON,
            partial(_tree, "removed_q", "with replacement"),
        ),
        RoundFault(
            "top_k_sampled",
            "Proposes the likeliest tokens of q as children but judges them as if they had been drawn from q.",
            "Children that were not drawn are certain: accept x with P(x), otherwise P without x, renormalised.",
            REPORT,
            partial(_tree, "top_k_sampled", "top-k"),
            law=several_laws.top_k_sampled,
        ),
        RoundFault(
            "stale_parent",
            "Traverses a tree from the leaves up but leaves a parent as it was when a child of it is deleted.",
            "After a deletion let a := S / (S + 1 - a) and P := (a P - q)+ normalised at the parent.",
            "common error: traversal verification (Weng et al. 2025, arXiv 2505.12398) without its update",
            partial(_tree, "stale_parent", "with replacement"),
        ),
    )
}
"""Wrong rules for trees of drafts, two children at every node."""

NOISE_FAULTS: dict[str, RoundFault] = {
    known.name: known
    for known in (
        RoundFault(
            "shared_noise",
            "Recovers by the race of exponentials that chose the draft, run again with the residual.",
            "Draw fresh noise for the recovered token.",
            REPORT,
            partial(step_of, "tree_rules", "shared_noise"),
            law=several_laws.shared_noise,
        ),
    )
}
"""Wrong rules that use a random number twice."""
