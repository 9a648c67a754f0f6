"""How the weights were made, and how training again gives the same ones.

``python -m reference.train`` trains the three models one after the other on one thread, then the networks that draft from
the states of main, and writes weights and model card; ``python -m reference.train --measure`` only measures the
acceptances of the weights there are and rewrites the card. Everything random follows from the seed; the bits of the result
also depend on the thread count and on the build of torch.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference import weights
from reference.heads import MedusaHeads
from reference.minimising import Recipe, disagreement, minimise
from reference.model import Shape, Transformer
from reference.text import as_stream, codec_source, documentation
from reference.train_heads import HEAD_RECIPES, overlaps_of, read_along, top1_of_heads, train_head

Loss = Callable[[Transformer, Tensor, Tensor, float], Tensor]


FIRST_LAYERS = 20
GROWN = Recipe(steps=400, learning_rate=1.5e-3)
"""Main is trained with FIRST_LAYERS at first, then grown and trained on: that takes half the time of training it whole."""
RECIPES = {
    "main": Recipe(steps=1000, learning_rate=3e-3),
    "aligned": Recipe(steps=4000, learning_rate=4e-3),
    "mismatched": Recipe(steps=800, learning_rate=4e-3),
}


def grown(model: Transformer, layers: int) -> Transformer:
    """Return the same function with more layers, spread evenly: copies of the layer before whose two last matrices are 0,
    so that they add nothing until they are trained (Chen et al. 2016, Net2Net, arXiv 1511.05641, section 3.2).

    Errors: ValueError for fewer layers than there are.
    """
    old = model.shape.layers
    if layers < old:
        raise ValueError(f"the model has {old} layers and cannot be grown to {layers}")
    deeper = Transformer(replace(model.shape, layers=layers))
    sources = [i * old // layers for i in range(layers)]
    for name in ("embed", "head"):
        getattr(deeper, name).load_state_dict(getattr(model, name).state_dict())
    deeper.distance_bias.data.copy_(model.distance_bias.data)
    for i, source in enumerate(sources):
        deeper.blocks[i].load_state_dict(model.blocks[source].state_dict())
        if i > 0 and sources[i - 1] == source:
            for matrix in ("gather", "narrow"):
                torch.nn.init.zeros_(getattr(deeper.blocks[i], matrix).weight)
    return deeper


def fit(
    shape: Shape,
    stream: Tensor,
    recipe: Recipe,
    seed: int,
    loss: Loss,
    label: str = "",
    start: Transformer | None = None,
) -> Transformer:
    """Train a new model of ``shape``, or ``start``, on windows of ``stream`` (T,) that a generator seeded with ``seed`` picks.

    ``loss(model, ids (rows, length+1), starts (rows,), progress)`` is minimised; progress runs from 0 to 1.
    """
    torch.manual_seed(seed)
    model = Transformer(shape) if start is None else start.train().requires_grad_(True)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1 and p is not model.distance_bias]},
        {"params": [model.distance_bias], "weight_decay": 0.0, "lr": 10 * recipe.learning_rate},
    ]

    def value(starts: Tensor, progress: float) -> Tensor:
        return loss(model, stream[starts[:, None] + torch.arange(recipe.length + 1)], starts, progress)

    return minimise(model, groups, recipe, value, len(stream) - recipe.length - 1, seed, label)


def next_token_loss(model: Transformer, ids: Tensor, starts: Tensor, progress: float) -> Tensor:  # noqa: ARG001
    """Return the mean negative log-likelihood, nats per character, of ids (rows, length+1)."""
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def distillation_loss(teacher: Tensor) -> Loss:
    """Make a loss from a teacher's laws (T, V) along the stream: KL at first, later TV, one minus the acceptance."""

    def loss(model: Transformer, ids: Tensor, starts: Tensor, progress: float) -> Tensor:
        logits = model(ids[:, :-1])
        p = teacher[starts[:, None] + torch.arange(ids.shape[1] - 1)].float()
        return disagreement(logits, p, progress)

    return loss


