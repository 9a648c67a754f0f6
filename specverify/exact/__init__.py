"""The exact law of unmodified code, by replaying every outcome of its randomness."""

from specverify.errors import OpaqueRandomness
from specverify.exact.draws import intercepting
from specverify.exact.engine import Law, induced_law, walk_rows
from specverify.exact.given import induced_law_given
from specverify.exact.rounds import (
    Emission,
    decoder_emission,
    emission,
    round_law,
    step_emission,
    step_rounds,
    verifier_emission,
    verifier_rounds,
)
from specverify.exact.symbolic import SymbolicNumber, SymbolicTensor
from specverify.exact.trees import tree_emission, tree_rounds

__all__ = [
    "Emission",
    "Law",
    "OpaqueRandomness",
    "SymbolicNumber",
    "SymbolicTensor",
    "decoder_emission",
    "emission",
    "induced_law",
    "induced_law_given",
    "intercepting",
    "round_law",
    "step_emission",
    "step_rounds",
    "tree_emission",
    "tree_rounds",
    "verifier_emission",
    "verifier_rounds",
    "walk_rows",
]
