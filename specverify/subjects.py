"""What can be plugged in: verification steps, whole steps, decoders; how their output is read and how they are loaded.

Four kinds exist. A *verifier* judges drafted tokens given both laws; a *tree verifier* (:mod:`specverify.trees`) judges
several drafts at once. A *step* drafts and verifies one round with models it is given. A *decoder* generates text with models
of its own. Their protocols are below; :func:`verifier`, :func:`step` and :func:`decoder` wrap plain functions and objects;
:func:`load_subject` finds ``"pkg.mod:attr"``.

This module is the only one a decoder needs to import, and even that is optional: an object with the right methods will do.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from specverify.errors import SpecverifyError, SubjectError
from specverify.given import Hands, Numbers, handed, read_given

if TYPE_CHECKING:
    from specverify.trees import TreeVerifier

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Facts:
    """What a subject declares about itself; every fact is optional.

    rule: name of the verification rule. max_k: most draft tokens per round. max_batch: most rows per call (None: any).
    dtype: precision of the laws it is handed and judged in (for a decoder: of the models handed to build). seeded: the same
    seed gives the same tokens. batch_invariant: a row does not depend on its batch-mates. lossy: the rule changes the law by
    design; it is then expected to be refuted.
    """

    rule: str | None = None
    max_k: int | None = None
    max_batch: int | None = None
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float64"
    seeded: bool = True
    batch_invariant: bool = True
    lossy: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        """The declared precision as a torch dtype."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Emitted:
    """Tokens that one round emitted.

    tokens (B, K+1) int64, padded with -1 past a row's count; counts (B,) int64 = accepted + 1; accepted (B,) int64 is what
    the subject itself *reports* as accepted, when it reports it.
    """

    tokens: Tensor
    counts: Tensor
    accepted: Tensor | None = None

    def rows(self) -> list[tuple[int, ...]]:
        """The emitted tokens of every row, without padding."""
        return [tuple(row[:count]) for row, count in zip(self.tokens.tolist(), self.counts.tolist(), strict=True)]


@contextmanager
def naming_inputs(name: str, **inputs: Any) -> Iterator[None]:
    """Turn whatever a subject raises into a SubjectError that carries the inputs of the call."""
    try:
        yield
    except SubjectError as error:
        error.inputs = error.inputs or _describe(inputs)
        raise
    except SpecverifyError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise SubjectError(f"{name} raised {type(error).__name__}: {said}{_where(error)}", _describe(inputs)) from error


def _where(error: BaseException) -> str:
    """`` (file:line)`` of the innermost frame of an error outside torch and specverify, if there is one."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _describe(inputs: Mapping[str, Any], most: int = 400) -> str:
    """Arguments in full where they are small, else their first row and shape."""
    shown = []
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            small = value.numel() <= most or value.dim() == 0
            said = f"{value.tolist()}" if small else f"{value[:1].tolist()} (first of {len(value)} rows)"
            shown.append(f"{name} = {said}")
        else:
            shown.append(f"{name} = {value!r}")
    return "; ".join(shown)


@dataclass(frozen=True, eq=False)
class Generated:
    """What a decoder may return instead of a plain (B, N) tensor, so that its acceptances can be checked too.

    accepted (B, R) int64: draft tokens accepted in each round, as the decoder reports them; -1 past a row's last round.
    """

    tokens: Tensor
    accepted: Tensor | None = None


class Model(Protocol):
    """A model handed to a step or to a decoder factory: ids (B, T) int64 -> logits (B, T, V).

    Row t of the result is the log-law of the token that follows ``ids[:, : t + 1]``; T is at least 1.
    """

    vocab_size: int

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for ids (B, T)."""
        ...


