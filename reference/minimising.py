"""How a network is trained: AdamW with a warm-up and a linear decline, on batches that a seeded generator picks.

What it learns is either to foresee the next token of a text, or another model's laws: :func:`disagreement`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import trange

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Recipe:
    """One training: ``steps`` batches of ``rows`` windows of ``length`` tokens."""

    steps: int
    learning_rate: float
    rows: int = 16
    length: int = 128
    warm_up: int = 50
    weight_decay: float = 0.05


def minimise(
    net: Net,
    groups: list[dict[str, Any]],
    recipe: Recipe,
    loss: Callable[[Tensor, float], Tensor],
    places: int,
    seed: int,
    label: str = "",
) -> Net:
    """Minimise ``loss(starts (rows,), progress)`` over parameter groups; progress runs from 0 to 1, starts lie in
    0..places-1. Returns the network, ready to decode.
    """
    picks = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / recipe.warm_up, 1.0) * (1.02 - step / recipe.steps)
    )
    bar = trange(recipe.steps, desc=label, disable=not sys.stderr.isatty())
    for step in bar:
        value = loss(torch.randint(places, (recipe.rows,), generator=picks), step / recipe.steps)
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{value.item():.3f}")
    return net.eval().requires_grad_(False)


def disagreement(logits: Tensor, p: Tensor, progress: float) -> Tensor:
    """Return the mean distance of drafted laws from p (..., V): the Kullback-Leibler divergence in the first half of a
    training, then the total variation distance, which is one minus the acceptance.
    """
    if progress < 0.5:
        return functional.kl_div(logits.log_softmax(-1), p, reduction="none").sum(-1).mean()
    return (p - logits.softmax(-1)).abs().sum(-1).mean() / 2
