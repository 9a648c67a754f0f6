"""Which mistakes were reported in public about real engines? Each as a small subject, beside its repaired twin.

The attribute ``C02_all_accepted`` of this module is the faulty subject of case C02, ``C02_repaired`` the repaired one;
``CASES`` holds both, with what goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.faults import block, chain, rules
from specverify.faults.decoders import (
    Loop,
    Processed,
    at_prompt_end,
    factory,
    keep_all_drafts,
    keep_length,
    keep_past_eos,
)
from specverify.faults.requests import (
    C04_filtered_draft,
    C04_repaired,
    C06_noise_unfilled,
    C06_repaired,
    C17_repaired,
    C17_same_coins_for_rows,
    C17_same_stream_for_rows,
    C18_repaired,
    C18_request_replayed,
    C21_default_seed,
    C21_repaired,
    C22_never_accepts,
    C22_repaired,
)
from specverify.faults.rounds import (
    assemble,
    at,
    below_ratio,
    draft_round,
    draw,
    finish,
    residual,
    token_rejection,
    uniforms,
    with_bonus,
)
from specverify.faults.served import C06_served_repaired, C06_unfilled_beside_seeds, C19_padding_attended, C19_repaired
from specverify.pairs import named_pair
from specverify.subjects import Decoder, DecoderLike, Emitted, Facts, Model, Step, Subject, Verifier
from specverify.tables import torch_models

STEP_K = 2
"""Draft tokens of the steps below."""
REQUEST = (0.6, 0.8)
"""Temperature and top-p of the request that C13's decoder serves."""


@dataclass(frozen=True, eq=False)
class Case:
    """A public bug report: what goes wrong, the faulty subject and its repaired twin."""

    id: str
    summary: str
    faulty: Subject
    repaired: Subject