@torch.no_grad()
def laws_along(model: Transformer, stream: Tensor, window: int = 256) -> Tensor:
    """Return the model's next-token laws (T, V) in half precision at every place of the stream, with half a window of
    context or more.
    """
    half = window // 2
    laws = torch.empty(len(stream), model.vocab_size, dtype=torch.float16)
    for start in range(0, len(stream), half):
        begin = max(start - half, 0)
        found = model(stream[begin : start + half][None])[0].softmax(-1)
        laws[start : start + half] = found[start - begin :].half()
    return laws


@torch.no_grad()
def mean_loss(model: Transformer, stream: Tensor, length: int = 256, windows: int = 100) -> float:
    """Return nats per character over evenly spaced windows of the stream."""
    starts = torch.linspace(0, len(stream) - length - 1, windows).long().tolist()
    return sum(next_token_loss(model, stream[s : s + length + 1][None], stream, 0.0).item() for s in starts) / windows


def train_one(name: str, folder: Path, seed: int) -> None:
    """Train "main", "aligned" (which needs main in ``folder``) or "mismatched", and save it with its losses."""
    began = time.perf_counter()
    docs, docs_held_out = map(as_stream, documentation())
    train, held_out = map(as_stream, codec_source()) if name == "mismatched" else (docs, docs_held_out)
    loss = distillation_loss(laws_along(weights.load("main", folder), docs)) if name == "aligned" else next_token_loss
    shape, recipe, own = weights.SHAPES[name], RECIPES[name], seed + list(RECIPES).index(name)
    if name == "main":
        small = fit(replace(shape, layers=FIRST_LAYERS), train, recipe, own, loss, name)
        model = fit(shape, train, GROWN, own, loss, f"{name}, grown", grown(small, shape.layers))
    else:
        model = fit(shape, train, recipe, own, loss, name)
    numbers = {
        "characters": str(len(train)),
        "loss_train": f"{mean_loss(model, train):.4f}",
        "loss_held_out": f"{mean_loss(model, held_out):.4f}",
        "loss_documentation": f"{mean_loss(model, docs_held_out):.4f}",
    }
    steps = recipe.steps + (GROWN.steps if name == "main" else 0)
    weights.save(model, name, numbers | _circumstances(model, steps, seed, began), folder)


def train_heads(names: Sequence[str], folder: Path, seed: int) -> None:
    """Train networks that draft from the states of main, which must be in ``folder``, and save them with what they foresee
    of held-out text.
    """
    main = weights.load("main", folder)
    along, held_out = (read_along(main, as_stream(documents), weights.EARLY_LAYERS) for documents in documentation())
    for name in names:
        began = time.perf_counter()
        own = seed + len(RECIPES) + weights.HEADS.index(name)
        torch.manual_seed(own)
        net = train_head(name, main, weights.new_head(name), along, own)
        numbers = {"overlaps": _listed(overlaps_of(net, held_out))}
        if isinstance(net, MedusaHeads):
            numbers["top1"] = _listed(top1_of_heads(net, held_out))
        weights.save(net, name, numbers | _circumstances(net, HEAD_RECIPES[name].steps, seed, began), folder)


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{x:.3f}" for x in numbers)


def _circumstances(model: nn.Module, steps: int, seed: int, began: float) -> dict[str, str]:
    return {
        "seed": str(seed),
        "steps": str(steps),
        "parameters": str(sum(p.numel() for p in model.parameters())),
        "seconds": f"{time.perf_counter() - began:.0f}",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m reference.train", description="Train the reference models.")
    parser.add_argument("--out", type=Path, default=weights.FOLDER, help="folder for weights and card")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*RECIPES, *weights.HEADS], help="train this one alone; all but mismatched need main")
    parser.add_argument("--measure", action="store_true", help="only measure acceptances and rewrite the card")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not options.measure:
        chosen = [options.only] if options.only else [*RECIPES, *weights.HEADS]
        for name in (n for n in chosen if n in RECIPES):
            train_one(name, options.out, options.seed)
        if heads := [n for n in chosen if n in weights.HEADS]:
            train_heads(heads, options.out, options.seed)
    from reference.card import write_card

    sys.stdout.write(write_card(options.out))


if __name__ == "__main__":
    main()
