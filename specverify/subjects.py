"""What can be plugged in: verification steps, whole steps, decoders.

Five kinds exist. A *verifier* judges drafted tokens given both laws; a *tree verifier* (:mod:`specverify.trees`) judges
several drafts at once. A *step* drafts and verifies one round with models it is given. A *decoder* generates text with models
of its own; where its target law is not known it is run *on and off* (:mod:`specverify.unknown_law`). Their protocols are below;
:func:`verifier`, :func:`step` and :func:`decoder` wrap plain functions and objects. How their output is read stands in
:mod:`specverify.outputs`, how they are found by name in :mod:`specverify.loading`.

This module is the only one a decoder needs to import, and even that is optional: an object with the right methods will do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload, runtime_checkable

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.given import Hands, Numbers, handed, read_given
from specverify.outputs import (
    Emitted,
    Generated,
    checked_log_probs,
    naming_inputs,
    normalise_emitted,
    normalise_generated,
)
from specverify.requests import Request, Serving
from specverify.timeable import Timeable

if TYPE_CHECKING:
    from specverify.trees import TreeVerifier
    from specverify.unknown_law import OnOff

__all__ = [
    "DTYPES",
    "Decoder",
    "DecoderLike",
    "Emitted",
    "Facts",
    "Generated",
    "Model",
    "Request",
    "Serving",
    "Step",
    "Subject",
    "Timeable",
    "Verifier",
    "checked_log_probs",
    "decoder",
    "facts_from",
    "naming_inputs",
    "normalise_emitted",
    "normalise_generated",
    "step",
    "verifier",
]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Facts:
    """What a subject declares about itself; every fact is optional.

    rule: name of the verification rule. max_k: most draft tokens per round. max_batch: most rows per call (None: any).
    dtype: precision of the laws it is handed and judged in (for a decoder: of the models handed to build). seeded: the same
    seed gives the same tokens. batch_invariant: a seeded request that is served (see :class:`~specverify.requests.Serving`)
    gets the same tokens, to the last one, whatever else is in its batch. lossy: the rule changes the law by
    design; it is then expected to be refuted. logit_tolerance: how far its logits may lie from those of target_log_probs by
    rounding, for an engine in half precision against a float32 reference; sampled tokens then refute only what lies outside.
    drafts: most tokens that a decoder drafts for one position; the bounds on accepted counts hold for one. drafts_as_given:
    its drafts are drawn from the laws of the draft it is handed (or that its draft_log_probs tells); False for n-grams, heads
    on hidden states and other drafts of its own, for which the bounds on accepted counts then say nothing.
    """

    rule: str | None = None
    max_k: int | None = None
    max_batch: int | None = None
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float64"
    seeded: bool = True
    batch_invariant: bool = True
    lossy: bool = False
    logit_tolerance: float = 0.0
    drafts: int = 1
    drafts_as_given: bool = True

    def __post_init__(self) -> None:
        if self.drafts < 1:
            raise SubjectError(f"drafts={self.drafts} is not known; give the most tokens drafted for one position, 1 or more")
        if not 0 <= self.logit_tolerance < 1:
            raise SubjectError(
                f"logit_tolerance={self.logit_tolerance} is not known; give the largest error, from 0 to below 1"
            )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The declared precision as a torch dtype."""
        return DTYPES[self.dtype]


class Model(Protocol):
    """A model handed to a step or to a decoder factory: ids (B, T) int64 -> logits (B, T, V).

    Row t of the result is the log-law of the token that follows ``ids[:, : t + 1]``; T is at least 1.
    """

    vocab_size: int

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for ids (B, T)."""
        ...


@runtime_checkable
class DecoderLike(Protocol):
    """A decoder: generates with speculation, and tells the law it should have followed.

    Optional attributes: ``eos_id`` (rows stop there; what follows in the result must be ``eos_id`` or -1),
    ``prompts`` ((N, T) ids that suit the models), ``draft_log_probs`` (like ``target_log_probs``), ``serve`` and
    ``target_log_probs_at`` (requests that differ, see :class:`~specverify.requests.Serving`).
    """

    vocab_size: int

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor | Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T)."""
        ...

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) after all processors: row t is the law of the token that follows ``ids[:, : t + 1]``."""
        ...


def takes_arguments(name: str, function: Callable[..., Any], count: int, called_with: str) -> None:
    """Refuse a function that cannot be called with ``count`` arguments. Errors: SubjectError naming file and line."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in another language
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        raise SubjectError(f"{name}{signature}{where}: {error}; it is called with {called_with}") from None


