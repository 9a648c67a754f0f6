"""What did a tree verifier return? Tokens, accepted nodes, flat predictions, a best path: all read as emitted tokens."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Emitted, normalise_emitted

Returns = Literal["tokens", "nodes", "flat", "best path", "distribution"]
"""How a tree verifier says what it emits, for B rows, N nodes, depth D and V tokens.

"tokens": the emitted tokens themselves, as a verifier of one path returns them (K = D).
"nodes": ``(accepted (B, D), last (B,))``, numbers of the accepted nodes from the root's child on, filled with -1, and the token
that follows them.
"flat": ``(predictions (B * (N+1),), accepted (B, D+1), counts (B,))``. Row b owns the flat places b (N+1) .. b (N+1) + N, the
first for the root and one more for each node; ``accepted[b]`` starts with the root's place and is filled with -1;
``predictions`` holds at an accepted place the token that follows it; ``counts`` are accepted nodes, the root not counted.
"best path": ``(path (B,), length (B,), last (B,))``: the number of a row of ``Tree.candidates``, how many of its tokens are
accepted, and the token that follows.
"distribution": ``(path (B,), length (B,), law (B, V))``: the same, but the caller draws the last token from ``law``.
"""


class Shape(Protocol):
    """What is asked of a tree's shape (:class:`specverify.trees.TreeShape`)."""

    @property
    def parents(self) -> tuple[int, ...]:
        """Parent of each node, -1 for the root's children."""
        ...

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children."""
        ...

    @property
    def depth(self) -> int:
        """Most tokens on a path."""
        ...

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to ``node``."""
        ...


def read_tree_output(raw: Any, tokens: Tensor, shape: Shape, vocab_size: int, returns: Returns, name: str) -> Emitted:
    """Read what a rule returned for drafted tokens (B, N) as :class:`specverify.subjects.Emitted` (K = depth).

    Errors: SubjectError on a wrong shape or dtype, an id outside the vocabulary, a path that is not in the tree, or a law
    that is none.
    """
    rows = len(tokens)
    if returns == "tokens":
        return normalise_emitted(raw, rows, shape.depth, vocab_size, name)
    if returns == "flat":
        predictions, accepted, counts = _parts(raw, 3, "predictions, accepted, counts", returns, name)
        emitted = _flat(predictions, accepted, counts, shape, rows, name)
    elif returns == "nodes":
        accepted, last = _parts(raw, 2, "accepted nodes, last token", returns, name)
        paths = _node_paths(_ids(accepted, (rows, shape.depth), "accepted nodes", name), shape, name)
        emitted = _along(paths, tokens, _ids(last, (rows,), "last tokens", name))
    else:
        end_is = "law of the last token" if returns == "distribution" else "last token"
        path, length, end = _parts(raw, 3, f"path, length, {end_is}", returns, name)
        paths = _best_paths(_ids(path, (rows,), "paths", name), _ids(length, (rows,), "lengths", name), shape, name)
        last = _drawn(end, rows, vocab_size, name) if returns == "distribution" else _ids(end, (rows,), "last tokens", name)
        emitted = _along(paths, tokens, last)
    return normalise_emitted(emitted, rows, shape.depth, vocab_size, name)


def _parts(raw: Any, n: int, what: str, returns: str, name: str) -> Any:
    if not isinstance(raw, (tuple, list)) or len(raw) != n:
        got = f"{type(raw).__name__} of {len(raw)}" if isinstance(raw, (tuple, list)) else type(raw).__name__
        raise SubjectError(f"{name} returned a {got}; with returns={returns!r} it must return ({what})")
    return raw


def _ids(value: Any, shape: tuple[int, ...], what: str, name: str) -> Tensor:
    """Integers of the given shape; a single row may come without its batch dimension."""
    tensor = torch.as_tensor(value)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise SubjectError(f"{name} returned {what} of dtype {tensor.dtype}; they must be integers")
    if shape[0] == 1 and tuple(tensor.shape) == shape[1:]:
        tensor = tensor[None]
    if tuple(tensor.shape) != shape:
        raise SubjectError(f"{name} returned {what} of shape {tuple(tensor.shape)}; expected {shape}")
    return tensor.long().cpu()


