"""How the reference decoder is plugged in: with its own models, over models handed in, by families, and in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from reference.adaptive import TYPICAL, RoundCosts, measured_costs
from reference.engine import ReferenceDecoder, check_fit
from reference.families import FAMILIES, family_named
from reference.noise import BatchNoise, RacingNoise
from reference.processors import Processors
from reference.rules import RACES, coupled_races, rule_named
from reference.rules.trees import TREE_RULES, tree_rule_named
from reference.step import speculative_step, start
from reference.tables import CachedTable
from specverify import subjects
from specverify.subjects import Decoder, Emitted, Facts, Step, Verifier
from specverify.trees import Children, Tree, TreeShape, TreeVerifier

__all__ = ["ReferenceDecoder", "build", "family_subject", "open_trained", "step_over", "subject"]


def open_trained(
    k: int | Literal["adaptive"] = 4,
    *,
    draft: str = "aligned",
    rule: str | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[int] = (),
    costs: RoundCosts | None = None,
) -> ReferenceDecoder:
    """Return the decoder with its trained models and a draft of :data:`reference.families.FAMILIES`; rule: None for the first
    one that fits the draft.

    With k "adaptive" K follows what is accepted, at the ``costs`` of a round, which are measured now where none are given: the
    tokens of a seed then depend on them, and on what else is in the batch. Errors: WeightsError without weights, ValueError
    for an unknown draft, or a rule that does not fit it.
    """
    from reference.text import EOS_ID, prompts
    from reference.timing import Timing
    from reference.weights import FOLDER, trained

    rule = rule or family_named(draft).rules[0]
    _fitting(draft, rule)
    main, drafter = trained("main"), family_named(draft).trained(FOLDER)
    return ReferenceDecoder(
        main,
        drafter,
        (costs or measured_costs(main, drafter, prompts(1, 48))) if k == "adaptive" else k,
        eos_id=EOS_ID,
        stop=stop,
        rule=rule,
        processors=Processors(temperature, top_k, top_p, repetition_penalty),
        prompts=prompts(8, 16),
        # What is timed is this decoder: a fixed K, chains and token rejection, or nothing of its own.
        timing=Timing(temperature=temperature, best=draft) if k != "adaptive" and rule == "token_rejection" else None,
    )


def _fitting(family: str, rule: str) -> None:
    rules = family_named(family).rules
    further = () if family_named(family).drafts > 1 else ("greedy", "typical_acceptance")
    if rule not in (*rules, *further):
        raise ValueError(f"the drafts of {family} are not judged by {rule!r}; take rule={' or '.join(map(repr, rules))}")


def build(
    target: subjects.Model,
    draft: subjects.Model,
    k: int,
    eos_id: int | None = None,
    rule: str = "token_rejection",
    family: str = "aligned",
    adaptive: bool = False,
) -> ReferenceDecoder:
    """Return the same decoder over table models handed in, which answer ids (B, T) with logits (B, T, V).

    family: whose way of drafting, the draft's table in the place of its networks. adaptive: K from 0 to k follows what is
    accepted, at the typical costs of a round.
    """
    V = target.vocab_size
    drafter = family_named(family).over_tables(draft, V, k)
    if adaptive and k >= len(TYPICAL.verify):
        raise ValueError(f"k is {k}; an adaptive K goes up to {len(TYPICAL.verify) - 1}")
    costs = replace(TYPICAL, verify=TYPICAL.verify[: k + 1])
    return ReferenceDecoder(CachedTable(target, V), drafter, costs if adaptive else k, eos_id=eos_id, rule=rule)


def step_over(
    target: subjects.Model,
    draft: subjects.Model,
    prefix: Tensor,
    k: int,
    rule: str = "token_rejection",
    family: str = "aligned",
) -> Emitted:
    """Run one round of K drafts after prefix (B, T), with torch's global stream."""
    main, drafter = CachedTable(target, target.vocab_size), family_named(family).over_tables(draft, target.vocab_size, k)
    state = start(main, drafter, prefix, torch.full((len(prefix),), prefix.shape[1]), k + 1)
    check_fit(drafter, rule)
    judge = tree_rule_named(rule) if rule in TREE_RULES else rule_named(rule)
    noise: Any = RacingNoise() if rule in RACES else BatchNoise()
    return speculative_step(main, state, k, Processors(), judge, noise)


def _verify_with(rule: str) -> Callable[[Tensor, Tensor, Tensor], Emitted]:
    def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Emitted:
        return rule_named(rule).verify(draft_tokens, draft_probs, target_probs, BatchNoise())

    return verify