@runtime_checkable
class DecoderLike(Protocol):
    """A decoder: generates with speculation, and tells the law it should have followed.

    Optional attributes: ``eos_id`` (rows stop there; what follows in the result must be ``eos_id`` or -1),
    ``prompts`` ((N, T) ids that suit the models), ``draft_log_probs`` (like ``target_log_probs``).
    """

    vocab_size: int

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor | Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T)."""
        ...

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) after all processors: row t is the law of the token that follows ``ids[:, : t + 1]``."""
        ...


@runtime_checkable
class Timeable(Protocol):
    """What the timing suite needs of a decoder: found as the optional attribute ``timing`` of a :class:`DecoderLike`."""

    drafts: tuple[str, ...]
    """Names of the drafts that can be used, the best one first (for instance "aligned", "mismatched")."""
    max_k: int

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, max_new_tokens) with the target alone, with or without a KV cache."""
        ...

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Generate with speculation; the result reports accepted counts per round."""
        ...

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Ready-to-time calls: "target" one cached target step, "draft" one cached draft step, "verify" one target pass over
        K+1 tokens, "accept" the rule alone on tensors of the right shape. Calling one repeatedly must not grow the cache.
        """
        ...


@dataclass(frozen=True, eq=False)
class Verifier:
    """One verification step: ``verify(draft_tokens (B,K) int64, draft_probs (B,K,V), target_probs (B,K+1,V), *numbers)``.

    It draws its own randomness, or takes it as further arguments, those that ``given`` lists, in that order. It returns
    anything :func:`normalise_emitted` reads.
    """

    name: str
    verify: Callable[..., Any]
    facts: Facts = field(default_factory=Facts)
    given: tuple[Numbers, ...] = ()

    kind = "verifier"

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        numbers: Sequence[Tensor] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Emitted:
        """Run the step on copies of its inputs and read what it returned.

        ``numbers`` are the random numbers it asks for, one tensor (B, ...) for each entry of ``given``; without them they
        are drawn here, in the declared precision, from ``generator`` or torch's global stream. Errors: SubjectError.
        """
        dtype = self.facts.torch_dtype
        (B, K), V = draft_tokens.shape, target_probs.shape[-1]
        if numbers is None:
            numbers = [one.draw(B, K, V, dtype, generator) for one in self.given]
        elif len(numbers) != len(self.given):
            raise SubjectError(f"{self.name} takes {len(self.given)} tensors of random numbers, got {len(numbers)}")
        else:
            numbers = [x.clone() for x in numbers]
        known = {f"given {n.name}": x for n, x in zip(self.given, numbers, strict=True) if type(x) is Tensor}
        with naming_inputs(self.name, draft_tokens=draft_tokens, draft_probs=draft_probs, target_probs=target_probs, **known):
            laws = (draft_probs.to(dtype, copy=True), target_probs.to(dtype, copy=True))
            raw = self.verify(draft_tokens.clone(), *laws, *numbers)
            return normalise_emitted(raw, B, K, V, self.name)


@dataclass(frozen=True, eq=False)
class Step:
    """One round with drafting inside: ``step(target, draft, prefix (B,T))`` with models given by specverify.

    ``k`` is the number of tokens the step drafts.
    """

    name: str
    step: Callable[[Model, Model, Tensor], Any]
    k: int
    facts: Facts = field(default_factory=Facts)

    kind = "step"

    def __call__(self, target: Model, draft: Model, prefix: Tensor) -> Emitted:
        """Run one round on a copy of the prefix and read what it returned."""
        with naming_inputs(self.name, prefix=prefix):
            raw = self.step(target, draft, prefix.clone())
            return normalise_emitted(raw, prefix.shape[0], self.k, target.vocab_size, self.name)


@dataclass(frozen=True, eq=False)
class Decoder:
    """A whole decoder.

    open() builds it with its own models. build(target, draft, k, eos_id), when given, builds the same decoder over models
    handed in, which lets the exact engine run it. parts are verifiers, steps and tree
    verifiers of the same decoder, certified apart.
    """

    name: str
    open: Callable[[], DecoderLike] | None = None
    build: Callable[..., DecoderLike] | None = None
    facts: Facts = field(default_factory=Facts)
    parts: tuple[Verifier | Step | TreeVerifier, ...] = ()

    kind = "decoder"


Subject: TypeAlias = "Verifier | Step | Decoder | TreeVerifier"


def verifier(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    takes: Literal["probs", "logits"] = "probs",
    counts: Literal["emitted", "accepted"] = "emitted",
    given: str | Mapping[str, str] | None = None,
    hands: Hands = "torch",
    **facts: Any,
) -> Any:
    """Decorate ``f(draft_tokens, draft_probs, target_probs)`` as a :class:`Verifier`; keywords are :class:`Facts`.

    takes="logits" hands log-probabilities instead of probabilities. counts="accepted" says that in a returned pair
    ``(tokens, counts)`` the counts are of accepted tokens, one less than emitted.

    given: random numbers that the function takes as further arguments instead of drawing any. "uniforms" are (B, K+1),
    "exponentials" (B, K+1, V), "uniforms and exponentials" both; a mapping names other ones, in the order of the arguments,
    for instance ``{"coins": "uniforms (B, K)", "final_coin": "uniforms (B,)", "noise": "exponentials (B, V)"}``.
    hands: "torch", "numpy" or "lists", what all arguments are handed as. Errors: SubjectError when these cannot be read.
    """
    numbers = read_given(given)
    declared = facts_from(facts)
    if hands not in ("torch", "numpy", "lists"):
        raise SubjectError(f"hands={hands!r} is not known; choose torch, numpy or lists")
    if hands == "numpy" and declared.dtype == "bfloat16":
        raise SubjectError("numpy has no bfloat16; declare another dtype, or take torch tensors or lists")

    def wrap(f: Callable[..., Any]) -> Verifier:
        def adapted(tokens: Tensor, draft: Tensor, target: Tensor, *noise: Tensor) -> Any:
            laws = (draft.log(), target.log()) if takes == "logits" else (draft, target)
            raw = f(*(handed(x, hands) for x in (tokens, *laws, *noise)))
            if counts == "emitted":
                return raw
            ids, accepted = raw
            return ids, torch.as_tensor(accepted).reshape(-1) + 1

        plain = takes == "probs" and counts == "emitted" and hands == "torch"
        return Verifier(name or f.__name__, f if plain else adapted, declared, numbers)

    return wrap if function is None else wrap(function)


def step(k: int, *, name: str | None = None, **facts: Any) -> Callable[[Callable[..., Any]], Step]:
    """Decorate ``f(target, draft, prefix)`` as a :class:`Step` that drafts ``k`` tokens; keywords are :class:`Facts`."""

    def wrap(f: Callable[..., Any]) -> Step:
        return Step(name or f.__name__, f, k, facts_from(facts))

    return wrap


def decoder(instance: DecoderLike, *, name: str | None = None, **facts: Any) -> Decoder:
    """Wrap an object with ``vocab_size``, ``generate`` and ``target_log_probs`` as a :class:`Decoder`."""
    return Decoder(name or type(instance).__name__, lambda: instance, facts=facts_from(facts))


def facts_from(given: Mapping[str, Any]) -> Facts:
    """Facts from keywords. Errors: SubjectError that lists the known facts."""
    try:
        return Facts(**given)
    except TypeError as error:
        known = ", ".join(Facts.__dataclass_fields__)
        raise SubjectError(f"unknown fact about the subject: {error}; known facts are {known}") from None


def normalise_emitted(raw: Any, rows: int, k: int, vocab_size: int, name: str = "the subject") -> Emitted:
    """Read what a verification step returned, whatever its convention, as :class:`Emitted`.

    Understood: ``Emitted``; tokens alone, (B, n) or (n,) when B = 1, ended by -1 or full; ``(tokens, counts)`` where counts
    are emitted tokens per row, or accepted ones when the tensor is named so by ``Emitted``; ragged lists, one per row.
    Past a count anything may stand. Errors: SubjectError when ids lie outside the vocabulary, when there are
    more than K + 1 tokens or none, or when the shape does not fit. numpy arrays are read as tensors are.
    """
    with torch._C.DisableTorchFunction():  # nothing is drawn here, and what is random is refused by its type
        return _read_emitted(raw, rows, k, vocab_size, name)


def _read_emitted(raw: Any, rows: int, k: int, vocab_size: int, name: str) -> Emitted:
    accepted: Tensor | None = None
    tokens: Any
    counts: Any
    if isinstance(raw, Emitted):
        accepted = raw.accepted
        tokens, counts = raw.tokens, raw.counts
    elif isinstance(raw, tuple) and len(raw) == 2 and not _is_flat(raw[0], rows):
        tokens, counts = raw
    else:
        tokens, counts = raw, None
    if isinstance(tokens, (list, tuple)):
        tokens, counts = _pad_ragged(tokens, counts, rows, name)
    if isinstance(tokens, np.ndarray):
        tokens = torch.as_tensor(tokens)
    if not isinstance(tokens, Tensor):
        raise SubjectError(f"{name} returned {type(raw).__name__}; return tokens (B, K+1) padded with -1, or (tokens, counts)")
    if tokens.dim() == 1 and rows == 1:
        tokens = tokens[None]
    if tokens.dim() != 2 or tokens.shape[0] != rows:
        raise SubjectError(
            f"{name} returned tokens of shape {tuple(tokens.shape)} for {rows} rows; expected ({rows}, up to {k + 1})"
        )
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise SubjectError(f"{name} returned tokens of dtype {tokens.dtype}; token ids must be integers")
    if tokens.device.type != "cpu":
        tokens = tokens.cpu()
    tokens = tokens.long()
    width = tokens.shape[1]
    if counts is None:
        counts = (tokens != -1).long().cumprod(1).sum(1)
    counts = torch.as_tensor(counts).reshape(-1)
    if counts.is_floating_point():
        raise SubjectError(f"{name} returned counts of dtype {counts.dtype}; counts must be integers")
    counts = counts.long().cpu()
    if counts.shape[0] != rows:
        raise SubjectError(f"{name} returned {counts.shape[0]} counts for {rows} rows")
    if (counts < 1).any() or (counts > min(k + 1, width)).any():
        raise SubjectError(
            f"{name} returned counts {counts.tolist()[:8]} with K = {k}: a round emits between 1 and {k + 1} tokens per row; "
            'if these are accepted counts, say counts="accepted" to specverify.verifier'
        )
    used = torch.arange(width)[None] < counts[:, None]
    outside = used & ((tokens < 0) | (tokens >= vocab_size))
    if outside.any():
        b, t = (int(i) for i in outside.nonzero()[0])
        raise SubjectError(
            f"{name} returned token id {int(tokens[b, t])} in row {b}, position {t}: outside 0..{vocab_size - 1}"
        )
    tokens = torch.where(used, tokens, -1)[:, : k + 1]
    if tokens.shape[1] < k + 1:
        tokens = torch.nn.functional.pad(tokens, (0, k + 1 - tokens.shape[1]), value=-1)
    if accepted is not None:
        accepted = torch.as_tensor(accepted).reshape(-1).long().cpu()
        if accepted.shape[0] != rows:
            raise SubjectError(f"{name} reported {accepted.shape[0]} accepted counts for {rows} rows")
    return Emitted(tokens, counts, accepted)


def _is_flat(first: Any, rows: int) -> bool:
    """Whether a pair is two ragged rows rather than (tokens, counts): its first half holds ids, not rows of ids."""
    return rows == 2 and isinstance(first, (list, tuple)) and all(isinstance(x, (int, np.integer)) for x in first)


def _pad_ragged(rows_of: Sequence[Any], counts: Any, rows: int, name: str) -> tuple[Tensor, Any]:
    rows_list = [r.tolist() if isinstance(r, (Tensor, np.ndarray, np.generic)) else r for r in rows_of]
    if rows == 1 and rows_list and all(isinstance(x, int) for x in rows_list):
        rows_list = [rows_list]
    if len(rows_list) != rows or not all(isinstance(r, (list, tuple)) for r in rows_list):
        raise SubjectError(
            f"{name} returned a list of {len(rows_list)} rows for a batch of {rows}; return one list of ids per row"
        )
    width = max((len(r) for r in rows_list), default=0)
    try:
        if any(isinstance(x, (bool, float)) for r in rows_list for x in r):
            raise TypeError("there are floats or booleans among the ids")
        padded = torch.tensor([[*r, *[-1] * (width - len(r))] for r in rows_list], dtype=torch.int64).reshape(rows, width)
    except (TypeError, ValueError) as error:
        raise SubjectError(f"{name} returned rows that are not lists of integers: {error}") from None
    return padded, counts  # without counts, padding tells: our own, or theirs


def normalise_generated(raw: Any, rows: int, length: int, vocab_size: int, eos_id: int | None, name: str) -> Generated:
    """Read what ``generate`` returned: exactly (B, max_new_tokens) ids, with only eos or -1 after an eos.

    Whether something other than eos or -1 follows an eos is a question of the stopping check, not an error.
    Errors: SubjectError on a wrong shape, too few or too many tokens, ids outside the vocabulary.
    """
    accepted = raw.accepted if isinstance(raw, Generated) else None
    tokens = raw.tokens if isinstance(raw, Generated) else raw
    if isinstance(tokens, (list, tuple)):
        tokens, _ = _pad_ragged(tokens, None, rows, name)
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise SubjectError(f"{name}.generate returned {shape}; expected a tensor of ids ({rows}, {length})")
    if tuple(tokens.shape) != (rows, length):
        fault = "too many" if tokens.shape[1] > length else "too few"
        raise SubjectError(
            f"{name}.generate returned shape {tuple(tokens.shape)}, asked for ({rows}, {length}): "
            f"{fault + ' tokens' if tokens.shape[1] != length else 'wrong number of rows'}; "
            "return the new tokens only, padded with eos or -1 after an eos"
        )
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise SubjectError(f"{name}.generate returned dtype {tokens.dtype}; token ids must be integers")
    tokens = tokens.long().cpu()
    legal = (tokens >= 0) & (tokens < vocab_size)
    if eos_id is not None:
        ended = ((tokens == eos_id).long().cumsum(1) - (tokens == eos_id).long()) > 0
        legal = legal | (ended & (tokens == -1))
    if not legal.all():
        b, t = (int(i) for i in (~legal).nonzero()[0])
        raise SubjectError(
            f"{name}.generate returned token id {int(tokens[b, t])} in row {b}, position {t}: outside 0..{vocab_size - 1}"
        )
    return Generated(tokens, None if accepted is None else torch.as_tensor(accepted).long().cpu())


def checked_log_probs(raw: Any, ids: Tensor, vocab_size: int, name: str) -> Tensor:
    """Read log-laws (B, T, V) as float64 and insist that they are laws. Errors: SubjectError."""
    if not isinstance(raw, Tensor) or tuple(raw.shape) != (*ids.shape, vocab_size):
        shape = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise SubjectError(f"{name} returned {shape}; expected log-probabilities of shape {(*ids.shape, vocab_size)}")
    logs = raw.detach().to(torch.float64).cpu()
    if torch.isnan(logs).any():
        b, t, _ = (int(i) for i in torch.isnan(logs).nonzero()[0])
        raise SubjectError(f"{name} returned NaN in row {b}, position {t}, for ids {ids[b, : t + 1].tolist()}")
    sums = logs.exp().sum(-1)
    if (sums - 1).abs().max() > 1e-2:
        b, t = divmod(int((sums - 1).abs().argmax()), sums.shape[1])
        raise SubjectError(
            f"{name} returned a row that sums to {float(sums[b, t]):.4g}, not 1 (row {b}, position {t}): "
            "return log-probabilities, not logits"
        )
    return logs - sums.log()[..., None]


def load_subject(spec: str) -> Subject:
    """Find the subject named by ``"pkg.mod:attr"``, ``"pkg.mod"`` (its attribute ``subject``) or ``"path/file.py:attr"``.

    The current directory is importable. Errors: SubjectError that says what could not be imported or used.
    """
    module_name, _, attribute = spec.partition(":")
    attribute = attribute or "subject"
    if not module_name:
        raise SubjectError(f"{spec!r} names no module; write pkg.mod:attr")
    module = _import(module_name)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise SubjectError(
                f"{module_name} has no attribute {attribute!r}; it has {', '.join(public[:12]) or 'nothing public'}"
            )
        target = getattr(target, part)
    return as_subject(target, spec)


def _import(module_name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        if module_name.endswith(".py"):
            path = Path(module_name)
            if not path.exists():
                raise SubjectError(f"there is no file {module_name}")
            if str(path.resolve().parent) not in sys.path:
                sys.path.append(str(path.resolve().parent))  # for the modules beside it
            name = path.stem if path.stem not in sys.modules else f"specverify_subject_{path.stem}"
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module
            found.loader.exec_module(module)
            return module
        return importlib.import_module(module_name)
    except SubjectError:
        raise
    except ModuleNotFoundError as error:
        raise SubjectError(
            f"cannot import {module_name}: {error}; install it, or run from the folder that contains it"
        ) from error
    except Exception as error:
        hint = "; name it pkg.module:attr and run from the folder above pkg" if "relative import" in str(error) else ""
        raise SubjectError(f"importing {module_name} failed: {type(error).__name__}: {error}{hint}") from error
    except SystemExit as stop:
        raise SubjectError(f"importing {module_name} ended in sys.exit({stop.code!r}); keep scripts under __main__") from stop


def as_subject(target: Any, name: str) -> Subject:
    """Turn what was found under a name into a subject: a subject, an object with the right methods, or a class of such."""
    from specverify.trees import TreeVerifier  # it imports this module

    if isinstance(target, (Verifier, Step, Decoder, TreeVerifier)):
        return target
    if inspect.isclass(target):
        try:
            target = target()
        except Exception as error:
            raise SubjectError(f"{name} is a class and calling it without arguments failed: {error}") from error
    if isinstance(target, (Verifier, Step, Decoder, TreeVerifier)):
        return target
    if isinstance(target, DecoderLike):
        return replace(decoder(target), name=name)
    if callable(getattr(target, "verify", None)):
        return Verifier(name, target.verify)
    raise SubjectError(
        f"{name} is a {type(target).__name__}; a subject is made with specverify.verifier, specverify.step, "
        "specverify.tree_verifier or specverify.decoder, or has vocab_size, generate and target_log_probs"
    )


def source_digest(subject: Subject) -> str:
    """SHA-256 over the source files that define the subject's callables, or "unknown" when none can be read."""
    callables: list[Any] = []
    for one in (subject, *getattr(subject, "parts", ())):
        callables += [getattr(one, n, None) for n in ("verify", "step", "open", "build")]
    files: set[str] = set()
    for c in callables:
        inner = getattr(c, "func", c)
        held = [x.cell_contents for x in getattr(inner, "__closure__", None) or ()]
        for thing in (inner, type(inner), *held, *map(type, held)):
            try:
                found = inspect.getsourcefile(thing)
            except (TypeError, ValueError):
                continue
            if found:
                files.add(found)
    digest = hashlib.sha256()
    read = 0
    for path in sorted(files):
        try:
            content = Path(path).read_bytes()
        except OSError:
            continue
        digest.update(Path(path).name.encode() + b"\0" + content)
        read += 1
    return digest.hexdigest() if read else "unknown"
