"""What goes wrong between a right rule and its inputs? Laws that were filtered, tempered, shifted; one coin for all.

The shape of every rule is that of :mod:`specverify.faults.rules`. The laws p that a rule is handed are those after all
processors, as everywhere; an engine that forgets the temperature T at some rows uses there the raw law, which is p^T
normalised. So the right target stays p, and no check has to know of temperatures. Top-p cannot be undone in this way: a
decoder that forgets it is case C13 of :mod:`specverify.faults.cases`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specverify.faults.laws import TEMPERATURE, TOP_K
from specverify.faults.rounds import at, draft_round, draw, finish, residual, token_rejection, with_bonus
from specverify.subjects import Model

Output = tuple[Tensor, Tensor]


def tempered(laws: Tensor, power: float) -> Tensor:
    """Laws (..., V) raised to a power and normalised: a temperature T is the power 1 / T, undoing it the power T."""
    powers = laws**power
    return powers / powers.sum(-1, keepdim=True)


def filtered(laws: Tensor, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Laws (..., V) restricted to the top_k likeliest tokens, then to the fewest that reach top_p, and normalised.

    Among equals the lower ids are kept; top_k None and top_p 1 keep all.
    """
    likely, ids = laws.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        likely = torch.where(torch.arange(likely.shape[-1]) < top_k, likely, 0.0)
        likely = likely / likely.sum(-1, keepdim=True)
    if top_p < 1:
        likely = torch.where(likely.cumsum(-1) - likely < top_p, likely, 0.0)
    kept = torch.zeros_like(laws).scatter(-1, ids, likely)
    return kept / kept.sum(-1, keepdim=True)


def draft_filtered(
    target: Model, draft: Model, prefix: Tensor, k: int, top_k: int | None = TOP_K, top_p: float = 1.0
) -> Output:
    """Draft from the filtered q but declare the unfiltered one; verify by token rejection.

    A whole round: models as in :class:`specverify.subjects.Model`, prefix (B, T).
    """
    return token_rejection(*draft_round(target, draft, prefix, k, lambda q: draw(filtered(q, top_k, top_p))))


def draft_temperature(
    draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, temperature: float = TEMPERATURE
) -> Output:
    """Take the draft, drawn from q, for one drawn at a temperature: q^(1/T) normalised stands in for q."""
    return token_rejection(draft_tokens, tempered(draft_probs, 1 / temperature), target_probs)


def target_unwarped(
    draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, temperature: float = TEMPERATURE
) -> Output:
    """Verify against the raw law, p^T normalised; the temperature reaches the bonus row only."""
    raw = tempered(target_probs[:, :-1], temperature)
    return token_rejection(draft_tokens, draft_probs, torch.cat([raw, target_probs[:, -1:]], dim=1))


def bonus_unwarped(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, temperature: float = TEMPERATURE) -> Output:
    """Draw the bonus from the raw law, p^T normalised; every other row is right."""
    raw = tempered(target_probs[:, -1:], temperature)
    return token_rejection(draft_tokens, draft_probs, torch.cat([target_probs[:, :-1], raw], dim=1))


def bonus_stale(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Draw the bonus from the row before its own, the law of the last drafted token."""
    return token_rejection(draft_tokens, draft_probs, torch.cat([target_probs[:, :-1], target_probs[:, -2:-1]], dim=1))


def one_uniform(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Output:
    """Judge all drafts of a block with the same uniform."""
    ratio = at(target_probs, draft_tokens) / at(draft_probs, draft_tokens)
    u = torch.rand(len(ratio), 1, dtype=ratio.dtype)
    return finish(draft_tokens, u < ratio.clamp(max=1), with_bonus(residual(draft_probs, target_probs), target_probs))
