"""Which decoder is to be timed, and on which prompts? It is opened, and timed by its timing, build or generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specverify.errors import SubjectError, UsageError
from specverify.opening import check_opened, read_prompts
from specverify.randomness import stream
from specverify.subjects import Decoder, DecoderLike, Subject, Timeable
from specverify.timing.generating import GeneratingTiming
from specverify.timing.supplied import VOCAB_SIZE, SuppliedTiming

RANDOM_PROMPTS = (8, 16)
"""Prompts and tokens per prompt for decoders that name none of their own."""
SUPPLIED = "supplied"
OVER_SUPPLIED = (
    "the decoder has no 'timing': it was built over models that specverify supplies, which have no KV cache, so the baseline "
    "is the target alone without one, and o is a round of the decoder over models that cost nothing. For its own models and "
    "caches give it a 'timing' (specverify.subjects.Timeable)"
)
REQUIRED = ("drafts", "max_k", "baseline", "speculative", "phases")


LARGEST_K = 64
"""Beyond this many drafts per round nothing is swept, whatever a subject can."""


def _nothing() -> list[str]:
    return []


@dataclass(frozen=True, eq=False)
class Opened:
    """A subject ready to be timed: prompts (N, T) int64.

    models: whose models are timed, in words. say: what to note about the measurement once it is done.
    """

    name: str
    timing: Timeable
    prompts: Tensor
    max_batch: int | None = None
    models: str = "its own"
    say: Callable[[], list[str]] = _nothing

    @property
    def ks(self) -> tuple[int, ...]:
        """Every K that can be timed."""
        return tuple(getattr(self.timing, "ks", range(1, min(self.timing.max_k, LARGEST_K) + 1)))

    def on(self, device: str) -> Opened:
        """Return the same decoder on a device, such as "cuda"; one that cannot be moved is taken to be on the CPU already.

        Errors: UsageError where there is no such device, SubjectError where the decoder cannot be moved there.
        """
        wanted = torch.device(device)
        if wanted.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"there is no CUDA device for --device {device}; leave the option out to time on the CPU")
        if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"there is no {device}; the last CUDA device here is cuda:{torch.cuda.device_count() - 1}")
        moved = getattr(self.timing, "on", None)
        if moved is None and wanted.type == "cpu":
            return self
        if moved is None:
            raise SubjectError(
                f"{self.name}.timing cannot be moved to {device}: give it on(device), which returns a Timeable there, over "
                "models large enough to be bound by the device"
            )
        name = f"{self.name}.timing.on({device!r})"
        try:
            there = moved(device)
        except Exception as error:  # too little memory, for one
            raise SubjectError(f"{name} failed: {type(error).__name__}: {error}") from error
        # Over supplied models ids stay on the host, where every decoder with a build takes them.
        prompts = self.prompts if self.models == SUPPLIED else self.prompts.to(device)
        return replace(self, timing=_checked(there, name), prompts=prompts)


def open_timeable(subject: Subject, seed: int = 0) -> Opened:
    """Open the subject and find how it can be timed: by its ``timing``, else over supplied models, else as it generates.

    Errors: SubjectError when it is no decoder, cannot be opened, or has no usable ``timing``.
    """
    name = subject.name
    if not isinstance(subject, Decoder) or (subject.open is None and subject.build is None):
        raise SubjectError(f"{name} is a {subject.kind}: only a decoder has a speed of its own")
    decoder = None if subject.open is None else _opened(subject)
    timing = getattr(decoder, "timing", None)
    most = subject.facts.max_batch
    if decoder is not None and timing is not None:
        return Opened(name, _checked(timing, f"{name}.timing"), _prompts(decoder, decoder.vocab_size, name, seed), most)
    if subject.build is not None:
        prompts = _prompts(None, VOCAB_SIZE, name, seed)
        return Opened(name, SuppliedTiming(subject), prompts, most, SUPPLIED, _supplied_notes)
    assert decoder is not None
    prompts = _prompts(decoder, decoder.vocab_size, name, seed)
    generating = GeneratingTiming(name, decoder, prompts, subject.facts.max_k)
    return Opened(name, generating, prompts, most, "its own", generating.notes)


def _supplied_notes() -> list[str]:
    return [OVER_SUPPLIED]


def _opened(subject: Decoder) -> DecoderLike:
    assert subject.open is not None
    try:
        decoder = subject.open()
    except Exception as error:
        raise SubjectError(f"opening {subject.name} failed: {type(error).__name__}: {error}") from error
    check_opened(decoder, subject.name)
    return decoder


def _checked(timing: Any, name: str) -> Timeable:
    lacking = [n for n in REQUIRED if not hasattr(timing, n)]
    if lacking:
        raise SubjectError(f"{name} lacks {', '.join(lacking)}; see specverify.subjects.Timeable")
    drafts, most = timing.drafts, timing.max_k
    if not isinstance(drafts, (tuple, list)) or not drafts or not all(isinstance(draft, str) for draft in drafts):
        raise SubjectError(f"{name} must name at least one draft, as a tuple of strings; got {drafts!r}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SubjectError(f"{name} must have a whole number max_k >= 1; got {most!r}")
    ks = getattr(timing, "ks", (1,))
    if not isinstance(ks, (tuple, list)) or not ks or not all(isinstance(k, int) and k >= 1 for k in ks):
        raise SubjectError(f"{name}.ks must be a tuple of whole numbers from 1 on, or not be there; got {ks!r}")
    checked: Timeable = timing
    return checked


def _prompts(decoder: object, vocab_size: int, name: str, seed: int) -> Tensor:
    own = getattr(decoder, "prompts", None)
    if own is not None:
        return read_prompts(own, vocab_size, name)
    return torch.from_numpy(stream(seed, "timing prompts").integers(0, vocab_size, RANDOM_PROMPTS))
