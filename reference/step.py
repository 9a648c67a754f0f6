"""How one round goes: the drafter proposes, the main model reads all proposals in one pass, the rule says what is kept.

Between rounds, when a row has L tokens, the main model's cache holds L - 1 of them, all but the last.

Names of shapes: B rows, T tokens of a prompt, K drafted tokens, N nodes of a tree, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from reference.caching import Branches, Cache, FeaturedModel
from reference.drafting import Chain, Drafter, Drafting, Laws, Model
from reference.drafting.separate import as_drafter
from reference.history import Text, read_prompts
from reference.noise import Noise
from reference.sharing import read_sharing
from specverify.subjects import Emitted
from specverify.trees import Tree, TreeShape


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


def start(main: Model, draft: Drafter | Model, prompts: Tensor, lengths: Tensor, room: int, *, seen: bool = False) -> State:
    """Read prompts (B, T), of which row b has ``lengths[b]`` >= 1 tokens, leaving ``room`` tokens to come per row.

    seen: keep the tokens of each row for a processor that asks for them.
    """
    drafter = as_drafter(draft)
    B, T = prompts.shape
    capacity = T + room + drafter.room
    text = read_prompts(prompts, lengths, room + drafter.room, main.vocab_size, seen=seen)
    if drafter.reads_hidden:
        text.hidden = _featured(main).no_hidden(B, capacity, capacity)
    read = main.extend if text.hidden is None else _featured(main).hidden
    cache, found = read_sharing(main.start, read, prompts[:, :-1], lengths - 1, capacity)
    if text.hidden is not None and T > 1:
        text.hidden[:, : T - 1] = found
    return State(text, cache, drafter.begin(main, cache, text))


def draft_propose(state: State, k: int, process: Laws, noise: Noise) -> Chain | Tree:
    """Let the drafter propose: a chain of tokens (B, K) with the laws (B, K, V) they were drawn from, or a tree."""
    return state.drafting.propose(state.text, k, process, noise)


def main_verify(main: Model, state: State, drafts: Chain | Tree, process: Laws, rule: Any, noise: Noise) -> Emitted:
    """One pass of the main model over the last token and the proposals, judged by the rule. The cache then holds the whole
    text but its last token.
    """
    text, before = state.text, state.text.lengths - 1
    if isinstance(drafts, Tree):
        branches, follows = branches_of(drafts.shape)
        hidden, logits = read_block(main, state, torch.cat([text.last, drafts.tokens], 1), branches)
        emitted: Emitted = rule.verify(drafts, process(logits, text.seen_along(drafts.tokens, follows)), noise)
        path = accepted_path(drafts, emitted)
        state.cache.keep_path(before, path, emitted.counts)
        if hidden is not None:
            text.remember(hidden[torch.arange(len(path))[:, None], path])
    else:
        V = main.vocab_size
        absent = drafts.laws.shape[-1] > V
        readable = torch.where(drafts.tokens < V, drafts.tokens, 0) if absent else drafts.tokens
        hidden, logits = read_block(main, state, torch.cat([text.last, readable], 1))
        target = process(logits, text.seen_along(drafts.tokens))  # (B, K+1, V)
        laws = drafts.laws.to(target.dtype)
        emitted = rule.verify(drafts.tokens, laws, functional.pad(target, (0, 1)) if absent else target, noise)
        state.cache.rollback(before + emitted.counts)
        if hidden is not None:
            text.remember(hidden)
    text.append(emitted.tokens, emitted.counts)
    return emitted


def read_block(main: Model, state: State, block: Tensor, branches: Branches | None = None) -> tuple[Tensor | None, Tensor]:
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


def speculative_step(main: Model, state: State, k: int, process: Laws, rule: Any, noise: Noise) -> Emitted:
    """One round on a state, which is carried on."""
    emitted = main_verify(main, state, draft_propose(state, k, process, noise), process, rule, noise)
    state.drafting.settle(state.text)
    return emitted


def plain_step(main: Model, state: State, process: Laws, noise: Noise) -> Emitted:
    """One round without drafts: a token of the main model's law."""
    hidden, logits = read_block(main, state, state.text.last)
    seen = state.text.seen
    chosen = noise.choose(process(logits[:, 0], seen))
    if hasattr(noise, "taken"):
        noise.taken()  # no rule will ask for the clocks of this race
    if hidden is not None:
        state.text.remember(hidden)
    emitted = Emitted(chosen[:, None], torch.ones_like(chosen))
    state.text.append(emitted.tokens, emitted.counts)
    return emitted
