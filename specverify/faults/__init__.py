"""The catalogue of wrong rules; ``specverify.faults.<name>`` is the rule itself as a subject.

``specverify certify specverify.faults:naive_accept`` shows what a refutation looks like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specverify.faults.catalogue import CATALOGUE, Fault, all_faults, fault
from specverify.faults.more import MORE_FAULTS, RoundFault
from specverify.faults.several import NOISE_FAULTS, TREE_FAULTS

if TYPE_CHECKING:
    from specverify.subjects import Step, Verifier
    from specverify.trees import TreeVerifier

__all__ = ["CATALOGUE", "MORE_FAULTS", "NOISE_FAULTS", "TREE_FAULTS", "Fault", "RoundFault", "all_faults", "fault"]


def __getattr__(name: str) -> Verifier | Step | TreeVerifier:
    """Make the rule of a known fault on first use, so that importing the catalogue does not import torch."""
    if name in all_faults():
        from specverify.faults.catalogue import subject

        return subject(name)
    raise AttributeError(f"module 'specverify.faults' has no attribute {name!r}; its rules are {', '.join(all_faults())}")


def __dir__() -> list[str]:
    return sorted({*globals(), *all_faults()})
