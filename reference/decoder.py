"""How to generate with speculation: tokens of the main model's law, each model reading each token once.

A round: the drafter proposes K tokens, in a chain or a tree; the main model reads the last emitted token and the proposals
in one pass; the rule decides; caches forget what was not accepted. Rows accept different counts, so they have different
lengths, and leave when they are done. Between rounds, when a row has L tokens, the main cache holds L - 1, all but the last.

Names of shapes: B rows, K drafted tokens, V vocabulary, N new tokens, R rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Branches, Cache, FeaturedModel
from reference.drafting import Chain, Drafter, Drafting, Model, Process
from reference.drafting.separate import as_drafter
from reference.history import Text, occurring, read_prompts
from reference.noise import Noise
from specverify.subjects import Emitted, Generated
from specverify.trees import Tree, TreeShape


class Pace(Protocol):
    """How many tokens each round drafts, chosen from what earlier rounds accepted and nothing else."""

    largest: int

    def choose(self) -> int:
        """Tokens to draft in the next round; 0 leaves the round to the main model alone."""
        ...

    def observe(self, drafted: int, accepted: Tensor) -> None:
        """Hear how many of the drafted tokens each row accepted, (B,)."""
        ...


@dataclass
class State:
    """What a decode carries from round to round."""

    text: Text
    cache: Cache
    """Of the main model."""
    drafting: Drafting

    def keep_rows(self, kept: Tensor) -> None:
        """Let all rows but ``kept`` (R,) leave."""
        self.text.keep_rows(kept)
        self.cache.keep_rows(kept)
        self.drafting.keep_rows(kept)


@dataclass(frozen=True)
class Round:
    """What one round added: the rows (R,) that took part, their tokens (R, K+1), how many of them count, (R,) (a stop or
    the end of the request cuts a block), and how many drafts were accepted, (R,).
    """

    rows: Tensor
    tokens: Tensor
    counts: Tensor
    accepted: Tensor


def start(main: Model, draft: Drafter | Model, prompts: Tensor, lengths: Tensor, room: int, *, seen: bool = False) -> State:
    """Read prompts (B, T), of which row b has ``lengths[b]`` >= 1 tokens, leaving ``room`` tokens to come per row.

    seen: keep the tokens of each row for a processor that asks for them.
    """
    drafter = as_drafter(draft)
    B, T = prompts.shape
    cache: Cache = main.start(T + room + drafter.room, B)
    text = read_prompts(prompts, lengths, room + drafter.room, main.vocab_size, seen=seen)
    if drafter.reads_hidden:
        text.hidden = _featured(main).no_hidden(B, cache.capacity, cache.capacity)
    if T > 1:
        if text.hidden is None:
            main.extend(prompts[:, :-1], cache, lengths - 1)
        else:
            text.hidden[:, : T - 1] = _featured(main).hidden(prompts[:, :-1], cache, lengths - 1)
    return State(text, cache, drafter.begin(main, cache, text))


def draft_propose(state: State, k: int, process: Process, noise: Noise) -> Chain | Tree:
    """Let the drafter propose: a chain of tokens (B, K) with the laws (B, K, V) they were drawn from, or a tree."""
    return state.drafting.propose(state.text, k, process, noise)


def main_verify(main: Model, state: State, drafts: Chain | Tree, process: Process, rule: Any, noise: Noise) -> Emitted:
    """One pass of the main model over the last token and the proposals, judged by the rule. The cache then holds the whole
    text but its last token.
    """
    text, before = state.text, state.text.lengths - 1
    if isinstance(drafts, Tree):
        branches, follows = branches_of(drafts.shape)
        hidden, logits = _read(main, state, torch.cat([text.last, drafts.tokens], 1), branches)
        emitted: Emitted = rule.verify(drafts, process(logits, text.seen_along(drafts.tokens, follows)), noise)
        path = accepted_path(drafts, emitted)
        state.cache.keep_path(before, path, emitted.counts)
        if hidden is not None:
            text.remember(hidden[torch.arange(len(path))[:, None], path])
    else:
        V = main.vocab_size
        absent = drafts.laws.shape[-1] > V
        readable = torch.where(drafts.tokens < V, drafts.tokens, 0) if absent else drafts.tokens
        hidden, logits = _read(main, state, torch.cat([text.last, readable], 1))
        target = process(logits, text.seen_along(drafts.tokens))  # (B, K+1, V)
        laws = drafts.laws.to(target.dtype)
        emitted = rule.verify(drafts.tokens, laws, functional.pad(target, (0, 1)) if absent else target, noise)
        state.cache.rollback(before + emitted.counts)
        if hidden is not None:
            text.remember(hidden)
    text.append(emitted.tokens, emitted.counts)
    return emitted


def _read(main: Model, state: State, block: Tensor, branches: Branches | None = None) -> tuple[Tensor | None, Tensor]:
    """Hidden states (B, n, E) where a drafter reads them, and logits (B, n, V), of a block (B, n)."""
    as_tree: dict[str, Any] = {} if branches is None else {"branches": branches}
    if state.text.hidden is None:
        return None, main.extend(block, state.cache, **as_tree)
    hidden = _featured(main).hidden(block, state.cache, **as_tree)
    return hidden, _featured(main).logits(hidden)


def _featured(main: Model) -> FeaturedModel[Any]:
    """The main model of a drafter that reads hidden states."""
    return cast("FeaturedModel[Any]", main)


def branches_of(shape: TreeShape) -> tuple[Branches, Tensor]:
    """Return a tree after the last token as what a pass reads, N + 1 tokens, and which nodes each node follows (N, N)."""
    follows = torch.zeros(shape.size, shape.size, dtype=torch.bool)
    for node in range(shape.size):
        follows[node, list(shape.path(node))] = True
    visible = functional.pad(follows, (1, 0, 1, 0))
    visible[:, 0] = True
    return Branches(visible.sum(1) - 1, visible), follows


def accepted_path(tree: Tree, emitted: Emitted) -> Tensor:
    """Return which tokens of the pass each row keeps, (B, depth+1): 0, the last token, then 1 + node along its path.

    Nodes with the same tokens above them are the same text, so any path that holds the accepted tokens will do. What lies
    past a row's count means nothing.
    """
    shape, accepted = tree.shape, emitted.counts - 1
    nodes = torch.tensor([[*shape.path(n), *[n] * (shape.depth - len(shape.path(n)))] for n in range(shape.size)])  # (N, D)
    depths = torch.tensor([len(shape.path(n)) for n in range(shape.size)])
    agree = (tree.tokens[:, nodes] == emitted.tokens[:, None, : shape.depth]) | (torch.arange(shape.depth) >= depths[:, None])
    ends = agree.all(2) & (depths == accepted[:, None])  # (B, N): where a path with the accepted tokens ends
    path = 1 + nodes[ends.long().argmax(1)]
    return functional.pad(path, (1, 0))


def speculative_step(main: Model, state: State, k: int, process: Process, rule: Any, noise: Noise) -> Emitted:
    """One round on a state, which is carried on."""
    emitted = main_verify(main, state, draft_propose(state, k, process, noise), process, rule, noise)
    state.drafting.settle(state.text)
    return emitted


def plain_step(main: Model, state: State, process: Process, noise: Noise) -> Emitted:
    """One round without drafts: a token of the main model's law."""
    hidden, logits = _read(main, state, state.text.last)
    seen = state.text.seen
    chosen = noise.choose(process(logits[:, 0], seen))
    if hidden is not None:
        state.text.remember(hidden)
    emitted = Emitted(chosen[:, None], torch.ones_like(chosen), torch.zeros_like(chosen))
    state.text.append(emitted.tokens, emitted.counts)
    return emitted


