"""How the networks that draft from the main model's states were trained: the main model is frozen, its states are data.

``python -m reference.train --only medusa`` (or ``early_exit``, ``feature_layer``) trains one of them. The states and the laws
of the main model along the training text are computed once; what is learned is to foresee its laws, by the
Kullback-Leibler divergence at first and then by the total variation distance, which is one minus the acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.heads import ExitHead, FeatureLayer, MedusaHeads
from reference.minimising import Net, Recipe, disagreement, minimise
from reference.model import Transformer

HEAD_RECIPES = {
    "medusa": Recipe(3000, 4e-3, rows=512, length=1, weight_decay=0.02),
    "early_exit": Recipe(4000, 4e-3, rows=1024, length=1, weight_decay=0.02),
    "feature_layer": Recipe(6000, 3e-3, weight_decay=0.02),
}


@dataclass(frozen=True)
class Along:
    """The main model along a text: ids (T,), its states (T, E) after the early layers and after all, its laws (T, V)."""

    ids: Tensor
    early: Tensor
    hidden: Tensor
    laws: Tensor


@torch.no_grad()
def read_along(main: Transformer, stream: Tensor, early: int, window: int = 256) -> Along:
    """Read a stream (T,) once, in half precision, every place with half a window of context or more."""
    half, width = window // 2, main.shape.width
    states = [torch.empty(len(stream), width, dtype=torch.float16) for _ in range(2)]
    laws = torch.empty(len(stream), main.vocab_size, dtype=torch.float16)
    for start in range(0, len(stream), half):
        begin = max(start - half, 0)
        found = main.states(stream[begin : start + half][None], (early, main.shape.layers))
        for kept, state in zip(states, found, strict=True):
            kept[start : start + half] = state[0, start - begin :].half()
        laws[start : start + half] = main.logits(found[-1])[0, start - begin :].softmax(-1).half()
    return Along(stream, states[0], states[1], laws)


def fit_net(net: Net, recipe: Recipe, loss: Callable[[Net, Tensor, float], Tensor], last: int, label: str, seed: int) -> Net:
    """Minimise ``loss(net, starts (rows,), progress)`` over starts 0..last that a generator seeded with ``seed`` picks."""
    groups = [{"params": list(net.parameters())}]
    return minimise(net, groups, recipe, lambda starts, progress: loss(net, starts, progress), last + 1, seed, label)


def fit_medusa(heads: MedusaHeads, along: Along, recipe: Recipe, seed: int) -> MedusaHeads:
    """Train Medusa heads: head j at a place foresees the law j + 1 places further along the same text."""
    ahead = 1 + torch.arange(len(heads.heads))

    def loss(net: MedusaHeads, places: Tensor, progress: float) -> Tensor:
        hidden, targets = along.hidden[places].float(), along.laws[places[:, None] + ahead].float()  # (P, E), (P, K, V)
        logits = torch.stack([head(hidden) for head in net.heads], 1)
        return disagreement(logits, targets, progress)

    return fit_net(heads, recipe, loss, len(along.ids) - 1 - len(heads.heads), "medusa", seed)


def fit_exit(head: ExitHead, along: Along, recipe: Recipe, seed: int) -> ExitHead:
    """Train a head on the states of an early layer to foresee the law of all layers at the same place."""

    def loss(net: ExitHead, places: Tensor, progress: float) -> Tensor:
        return disagreement(net(along.early[places].float()), along.laws[places].float(), progress)

    return fit_net(head, recipe, loss, len(along.ids) - 1, "early_exit", seed)


def train_head(
    name: str, main: Transformer, net: nn.Module, along: Along, seed: int, recipe: Recipe | None = None
) -> nn.Module:
    """Train one of the networks, started from the main model's own head, embedding and position bias."""
    recipe = recipe or HEAD_RECIPES[name]
    if isinstance(net, MedusaHeads):
        for head in net.heads:
            head.head.load_state_dict(main.head.state_dict())  # type: ignore[union-attr]
        return fit_medusa(net, along, recipe, seed)
    if isinstance(net, ExitHead):
        net.head.load_state_dict(main.head.state_dict())
        return fit_exit(net, along, recipe, seed)
    assert isinstance(net, FeatureLayer)
    net.head.load_state_dict(main.head.state_dict())
    net.embed.load_state_dict(main.embed.state_dict())
    net.distance_bias.data.copy_(main.distance_bias.data)
    return fit_features(net, along, recipe, seed)


def fit_features(layer: FeatureLayer, along: Along, recipe: Recipe, seed: int) -> FeatureLayer:
    """Train the layer on the main model's states, and on its own, since it drafts on from these.

    A place reads its token and the state before it. The second and third reading replace that state by what the reading
    before foresaw, as when drafting the second and third token of a round.
    """
    places = torch.arange(recipe.length)

    def loss(net: FeatureLayer, starts: Tensor, progress: float) -> Tensor:
        at = 1 + starts[:, None] + places  # (rows, length); a place before each is needed
        tokens, before = along.ids[at], along.hidden[at - 1].float()
        wanted, laws = along.hidden[at].float(), along.laws[at].float()
        total = torch.zeros(())
        for weight in (1.0, 0.6, 0.4):
            hidden, logits = net(tokens, before)
            total = total + weight * (disagreement(logits, laws, progress) + 0.1 * functional.smooth_l1_loss(hidden, wanted))
            before = torch.cat([before[:, :1], hidden[:, :-1]], 1)
        return total

    return fit_net(layer, recipe, loss, len(along.ids) - 1 - recipe.length, "feature_layer", seed)


@torch.no_grad()
def top1_of_heads(heads: MedusaHeads, along: Along) -> list[float]:
    """Share of the places of a text at which each head's likeliest token is the one that stands there, (K,)."""
    last = len(along.ids) - 2 - len(heads.heads)
    hidden = along.hidden[:last].float()
    return [
        float((head(hidden).argmax(-1) == along.ids[2 + j : 2 + j + last]).float().mean()) for j, head in enumerate(heads.heads)
    ]


@torch.no_grad()
def mean_overlap(logits: Tensor, laws: Tensor) -> float:
    """Return the mean of sum min(p, q) over places: the acceptance of a draft there."""
    return float(torch.minimum(laws.float(), logits.softmax(-1)).sum(-1).mean())


@torch.no_grad()
def overlaps_of(net: nn.Module, along: Along, drafts: int = 4) -> list[float]:
    """Return the mean acceptance of the first, second .. draft of a round along a text, as far as it can be known there.

    Of Medusa heads and of the layer ``drafts`` numbers; an early exit drafts every place alike, and has one.
    """
    if isinstance(net, ExitHead):
        return [mean_overlap(net(along.early.float()), along.laws)]
    if isinstance(net, MedusaHeads):
        last = len(along.ids) - drafts - 1
        hidden = along.hidden[:last].float()
        return [mean_overlap(net.heads[j](hidden), along.laws[j + 1 : j + 1 + last]) for j in range(drafts)]
    assert isinstance(net, FeatureLayer)
    length = 128
    at = torch.arange(1, len(along.ids) - length, length)[:, None] + torch.arange(length)
    before, found = along.hidden[at - 1].float(), []
    for _ in range(drafts):
        hidden, logits = net(along.ids[at], before)
        found.append(mean_overlap(logits[:, drafts:], along.laws[at][:, drafts:]))
        before = torch.cat([before[:, :1], hidden[:, :-1]], 1)
    return found
