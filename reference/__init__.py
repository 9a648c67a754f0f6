"""What a correct speculative decoder looks like: the reference decoder, subject ``reference`` of specverify.

Importing the package loads neither torch nor weights: its names are found on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "subject": "reference.exposed",
    "greedy_verifier": "reference.exposed",
    "tree_verifiers": "reference.exposed",
    "medusa": "reference.exposed",
    "medusa_tree": "reference.exposed",
    "medusa_sampled_tree": "reference.exposed",
    "prompt_lookup": "reference.exposed",
    "early_exit": "reference.exposed",
    "feature_layer": "reference.exposed",
    "adaptive_k": "reference.exposed",
    "typical_acceptance": "reference.exposed",
    "open_trained": "reference.exposed",
    "ReferenceDecoder": "reference.engine",
    "FAMILIES": "reference.families",
    "AdaptiveK": "reference.adaptive",
    "measured_costs": "reference.adaptive",
    "MedusaHead": "reference.heads",
    "Processors": "reference.processors",
    "RULES": "reference.rules",
    "TREE_RULES": "reference.rules.trees",
    "autoregressive": "reference.decoder",
    "draft_propose": "reference.step",
    "generate": "reference.decoder",
    "main_verify": "reference.step",
    "speculative_step": "reference.step",
    "stream": "reference.decoder",
    "measure_speculative_tps": "reference.speed",
    "measure_tokens_per_second": "reference.speed",
    "table_pair": "reference.tables",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reference' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
