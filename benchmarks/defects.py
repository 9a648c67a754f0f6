"""What else goes wrong in a round? Token rejection with one thing wrong each, none of it in the catalogue of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specverify.laws import Pair, TableModel

K = 3
"""Draft tokens per round."""


def positive(pair: Pair) -> Pair:
    """The pair without zeros, so that no defect is given away by an impossible token."""
    return Pair(
        *(TableModel((m.laws + 0.02) / (1 + 0.02 * pair.vocab_size)) for m in (pair.target, pair.draft)),
        pair.k,
        pair.prompt,
        pair.name,
    )


class Defect:
    """Token rejection over batches, every part of which can be replaced.

    without: faults of the catalogue that are not bet on while this is tried. together: rows or rounds depend on each other.
    alike: code of the same law that is shorter to follow exactly.
    """

    def __init__(
        self,
        name: str,
        *,
        without: Sequence[str] = (),
        together: bool = False,
        alike: Defect | None = None,
        **parts: Callable[..., Any],
    ) -> None:
        self.name, self.without, self.together, self.alike, self.parts = name, without, together, alike, parts

    def __call__(self, tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """One round: tokens (B, K), q (B, K, V), p (B, K+1, V) -> emitted (B, K+1), counts (B,)."""
        rows, k = tokens.shape
        part = self.parts
        px, qx = (x.gather(2, tokens[..., None])[..., 0] for x in (p[:, :k], q))
        u = torch.rand(rows, k, dtype=p.dtype)
        u = part["uniforms"](u) if "uniforms" in part else u
        accept = part["accept"](u, px, qx) if "accept" in part else u * qx < px
        counts = accept.long().cumprod(1).sum(1)
        left = (p[:, :k] - q).clamp(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, p[:, :k])
        left = part["residual"](left, p[:, :k]) if "residual" in part else left
        bonus = part["bonus"](p) if "bonus" in part else p[:, k]
        weights = torch.cat([left, bonus[:, None]], 1)[torch.arange(rows), counts]
        last = part["choose"](weights, u) if "choose" in part else torch.multinomial(weights, 1)[:, 0]
        out = torch.where(torch.arange(k + 1) < counts[:, None], torch.nn.functional.pad(tokens, (0, 1)), last[:, None])
        out = part["after"](out, counts) if "after" in part else out
        return out, counts + 1


def _leak(share: float, token: int) -> Callable[[Tensor, Tensor], Tensor]:
    def after(out: Tensor, counts: Tensor) -> Tensor:
        hit = torch.rand(len(out)) < share
        last = torch.arange(out.shape[1]) == counts[:, None]
        return torch.where(hit[:, None] & last, token, out)

    return after


def _fixed(rows_alike: bool) -> Callable[..., Tensor]:
    noise = torch.Generator()

    def uniforms(u: Tensor) -> Tensor:
        if rows_alike:
            return u[:1].expand(u.shape)
        noise.manual_seed(3)
        return torch.rand(u.shape, dtype=u.dtype, generator=noise)

    return uniforms


def _coarse(steps: int) -> Defect:
    """Uniforms on a grid; a draft is then accepted as if its ratio were rounded up to the grid."""
    bits = steps.bit_length() - 1
    alike = Defect("rounded ratios", accept=lambda u, p, q: u < (p / q * steps).ceil() / steps)
    return Defect(f"uniforms of {bits} bits", uniforms=lambda u: (u * steps).floor() / steps, alike=alike)


def _of_the_row_beside(left: Tensor, _p: Tensor) -> Tensor:
    return left.roll(1, 0)


def _sometimes_the_target(left: Tensor, p: Tensor) -> Tensor:
    return torch.where(torch.rand(len(left), 1, 1) < 0.1, p, left / left.sum(-1, keepdim=True))


def _inverted(weights: Tensor, u: Tensor) -> Tensor:
    """The last token by inverting its law at the uniform of the first draft."""
    cumulative = (weights / weights.sum(1, keepdim=True)).cumsum(1)
    return (cumulative <= u[:, :1]).sum(1).clamp(max=weights.shape[1] - 1)


DEFECTS = (
    Defect("accepts 3 % too often", accept=lambda u, p, q: u * q < 1.03 * p),
    Defect("accepts 10 % too often", accept=lambda u, p, q: u * q < 1.1 * p),
    _coarse(256),
    _coarse(16),
    Defect("1 % of last tokens are token 0", after=_leak(0.01, 0)),
    Defect("0.1 % of last tokens are token 0", after=_leak(0.001, 0)),
    Defect("the residual of the row beside", together=True, residual=_of_the_row_beside),
    Defect("bonus from the row before", bonus=lambda p: p[:, -2]),
    Defect("bonus is argmax", bonus=lambda p: torch.nn.functional.one_hot(p[:, -1].argmax(1), p.shape[2]).to(p.dtype)),
    Defect(
        "recovers from p, 1 time in 10",
        without=("resample_from_target", "k_tries"),
        residual=_sometimes_the_target,
    ),
    Defect("the coin of the first draft chooses the last token", choose=_inverted),
    Defect("all rows toss the same coins", together=True, uniforms=_fixed(rows_alike=True)),
    Defect("every round replays its coins", together=True, uniforms=_fixed(rows_alike=False)),
)
