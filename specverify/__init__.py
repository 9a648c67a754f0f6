"""Certify that a speculative decoder samples exactly from its target model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specverify.subjects import Decoder, Emitted, Facts, Generated, Request, Step, Verifier, decoder, step, verifier
    from specverify.trees import Tree, TreeVerifier, tree_verifier

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "Emitted",
    "Facts",
    "Generated",
    "Request",
    "Step",
    "Tree",
    "TreeVerifier",
    "Verifier",
    "__version__",
    "decoder",
    "step",
    "tree_verifier",
    "verifier",
]

_TREES = ("Tree", "TreeVerifier", "tree_verifier")


def __getattr__(name: str) -> Any:
    """Import the subject helpers on first use, so that ``import specverify`` stays light."""
    if name in __all__:
        from specverify import subjects, trees

        return getattr(trees if name in _TREES else subjects, name)
    raise AttributeError(f"module 'specverify' has no attribute {name!r}")
