"""What is the exact law of this code? Replay it over every outcome of its randomness.

While :class:`Interception` is active every random call of torch hands out symbolic numbers or makes an exact categorical
choice; code is never edited. Draws are keyed by the state of their stream, so a stream that is re-seeded inside the code
hands out the *same* numbers again, as it really would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy.random
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specverify.errors import OpaqueRandomness, RowsCoupled, SpecverifyError, SubjectError
from specverify.exact.symbolic import SymbolicTensor, opaque
from specverify.exact.walk import Batch, Explored, Item, Leaf, explore

DEFAULT_MAX_PATHS = 500_000

_OPAQUE_DRAWS = frozenset(
    {
        "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_", "exponential_", "uniform_", "random_",
        "cauchy_", "geometric_", "log_normal_", "bernoulli_", "poisson", "dropout", "alpha_dropout", "feature_dropout", "rrelu",
        "gumbel_softmax", "native_dropout", "binomial", "standard_gamma", "dropout_",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Law:
    """An exact law: probabilities by outcome, and what it took to find it."""

    pmf: dict[Any, float]
    paths: int
    calls: int

    @property
    def mass(self) -> float:
        """Sum of all probabilities; 1 up to rounding."""
        return float(sum(self.pmf.values()))


@dataclass
class _Streams:
    """Numbers already handed out in this call, by the state their stream had."""

    uniforms: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    choices: set[tuple[Any, ...]] = field(default_factory=set)
    generators: list[torch.Generator] = field(default_factory=list)


class Interception(TorchFunctionMode):
    """Replaces torch's random calls by exact ones, for the rows of one batch."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.streams = _Streams()

    def __enter__(self) -> Interception:
        self._global_state = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, value, trace)
        torch.set_rng_state(self._global_state)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _DRAWS:
            return _DRAWS[name](self, args, kwargs)
        if name in _OPAQUE_DRAWS and _really_draws(name, args, kwargs):
            raise opaque(f"drawing with torch.{name}", "draw with torch.rand and compare, or with torch.multinomial")
        return func(*args, **kwargs)

    def _key(self, generator: torch.Generator | None) -> tuple[Any, ...]:
        """State of the stream now; the stream then moves on, as a real draw would make it."""
        if generator is None:
            state = torch.get_rng_state()
            torch.rand(1)
        else:
            state = generator.get_state()
            torch.rand(1, generator=generator, device=generator.device)
        return (id(generator) if generator is not None else 0, state.numpy().tobytes())

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
        key = self._key(generator)
        numel = shape.numel()
        known = self.streams.uniforms.get(key)
        if known is None or known.numel() < numel:
            old = torch.empty(0, dtype=torch.int64) if known is None else known
            fresh = self.batch.new_atoms(self._owners(shape, generator)[old.numel() :])
            known = torch.cat([old, fresh])
            self.streams.uniforms[key] = known
        return SymbolicTensor.make(known[:numel].reshape(shape), self.batch, dtype or torch.get_default_dtype())

    def choose(self, probs: Tensor, samples: int, replacement: bool, generator: torch.Generator | None) -> Tensor:
        """torch.multinomial: an exact categorical choice per row, with the same complaints about bad weights."""
        if isinstance(probs, SymbolicTensor):
            raise opaque("multinomial")
        _check_weights(probs, samples, replacement)
        key = self._key(generator)
        if key in self.streams.choices:
            raise opaque("multinomial from a stream that was re-seeded inside the code", "seed each stream once")
        self.streams.choices.add(key)
        table = probs.detach().to("cpu", torch.float64).reshape(-1, probs.shape[-1])
        owners = self._owners(torch.Size(probs.shape[:1] if probs.dim() == 2 else (1,)), generator)
        chosen = [
            self._choose_row(owner, weights, samples, replacement) for owner, weights in zip(owners, table.tolist(), strict=True)
        ]
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
        u = self.uniform(probs.shape, probs.dtype, generator)
        return (u < probs).to(probs.dtype)


def _really_draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "dropout" in name or name == "rrelu":
        return bool(kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True)))
    return True


