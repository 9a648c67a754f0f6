"""What did a subject return? Tokens and counts in every convention that engines use, read into one form or refused clearly."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.errors import SpecverifyError, SubjectError


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


@dataclass(frozen=True, eq=False)
class Generated:
    """What a decoder may return instead of a plain (B, N) tensor, so that its acceptances can be checked too.

    accepted (B, R) int64: draft tokens accepted in each round, as the decoder reports them; -1 past a row's last round.
    """

    tokens: Tensor
    accepted: Tensor | None = None


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


def normalise_generated(
    raw: Any, rows: int, length: int, vocab_size: int, eos_id: int | None, name: str, method: str = "generate"
) -> Generated:
    """Read what ``generate`` returned: exactly (B, max_new_tokens) ids, with only eos or -1 after an eos.

    method: what was called, for messages, where it is another one that generates.
    Whether something other than eos or -1 follows an eos is a question of the stopping check, not an error.
    numpy arrays are read as tensors are. Errors: SubjectError on a wrong shape, too few or too many tokens, ids outside the
    vocabulary, and where ``accepted`` is not (B, R) whole numbers of at least -1.
    """
    accepted = raw.accepted if isinstance(raw, Generated) else None
    tokens = raw.tokens if isinstance(raw, Generated) else raw
    if isinstance(tokens, (list, tuple)):
        tokens, _ = _pad_ragged(tokens, None, rows, name)
    if isinstance(tokens, np.ndarray):
        tokens = _from_numpy(tokens, f"{name}.{method} returned")
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise SubjectError(f"{name}.{method} returned {shape}; expected a tensor of ids ({rows}, {length})")
    if tuple(tokens.shape) != (rows, length):
        fault = "too many" if tokens.shape[1] > length else "too few"
        raise SubjectError(
            f"{name}.{method} returned shape {tuple(tokens.shape)}, asked for ({rows}, {length}): "
            f"{fault + ' tokens' if tokens.shape[1] != length else 'wrong number of rows'}; "
            "return the new tokens only, padded with eos or -1 after an eos"
        )
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise SubjectError(f"{name}.{method} returned dtype {tokens.dtype}; token ids must be integers")
    tokens = tokens.long().cpu()
    legal = (tokens >= 0) & (tokens < vocab_size)
    if eos_id is not None:
        ended = ((tokens == eos_id).long().cumsum(1) - (tokens == eos_id).long()) > 0
        legal = legal | (ended & (tokens == -1))
    if not legal.all():
        b, t = (int(i) for i in (~legal).nonzero()[0])
        raise SubjectError(
            f"{name}.{method} returned token id {int(tokens[b, t])} in row {b}, position {t}: outside 0..{vocab_size - 1}"
        )
    return Generated(tokens, None if accepted is None else _read_accepted(accepted, rows, f"{name}.{method}"))


def _from_numpy(array: np.ndarray[Any, Any], what: str) -> Tensor:
    """An array as a tensor of its own memory, whatever its byte order and flags. Errors: SubjectError."""
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    try:
        return torch.from_numpy(array.copy())
    except TypeError:
        raise SubjectError(f"{what} an array of dtype {array.dtype}; token ids and counts must be integers") from None


def _read_accepted(raw: Any, rows: int, where: str) -> Tensor:
    """Reported acceptances (B, R) as int64. Errors: SubjectError naming ``accepted``."""
    what = f"{where} returned accepted"
    wanted = f"give ({rows}, R) int: the draft tokens accepted in each round, with -1 past a row's last round"
    try:
        read = _from_numpy(raw, what) if isinstance(raw, np.ndarray) else torch.as_tensor(raw)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SubjectError(f"{what} that cannot be read as a table: {' '.join(str(error).split())}; {wanted}") from None
    if read.dim() != 2 or read.shape[0] != rows:
        raise SubjectError(f"{what} of shape {tuple(read.shape)} for {rows} rows; {wanted}")
    if read.is_floating_point() or read.is_complex() or read.dtype == torch.bool:
        raise SubjectError(f"{what} of dtype {read.dtype}; {wanted}")
    read = read.long().cpu()
    if (read < -1).any():
        b, r = (int(i) for i in (read < -1).nonzero()[0])
        raise SubjectError(f"{what} {int(read[b, r])} in row {b}, round {r + 1}, which is below -1; {wanted}")
    return read


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
