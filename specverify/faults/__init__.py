"""The catalogue of wrong rules; ``specverify.faults.<name>`` is the rule itself as a subject.

``specverify certify specverify.faults:naive_accept`` shows what a refutation looks like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specverify.faults.catalogue import CATALOGUE, Fault, fault

if TYPE_CHECKING:
    from specverify.subjects import Step, Verifier

__all__ = ["CATALOGUE", "Fault", "fault"]


def __getattr__(name: str) -> Verifier | Step:
    """Make the rule of a catalogued fault on first use, so that importing the catalogue does not import torch."""
    if name in CATALOGUE:
        from specverify.faults.catalogue import subject

        return subject(name)
    raise AttributeError(f"module 'specverify.faults' has no attribute {name!r}; its rules are {', '.join(CATALOGUE)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CATALOGUE})