def _check_weights(probs: Tensor, samples: int, replacement: bool) -> None:
    if probs.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not probs.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {probs.dtype}")
    if not bool(torch.isfinite(probs).all()) or bool((probs < 0).any()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if bool((probs.sum(-1) <= 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement and bool(((probs > 0).sum(-1) < samples).any()):
        raise RuntimeError("invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)")


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
    probs = named["input"] if named.get("p") is None else torch.full_like(named["input"], float(named["p"]))
    return mode.bernoulli(probs, named.get("generator"))


_DRAWS: dict[str, Callable[[Interception, tuple[Any, ...], dict[str, Any]], Any]] = {
    "rand": _rand,
    "rand_like": _rand_like,
    "multinomial": _multinomial,
    "bernoulli": _bernoulli,
}


def freeze(value: Any) -> Hashable:
    """An outcome as something hashable: tensors and lists become nested tuples of numbers."""
    if isinstance(value, SymbolicTensor):
        raise OpaqueRandomness("the code returned random numbers themselves; only what is decided by them has a finite law")
    if isinstance(value, Tensor):
        return freeze(value.tolist())
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v) for v in value)
    if hasattr(value, "rows") and callable(value.rows):
        return freeze(value.rows())
    hash(value)
    return value  # type: ignore[no-any-return]


def walk_rows(
    run: Callable[[list[int], Batch], Sequence[Any]], problems: int, *, rows: int, max_paths: int = DEFAULT_MAX_PATHS
) -> Explored:
    """All paths of several problems: ``run(numbers, batch)`` runs the code on the problems named, one per row.

    With more than one row per call, a sample of the paths is walked again alone; a different outcome or weight means that
    rows influence each other. Errors: RowsCoupled, OpaqueRandomness, PathBudgetExceeded, and SubjectError when the code raises.
    """

    def call(batch: Batch) -> list[Hashable]:
        numbers = [row.item.problem for row in batch.rows]
        try:
            with Interception(batch):
                raw = run(numbers, batch)
        except SpecverifyError:
            raise
        except Exception as error:
            weight = min(row.weight for row in batch.rows)
            raise SubjectError(f"raised {type(error).__name__}: {error} (on a path of probability {weight:.3g})") from error
        outcomes = [freeze(outcome) for outcome in raw]
        if len(outcomes) != len(numbers):
            raise SubjectError(f"returned {len(outcomes)} outcomes for {len(numbers)} rows")
        return outcomes

    elsewhere = _foreign_streams()
    explored = explore(call, problems, rows=rows, max_paths=max_paths)
    if rows > 1:
        _walk_again_alone(call, explored.leaves)
    if _foreign_streams() != elsewhere:
        raise OpaqueRandomness(
            "the code drew from Python's random or from numpy.random, which the exact engine does not follow; to be analysable, draw with torch"
        )
    if rows == 1:
        try:
            _walk_again_alone(call, explored.leaves)
        except RowsCoupled as error:
            raise OpaqueRandomness(
                f"the code is not a function of what it draws from torch ({error}); it keeps state between calls, or draws random "
                "numbers by other means; to be analysable, draw with torch and start every call afresh"
            ) from None
    return explored


def _foreign_streams() -> tuple[Any, ...]:
    """States of the streams that other libraries draw from."""
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return random.getstate(), kind, keys.tobytes(), tuple(rest)


def _walk_again_alone(call: Callable[[Batch], list[Hashable]], leaves: list[Leaf], sample: int = 32) -> None:
    """Walk an even sample of the paths once more, one per call. Errors: RowsCoupled when one comes out differently."""
    step = max(1, len(leaves) // sample)
    for leaf in leaves[::step][:sample]:
        batch = Batch([Item(leaf.problem, leaf.decisions, leaf.weight)])
        (outcome,) = call(batch)
        if outcome != leaf.outcome or tuple(batch.rows[0].decided) != leaf.decisions:
            raise RowsCoupled(f"the same decisions gave {leaf.outcome} first and {outcome} when walked again alone")


def induced_law(run: Callable[[], Any], *, max_paths: int = DEFAULT_MAX_PATHS) -> Law:
    """Exact law of what ``run()`` returns, over everything torch draws in it.

    ``run`` takes no argument, must not keep state between calls, and returns tensors, lists, tuples or numbers. The
    probabilities are products of conditional probabilities in float64. Errors: OpaqueRandomness naming the operation and
    line when a random number is used in a way that cannot be followed; PathBudgetExceeded; SubjectError when it raises.
    """
    explored = walk_rows(lambda _numbers, _batch: [run()], 1, rows=1, max_paths=max_paths)
    pmf: dict[Any, float] = {}
    for leaf in explored.leaves:
        pmf[leaf.outcome] = pmf.get(leaf.outcome, 0.0) + leaf.weight
    return Law(pmf, len(explored.leaves), explored.calls)
