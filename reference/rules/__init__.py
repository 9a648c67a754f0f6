"""Which lossless verification rules there are: one module each, with NAME, SOURCE and verify in it.

``verify(draft_tokens (B, K) int64, draft_probs (B, K, V), target_probs (B, K+1, V), noise) -> Emitted`` judges one
round. Row j of the draft laws is the one that drafted token j; row j of the target laws is the law of the same place,
row K that after the last drafted token. What is emitted is ``accepted`` drafted tokens and one more: tokens (B, K+1)
padded with -1, counts (B,) = accepted + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar, cast

from torch import Tensor

from reference.noise import Noise
from reference.rules import (
    block_verification,
    coupled_races,
    greedy,
    one_hot_draft,
    sample_and_match,
    token_rejection,
    typical_acceptance,
)
from specverify.subjects import Emitted

T = TypeVar("T")


class Rule(Protocol):
    """What a rule's module offers."""

    NAME: str
    SOURCE: str

    def verify(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Noise) -> Emitted:
        """Judge one round."""
        ...


_MODULES = (token_rejection, sample_and_match, block_verification, one_hot_draft, greedy)
RULES: dict[str, Rule] = {m.NAME: cast("Rule", m) for m in _MODULES}
RACES: dict[str, Rule] = {coupled_races.NAME: cast("Rule", coupled_races)}
"""Rules that judge drafts chosen by :class:`reference.noise.RacingNoise`."""
LOSSY_RULES: dict[str, Rule] = {typical_acceptance.NAME: cast("Rule", typical_acceptance)}
"""Rules that change the law by design; they are here to be refuted."""


def found(kind: str, name: str, rules: Mapping[str, T]) -> T:
    """The entry called ``name``. Errors: ValueError that lists the names there are."""
    if name not in rules:
        raise ValueError(f"there is no {kind} {name!r}; there are {', '.join(rules)}")
    return rules[name]


def rule_named(name: str) -> Rule:
    """Return the rule called ``name``, lossless or not. Errors: ValueError that lists the rules there are."""
    return found("rule", name, RULES | RACES | LOSSY_RULES)
