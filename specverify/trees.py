"""What does a verifier of several drafts look like? Trees of drafted tokens, and the step that judges one.

Several drafts for one position are a tree of depth 1 and a chain is a tree with one child per node, so one kind of subject
covers them all. :func:`tree_verifier` makes one of a plain function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Emitted, Facts, facts_from, naming_inputs
from specverify.tree_outputs import Returns, read_tree_output

Children = Literal["with replacement", "without replacement", "top-k"]
"""How the children of a node are drawn from the drafter's law q there.

"with replacement": independently from q. "without replacement": one after the other, the tokens of earlier siblings removed
from q and the rest renormalised; once q has nothing left, uniformly from the tokens not drawn. "top-k": no draw at all, the
likeliest tokens of q in order, the lower id first among equals; such children are certain, so their own law is one-hot.
"""


@dataclass(frozen=True)
class TreeShape:
    """Which node hangs from which: ``parents`` (N,), -1 for the children of the root, every parent before its children.

    The root is the prefix itself and no node. Siblings are in the order in which they are drawn. Errors: SubjectError.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents:
            raise SubjectError("a tree needs at least one node; give parents, or branching such as (2, 2)")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise SubjectError(
                    f"node {node} has parent {parent}; number nodes so that a parent comes before its children, "
                    "with -1 for the children of the root"
                )

    @classmethod
    def branching(cls, counts: Sequence[int]) -> TreeShape:
        """Make the tree in which every node at depth d has ``counts[d]`` children, numbered level by level."""
        if not counts or any(n < 1 for n in counts):
            raise SubjectError(f"branching is {tuple(counts)}; give the number of children at each depth, such as (2, 2)")
        parents: list[int] = []
        level = [-1]
        for n in counts:
            start = len(parents)
            parents += [node for node in level for _ in range(n)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))

    @property
    def size(self) -> int:
        """N, the number of nodes."""
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes from the root's child down to the node itself."""
        found: list[tuple[int, ...]] = []
        for node, parent in enumerate(self.parents):
            found.append((*(found[parent] if parent >= 0 else ()), node))
        return tuple(found)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to ``node``; empty for the root, -1."""
        return self.paths[node] if node >= 0 else ()

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        return {n: tuple(c for c, parent in enumerate(self.parents) if parent == n) for n in range(-1, self.size)}

    def children(self, node: int) -> tuple[int, ...]:
        """Children of a node (-1 for the root), in the order in which they are drawn."""
        return self._children[node]

    def earlier_siblings(self, node: int) -> tuple[int, ...]:
        """Siblings that are drawn before ``node``."""
        return tuple(c for c in self.children(self.parents[node]) if c < node)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in the order of their numbers."""
        return tuple(n for n in range(self.size) if not self.children(n))

    @cached_property
    def depth(self) -> int:
        """Most tokens on a path."""
        return max(map(len, self.paths))

    @cached_property
    def width(self) -> int:
        """Most children of a node."""
        return max(len(self.children(n)) for n in range(-1, self.size))


@dataclass(frozen=True, eq=False)
class Tree:
    """Drafted tokens that form a tree, one per row of the batch, all of the same shape.

    tokens (B, N) int64. draft_probs (B, N, V): the law that each node was *really* drawn from, for siblings drawn without
    replacement therefore the law without the earlier siblings' tokens, renormalised; None where every child is certain
    (q = 1). drafter_probs (B, N+1, V): the drafter's own law at every place before any removal, row 0 after the prefix, row
    i+1 after the path of node i (the same rows as the target's).
    """

    shape: TreeShape
    tokens: Tensor
    draft_probs: Tensor | None
    drafter_probs: Tensor

    @property
    def parents(self) -> Tensor:
        """Parents (N,) int64, -1 for the root's children."""
        return torch.tensor(self.shape.parents, dtype=torch.int64)

    @property
    def laws(self) -> Tensor:
        """draft_probs (B, N, V), with certain children as one-hot laws."""
        if self.draft_probs is not None:
            return self.draft_probs
        certain = torch.nn.functional.one_hot(self.tokens, self.drafter_probs.shape[2])
        return certain.to(self.drafter_probs.dtype)

    @property
    def candidates(self) -> Tensor:
        """Tokens of every path from the root to a leaf, (B, leaves, depth) padded with -1."""
        shape = self.shape
        out = torch.full((len(self.tokens), len(shape.leaves), shape.depth), -1, dtype=torch.int64)
        for row, leaf in enumerate(shape.leaves):
            out[:, row, : len(shape.path(leaf))] = self.tokens[:, list(shape.path(leaf))]
        return out

    def copied(self, dtype: torch.dtype) -> Tree:
        """Return the same tree in tensors of its own, its laws in ``dtype``."""
        drawn = None if self.draft_probs is None else self.draft_probs.to(dtype, copy=True)
        return Tree(self.shape, self.tokens.clone(), drawn, self.drafter_probs.to(dtype, copy=True))

    def logits(self) -> Tree:
        """Return the same tree with log-probabilities in place of probabilities."""
        drawn = None if self.draft_probs is None else self.draft_probs.log()
        return Tree(self.shape, self.tokens, drawn, self.drafter_probs.log())