def verifier_arguments(given: Sequence[Numbers]) -> str:
    """What a verifier is called with, in words."""
    names = ", ".join(["draft_tokens", "draft_probs", "target_probs", *(one.name for one in given)])
    return f"({names})" + ("" if given else "; random numbers that it takes as arguments are declared with given=")


@dataclass(frozen=True, eq=False)
class Verifier:
    """One verification step: ``verify(draft_tokens (B,K) int64, draft_probs (B,K,V), target_probs (B,K+1,V), *numbers)``.

    It draws its own randomness, or takes it as further arguments, those that ``given`` lists, in that order. It returns
    anything :func:`normalise_emitted` reads.
    """

    name: str
    verify: Callable[..., Any]
    facts: Facts = field(default_factory=Facts)
    given: tuple[Numbers, ...] = ()

    kind = "verifier"

    def __post_init__(self) -> None:
        takes_arguments(self.name, self.verify, 3 + len(self.given), verifier_arguments(self.given))

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        numbers: Sequence[Tensor] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Emitted:
        """Run the step on copies of its inputs and read what it returned.

        ``numbers`` are the random numbers it asks for, one tensor (B, ...) for each entry of ``given``; without them they
        are drawn here, in the declared precision, from ``generator`` or torch's global stream. Errors: SubjectError.
        """
        dtype = self.facts.torch_dtype
        (B, K), V = draft_tokens.shape, target_probs.shape[-1]
        if numbers is None:
            numbers = [one.draw(B, K, V, dtype, generator) for one in self.given]
        elif len(numbers) != len(self.given):
            raise SubjectError(f"{self.name} takes {len(self.given)} tensors of random numbers, got {len(numbers)}")
        else:
            numbers = [x.clone() for x in numbers]
        known = {f"given {n.name}": x for n, x in zip(self.given, numbers, strict=True) if type(x) is Tensor}
        with naming_inputs(self.name, draft_tokens=draft_tokens, draft_probs=draft_probs, target_probs=target_probs, **known):
            laws = (draft_probs.to(dtype, copy=True), target_probs.to(dtype, copy=True))
            raw = self.verify(draft_tokens.clone(), *laws, *numbers)
            return normalise_emitted(raw, B, K, V, self.name)


@dataclass(frozen=True, eq=False)
class Step:
    """One round with drafting inside: ``step(target, draft, prefix (B,T))`` with models given by specverify.

    ``k`` is the number of tokens the step drafts.
    """

    name: str
    step: Callable[[Model, Model, Tensor], Any]
    k: int
    facts: Facts = field(default_factory=Facts)

    kind = "step"

    def __post_init__(self) -> None:
        takes_arguments(self.name, self.step, 3, "(target, draft, prefix)")

    def __call__(self, target: Model, draft: Model, prefix: Tensor) -> Emitted:
        """Run one round on a copy of the prefix and read what it returned."""
        with naming_inputs(self.name, prefix=prefix):
            raw = self.step(target, draft, prefix.clone())
            return normalise_emitted(raw, prefix.shape[0], self.k, target.vocab_size, self.name)


@dataclass(frozen=True, eq=False)
class Decoder:
    """A whole decoder.

    open() builds it with its own models. build(target, draft, k, eos_id), when given, builds the same decoder over models
    handed in, which lets the exact engine run it. parts are verifiers, steps and tree
    verifiers of the same decoder, certified apart. serves: what open() returns serves requests that differ, see
    :class:`~specverify.requests.Serving`; it is said here because tests are planned before anything is opened.
    """

    name: str
    open: Callable[[], DecoderLike] | None = None
    build: Callable[..., DecoderLike] | None = None
    facts: Facts = field(default_factory=Facts)
    parts: tuple[Verifier | Step | TreeVerifier, ...] = ()
    serves: bool = False

    kind = "decoder"


