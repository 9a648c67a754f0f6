"""Which families of drafters there are, with the committed weights and over tables, and which rules fit each of them.

A family that drafts a chain works with every lossless rule for one drafted path, one that drafts a tree with the rules for
trees of its kind of siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reference.drafting import Drafter
from reference.drafting.features import FeatureDraft
from reference.drafting.lookup import PromptLookup
from reference.drafting.medusa import MedusaDraft
from reference.drafting.separate import EarlyExit, ExitModel, SeparateDraft
from reference.rules import found
from reference.tables import CachedTable, Logits, TableHeads, TableLayer
from specverify.trees import TreeShape

CHAIN_RULES = ("token_rejection", "block_verification", "sample_and_match", "one_hot_draft")
"""Rules for one drafted path; at temperature 0 "greedy" as well."""
LARGEST_K = 8


@dataclass(frozen=True)
class Family:
    """A family of drafters. trained() opens it with the committed weights, over_tables(table, V, K) in the place of a
    trained one draws from a table model.

    rules: the lossless ones that fit it. drafts: most tokens it drafts for one position. as_given: whether its drafts have
    the law of the draft it is given, rather than one of its own.
    """

    trained: Callable[[], Drafter]
    over_tables: Callable[[Logits, int, int], Drafter]
    rules: tuple[str, ...] = CHAIN_RULES
    drafts: int = 1
    as_given: bool = True


def _model(name: str) -> Callable[[], Drafter]:
    def trained() -> Drafter:
        from reference.weights import trained

        return SeparateDraft(trained(name))

    return trained


def _early_exit() -> Drafter:
    from reference import weights

    return EarlyExit(ExitModel(weights.trained("main"), weights.trained_exit(), weights.EARLY_LAYERS))


def _features() -> Drafter:
    from reference import weights

    return FeatureDraft(weights.trained_layer())


def _medusa() -> Drafter:
    from reference import weights

    return MedusaDraft(weights.trained_heads())


def medusa_tree(width: int, depth: int) -> TreeShape:
    """Return the tree with ``width`` children of the root and of its first child, and single ones further down."""
    return TreeShape.branching([width, *[1] * (depth - 1)])


def _medusa_tree() -> Drafter:
    from reference import weights

    return MedusaDraft(weights.trained_heads(), TreeShape.branching((4, 2, 1)), "top-k")


FAMILIES: dict[str, Family] = {
    "aligned": Family(_model("aligned"), lambda table, V, _: SeparateDraft(CachedTable(table, V))),
    "mismatched": Family(_model("mismatched"), lambda table, V, _: SeparateDraft(CachedTable(table, V))),
    "medusa": Family(_medusa, lambda table, _, k: MedusaDraft(TableHeads(table, k)), as_given=False),
    "medusa_tree": Family(
        _medusa_tree,
        lambda table, V, k: MedusaDraft(TableHeads(table, k), medusa_tree(min(2, V), k), "top-k"),
        rules=("top_k", "traversal"),
        drafts=4,
        as_given=False,
    ),
    "medusa_sampled_tree": Family(
        lambda: MedusaDraft(_medusa().heads, TreeShape.branching((3, 2, 1)), "without replacement"),  # type: ignore[attr-defined]
        lambda table, V, k: MedusaDraft(TableHeads(table, k), medusa_tree(min(2, V), k), "without replacement"),
        rules=("without_replacement", "traversal"),
        drafts=3,
        as_given=False,
    ),
    "prompt_lookup": Family(lambda: PromptLookup(_vocab_size()), lambda _, V, __: PromptLookup(V, longest=2), as_given=False),
    "early_exit": Family(_early_exit, lambda table, V, _: EarlyExit(CachedTable(table, V))),
    "feature_layer": Family(_features, lambda table, V, _: FeatureDraft(TableLayer(table, V)), as_given=False),
}
"""By name. "aligned" and "mismatched" are separate draft models; "feature_layer" is the family of EAGLE."""


def _vocab_size() -> int:
    from reference.text import VOCAB_SIZE

    return VOCAB_SIZE


def family_named(name: str) -> Family:
    """Return the family called ``name``. Errors: ValueError that lists the families there are."""
    return found("family", name, FAMILIES)
