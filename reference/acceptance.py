"""How often a draft should have been accepted along a text that was generated: each chance, given all that came before it.

A round is drafted again with the tokens that the text took, so that the laws of drafter and main model at every place are
those of that time. Token rejection accepts the draft at a place with probability sum min(p, q) = 1 - TV(p, q), whatever
was drawn before. Accepted minus that chance, over the places that were tested, is therefore a martingale: its sum has mean
0 and variance sum b (1 - b), without any assumption about the text.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.drafting import Chain, Drafter, Model
from reference.processors import Process
from reference.step import draft_propose, read_block, start
from specverify.subjects import Generated


class TakenTokens:
    """In the place of noise: what is chosen is what the text took, one token after the other (N,), then token 0."""

    def __init__(self, coming: Tensor) -> None:
        self.coming = iter(coming.tolist())

    def choose(self, probabilities: Tensor, live: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the next token (1,)."""
        return torch.tensor([next(self.coming, 0)])


@torch.inference_mode()
def exact_acceptance(
    main: Model, draft: Drafter | Model, prompts: Tensor, made: Generated, *, k: int, process: Process
) -> Tensor:
    """Return the chance (B, R, K) of every draft to be accepted by token rejection, given that those before it were.

    prompts (B, T) and what was made of them, with K drafts in every round. NaN stands at places that were not tested, and in
    rounds that began with K tokens or fewer to come, which the end of the text may cut; 0 where nothing was drafted.
    Errors: ValueError without accepted counts, or for a drafter that drafts trees.
    """
    if made.accepted is None:
        raise ValueError("accepted counts are needed: pass what decoder.generate returned")
    chances = torch.full((*made.accepted.shape, k), torch.nan, dtype=torch.float64)
    for row, counts in enumerate(made.accepted.tolist()):
        prompt, new = prompts[row : row + 1], made.tokens[row]
        state = start(main, draft, prompt, torch.tensor([prompt.shape[1]]), len(new) + 2 * k + 1, seen=process.reads_history)
        text, cache = state.text, state.cache
        # The whole text is read at once. Rounds then see of it what was there when they began.
        hidden, logits = read_block(main, state, torch.cat([text.last, new[None]], 1))
        target = process(logits, text.seen_along(new[None]))[0]  # (N+1, V): row i follows i new tokens
        if hidden is not None:
            text.remember(hidden)
        cache.lengths = text.lengths - 1
        done = 0
        for r, accepted in enumerate(counts):
            if accepted < 0 or len(new) - done < k + 1:
                break  # settled before the round: leaving out those that turn out long would bias the sum
            drafts = draft_propose(state, k, process, TakenTokens(new[done:]))  # type: ignore[arg-type]
            if not isinstance(drafts, Chain):
                raise ValueError("chances are known place by place for chains only, and this drafter drafts trees")
            tested = min(accepted + 1, k)
            laws = drafts.laws[0, :tested, : target.shape[1]]  # of a place without a draft nothing is left
            found = torch.minimum(laws.to(target.dtype), target[done : done + tested]).sum(-1)
            chances[row, r, :tested] = found.double()
            text.append(new[None, done : done + accepted + 1], torch.tensor([accepted + 1]))
            cache.lengths = text.lengths - 1
            state.drafting.settle(text)
            done += accepted + 1
    return chances


def deviation(accepted: Tensor, chances: Tensor) -> tuple[float, float]:
    """Return how many more drafts were accepted than chances (B, R, K) say, and the standard error of that number.

    accepted (B, R): drafts accepted in each round. Divided they are a z-score, of mean 0 and variance 1 for a decoder
    whose drafts and whose rule are what they should be.
    """
    tested = ~chances.isnan()
    hit = torch.arange(chances.shape[2]) < accepted[..., None]
    known = torch.where(tested, chances, 0.0)
    return float((hit & tested).double().sum() - known.sum()), float((known * (1 - known)).sum().sqrt())
