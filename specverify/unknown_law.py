"""What can be plugged in when the target law is not known? A decoder that can be run with speculation and without.

Many engines tell no log-probabilities, or tell them wrongly under speculation, but speculation can be switched off. What is
judged then is whether both modes write alike. :func:`on_off` makes such a subject of two functions, or of an object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor

from specverify.errors import SubjectError
from specverify.opening import check_vocab_size
from specverify.subjects import Facts, Generated, facts_from, takes_arguments

NEEDED = ("vocab_size", "generate", "baseline")


@runtime_checkable
class OnOffLike(Protocol):
    """A decoder that generates with speculation and without; the law of either is unknown.

    Optional attributes: ``eos_id`` (rows stop there; what follows in the result must be ``eos_id`` or -1) and ``prompts``
    ((N, T) ids that suit the models).
    """

    vocab_size: int

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor | Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T), with speculation."""
        ...

    def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor | Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T), the target alone."""
        ...


@dataclass(frozen=True, eq=False)
class OnOff:
    """A decoder judged by comparing speculation on against off; open() builds it with its models (:class:`OnOffLike`)."""

    name: str
    open: Callable[[], OnOffLike]
    facts: Facts = field(default_factory=Facts)

    kind = "decoder, on and off"

    def __post_init__(self) -> None:
        if self.facts.logit_tolerance:
            raise SubjectError(
                f"{self.name}: logit_tolerance says how far from a known law rounding may lead; on against off knows none, "
                "leave it out"
            )

    def opened(self) -> OnOffLike:
        """Build it and look whether everything is there. Errors: SubjectError naming what is missing."""
        found = self.open()
        if missing := [n for n in NEEDED if not hasattr(found, n)]:
            raise SubjectError(
                f"{self.name} opens to a {type(found).__name__} that has no {' and no '.join(missing)}; on against off needs "
                "vocab_size, generate(prompts, max_new_tokens, seed) and baseline(prompts, max_new_tokens, seed)"
            )
        check_vocab_size(found.vocab_size, self.name, least=2)
        return found


@dataclass(eq=False)
class _Functions:
    """Two plain functions as an :class:`OnOffLike`."""

    on: Callable[[Tensor, int, int], Any]
    off: Callable[[Tensor, int, int], Any]
    vocab_size: int
    eos_id: int | None
    prompts: Tensor | None

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Any:
        return self.on(prompts, max_new_tokens, seed)

    def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Any:
        return self.off(prompts, max_new_tokens, seed)


def on_off(
    generate: Callable[[Tensor, int, int], Any] | OnOffLike,
    baseline: Callable[[Tensor, int, int], Any] | None = None,
    *,
    vocab_size: int | None = None,
    eos_id: int | None = None,
    prompts: Tensor | None = None,
    name: str | None = None,
    **facts: Any,
) -> OnOff:
    """Make an :class:`OnOff` of two functions ``f(prompts (B, T), max_new_tokens, seed)``, or of one object that has both.

    Two functions need ``vocab_size``; an object brings its own, with ``eos_id`` and ``prompts``. Further keywords are
    :class:`~specverify.subjects.Facts`. Errors: SubjectError when something is missing.
    """
    declared = facts_from(facts)
    if baseline is None:
        if not hasattr(generate, "generate"):
            raise SubjectError("on_off needs the decoder without speculation too: on_off(generate, baseline, vocab_size=...)")
        return OnOff(name or type(generate).__name__, lambda: cast("OnOffLike", generate), declared)
    if vocab_size is None:
        raise SubjectError("on_off needs the number of token ids of two functions: on_off(generate, baseline, vocab_size=...)")
    size, on, off = vocab_size, cast("Callable[[Tensor, int, int], Any]", generate), baseline
    for function in (on, off):
        if not callable(function):
            raise SubjectError(f"on_off takes two functions, or one object that has both, not {type(function).__name__}")
        takes_arguments(getattr(function, "__name__", "on_off"), function, 3, "(prompts, max_new_tokens, seed)")

    def opening() -> OnOffLike:
        return _Functions(on, off, size, eos_id, prompts)

    return OnOff(name or str(getattr(on, "__name__", "on_off")), opening, declared)
