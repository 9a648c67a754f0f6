"""Which families of drafters there are, with the committed weights and over tables, and which rules fit each of them.

A family that drafts a chain works with every lossless rule for one drafted path, one that drafts a tree with the rules for
trees of its kind of siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reference import weights
from reference.drafting import Drafter
from reference.drafting.features import FeatureDraft
from reference.drafting.lookup import PromptLookup
from reference.drafting.medusa import DrawnChildren, MedusaDraft
from reference.drafting.separate import EarlyExit, ExitModel, SeparateDraft
from reference.rules import found
from reference.tables import CachedTable, Logits, TableHeads, TableLayer
from reference.text import VOCAB_SIZE
from specverify.trees import TreeShape

CERTAIN_RULES = ("token_rejection", "block_verification", "sample_and_match", "one_hot_draft")
"""Rules for one drafted path, however it was found; at temperature 0 "greedy" as well."""
CHAIN_RULES = (*CERTAIN_RULES, "coupled_races")
"""Rules for one drafted path whose tokens were drawn."""


@dataclass(frozen=True)
class Family:
    """A family of drafters. trained(folder) opens it with the weights there; over_tables(table, V, K) drafts in the same way
    from a table model.

    rules: the lossless ones that fit it. drafts: most tokens it drafts for one position. as_given: whether its drafts have
    the law of the draft it is given, rather than one of its own. needs_text: whether it drafts only where a text repeats
    itself, so that a round after a short prompt says nothing of it.
    """

    trained: Callable[[Path], Drafter]
    over_tables: Callable[[Logits, int, int], Drafter]
    rules: tuple[str, ...] = CHAIN_RULES
    drafts: int = 1
    as_given: bool = True
    needs_text: bool = False


def _model(name: str) -> Callable[[Path], Drafter]:
    return lambda folder: SeparateDraft(weights.trained(name, folder))


def _early_exit(folder: Path) -> Drafter:
    return EarlyExit(ExitModel(weights.trained("main", folder), weights.trained_exit(folder), weights.EARLY_LAYERS))


def _medusa(shape: TreeShape | None = None, children: DrawnChildren = "top-k") -> Callable[[Path], Drafter]:
    return lambda folder: MedusaDraft(weights.trained_heads(folder), shape, children)


def _small_tree(children: DrawnChildren) -> Callable[[Logits, int, int], Drafter]:
    """Two children of the root, single ones further down: small enough to be walked exactly."""
    return lambda table, V, k: MedusaDraft(TableHeads(table, k), TreeShape.branching([min(2, V), *[1] * (k - 1)]), children)


FAMILIES: dict[str, Family] = {
    "aligned": Family(_model("aligned"), lambda table, V, _: SeparateDraft(CachedTable(table, V))),
    "mismatched": Family(_model("mismatched"), lambda table, V, _: SeparateDraft(CachedTable(table, V))),
    "medusa": Family(_medusa(), lambda table, _, k: MedusaDraft(TableHeads(table, k)), as_given=False),
    "medusa_tree": Family(
        _medusa(TreeShape.branching((4, 2, 1))),
        _small_tree("top-k"),
        rules=("top_k", "traversal"),
        drafts=4,
        as_given=False,
    ),
    "medusa_sampled_tree": Family(
        _medusa(TreeShape.branching((3, 2, 1)), "without replacement"),
        _small_tree("without replacement"),
        rules=("without_replacement", "traversal"),
        drafts=3,
        as_given=False,
    ),
    "prompt_lookup": Family(
        lambda _: PromptLookup(VOCAB_SIZE),
        lambda _, V, __: PromptLookup(V, longest=2),
        rules=CERTAIN_RULES,
        as_given=False,
        needs_text=True,
    ),
    "early_exit": Family(_early_exit, lambda table, V, _: EarlyExit(CachedTable(table, V))),
    "feature_layer": Family(
        lambda folder: FeatureDraft(weights.trained_layer(folder)),
        lambda table, V, _: FeatureDraft(TableLayer(table, V)),
        as_given=False,
    ),
}
"""By name. "aligned" and "mismatched" are separate draft models; "feature_layer" is the family of EAGLE."""


def family_named(name: str) -> Family:
    """Return the family called ``name``. Errors: ValueError that lists the families there are."""
    return found("family", name, FAMILIES)