def _along(paths: list[tuple[int, ...]], tokens: Tensor, last: Tensor) -> list[list[int]]:
    """Tokens of the accepted nodes of each row, then its last token."""
    drafted = tokens.tolist()
    return [[*(drafted[b][n] for n in path), end] for b, (path, end) in enumerate(zip(paths, last.tolist(), strict=True))]


def _node_paths(accepted: Tensor, shape: Shape, name: str) -> list[tuple[int, ...]]:
    """The accepted nodes of each row. Errors: SubjectError unless they are a path from the root, filled with -1."""
    paths = []
    for b, row in enumerate(accepted.tolist()):
        path = tuple(row[: row.index(-1)] if -1 in row else row)
        unknown = [n for n in path if not 0 <= n < len(shape.parents)]
        broken = unknown or [n for n, before in zip(path, (-1, *path), strict=False) if shape.parents[n] != before]
        if broken or any(n != -1 for n in row[len(path) :]):
            raise SubjectError(
                f"{name} accepted the nodes {row} in row {b}, which is no path of the tree (parents {list(shape.parents)}): "
                "give the nodes from a child of the root on, each a child of the one before, then -1"
            )
        paths.append(path)
    return paths


def _best_paths(path: Tensor, length: Tensor, shape: Shape, name: str) -> list[tuple[int, ...]]:
    paths = []
    for b, (number, count) in enumerate(zip(path.tolist(), length.tolist(), strict=True)):
        if not 0 <= number < len(shape.leaves):
            raise SubjectError(f"{name} chose path {number} in row {b}; the tree has paths 0..{len(shape.leaves) - 1}")
        whole = shape.path(shape.leaves[number])
        if not 0 <= count <= len(whole):
            raise SubjectError(
                f"{name} accepted {count} tokens of path {number} in row {b}, which has {len(whole)}: "
                "the length counts drafted tokens, not the root and not the last token"
            )
        paths.append(whole[:count])
    return paths


def _drawn(law: Any, rows: int, vocab_size: int, name: str) -> Tensor:
    """One token per row from the laws (B, V) that a rule left to its caller."""
    if not isinstance(law, Tensor):
        raise SubjectError(f"{name} returned a {type(law).__name__} as the law of the last token; return a tensor (B, V)")
    table = law[None] if rows == 1 and law.dim() == 1 else law
    if tuple(table.shape) != (rows, vocab_size) or not table.is_floating_point():
        raise SubjectError(
            f"{name} returned a law of the last token of shape {tuple(law.shape)} and dtype {law.dtype}; "
            f"expected probabilities ({rows}, {vocab_size})"
        )
    if not bool((table.isfinite() & (table >= 0)).all()) or not bool((table.sum(1) > 0).all()):
        raise SubjectError(f"{name} returned a law of the last token that is none: entries are NaN, negative, or all 0")
    return torch.multinomial(table, 1)[:, 0].cpu()


def _flat(predictions: Any, accepted: Any, counts: Any, shape: Shape, rows: int, name: str) -> list[list[int]]:
    """Tokens at the accepted flat places, the root's first."""
    places = len(shape.parents) + 1
    flat = _ids(torch.as_tensor(predictions).reshape(-1), (rows * places,), "predictions", name).tolist()
    at = _ids(accepted, (rows, shape.depth + 1), "accepted places", name)
    numbers = _ids(counts, (rows,), "counts", name).tolist()
    starts = torch.arange(rows)[:, None] * places
    nodes = torch.where(at >= 0, at - starts - 1, -1)
    emitted = []
    for b, row in enumerate(at.tolist()):
        if row[0] != b * places:
            raise SubjectError(f"{name} starts the accepted places of row {b} with {row[0]}; the root's place is {b * places}")
        outside = [x for x in row if x >= 0 and not b * places <= x < (b + 1) * places]
        if outside or any(x < -1 or x == b * places for x in row[1:]):
            raise SubjectError(
                f"{name} accepted the places {row} in row {b}; that row owns {b * places} for the root and "
                f"{b * places + 1}..{(b + 1) * places - 1} for its nodes"
            )
        (path,) = _node_paths(nodes[b : b + 1, 1:], shape, name)
        if len(path) != numbers[b]:
            raise SubjectError(
                f"{name} returned count {numbers[b]} in row {b} beside {len(path)} accepted nodes; the root is not counted"
            )
        emitted.append([flat[x] for x in row[: len(path) + 1]])
    return emitted