def tree_verifier(
    rule: str, branching: Sequence[int], children: Children, *, dtype: Literal["float64", "float32"] = "float64"
) -> TreeVerifier:
    """Return a tree rule of :data:`reference.rules.trees.TREE_RULES` on trees of one shape. Errors: ValueError for an unknown
    rule, or for siblings drawn in a way that the rule is not lossless for.
    """
    judged = tree_rule_named(rule)
    if children not in judged.CHILDREN:
        raise ValueError(f"{rule} is not lossless for children drawn {children!r}; take {' or '.join(judged.CHILDREN)}")

    def verify(tree: Tree, target_probs: Tensor) -> Emitted:
        return judged.verify(tree, target_probs, BatchNoise())

    name = f"reference.tree.{rule}" + ("" if dtype == "float64" else f".{dtype}")
    return TreeVerifier(name, verify, TreeShape.branching(branching), children, facts=Facts(rule=rule, dtype=dtype))


def _races_of(k: int) -> Callable[[subjects.Model, subjects.Model, Tensor], Emitted]:
    def step(target: subjects.Model, draft: subjects.Model, prefix: Tensor) -> Emitted:
        return coupled_races.step(target, draft, prefix, k)

    return step


def _step_of(
    k: int, rule: str = "token_rejection", family: str = "aligned"
) -> Callable[[subjects.Model, subjects.Model, Tensor], Emitted]:
    def step(target: subjects.Model, draft: subjects.Model, prefix: Tensor) -> Emitted:
        return step_over(target, draft, prefix, k, rule, family)

    return step


ROUNDS = ("medusa", "medusa_tree", "feature_layer")
"""Families whose round is judged with the reference; the others by themselves, see benchmarks/families.py."""


LOSSY = ("typical_acceptance",)
"""Rules that change the law by design."""


def family_step(family: str, k: int, rule: str | None = None) -> Step:
    """Return one round of a family with K drafts as a step over table models; rule: its first one by default."""
    of = FAMILIES[family]
    chosen = rule or of.rules[0]
    facts = Facts(rule=chosen, drafts=of.drafts, drafts_as_given=of.as_given, lossy=chosen in LOSSY)
    return Step(f"reference.{family}.k{k}", _step_of(k, chosen, family), k, facts)


def family_subject(family: str, rule: str | None = None, *, k: int | Literal["adaptive"] = 4) -> Decoder:
    """Return a family's decoder as a subject: with the trained models, over tables, and its round as a step.

    Errors: ValueError for an unknown family, or a rule that does not fit it.
    """
    of = family_named(family)
    chosen = rule or of.rules[0]
    _fitting(family, chosen)
    name = f"reference.{family}" + (f".{rule}" if rule else "") + (".adaptive" if k == "adaptive" else "")
    return Decoder(
        name,
        open=partial(open_trained, k, draft=family, rule=chosen),
        build=partial(build, rule=chosen, family=family, adaptive=k == "adaptive"),
        facts=Facts(rule=chosen, batch_invariant=False, drafts=of.drafts, drafts_as_given=of.as_given, lossy=chosen in LOSSY),
        serves=True,
        parts=() if of.needs_text else (family_step(family, 2, chosen), family_step(family, 3, chosen)),
    )


tree_verifiers = (
    tree_verifier("with_replacement", (2, 1), "with replacement"),
    tree_verifier("without_replacement", (2, 2), "without replacement"),
    tree_verifier("k_seq", (3,), "with replacement"),
    tree_verifier("top_k", (3, 2), "top-k"),
    tree_verifier("traversal", (2, 1), "without replacement"),
    tree_verifier("without_replacement", (3,), "without replacement", dtype="float32"),
)
"""The rules for several drafts, on trees small enough to be walked exactly."""

greedy_verifier = Verifier("reference.greedy", _verify_with("greedy"), Facts(rule="greedy"))
"""For laws of temperature 0 only, each with a single token."""

subject = Decoder(
    "reference",
    open=open_trained,
    build=build,
    # Logits of a batch and of a row alone differ by some 1e-5 in float32, so a draw may flip now and then.
    facts=Facts(rule="token_rejection", batch_invariant=False),
    serves=True,
    parts=(
        *(
            Verifier(f"reference.{rule}", _verify_with(rule), Facts(rule=rule))
            for rule in ("token_rejection", "sample_and_match", "block_verification", "one_hot_draft")
        ),
        Verifier(
            "reference.token_rejection.float32",
            _verify_with("token_rejection"),
            Facts(rule="token_rejection", dtype="float32"),
        ),
        *(Step(f"reference.step.k{k}", _step_of(k), k, Facts(rule="token_rejection")) for k in (1, 2, 3, 4)),
        *tree_verifiers,
        Step("reference.coupled_races.k2", _races_of(2), 2, Facts(rule="coupled_races")),
        *(family_step(name, 2) for name in ROUNDS),
    ),
)

medusa = family_subject("medusa")
medusa_tree = family_subject("medusa_tree")
medusa_sampled_tree = family_subject("medusa_sampled_tree")
prompt_lookup = family_subject("prompt_lookup", "one_hot_draft")
early_exit = family_subject("early_exit")
feature_layer = family_subject("feature_layer")
adaptive_k = family_subject("aligned", k="adaptive")
typical_acceptance = family_subject("medusa", "typical_acceptance")
"""Lossy by design, and expected to be refuted."""