Subject: TypeAlias = "Verifier | Step | Decoder | TreeVerifier | OnOff"


@overload
def verifier(function: Callable[..., Any], **options: Any) -> Verifier: ...


@overload
def verifier(
    function: None = None,
    *,
    name: str | None = None,
    takes: Literal["probs", "logits"] = "probs",
    counts: Literal["emitted", "accepted"] = "emitted",
    given: str | Mapping[str, str] | None = None,
    hands: Hands = "torch",
    **facts: Any,
) -> Callable[[Callable[..., Any]], Verifier]: ...


def verifier(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    takes: Literal["probs", "logits"] = "probs",
    counts: Literal["emitted", "accepted"] = "emitted",
    given: str | Mapping[str, str] | None = None,
    hands: Hands = "torch",
    **facts: Any,
) -> Verifier | Callable[[Callable[..., Any]], Verifier]:
    """Decorate ``f(draft_tokens, draft_probs, target_probs)`` as a :class:`Verifier`; keywords are :class:`Facts`.

    takes="logits" hands log-probabilities instead of probabilities. counts="accepted" says that in a returned pair
    ``(tokens, counts)`` the counts are of accepted tokens, one less than emitted.

    given: random numbers that the function takes as further arguments instead of drawing any. "uniforms" are (B, K+1),
    "exponentials" (B, K+1, V), "uniforms and exponentials" both; a mapping names other ones, in the order of the arguments,
    for instance ``{"coins": "uniforms (B, K)", "final_coin": "uniforms (B,)", "noise": "exponentials (B, V)"}``.
    hands: "torch", "numpy" or "lists", what all arguments are handed as. Errors: SubjectError when these cannot be read.
    """
    numbers = read_given(given)
    declared = facts_from(facts)
    if hands not in ("torch", "numpy", "lists"):
        raise SubjectError(f"hands={hands!r} is not known; choose torch, numpy or lists")
    if hands == "numpy" and declared.dtype == "bfloat16":
        raise SubjectError("numpy has no bfloat16; declare another dtype, or take torch tensors or lists")

    def wrap(f: Callable[..., Any]) -> Verifier:
        takes_arguments(name or f.__name__, f, 3 + len(numbers), verifier_arguments(numbers))

        def adapted(tokens: Tensor, draft: Tensor, target: Tensor, *noise: Tensor) -> Any:
            laws = (draft.log(), target.log()) if takes == "logits" else (draft, target)
            raw = f(*(handed(x, hands) for x in (tokens, *laws, *noise)))
            if counts == "emitted":
                return raw
            ids, accepted = raw
            return ids, torch.as_tensor(accepted).reshape(-1) + 1

        plain = takes == "probs" and counts == "emitted" and hands == "torch"
        return Verifier(name or f.__name__, f if plain else adapted, declared, numbers)

    return wrap if function is None else wrap(function)


def step(k: int, *, name: str | None = None, **facts: Any) -> Callable[[Callable[..., Any]], Step]:
    """Decorate ``f(target, draft, prefix)`` as a :class:`Step` that drafts ``k`` tokens; keywords are :class:`Facts`."""

    def wrap(f: Callable[..., Any]) -> Step:
        return Step(name or f.__name__, f, k, facts_from(facts))

    return wrap


def decoder(instance: DecoderLike, *, name: str | None = None, **facts: Any) -> Decoder:
    """Wrap an object with ``vocab_size``, ``generate`` and ``target_log_probs`` as a :class:`Decoder`."""
    serves = isinstance(instance, Serving)
    return Decoder(name or type(instance).__name__, lambda: instance, facts=facts_from(facts), serves=serves)


def facts_from(given: Mapping[str, Any]) -> Facts:
    """Facts from keywords. Errors: SubjectError that lists the known facts."""
    try:
        return Facts(**given)
    except TypeError as error:
        known = ", ".join(Facts.__dataclass_fields__)
        raise SubjectError(f"unknown fact about the subject: {error}; known facts are {known}") from None
