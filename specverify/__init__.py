"""Certify that a speculative decoder samples exactly from its target model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "step",
    "tree_verifier",
    "verifier",
]

_TREES = ("Tree", "TreeVerifier", "tree_verifier")
_UNKNOWN_LAW = ("OnOff", "on_off")


def __getattr__(name: str) -> Any:
    """Import the subject helpers on first use, so that ``import specverify`` stays light."""
    if name in __all__:
        module = "trees" if name in _TREES else "unknown_law" if name in _UNKNOWN_LAW else "subjects"
        return getattr(import_module(f"specverify.{module}"), name)
    raise AttributeError(f"module 'specverify' has no attribute {name!r}")