def last_n(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Count the accepted drafts rightly but emit as many from the end of the draft."""
    K = draft_tokens.shape[1]
    accepted = below_ratio(draft_tokens, draft_probs, target_probs).long().cumprod(1).sum(1)
    weights = with_bonus(residual(draft_probs, target_probs), target_probs)
    last = draw(weights[torch.arange(len(accepted)), accepted])
    from_the_end = (K - accepted[:, None] + torch.arange(K)).clamp(max=K - 1)
    return assemble(draft_tokens.gather(1, from_the_end), accepted, last)


def all_accepted(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Count rejections and negate the integer count bitwise: 0 becomes -1, 1 becomes -2, all of them true."""
    rejections = (~below_ratio(draft_tokens, draft_probs, target_probs)).long().cumsum(1)
    accept = (~rejections).bool()
    return finish(draft_tokens, accept, with_bonus(residual(draft_probs, target_probs), target_probs))


def none_rejected_so_far(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Accept while the count of rejections is 0."""
    rejections = (~below_ratio(draft_tokens, draft_probs, target_probs)).long().cumsum(1)
    return finish(draft_tokens, rejections == 0, with_bonus(residual(draft_probs, target_probs), target_probs))


def greedy_draft_declared(target: Model, draft: Model, prefix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Draft argmax q and declare the one-hot law that it was drawn from; prefix (B, T)."""
    tokens, q, p = draft_round(target, draft, prefix, k, lambda law: law.argmax(-1))
    return token_rejection(tokens, one_hot(tokens, q.shape[-1]).to(q.dtype), p)


def up_to_the_ratio(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Accept while u <= p(x)/q(x): a uniform that is exactly 0 accepts a token with p = 0."""
    ratio = at(target_probs, draft_tokens) / at(draft_probs, draft_tokens)
    return finish(draft_tokens, uniforms(ratio) <= ratio, with_bonus(residual(draft_probs, target_probs), target_probs))


def residual_over_its_sum(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the residual by its sum, which is 0 where rounding leaves p <= q everywhere."""
    left = (target_probs[:, :-1] - draft_probs).clamp(min=0)
    weights = with_bonus(left / left.sum(-1, keepdim=True), target_probs)
    return finish(draft_tokens, below_ratio(draft_tokens, draft_probs, target_probs), weights)


def drawn_in_place(law: Tensor) -> Tensor:
    """Draw one token per row of law (B, V) by its distribution function, which is left in the place of the law."""
    u = torch.rand(len(law), 1, dtype=law.dtype)
    below = law.cumsum_(1) <= u * law[:, -1:]
    return below.long().sum(1)


def raced_in_place(law: Tensor) -> Tensor:
    """Draw one token per row of law (B, V) by an exponential race, whose scores are left in the place of the law."""
    return law.div_(torch.empty_like(law).exponential_()).argmax(1)


def draft_by(target: Model, draft: Model, prefix: Tensor, k: int, choose: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Draft with ``choose``, which may write into the law it is given; verify with that law by token rejection."""
    return token_rejection(*draft_round(target, draft, prefix, k, choose))


def drawn_from_a_copy(law: Tensor) -> Tensor:
    """Draw one token per row by the same function from a copy of the law (B, V)."""
    return drawn_in_place(law.clone())


def gumbels(like: Tensor) -> Tensor:
    """Draw one Gumbel for every entry of ``like``, in its dtype; a uniform of 0 would give -inf, as impossible tokens have."""
    return -torch.log(-torch.log(torch.rand_like(like).clamp(min=torch.finfo(like.dtype).tiny)))


def recovered_by_gumbels(target: Model, draft: Model, prefix: Tensor, k: int, *, fresh: bool) -> tuple[Tensor, Tensor]:
    """Draft argmax (log q + g) and recover argmax (log r + g), with fresh Gumbels or with those that chose the draft."""
    noise: list[Tensor] = []

    def choose(law: Tensor) -> Tensor:
        noise.append(gumbels(law))
        return (law.log() + noise[-1]).argmax(1)

    tokens, q, p = draft_round(target, draft, prefix, k, choose)
    accepted = below_ratio(tokens, q, p).long().cumprod(1).sum(1)
    weights = with_bonus(residual(q, p), p)
    again = [gumbels(g) if fresh else g for g in noise] + [gumbels(p[:, -1])]
    last = torch.stack([(weights[:, j].log() + g).argmax(1) for j, g in enumerate(again)], 1)
    return assemble(tokens, accepted, last.gather(1, accepted[:, None])[:, 0])


def residual_never_empty(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Add 1e-9 to every entry of the residual, so that it can be normalised always."""
    weights = (target_probs[:, :-1] - draft_probs).clamp(min=0) + 1e-9
    return finish(draft_tokens, below_ratio(draft_tokens, draft_probs, target_probs), with_bonus(weights, target_probs))


def serving(bonus_processed: bool) -> DecoderLike:
    """Make a decoder over table models of its own that serves ``REQUEST``; its bonus token may be left unprocessed."""
    pair = named_pair(5, 2)
    target, draft = torch_models(pair)
    return Loop(Processed(target, *REQUEST), Processed(draft, *REQUEST), pair.k, bonus=None if bonus_processed else target)


def report(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, count: Callable[[Tensor], Tensor]) -> Emitted:
    """Emit by token rejection; ``count`` turns the acceptances (B, K) into the number (B,) that is reported."""
    accept = below_ratio(draft_tokens, draft_probs, target_probs)
    weights = with_bonus(residual(draft_probs, target_probs), target_probs)
    tokens, counts = finish(draft_tokens, accept, weights)
    return Emitted(tokens, counts, count(accept))


def acceptances_anywhere(accept: Tensor) -> Tensor:
    """Count accepted tokens, also behind a rejection: (B, K) -> (B,)."""
    return accept.sum(1)


def acceptances_in_a_run(accept: Tensor) -> Tensor:
    """Count accepted tokens before the first rejection: (B, K) -> (B,)."""
    return accept.long().cumprod(1).sum(1)


def _decoder(name: str, build: Callable[..., DecoderLike] | None = None) -> Decoder:
    return Decoder(name, build=build or factory(), facts=Facts(rule="token rejection"))


C01_last_n = Verifier("C01_last_n", last_n)
C01_repaired = Verifier("C01_repaired", token_rejection)
C02_all_accepted = Verifier("C02_all_accepted", all_accepted)
C02_repaired = Verifier("C02_repaired", none_rejected_so_far)
C03_soft_q_declared = Step("C03_soft_q_declared", partial(rules.greedy_draft, k=STEP_K), STEP_K)
C03_repaired = Step("C03_repaired", partial(greedy_draft_declared, k=STEP_K), STEP_K)
C05_distribution_function = Step("C05_distribution_function", partial(draft_by, k=STEP_K, choose=drawn_in_place), STEP_K)
C05_repaired = Step("C05_repaired", partial(draft_by, k=STEP_K, choose=drawn_from_a_copy), STEP_K)
C05_race_scores = Step("C05_race_scores", partial(draft_by, k=STEP_K, choose=raced_in_place), STEP_K)
C07_gumbels_reused = Step("C07_gumbels_reused", partial(recovered_by_gumbels, k=STEP_K, fresh=False), STEP_K)
C07_repaired = Step("C07_repaired", partial(recovered_by_gumbels, k=STEP_K, fresh=True), STEP_K)
C08_up_to_the_ratio = Verifier("C08_up_to_the_ratio", up_to_the_ratio)
C08_repaired = Verifier("C08_repaired", token_rejection)
C09_nothing_left = Verifier("C09_nothing_left", residual_over_its_sum)
C09_repaired = Verifier("C09_repaired", token_rejection)
C10_inverted_ratio = Verifier("C10_inverted_ratio", rules.inverted_ratio)
C10_repaired = Verifier("C10_repaired", token_rejection)
C11_rejected_stay = _decoder("C11_rejected_stay", factory(keep=keep_all_drafts))
C11_not_rolled_back = _decoder("C11_not_rolled_back", factory(keep=keep_length))
C11_repaired = _decoder("C11_repaired")
C12_prompt_position = _decoder("C12_prompt_position", factory(read_at=at_prompt_end))
C12_repaired = _decoder("C12_repaired")
C13_bonus_unwarped = Verifier("C13_bonus_unwarped", chain.bonus_unwarped)
C13_repaired = Verifier("C13_repaired", token_rejection)
C13_bonus_unprocessed = Decoder("C13_bonus_unprocessed", open=partial(serving, bonus_processed=False))
C13_processed_repaired = Decoder("C13_processed_repaired", open=partial(serving, bonus_processed=True))
C14_products_of_uniforms = Verifier("C14_products_of_uniforms", block.products_of_uniforms)
C14_token_residual = Verifier("C14_token_residual", block.block_token_residual)
C14_repaired = Verifier("C14_repaired", block.block_verification)
C15_past_eos = _decoder("C15_past_eos", factory(cut=keep_past_eos))
C15_repaired = _decoder("C15_repaired")
C16_counts_all = Verifier("C16_counts_all", partial(report, count=acceptances_anywhere))
C16_repaired = Verifier("C16_repaired", partial(report, count=acceptances_in_a_run))
C20_residual_never_empty = Verifier("C20_residual_never_empty", residual_never_empty)
C20_repaired = Verifier("C20_repaired", token_rejection)

CASES: dict[str, Case] = {
    case.faulty.name: case
    for case in (
        Case("C01", "the accepted slice is the last n drafted tokens, not the first n", C01_last_n, C01_repaired),
        Case("C02", "the rejection mask is a negated count: every draft is accepted", C02_all_accepted, C02_repaired),
        Case("C03", "the draft is argmax q, the rule uses the soft q", C03_soft_q_declared, C03_repaired),
        Case("C04", "drafts come from the two likeliest tokens, the rule is told all of q", C04_filtered_draft, C04_repaired),
        Case("C06", "rows without a seed keep a noise buffer that was never filled", C06_noise_unfilled, C06_repaired),
        Case("C06", "the same, but only beside seeded rows of a batch", C06_unfilled_beside_seeds, C06_served_repaired),
        Case("C19", "shorter prompts are padded on the left and the padding is read", C19_padding_attended, C19_repaired),
        Case("C17", "all rows of a call draw the same numbers", C17_same_stream_for_rows, C17_repaired),
        Case("C17", "all rows of a call toss the same coins", C17_same_coins_for_rows, C17_repaired),
        Case("C18", "every second request replays the noise of the one before", C18_request_replayed, C18_repaired),
        Case("C21", "a default seed: every request gets the same stream", C21_default_seed, C21_repaired),
        Case("C22", "nothing is accepted on any model that was tried", C22_never_accepts, C22_repaired),
        Case("C05", "the drafter's sampling leaves the cumulative q where q was", C05_distribution_function, C05_repaired),
        Case("C05", "the drafter's race leaves its scores where q was", C05_race_scores, C05_repaired),
        Case("C07", "the Gumbels that chose the draft choose the recovered token", C07_gumbels_reused, C07_repaired),
        Case("C08", "u <= p/q accepts a token with p = 0 when u is exactly 0", C08_up_to_the_ratio, C08_repaired),
        Case("C09", "p = q up to an ulp leaves nothing to recover from: 0/0", C09_nothing_left, C09_repaired),
        Case("C10", "the ratio is q/p instead of p/q", C10_inverted_ratio, C10_repaired),
        Case("C11", "rejected draft tokens stay in the output and in the prefix", C11_rejected_stay, C11_repaired),
        Case("C11", "the length is not rolled back: drafts behind a rejection stay", C11_not_rolled_back, C11_repaired),
        Case("C12", "every round but the first verifies at the wrong position", C12_prompt_position, C12_repaired),
        Case("C13", "the bonus token is drawn at temperature 1, whatever the request's", C13_bonus_unwarped, C13_repaired),
        Case("C13", "temperature and top-p miss the bonus row", C13_bonus_unprocessed, C13_processed_repaired),
        Case("C14", "the longest prefix with prod rho >= prod u is accepted", C14_products_of_uniforms, C14_repaired),
        Case("C14", "the block rule recovers from the residual of one token", C14_token_residual, C14_repaired),
        Case("C15", "tokens that a round emitted after an eos are returned too", C15_past_eos, C15_repaired),
        Case("C16", "the reported count includes acceptances behind a rejection", C16_counts_all, C16_repaired),
        Case("C20", "1e-9 is added to every entry of the residual", C20_residual_never_empty, C20_repaired),
    )
}
