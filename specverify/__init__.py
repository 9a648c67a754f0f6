"""Certify that a speculative decoder samples exactly from its target model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specverify.adapters.process import process_subject
    from specverify.asserting import NotExact, NotJudged, check_exact
    from specverify.parametrizing import parametrize_with_checks
    from specverify.subjects import Decoder, Emitted, Facts, Generated, Request, Step, Verifier, decoder, step, verifier
    from specverify.trees import Tree, TreeVerifier, tree_verifier
    from specverify.unknown_law import OnOff, on_off

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "Emitted",
    "Facts",
    "Generated",
    "NotExact",
    "NotJudged",
    "OnOff",
    "Request",
    "Step",
    "Tree",
    "TreeVerifier",
    "Verifier",
    "__version__",
    "check_exact",
    "decoder",
    "on_off",
    "parametrize_with_checks",
    "process_subject",
    "step",
    "tree_verifier",
    "verifier",
]

_HOME = {
    **dict.fromkeys(("Tree", "TreeVerifier", "tree_verifier"), "trees"),
    **dict.fromkeys(("OnOff", "on_off"), "unknown_law"),
    **dict.fromkeys(("NotExact", "NotJudged", "check_exact"), "asserting"),
    "parametrize_with_checks": "parametrizing",
    "process_subject": "adapters.process",
}
"""Modules of the names that do not stand in ``specverify.subjects``."""


def __getattr__(name: str) -> Any:
    """Import what is used on first use, so that ``import specverify`` stays light."""
    if name in __all__:
        return getattr(import_module(f"specverify.{_HOME.get(name, 'subjects')}"), name)
    raise AttributeError(f"module 'specverify' has no attribute {name!r}")
