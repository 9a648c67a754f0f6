"""What must a decoder offer to be timed? Baselines, speculation at every K, and the phases of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from specverify.outputs import Generated


@runtime_checkable
class Timeable(Protocol):
    """What the timing suite needs of a decoder: found as the optional attribute ``timing`` of a
    :class:`~specverify.subjects.DecoderLike`.

    Further members are used where present; without one, what it would have told is missing from the record, which says so:

    - ``at(temperature: float) -> Timeable``: the same decoder at another temperature, 0 being greedy.
    - ``on(device: str) -> Timeable``: the same decoder on a device such as "cuda", over models large enough to be bound by it.
    - ``exact_acceptance(prompts (B, T), made: Generated, *, draft, k) -> Tensor (B, R, K)``: for each round of what was
      generated, the probability with which the draft at each position is accepted, given all before it, the draft itself not
      (1 - TV of the two laws there, for token rejection). Anything, such as NaN, where no draft was tested.
    - ``memory(batch: int, length: int) -> dict[str, int]``: bytes of the caches of ``batch`` rows of ``length`` tokens.
    - ``has_cache: bool``: False for a decoder without a KV cache; only the uncached baseline is then asked for.
    - ``ks: tuple[int, ...]``: the K that can be run, where those are not all of 1..max_k.
    """

    drafts: tuple[str, ...]
    """Names of the drafts that can be used, the best one first (for instance "aligned", "mismatched", "adversarial")."""
    max_k: int

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, max_new_tokens) with the target alone, with or without a KV cache; an end of text is ignored."""
        ...

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Generate (B, max_new_tokens >= 1) with speculation, an end of text ignored; the result reports accepted counts per
        round.
        """
        ...

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Ready-to-time calls: "target" one cached target step, "draft" one cached draft step, "verify" one target pass over
        K+1 tokens, "accept" the rule alone on tensors of the right shape. Calling one repeatedly must not grow the cache.

        Where they can be told apart also "cache", what taking tokens back costs a round, and "loop", the bookkeeping of a round
        around all these. An empty dict says that phases cannot be told apart; nothing is then predicted.
        """
        ...