@dataclass(frozen=True, eq=False)
class TreeVerifier:
    """One verification of a tree of drafts: ``verify(tree, target_probs (B, N+1, V))``.

    Row 0 of target_probs is the target's law after the prefix, row i+1 that after the path of node i. The rule draws its own
    randomness and returns what ``returns`` names (see :func:`specverify.tree_outputs.read_tree_output`). shape and children
    say which trees specverify drafts for it.
    """

    name: str
    verify: Callable[[Tree, Tensor], Any]
    shape: TreeShape
    children: Children
    returns: Returns = "tokens"
    facts: Facts = field(default_factory=Facts)

    kind = "tree verifier"

    def __post_init__(self) -> None:
        for what, value, known in (("children", self.children, Children), ("returns", self.returns, Returns)):
            if value not in get_args(known):
                raise SubjectError(f"{what} is {value!r}; it must be one of {', '.join(map(repr, get_args(known)))}")

    @property
    def k(self) -> int:
        """Depth of the tree: a round emits up to k + 1 tokens."""
        return self.shape.depth

    @property
    def smallest_vocab(self) -> int:
        """Fewest tokens with which such a tree can be drafted: distinct siblings need as many tokens."""
        return max(2, 1 if self.children == "with replacement" else self.shape.width)

    def __call__(self, tree: Tree, target_probs: Tensor) -> Emitted:
        """Run the rule on copies of its inputs and read what it returned."""
        dtype = self.facts.torch_dtype
        laws = {"draft_probs": tree.draft_probs, "target_probs": target_probs}
        with naming_inputs(self.name, parents=list(tree.shape.parents), tokens=tree.tokens, **laws):
            raw = self.verify(tree.copied(dtype), target_probs.to(dtype, copy=True))
            return read_tree_output(raw, tree.tokens, tree.shape, target_probs.shape[-1], self.returns, self.name)


@overload
def tree_verifier(function: Callable[..., Any], **options: Any) -> TreeVerifier: ...


@overload
def tree_verifier(
    function: None = None,
    *,
    branching: Sequence[int] | None = None,
    parents: Sequence[int] | None = None,
    children: Children = "with replacement",
    returns: Returns = "tokens",
    takes: Literal["probs", "logits"] = "probs",
    counts: Literal["emitted", "accepted"] = "emitted",
    name: str | None = None,
    **facts: Any,
) -> Callable[[Callable[..., Any]], TreeVerifier]: ...


def tree_verifier(
    function: Callable[..., Any] | None = None,
    *,
    branching: Sequence[int] | None = None,
    parents: Sequence[int] | None = None,
    children: Children = "with replacement",
    returns: Returns = "tokens",
    takes: Literal["probs", "logits"] = "probs",
    counts: Literal["emitted", "accepted"] = "emitted",
    name: str | None = None,
    **facts: Any,
) -> TreeVerifier | Callable[[Callable[..., Any]], TreeVerifier]:
    """Decorate ``f(tree, target_probs)`` as a :class:`TreeVerifier`; further keywords are :class:`specverify.subjects.Facts`.

    The shape is given by ``branching``, (2, 2) for two children of the root with two children each, or by ``parents``.
    takes="logits" hands log-probabilities, in the tree too. counts="accepted" says that in a returned pair
    ``(tokens, counts)`` the counts are of accepted tokens. Errors: SubjectError when the shape is missing or impossible.
    """
    if (branching is None) == (parents is None):
        raise SubjectError("say which trees the rule verifies: branching=(2, 2), or parents=[-1, -1, 0], and not both")
    shape = TreeShape.branching(branching) if branching is not None else TreeShape(tuple(parents or ()))

    def wrap(f: Callable[..., Any]) -> TreeVerifier:
        def with_logits(tree: Tree, target: Tensor) -> Any:
            return f(tree.logits(), target.log())

        def with_accepted(tree: Tree, target: Tensor) -> Any:
            ids, accepted = (f if takes == "probs" else with_logits)(tree, target)
            return ids, torch.as_tensor(accepted).reshape(-1) + 1

        plain = f if takes == "probs" else with_logits
        verify = plain if counts == "emitted" else with_accepted
        return TreeVerifier(name or f.__name__, verify, shape, children, returns, facts_from(facts))

    return wrap if function is None else wrap(function)