def rounds(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    max_new_tokens: int | Tensor,
    *,
    k: int | Pace,
    process: Process,
    rule: Any,
    noise: Noise,
    lengths: Tensor | None = None,
    stop: Sequence[int] = (),
) -> Iterator[Round]:
    """Yield what each round adds to prompts (B, T), until every row has its ``max_new_tokens`` (one number, or (B,)) or a
    token of ``stop``. Arguments and errors as for :func:`generate`.
    """
    lengths = _checked(prompts, lengths, max_new_tokens)
    pace = k if not isinstance(k, int) else None
    largest = k if isinstance(k, int) else k.largest
    if largest < 1:
        raise ValueError(f"k is {largest}; a round drafts at least one token")
    B = len(prompts)
    left = torch.as_tensor(max_new_tokens).expand(B)
    rows, ends = torch.arange(B), torch.tensor(list(stop), dtype=torch.int64)
    with torch.inference_mode():
        # A row may end K tokens past what was asked.
        reads = bool(getattr(process, "reads_history", False))
        state = start(main, draft, prompts, lengths, int(left.max()) + 2 * largest + 1, seen=reads)
    while True:
        with torch.inference_mode():
            drafted = largest if pace is None else pace.choose()
            if drafted:
                emitted = speculative_step(main, state, drafted, process, rule, noise)
            else:
                emitted = plain_step(main, state, process, noise)
            counts, stopped = _cut(emitted, left, ends)
            if pace is not None:
                pace.observe(drafted, emitted.counts - 1)
        yield Round(rows, emitted.tokens, counts, emitted.counts - 1)
        left = left - counts
        going = (left > 0) & ~stopped
        if going.all():
            continue
        if not going.any():
            return
        with torch.inference_mode():
            kept = _filling_holes(going)
            state.keep_rows(kept)
            rows, left = rows[kept], left[kept]
            noise = noise.keep_rows(kept)
            process = process.keep_rows(kept) if hasattr(process, "keep_rows") else process


