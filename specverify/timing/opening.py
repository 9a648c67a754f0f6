"""Which decoder is to be timed, and on which prompts? A subject is opened and its ``timing`` checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.randomness import stream
from specverify.subjects import Decoder, Subject, Timeable

RANDOM_PROMPTS = (8, 16)
"""Prompts and tokens per prompt for decoders that name none of their own."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A subject ready to be timed: prompts (N, T) int64."""

    name: str
    timing: Timeable
    prompts: Tensor
    max_batch: int | None = None


def open_timeable(subject: Subject, seed: int = 0) -> Opened:
    """Open the subject's own models and find its ``timing``.

    Errors: SubjectError when it is no decoder, cannot be opened, or has no usable ``timing``.
    """
    name = subject.name
    if not isinstance(subject, Decoder) or subject.open is None:
        what = "decoder without models of its own" if isinstance(subject, Decoder) else subject.kind
        raise SubjectError(f"{name} is a {what}: only a decoder that can be opened can be timed")
    try:
        decoder = subject.open()
    except Exception as error:
        raise SubjectError(f"opening {name} failed: {type(error).__name__}: {error}") from error
    timing = getattr(decoder, "timing", None)
    if timing is None:
        raise SubjectError(
            f"{name} has no attribute 'timing', so it cannot be timed: give its decoder one with drafts, max_k, "
            "baseline, speculative and phases (specverify.subjects.Timeable)"
        )
    lacking = [n for n in ("drafts", "max_k", "baseline", "speculative", "phases") if not hasattr(timing, n)]
    if lacking:
        raise SubjectError(f"{name}.timing lacks {', '.join(lacking)}; see specverify.subjects.Timeable")
    if not timing.drafts or timing.max_k < 1:
        raise SubjectError(f"{name}.timing must name at least one draft and have max_k >= 1")
    prompts = getattr(decoder, "prompts", None)
    if prompts is None:
        ids = stream(seed, "timing prompts").integers(0, decoder.vocab_size, RANDOM_PROMPTS)
        prompts = torch.from_numpy(ids)
    prompts = torch.as_tensor(prompts).long()
    if prompts.dim() != 2 or 0 in prompts.shape:
        raise SubjectError(f"{name}.prompts has shape {tuple(prompts.shape)}; expected ids (N, T)")
    return Opened(name, timing, prompts, subject.facts.max_batch)
