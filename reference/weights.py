"""Where the trained weights live, what shapes they must have, and how they are loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reference.heads import ExitHead, FeatureLayer, MedusaHeads
from reference.model import Shape, Transformer
from reference.text import VOCAB_SIZE

FOLDER = Path(__file__).parent / "weights"
SHAPES = {
    "main": Shape(VOCAB_SIZE, layers=32, width=80, heads=4),
    "aligned": Shape(VOCAB_SIZE, layers=1, width=112, heads=7),
    "mismatched": Shape(VOCAB_SIZE, layers=1, width=112, heads=7),
}


MEDUSA_HEADS = 8
EARLY_LAYERS = 2
"""How many of the main model's layers the early exit runs through."""
HEADS = ("medusa", "early_exit", "feature_layer")
"""Networks that draft from the main model's states."""

Net = TypeVar("Net", bound=nn.Module)


class WeightsError(RuntimeError):
    """Weights are missing or do not fit the model; the message says which and what to do."""


def new_head(name: str) -> nn.Module:
    """Return the untrained network called ``name``, one of HEADS, as wide as the main model."""
    shape = SHAPES["main"]
    if name not in HEADS:
        raise WeightsError(f"there is no network {name!r}; there are {', '.join(HEADS)}")
    if name == "medusa":
        return MedusaHeads(shape.width, shape.vocab_size, MEDUSA_HEADS)
    if name == "early_exit":
        return ExitHead(shape.width, shape.vocab_size)
    return FeatureLayer(Shape(shape.vocab_size, 1, shape.width, shape.heads))


def save(model: nn.Module, name: str, numbers: dict[str, str], folder: Path = FOLDER) -> None:
    """Write a model's weights to ``folder/name.safetensors``, with ``numbers`` about its training."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, folder / f"{name}.safetensors", metadata=dict(sorted(numbers.items())))


def load(name: str, folder: Path = FOLDER, shape: Shape | None = None) -> Transformer:
    """Load the trained model called ``name`` ("main", "aligned" or "mismatched"), ready to decode.

    Errors: WeightsError when there is no such file or a tensor has another shape than ``shape`` (default: SHAPES[name])
    needs.
    """
    if shape is None and name not in SHAPES:
        raise WeightsError(f"there is no model {name!r}; there are {', '.join(SHAPES)}")
    return _filled(Transformer(shape or SHAPES[name]), name, folder)


def load_head(name: str, folder: Path = FOLDER) -> nn.Module:
    """Load the network called ``name``, one of HEADS; errors as for :func:`load`."""
    return _filled(new_head(name), name, folder)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read ({error}); train again: python -m reference.train") from error


def _filled(model: Net, name: str, folder: Path) -> Net:
    path = folder / f"{name}.safetensors"
    if not path.exists():
        raise WeightsError(f"there are no weights for {name!r} at {path}; train them with: python -m reference.train")
    given, wanted = _read(path), model.state_dict()
    for key in sorted(given.keys() | wanted.keys()):
        have, need = (tuple(t[key].shape) if key in t else "absent" for t in (given, wanted))
        if have != need:
            raise WeightsError(
                f"{path.name}: {key} is {have} in the file and {need} in the model; train again: python -m reference.train"
            )
    model.load_state_dict(given)
    return model.eval().requires_grad_(False)


@cache
def trained(name: str, folder: Path = FOLDER) -> Transformer:
    """Do as :func:`load`, once per process; the committed weights by default."""
    return load(name, folder)


@cache
def trained_heads(folder: Path = FOLDER) -> MedusaHeads:
    """Return the Medusa heads, read once per process."""
    return _of(MedusaHeads, load_head("medusa", folder))


@cache
def trained_exit(folder: Path = FOLDER) -> ExitHead:
    """Return the head of the early exit, read once per process."""
    return _of(ExitHead, load_head("early_exit", folder))


@cache
def trained_layer(folder: Path = FOLDER) -> FeatureLayer:
    """Return the layer on the main model's states, read once per process."""
    return _of(FeatureLayer, load_head("feature_layer", folder))


def _of(kind: type[Net], found: nn.Module) -> Net:
    assert isinstance(found, kind)
    return found


def training_numbers(name: str, folder: Path = FOLDER) -> dict[str, str]:
    """Return what was written down about a model's training. Errors: WeightsError when there is no such file."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        raise WeightsError(f"there are no weights for {name!r} at {path}; train them with: python -m reference.train")
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read ({error}); train again: python -m reference.train") from error
