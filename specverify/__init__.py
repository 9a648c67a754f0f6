"""Certify that a speculative decoder samples exactly from its target model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specverify.adapters.process import process_subject
    from specverify.subjects import Decoder, Emitted, Facts, Generated, Request, Step, Verifier, decoder, step, verifier
    from specverify.trees import Tree, TreeVerifier, tree_verifier
    from specverify.unknown_law import OnOff, on_off

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "Emitted",
    "Facts",
    "Generated",
    "OnOff",
    "Request",
    "Step",
    "Tree",
    "TreeVerifier",
    "Verifier",
    "__version__",
    "decoder",
    "on_off",
    "process_subject",
    "step",
    "tree_verifier",
    "verifier",
]

_ELSEWHERE = {
    **dict.fromkeys(("Tree", "TreeVerifier", "tree_verifier"), "trees"),
    **dict.fromkeys(("OnOff", "on_off"), "unknown_law"),
    "process_subject": "adapters.process",
}
"""Modules of those helpers that are not in ``specverify.subjects``."""


def __getattr__(name: str) -> Any:
    """Import the subject helpers on first use, so that ``import specverify`` stays light."""
    if name in __all__:
        return getattr(import_module(f"specverify.{_ELSEWHERE.get(name, 'subjects')}"), name)
    raise AttributeError(f"module 'specverify' has no attribute {name!r}")