def _filling_holes(going: Tensor) -> Tensor:
    """Return the rows that go on, (R,), such that few have to move: the last ones into the places of those that leave."""
    kept = going.nonzero()[:, 0]
    order = torch.arange(len(kept))
    order[~going[: len(kept)]] = kept[kept >= len(kept)]
    return order


def _cut(emitted: Emitted, left: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens of each row's block count, (B,), and which rows met a stop, (B,)."""
    counts = torch.minimum(emitted.counts, left)
    if not len(ends):
        return counts, torch.zeros_like(counts, dtype=torch.bool)
    places = torch.arange(emitted.tokens.shape[1])
    met = torch.isin(emitted.tokens, ends) & (places < counts[:, None])
    first = torch.where(met, places, len(places)).amin(1)
    return torch.minimum(counts, first + 1), met.any(1)


def generate(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    k: int | Pace,
    process: Process,
    rule: Any,
    noise: Noise,
    lengths: Tensor | None = None,
    eos_id: int | None = None,
    stop: Sequence[int] = (),
) -> Generated:
    """Exactly max_new_tokens (B, N) after prompts (B, T), and the accepted counts (B, R) of each row's rounds, then -1.

    draft: a drafter of :mod:`reference.drafting`, or a model that drafts by itself. Row b's prompt is its first
    ``lengths[b]`` tokens (default: all T). A row ends at ``eos_id`` or a token of ``stop``; what follows is that token
    again. k is a number or a :class:`Pace`. Every round drafts as many tokens as if the text went on, also the last, so a
    row's draws do not depend on how many tokens are asked for; what is too much is cut. Errors: ValueError for empty
    prompts, k < 1 or max_new_tokens < 1.
    """
    ends = [*stop, *([] if eos_id is None or eos_id in stop else [eos_id])]
    B = len(prompts)
    made = rounds(
        main, draft, prompts, max_new_tokens, k=k, process=process, rule=rule, noise=noise, lengths=lengths, stop=ends
    )
    collected = Collected(B, max_new_tokens)
    for one in made:
        collected.add(one)
    return collected.generated()


class Collected:
    """What rounds made of B rows, put together to N tokens each."""

    def __init__(self, rows: int, max_new_tokens: int) -> None:
        self.output = torch.zeros(rows, max_new_tokens + 1, dtype=torch.int64)
        self.filled = torch.zeros(rows, dtype=torch.int64)
        self.accepted: list[Tensor] = []

    def add(self, one: Round) -> None:
        """Write a round's tokens behind those of its rows."""
        # A row's block is written whole where there is room: what lies past its count is overwritten, or cut in the end.
        at, most = self.filled[one.rows], self.output.shape[1] - 1
        where = (at[:, None] + torch.arange(one.tokens.shape[1])).clamp(max=most)
        self.output[one.rows[:, None], where] = one.tokens
        self.filled[one.rows] = at + one.counts
        self.accepted.append(torch.full_like(self.filled, -1).index_copy(0, one.rows, one.accepted))

    def generated(self) -> Generated:
        """Return tokens (B, N), each row's last one repeated to the end, and accepted counts (B, R)."""
        last = self.output.gather(1, (self.filled - 1)[:, None])
        places = torch.arange(self.output.shape[1] - 1)
        tokens = torch.where(places < self.filled[:, None], self.output[:, :-1], last)
        return Generated(tokens, torch.stack(self.accepted, 1))


def stream(
    main: Model, draft: Drafter | Model, prompts: Tensor, max_new_tokens: int | Tensor, **settings: Any
) -> Iterator[list[tuple[int, list[int]]]]:
    """Yield after every round (row, its new tokens) of the rows that took part; arguments as for :func:`rounds`."""
    for one in rounds(main, draft, prompts, max_new_tokens, **settings):
        yield [
            (row, block[:count])
            for row, block, count in zip(one.rows.tolist(), one.tokens.tolist(), one.counts.tolist(), strict=True)
        ]


def autoregressive(
    main: Model,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    process: Process,
    noise: Noise,
    cached: bool = True,
    lengths: Tensor | None = None,
    eos_id: int | None = None,
) -> Tensor:
    """Exactly max_new_tokens (B, N) after prompts (B, T) by the main model alone, one token per pass.

    Without ``cached`` every pass reads the whole text again. Other arguments and errors as for :func:`generate`.
    """
    lengths = _checked(prompts, lengths, max_new_tokens)
    rows = torch.arange(len(prompts))
    with torch.inference_mode():
        text = functional.pad(prompts, (0, max_new_tokens))
        last = text.gather(1, lengths[:, None] - 1)
        cache: Cache | None = main.start(text.shape[1], len(prompts)) if cached else None
        if cache is not None and prompts.shape[1] > 1:
            main.extend(prompts[:, :-1], cache, lengths - 1)
        tokens: list[Tensor] = []
        seen = None
        if getattr(process, "reads_history", False):
            seen = read_prompts(prompts, lengths, 0, main.vocab_size, seen=True).seen
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for i in range(max_new_tokens):
            if cache is not None:
                logits = main.extend(last, cache)[:, 0]
            else:
                length = prompts.shape[1] + i
                logits = main.extend(text[:, :length], main.start(length, len(prompts)))[rows, lengths + i - 1]
            last = noise.choose(process(logits, seen))[:, None]
            seen = None if seen is None else seen | occurring(last, main.vocab_size)[:, 0]
            text.scatter_(1, lengths[:, None] + i, last)
            tokens.append(last)
            if eos_id is not None:
                ended = ended | (last[:, 0] == eos_id)
                if ended.all():
                    break
        output = functional.pad(torch.cat(tokens, 1), (0, max_new_tokens - len(tokens)))
        output = _after_end(output, eos_id)
    return output.clone()


def acceptance_per_tested_token(accepted: Tensor, k: int) -> float:
    """Return accepted / (accepted + rejected) over rounds (B, R) of K drafts; entries of -1 are no rounds."""
    counts = accepted[accepted >= 0]
    return float(counts.sum() / (counts.sum() + (counts < k).sum()))


def _after_end(tokens: Tensor, eos_id: int | None) -> Tensor:
    """Tokens (B, N) with everything after a row's first ``eos_id`` replaced by it."""
    if eos_id is None:
        return tokens
    ends = (tokens == eos_id).long()
    return torch.where(ends.cumsum(1) - ends > 0, eos_id, tokens)


def _checked(prompts: Tensor, lengths: Tensor | None, max_new_tokens: int | Tensor) -> Tensor:
    B, T = prompts.shape
    lengths = torch.full((B,), T) if lengths is None else lengths
    if T < 1 or (lengths < 1).any() or (lengths > T).any():
        raise ValueError(f"prompt lengths are {lengths.tolist()} for prompts {(B, T)}; each must lie in 1..{T}")
    if (torch.as_tensor(max_new_tokens) < 1).any():
        raise ValueError(f"max_new_tokens is {max_new_tokens}; ask for at least one")
    return lengths
