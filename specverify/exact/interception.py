"""How is a random call of torch replaced? By symbolic numbers and exact choices, while :class:`Interception` is active.

Draws are keyed by the state of their stream, so a stream that is re-seeded inside the code, or a second generator with the
same seed, hands out the *same* numbers again, as it really would. Streams move as they really would: one found in a state
where no draw that was seen has left it was drawn from unseen, and the code is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specverify.errors import OpaqueRandomness, RowsCoupled, SpecverifyError
from specverify.exact.symbolic import SymbolicTensor, opaque
from specverify.exact.walk import Batch

_OPAQUE_DRAWS = frozenset(
    {
        "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_", "exponential_", "uniform_",
        "random_", "cauchy_", "geometric_", "log_normal_", "bernoulli_", "poisson", "dropout", "alpha_dropout",
        "feature_dropout", "rrelu", "gumbel_softmax", "binomial", "_standard_gamma", "_sample_dirichlet", "native_dropout",
        "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout",
        "feature_alpha_dropout_", "rrelu_",
    }
)  # fmt: skip


_State = tuple[str, bytes]
"""Where a stream stands: its device and what decides the numbers to come."""


@dataclass
class _Streams:
    """What was drawn in this call, by the state that the stream had, and the states in which known draws left a stream."""

    drawn: dict[_State, tuple[Hashable, Tensor]] = field(default_factory=dict)
    left: set[_State] = field(default_factory=set)
    first: list[tuple[torch.Generator, Tensor]] = field(default_factory=list)
    generators: list[torch.Generator] = field(default_factory=list)


def _state(generator: torch.Generator | None) -> _State:
    device = "cpu" if generator is None else generator.device.type
    blob = (torch.get_rng_state() if generator is None else generator.get_state()).numpy().tobytes()
    return (
        device,
        blob[8:] if device == "cpu" else blob,
    )  # the first 8 bytes name the seed; 1 and 1 + 2**32 give the same numbers


def _fresh(state: _State) -> bool:
    """Tell whether this stream was seeded and not drawn from since (only the CPU's Mersenne twister tells)."""
    left, _seeded, following = struct.unpack_from("<iiQ", state[1])
    return state[0] != "cpu" or (left == 1 and following == 0)


class Interception(TorchFunctionMode):
    """Replaces torch's random calls by exact ones, for the rows of one batch."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.streams = _Streams()

    def __enter__(self) -> Self:
        self._global_state = torch.get_rng_state()
        self.streams.left.add(_state(None))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]
        try:
            if kind is None:
                for generator in (None, *(g for g, _ in self.streams.first)):
                    self._insist_on_known(_state(generator))
        finally:
            torch.set_rng_state(self._global_state)
            for generator, state in self.streams.first:
                generator.set_state(state)
            self.batch.closed = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        draw = _BY_FUNCTION.get(func)
        try:
            if draw is not None and not isinstance(draw, str):
                return draw(self, args, kwargs)
            if kwargs.get("generator") is not None or (draw is not None and _really_draws(draw, args, kwargs)):
                raise opaque(
                    f"drawing with torch.{draw or func.__name__}", "draw with torch.rand and compare, or with torch.multinomial"
                )
            return func(*args, **kwargs)
        except SpecverifyError as error:
            self.batch.refused = error  # the code may catch it and go on
            raise

    def _insist_on_known(self, state: _State) -> None:
        if state not in self.streams.left and not _fresh(state):
            raise OpaqueRandomness(
                "random numbers were drawn where the exact engine does not see it (compiled or scripted code, another thread, "
                "an operation that draws inside, a stream put into a state from elsewhere); to be analysable, draw with "
                "torch.rand or torch.multinomial in Python"
            )

    def _draw(
        self, spec: Hashable, generator: torch.Generator | None, really: Callable[[], Tensor]
    ) -> tuple[_State, Tensor | None]:
        """Move the stream as the real draw does. Returns its state before, and the atoms drawn from there earlier if any.

        A stream that was put back may be followed only through the same draws: other ones share numbers in part.
        """
        state = _state(generator)
        if generator is not None and all(generator is not g for g, _ in self.streams.first):
            self.streams.first.append((generator, generator.get_state()))
            self.streams.left.add(state)
        self._insist_on_known(state)
        with torch._C.DisableTorchFunction():
            really()
        self.streams.left.add(_state(generator))
        if state not in self.streams.drawn:
            return state, None
        known, atoms = self.streams.drawn[state]
        if known != spec or spec is None:
            raise opaque(
                "a different draw from a stream that was re-seeded, or seeded as another one,", "seed each stream once"
            )
        return state, atoms

    def _owners(self, shape: torch.Size, generator: torch.Generator | None) -> list[int]:
        """The row every element of a draw belongs to: by its first dimension, else by its generator."""
        active, numel = self.batch.active, shape.numel()
        rows = len(active)
        if rows == 1:
            return active * numel
        if len(shape) > 0 and shape[0] == rows:
            each = numel // rows
            return [row for row in active for _ in range(each)]
        if generator is not None:
            known = self.streams.generators
            if all(generator is not g for g in known):
                known.append(generator)
            index = next(i for i, g in enumerate(known) if g is generator)
            if index < rows == len(self.batch.rows):
                return [index] * numel
        raise RowsCoupled(f"a draw of shape {tuple(shape)} does not say which of {rows} rows it belongs to")

    def uniform(self, shape: torch.Size, dtype: torch.dtype | None, generator: torch.Generator | None) -> SymbolicTensor:
        """Uniforms on [0, 1): fresh ones, or the same as before when the stream was put back."""
        dtype, numel = dtype or torch.get_default_dtype(), shape.numel()
        device = None if generator is None else generator.device
        state, atoms = self._draw(
            (dtype, numel), generator, lambda: torch.rand(shape, dtype=dtype, generator=generator, device=device)
        )
        if atoms is None:
            atoms = self.batch.new_atoms(self._owners(shape, generator)) if numel else torch.empty(0, dtype=torch.int64)
            if numel:
                self.streams.drawn[state] = ((dtype, numel), atoms)
        return SymbolicTensor.make(atoms.reshape(shape), self.batch, dtype)

    def choose(self, probs: Tensor, samples: int, replacement: bool, generator: torch.Generator | None) -> Tensor:
        """torch.multinomial: an exact categorical choice per row, with the same complaints about bad weights."""
        if isinstance(probs, SymbolicTensor):
            raise opaque("multinomial")
        weights = probs.detach()
        state, _ = self._draw(None, generator, lambda: torch.multinomial(weights, samples, replacement, generator=generator))
        if not replacement and bool(((weights > 0).sum(-1) < samples).any()):
            raise opaque("torch.multinomial of more samples than there are tokens with positive weight, without replacement,")
        if probs.numel() and samples:
            self.streams.drawn[state] = (None, torch.empty(0))
        table = weights.to("cpu", torch.float64).reshape(-1, probs.shape[-1])
        owners = self._owners(torch.Size(probs.shape[:1] if probs.dim() == 2 else (1,)), generator)
        chosen = [self._choose_row(owner, row, samples, replacement) for owner, row in zip(owners, table.tolist(), strict=True)]
        out = torch.tensor(chosen, dtype=torch.int64).reshape(*probs.shape[:-1], samples)
        return out.to(probs.device)

    def _choose_row(self, owner: int, weights: list[float], samples: int, replacement: bool) -> list[int]:
        chosen = []
        for _ in range(samples):
            total = sum(weights)
            pick = self.batch.rows[owner].decide([w / total for w in weights])
            chosen.append(pick)
            if not replacement:
                weights[pick] = 0.0
        return chosen

    def bernoulli(self, probs: Tensor, generator: torch.Generator | None) -> Tensor:
        """torch.bernoulli: one uniform per element below its probability."""
        if isinstance(probs, SymbolicTensor):
            raise opaque("bernoulli")
        state, _ = self._draw(None, generator, lambda: torch.bernoulli(probs.detach(), generator=generator))
        if probs.numel() == 0:
            return probs.detach().clone()
        atoms = self.batch.new_atoms(self._owners(probs.shape, generator))
        self.streams.drawn[state] = (None, atoms)
        u = SymbolicTensor.make(atoms.reshape(probs.shape), self.batch, probs.dtype)
        return (u < probs).to(probs.dtype)


def _really_draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "rrelu":
        return bool(kwargs.get("training", args[3] if len(args) > 3 else False))
    if "dropout" in name:
        return bool(kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True)))
    return True


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Size:
    if "size" in kwargs:
        return torch.Size(kwargs["size"])
    if len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size)):
        return torch.Size(args[0])
    return torch.Size(args)


def _rand(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    if kwargs.get("out") is not None:
        raise opaque("torch.rand(out=...)", "use the tensor that torch.rand returns")
    return mode.uniform(_size(args, kwargs), kwargs.get("dtype"), kwargs.get("generator"))


def _rand_like(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    like = args[0] if args else kwargs["input"]
    return mode.uniform(like.shape, kwargs.get("dtype") or like.dtype, kwargs.get("generator"))


def _multinomial(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "num_samples", "replacement"), args, strict=False)) | kwargs
    if named.get("out") is not None:
        raise opaque("torch.multinomial(out=...)", "use the tensor that torch.multinomial returns")
    return mode.choose(named["input"], int(named["num_samples"]), bool(named.get("replacement", False)), named.get("generator"))


def _bernoulli(mode: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "p"), args, strict=False)) | kwargs
    if named.get("out") is not None:
        raise opaque("torch.bernoulli(out=...)", "use the tensor that torch.bernoulli returns")
    probs = named["input"] if named.get("p") is None else torch.full_like(named["input"], float(named["p"]))
    return mode.bernoulli(probs, named.get("generator"))


_DRAWS: dict[str, Callable[[Interception, tuple[Any, ...], dict[str, Any]], Any]] = {
    "rand": _rand,
    "rand_like": _rand_like,
    "multinomial": _multinomial,
    "bernoulli": _bernoulli,
}


def _by_function() -> dict[Any, Any]:
    """Every random function of torch: those followed, with their handler, and those refused, with their name."""
    found: dict[Any, Any] = {}
    for home in (torch, Tensor, torch.nn.functional):
        for name in _OPAQUE_DRAWS:
            if hasattr(home, name):
                found[getattr(home, name)] = name
        for name, handler in _DRAWS.items():
            if hasattr(home, name):
                found[getattr(home, name)] = handler
    return found


_BY_FUNCTION = _by_function()
