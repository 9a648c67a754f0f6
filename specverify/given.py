"""Which random numbers does a subject ask for? Their kinds and shapes, how they are drawn, and how they are handed over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness, SubjectError

GRID_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Uniforms handed out are multiples of 2**-bits, each equally likely.

In float64 and float32 these are the numbers of ``torch.rand``. In lower precision torch rounds finer numbers, in a way that
depends on its version; here they are the multiples of the spacing just below 1.
"""

Hands = Literal["torch", "numpy", "lists"]

_SHORT = {
    "uniforms": {"uniforms": "uniforms (B, K+1)"},
    "exponentials": {"exponentials": "exponentials (B, K+1, V)"},
    "uniforms and exponentials": {"uniforms": "uniforms (B, K+1)", "exponentials": "exponentials (B, K+1, V)"},
}
_FORM = re.compile(r"(uniforms|exponentials) \(B((?:, ?(?:K\+1|K|V))*),?\)")


@dataclass(frozen=True)
class Numbers:
    """One argument of independent random numbers: uniforms on [0, 1), or exponentials of mean 1, which are positive.

    sizes: the dimensions behind the row, each "K", "K+1" or "V". The last dimension of exponentials is V: they are the
    clocks of a race between tokens.
    """

    name: str
    kind: Literal["uniforms", "exponentials"]
    sizes: tuple[str, ...]

    def shape(self, k: int, vocab_size: int) -> tuple[int, ...]:
        """Shape of one row's numbers for k drafted tokens."""
        return tuple({"K": k, "K+1": k + 1, "V": vocab_size}[size] for size in self.sizes)

    def draw(self, rows: int, k: int, vocab_size: int, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
        """Fresh numbers (rows, ...) in ``dtype``; without a generator from torch's global stream."""
        shape = (rows, *self.shape(k, vocab_size))
        if self.kind == "uniforms":
            if dtype in (torch.float64, torch.float32):
                return torch.rand(shape, dtype=dtype, generator=generator)
            bits = GRID_BITS[dtype]
            return (torch.randint(2**bits, shape, generator=generator) * 2.0**-bits).to(dtype)
        return torch.empty(shape, dtype=dtype).exponential_(generator=generator)


def read_given(given: str | Mapping[str, str] | None) -> tuple[Numbers, ...]:
    """What ``specverify.verifier(given=...)`` declares. Errors: SubjectError that shows how to write it."""
    if given is None:
        return ()
    if isinstance(given, str):
        if given not in _SHORT:
            raise SubjectError(
                f"given={given!r} is not known; write one of {', '.join(map(repr, _SHORT))}, or a mapping such as "
                '{"coins": "uniforms (B, K)", "noise": "exponentials (B, V)"}'
            )
        given = _SHORT[given]
    return tuple(_read(name, form) for name, form in given.items())


def _read(name: str, form: str) -> Numbers:
    found = _FORM.fullmatch(form)
    if found is None:
        raise SubjectError(
            f"the numbers {name!r} are declared as {form!r}; write the kind, uniforms or exponentials, and the shape, with "
            'dimensions K, K+1 and V behind B, as in "uniforms (B, K+1)" or "exponentials (B, V)"'
        )
    kind, sizes = found[1], tuple(size.strip() for size in found[2].split(",") if size.strip())
    if kind == "exponentials":
        if sizes[-1:] != ("V",):
            raise SubjectError(f"the exponentials {name!r} need V as their last dimension: one clock for every token of a race")
        return Numbers(name, "exponentials", sizes)
    return Numbers(name, "uniforms", sizes)


def handed(value: Tensor, hands: Hands) -> Any:
    """A tensor as the subject wants it: itself, a numpy array, or nested lists of Python numbers.

    Errors: OpaqueRandomness for random numbers that are not known yet, which only torch functions can be followed through.
    """
    if hands == "torch":
        return value
    if type(value) is not Tensor:
        raise OpaqueRandomness(
            f"the code takes {'numpy arrays' if hands == 'numpy' else 'lists'}, which cannot be walked over several rounds; "
            "a single round is judged exactly all the same"
        )
    return value.numpy() if hands == "numpy" else value.tolist()
