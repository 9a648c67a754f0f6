"""What does code do with the numbers it is given? A mode that lets it draw as usual and then moves chosen elements.

While :class:`Pushing` is active, every draw of torch is made by torch itself, and chosen elements of its result are then set to
a boundary of what that draw can give (:mod:`specverify.exact.boundaries`), or the whole result to what was recorded
earlier. ``random.random`` and the legacy functions of ``numpy.random`` are followed alike. Nothing in the code is edited.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specverify.exact.boundaries import Boundary, exponential_ends, last_step, uniform_at, uniform_chance, uniform_ends

Kind = Literal["uniform", "exponential", "choice", "coin"]
End = Literal["lowest", "highest", "zero"]
ENDS: dict[Kind, tuple[End, ...]] = {
    "uniform": ("lowest", "highest"),
    "exponential": ("lowest", "highest", "zero"),
    "choice": ("lowest", "highest"),
    "coin": ("lowest", "highest"),
}
_UNFOLLOWED = ("randn", "randn_like", "normal", "normal_", "gumbel_softmax", "dropout", "randint", "randperm", "random_")


@dataclass(frozen=True)
class Push:
    """One element to move: of which row, draw (counted within the call) and place in the row; to an end, or to k / 2^bits."""

    row: int
    draw: int
    element: int
    to: End | int


@dataclass
class Draw:
    """One draw as it was handed out. value: a copy of it. moved: by row, the boundary its pushed element was set to."""

    kind: Kind
    source: str
    shape: tuple[int, ...]
    dtype: str
    where: str
    value: Tensor
    moved: dict[int, Boundary]

    def per_row(self, rows: int) -> int:
        """Elements that belong to one row."""
        return self.value.numel() // rows


class Pushing(TorchFunctionMode):
    """Follow the draws of one call with ``rows`` rows.

    turns (one per row): -1 leaves a row's uniforms as drawn; j >= 0 brings the first j uniforms of the row below 1/4 and the
    next one above 3/4, which is an ordinary way for a round to accept j tokens and reject the next. given: values that the
    first draws of the call must have (one row). mixed: set when a draw did not have one entry per row.
    """

    def __init__(
        self, rows: int, pushes: Sequence[Push] = (), turns: Sequence[int] | None = None, given: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()
        self.rows, self.given = rows, given
        self.turns = torch.tensor([-1] * rows if turns is None else list(turns))
        self.draws: list[Draw] = []
        self.mixed = False
        self.unfollowed: set[str] = set()
        self._uniforms = 0
        self._pushes: dict[int, list[Push]] = {}
        for push in pushes:
            self._pushes.setdefault(push.draw, []).append(push)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the draw, then move what is to be moved."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _UNFOLLOWED:
            self.unfollowed.add(name)
        reader = _READERS.get(name)
        if reader is None:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if result.numel():
            kind, scale = reader(args, kwargs)
            self.move(result, kind, name, scale)
        return result

    def move(self, result: Tensor, kind: Kind, source: str, scale: Any) -> None:
        """Change the draw ``result`` in place and keep a record of it. scale: what its boundaries depend on."""
        number = len(self.draws)
        moved: dict[int, Boundary] = {}
        alone = self.rows == 1
        if not alone and (result.dim() == 0 or result.shape[0] != self.rows):
            self.mixed = True
        else:
            flat = result.detach().reshape(self.rows, -1).clone()
            if kind == "uniform":
                self._turn(flat, scale)
            for push in self._pushes.get(number, ()):
                # Another path may make another kind of draw here, which has no such step to be set to.
                if push.element < flat.shape[1] and not (isinstance(push.to, int) and kind != "uniform"):
                    moved[push.row] = _set(flat, push, kind, scale)
            if number < len(self.given) and self.given[number].numel() == flat.numel():
                flat = self.given[number].reshape(flat.shape).to(flat.dtype)
            with torch.no_grad():
                result.copy_(flat.reshape(result.shape))
        dtype = str(result.dtype).removeprefix("torch.")
        self.draws.append(Draw(kind, source, tuple(result.shape), dtype, _caller(), result.detach().clone(), moved))

    def _turn(self, flat: Tensor, scale: tuple[float, float]) -> None:
        start, self._uniforms = self._uniforms, self._uniforms + flat.shape[1]
        if scale != (0.0, 1.0) or bool((self.turns < 0).all()):
            return
        ordinal = start + torch.arange(flat.shape[1])
        quarter = flat % 0.25  # exact in floating point, and still on the grid
        top = uniform_at(last_step(flat.dtype), flat.dtype)
        turns = self.turns[:, None]
        flat.copy_(torch.where(ordinal < turns, quarter, torch.where(ordinal == turns, (quarter + 0.75).clamp(max=top), flat)))


def _set(flat: Tensor, push: Push, kind: Kind, scale: Any) -> Boundary:
    """Set one element of ``flat`` (rows, n) and say to what."""
    dtype = flat.dtype
    if kind == "uniform":
        low, high = scale
        if isinstance(push.to, int):
            value = uniform_at(push.to, dtype)
            inner = Boundary(f"exactly {value!r}", value, uniform_chance(value, dtype))
            found = next((end for end in uniform_ends(dtype) if end.value == value), inner)
        else:
            found = uniform_ends(dtype)[push.to == "highest"]
        flat[push.row, push.element] = low + (high - low) * found.value
        return found
    if kind == "exponential":
        ends = exponential_ends(dtype)
        found = ends[{"lowest": 0, "highest": 1, "zero": -1}[str(push.to)]]
        if push.to == "zero" and found.name != "exactly 0":
            found = ends[0]
        flat[push.row, push.element] = found.value / scale
        return found
    if kind == "coin":
        probs = scale.broadcast_to(flat.numel()) if scale.numel() == 1 else scale
        p = float(probs.reshape(flat.shape)[push.row, push.element])
        wanted = 1.0 if (push.to == "lowest" and p > 0) or p >= 1 else 0.0
        flat[push.row, push.element] = wanted
        return Boundary("heads" if wanted else "tails", wanted, p if wanted else 1.0 - p)
    # A row may draw from several laws at once; the push is aimed at one of them, with all samples drawn from it.
    laws = scale.detach().to(torch.float64).reshape(-1, scale.shape[-1])
    each = len(laws) // flat.shape[0]
    place = min(push.element, each - 1)  # another path may draw from fewer laws
    weights = laws[push.row * each + place]
    samples = flat[push.row].reshape(each, -1)[place]
    possible = torch.nonzero(weights > 0)[:, 0]
    ordered = possible if push.to == "lowest" else possible.flip(0)
    if len(ordered) >= len(samples):  # without replacement all of them differ
        samples.copy_(ordered[: len(samples)])
    chosen = int(samples[0])
    share = float(weights[chosen] / weights.sum())
    return Boundary(f"the {'first' if push.to == 'lowest' else 'last'} token of positive weight", chosen, share)


def _named(args: Any, kwargs: Any, names: Sequence[str], name: str, default: Any) -> Any:
    at = names.index(name)
    return kwargs.get(name, args[at] if len(args) > at else default)


def _unit(_args: Any, _kwargs: Any) -> tuple[Kind, Any]:
    return "uniform", (0.0, 1.0)


def _filled(args: Any, kwargs: Any) -> tuple[Kind, Any]:
    names = ("self", "from", "to")
    return "uniform", (float(_named(args, kwargs, names, "from", 0.0)), float(_named(args, kwargs, names, "to", 1.0)))


def _race(args: Any, kwargs: Any) -> tuple[Kind, Any]:
    return "exponential", float(_named(args, kwargs, ("self", "lambd"), "lambd", 1.0))


def _choice(args: Any, kwargs: Any) -> tuple[Kind, Any]:
    return "choice", args[0] if args else kwargs["input"]


def _coin(args: Any, kwargs: Any) -> tuple[Kind, Any]:
    own = args[0] if args else kwargs["input"]
    p = _named(args, kwargs, ("input", "p"), "p", None)
    return "coin", own.detach() if p is None else torch.as_tensor(p, dtype=torch.float64)


def _coin_in_place(args: Any, kwargs: Any) -> tuple[Kind, Any]:
    return "coin", torch.as_tensor(_named(args, kwargs, ("self", "p"), "p", 0.5), dtype=torch.float64)


_READERS: dict[str, Callable[[Any, Any], tuple[Kind, Any]]] = {
    "rand": _unit,
    "rand_like": _unit,
    "uniform_": _filled,
    "exponential_": _race,
    "multinomial": _choice,
    "bernoulli": _coin,
    "bernoulli_": _coin_in_place,
}
"""How to read kind and scale off the call of a draw. Distributions of torch.distributions end in these."""

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(__file__).parent.parent / "subjects.py"))


def _caller() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor the engine's, as it is found on the import path."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_INSIDE, mock.__file__)):
        frame = frame.f_back
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


@cache
def _short(filename: str) -> str:
    roots = sorted({str(Path(p).resolve()) for p in sys.path}, key=len, reverse=True)
    root = next((r for r in roots if filename.startswith(r + os.sep)), None)
    return filename if root is None else filename[len(root) + 1 :]


class Streams:
    """The global streams of torch, Python and numpy: seeded before each call, and what they draw handed to its mode.

    As a context it puts all three back to where they were. Functions of Python and numpy are followed where they are looked
    up when they are called; a name bound earlier (``from random import random``) still draws, unseen.
    """

    def __init__(self) -> None:
        self.mode: Pushing | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Remember the streams, and stand in front of the functions of Python and numpy that draw uniforms."""
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - the legacy stream is followed

        def restore() -> None:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])  # noqa: NPY002

        self._stack.callback(restore)
        for home, label, names in (
            (random, "random", ("random",)),
            (np.random, "numpy.random", ("random", "random_sample", "rand")),
        ):
            for name in names:
                real = getattr(home, name)
                self._stack.enter_context(mock.patch.object(home, name, self._followed(real, f"{label}.{name}")))
        return self

    def __exit__(self, *_error: object) -> None:
        """Put everything back."""
        self._stack.close()

    def start(self, mode: Pushing, seed: int) -> None:
        """Begin a call."""
        self.mode = mode
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would do more than is needed for every accelerator
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002

    def _followed(self, real: Callable[..., Any], source: str) -> Callable[..., Any]:
        def drawn(*size: Any, **named: Any) -> Any:
            value = np.asarray(real(*size, **named), dtype=np.float64)
            tensor = torch.from_numpy(np.array(value, ndmin=1))
            if self.mode is not None:
                self.mode.move(tensor, "uniform", source, (0.0, 1.0))
            return float(tensor[0]) if value.ndim == 0 else tensor.numpy()

        return drawn
