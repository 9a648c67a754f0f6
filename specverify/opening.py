"""What does a decoder bring along once it is opened? Its number of token ids and its prompts, looked at or refused clearly."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from specverify.errors import SubjectError


def check_vocab_size(size: object, name: str, least: int = 1) -> int:
    """The number of token ids as an int. Errors: SubjectError when it is no int (of Python or numpy) of at least ``least``."""
    if isinstance(size, bool) or not isinstance(size, Integral) or size < least:
        raise SubjectError(f"{name} has vocab_size = {size!r}; give the number of token ids, an int of at least {least}")
    return int(size)


def read_prompts(own: object, vocab_size: int, name: str) -> Tensor:
    """A decoder's own prompts (N, T) as ids. Errors: SubjectError."""
    try:
        prompts = torch.as_tensor(own)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SubjectError(f"{name}.prompts cannot be read as ids (N, T) of one length: {error}") from None
    kind = prompts.dtype
    no_ids = kind == torch.bool or kind.is_floating_point or kind.is_complex
    if prompts.dim() != 2 or 0 in prompts.shape or no_ids:
        raise SubjectError(
            f"{name}.prompts has shape {tuple(prompts.shape)} and dtype {kind}; give ids (N, T), at least one prompt of "
            "at least one token"
        )
    if prompts.min() < 0 or prompts.max() >= vocab_size:
        raise SubjectError(f"{name}.prompts holds ids outside 0..{vocab_size - 1}")
    return prompts.long().cpu()


def check_opened(decoder: object, name: str) -> None:
    """Look at what every test on a decoder's own models relies on. Errors: SubjectError naming the attribute that is wrong."""
    size = check_vocab_size(getattr(decoder, "vocab_size", None), name)
    own = getattr(decoder, "prompts", None)
    if own is not None:
        read_prompts(own, size, name)
