"""How texts that begin alike are read: what they share once, the rest row by row.

A certificate asks for thousands of continuations of a few prompts, and a server's requests begin with the same instructions.
The keys and values of a token depend on the tokens before it alone, so those of a shared beginning may be copied.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reference.caching import Cache

LEAST_SAVED = 0.1
"""Beginnings are shared where at least this much of the tokens need not be read; two passes cost more than one."""


def read_sharing(
    start: Callable[[int, int], Cache], read: Callable[..., Tensor], ids: Tensor, counts: Tensor | None, capacity: int
) -> tuple[Cache, Tensor]:
    """Read ids (B, n), of which row b has its first ``counts[b]`` (all n without), into a cache that ``start(capacity, rows)``
    makes; returns it and what ``read(ids, cache, counts)`` gives, (B, n, ..), which means nothing past a row's count. Where
    there is nothing to read, n = 0, that is nothing, (B, 0).
    """
    B, n = ids.shape
    if n == 0:
        return start(capacity, B), torch.zeros(B, 0)
    shared, first, which = shared_beginning(ids, counts)
    cache = start(capacity, B)
    if not shared:
        return cache, read(ids, cache, counts)
    once = start(capacity, len(first))
    beginning = read(ids[first, :shared], once, None if counts is None else counts[first].clamp(max=shared))
    cache.adopt(once, which)
    found = beginning[which]
    if shared < n:
        rest = read(ids[:, shared:], cache, None if counts is None else (counts - shared).clamp(min=0))
        found = torch.cat([found, rest], 1)
    return cache, found


def shared_beginning(ids: Tensor, counts: Tensor | None) -> tuple[int, Tensor, Tensor]:
    """Return how many tokens of rows (B, n) to read together, one row for every beginning there is, (U,), and which of these
    each row begins with, (B,); 0 tokens where too little would be saved.
    """
    B, n = ids.shape
    alone = 0, torch.arange(B), torch.arange(B)
    if B == 1:
        return alone
    real = ids if counts is None else torch.where(torch.arange(n) < counts[:, None], ids, -1)
    kinds, which = torch.unique(real, dim=0, return_inverse=True)  # in lexical order
    differ = (kinds[1:] != kinds[:-1]).long().argmax(1)  # the place where each begins to differ from the one before
    # With the first t tokens there are 1 + #(differ < t) beginnings.
    beginnings = 1 + torch.bincount(differ, minlength=n).cumsum(0)  # (n,): for t = 1 .. n
    saved = (B - beginnings) * torch.arange(1, n + 1)
    shared = int(saved.argmax()) + 1
    if int(saved.max()) < LEAST_SAVED * B * n:
        return alone
    group = torch.cat([torch.zeros(1, dtype=torch.int64), (differ < shared).long().cumsum(0)])[which]
    first = torch.full((int(group.max()) + 1,), B).scatter_reduce(0, group, torch.arange(B), "amin")
    return shared, first, group
