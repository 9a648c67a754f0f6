"""A device to run on where there is none: tensors stay where they are and carry a mark instead."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves


class Watched(TorchFunctionMode):
    """Marks what is made of marked tensors.

    Errors: AssertionError where a marked tensor meets another one that is no number, as two devices would refuse to.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        marked = any(is_placed(x) for x in given)
        for x in given if marked else ():
            assert x.dim() == 0 or is_placed(x), f"{func} was given a tensor {tuple(x.shape)} of the host"
        made = func(*args, **kwargs)
        if marked or self.reaches(func, kwargs):
            place(*_tensors(made))
        return made

    def reaches(self, func: Any, kwargs: Any) -> bool:
        """Whether what a function makes of no tensor is marked."""
        return False


class Placed(Watched):
    """In the place of ``with torch.device(..)``: marks what a default device reaches, too."""

    def reaches(self, func: Any, kwargs: Any) -> bool:
        """Whether a default device reaches the function, and none is named."""
        return func in _device_constructors() and kwargs.get("device") is None


def place(*tensors: Tensor) -> None:
    """Mark tensors as being on the device."""
    for x in tensors:
        x.placed = True  # type: ignore[attr-defined]


def is_placed(x: Tensor) -> bool:
    """Whether a tensor is marked."""
    return getattr(x, "placed", False)


def _tensors(nested: Any) -> list[Tensor]:
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]
