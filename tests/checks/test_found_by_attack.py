"""Wrong verdicts that an attack on the sampled tests found, each with what must come out now."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.checks.own_tokens import OwnTokens
from specverify.checks.sampling import Sample, in_order, sample_decoder
from specverify.evidence.watch import TableWatch
from specverify.evidence.wealth import measured
from specverify.faults.decoders import factory
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.subjects import Decoder, Facts, Generated, Step

LAWS = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.2, 0.5, 0.3, 0.0], [0.3, 0.2, 0.5, 0.0], [0.4, 0.4, 0.2, 0.0]])


class Chain:
    """Samples from a Markov law; from its seventh new token on, a share of the tokens is one that the law never gives."""

    vocab_size = 4

    def __init__(self, lost: float = 0.0) -> None:
        self.lost = lost

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """The law after the last token."""
        return LAWS[ids].log()

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Token by token, the mask lost after six."""
        generator, ids = torch.Generator().manual_seed(seed), prompts
        for place in range(max_new_tokens):
            token = torch.multinomial(LAWS[ids[:, -1]], 1, generator=generator)
            wrong = torch.rand(token.shape, generator=generator) < self.lost * (place >= 6)
            ids = torch.cat([ids, torch.where(wrong, 3, token)], 1)
        return ids[:, prompts.shape[1] :]


def evidence_of(subject: Decoder, only: str = "") -> dict[str, Evidence]:
    """Evidence of the tests whose name contains ``only``, by name."""
    plan = plan_for(subject, "tests", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    return {p.test: runner.run(p) for p in plan.tests if p.expected == "certified" and only in p.test}


def test_impossible_tokens_late_in_a_sequence_refute() -> None:
    """Beyond the tokens of the test that confirms the first ones, in both tests that sample longer."""
    found = evidence_of(Decoder("late", open=lambda: Chain(0.3)))
    assert found["sequence/late/own models"].verdict == "certified"  # it looks at five tokens
    assert found["sequence/late/own models, every known fault"].verdict == "refuted"
    assert found["stopping/late/own models"].verdict == "refuted"
    assert {e.verdict for e in evidence_of(Decoder("right", open=Chain)).values()} <= {"certified", "skipped"}


def test_a_token_that_is_possible_alone_is_excused() -> None:
    """One that only a batch calls impossible, by the last bit of its product at the edge of top-k, does not refute."""

    class Edge(Chain):
        def target_log_probs(self, ids: Tensor) -> Tensor:
            """Token 2 is cut off in batches."""
            laws = LAWS.clone()
            if len(ids) > 1:
                laws[:, 2] = 0.0
            return (laws / laws.sum(1, keepdim=True))[ids].log()

    decoder = Edge()
    own = OwnTokens(decoder, torch.tensor([[0]]), "edge", 0)
    own.see([Sample(sequences=[(2, 1), (1, 2)], calls=[2])])
    assert own.impossible == []
    assert own.watch.impossible == 2


def test_evidence_that_fell_again_still_refutes() -> None:
    """The largest evidence on the way decides, for it exceeds 1 / alpha with probability alpha at most."""
    p, q = np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])
    rng, watch = np.random.default_rng(0), TableWatch(p, q)
    for odds, tokens in ((0.1, 80), (0.5, 4_000)):  # tokens of the draft, then of the target
        watch.add(np.zeros((1, tokens), int), (rng.random((1, tokens)) < odds).astype(int))
    one = measured("x", watch)
    top, end = watch.process.highest, one.process().log_e
    assert end < top - 5
    between = float(np.exp(-(top + end) / 2))
    assert one.judge(between).verdict == "refuted"
    assert one.judge(between).numbers["log_e"] == pytest.approx(top)


def test_growth_is_measured_after_every_prompt() -> None:
    """Also over a vocabulary so large that one prompt's laws would use up what is measured."""
    v = 3_000
    rng = np.random.default_rng(0)
    target, draft = (torch.from_numpy(rng.dirichlet(np.ones(v), size=2)).log() for _ in range(2))

    class Large:
        vocab_size = v

        def target_log_probs(self, ids: Tensor) -> Tensor:
            """Two laws, by the first token of the prompt."""
            return target[ids[:, :1]].expand(len(ids), ids.shape[1], v)

        def draft_log_probs(self, ids: Tensor) -> Tensor:
            """Another law after the first prompt, the target's own after the second."""
            other = torch.stack([draft[0], target[1]])
            return other[ids[:, :1]].expand(len(ids), ids.shape[1], v)

    tv_of_one = None
    for prompts in (torch.tensor([[0]]), torch.tensor([[0], [1]])):
        own = OwnTokens(Large(), prompts, "large", 0, level=1.0)  # type: ignore[arg-type]
        tokens = [tuple(map(int, row)) for row in rng.integers(0, v, (6, 8))]
        own.see([Sample(sequences=tokens, calls=[6]) for _ in prompts])
        tv = own.growths()["accept_always"].tv
        tv_of_one = tv_of_one or tv
    assert tv == pytest.approx(tv_of_one / 2, rel=0.05)


@pytest.mark.parametrize("mask", [-1e4, -1e9, float(torch.finfo(torch.float32).min)])
@pytest.mark.parametrize("best", [True, False])
def test_a_finite_mask_does_not_widen_the_margin_of_greedy_choices(mask: float, best: bool) -> None:
    """The least likely of the tokens that are not masked is no tie, whatever number stands for the mask."""

    class Masked(Chain):
        def target_log_probs(self, ids: Tensor) -> Tensor:
            """The mask is a number."""
            return torch.where(LAWS > 0, LAWS.log(), mask)[ids].float()

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
            """The likeliest token, or the least likely one."""
            ids = prompts
            for _ in range(max_new_tokens):
                laws = LAWS[ids[:, -1]]
                token = laws.argmax(-1) if best else torch.where(laws > 0, laws, 2.0).argmin(-1)
                ids = torch.cat([ids, token[:, None]], 1)
            return ids[:, prompts.shape[1] :]

    subject = Decoder("masked", open=Masked, facts=Facts(rule="greedy"))
    (found,) = evidence_of(subject, "greedy choices").values()
    assert found.verdict == ("certified" if best else "refuted")


def several_drafts(target: Any, draft: Any, k: int, eos_id: int | None = None) -> Any:
    """A right decoder of which the first of several drafts is accepted more often than one draft could be."""
    inner = factory()(target, draft, k, eos_id)

    class Reporting:
        vocab_size = inner.vocab_size
        target_log_probs = staticmethod(inner.target_log_probs)
        draft_log_probs = staticmethod(inner.draft_log_probs)

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
            """One token accepted of the first round at least."""
            tokens = inner.generate(prompts, max_new_tokens, seed).tokens
            rounds = -(-max_new_tokens // 2)
            return Generated(tokens, torch.ones(len(tokens), rounds).long())

    return Reporting()


@pytest.mark.parametrize(("drafts", "verdict"), [(1, "refuted"), (2, "certified")])
def test_bounds_on_accepted_counts_hold_for_one_draft(drafts: int, verdict: str) -> None:
    """A decoder that declares several tokens drafted for a position is not held to them."""
    subject = Decoder("tree", build=several_drafts, facts=Facts(drafts=drafts))
    (found,) = evidence_of(subject, "acceptance/").values()
    assert found.verdict == verdict
    assert ("several tokens" in " ".join(found.notes)) == (drafts > 1)


@pytest.mark.parametrize(("as_given", "verdict"), [(True, "refuted"), (False, "certified")])
def test_bounds_on_accepted_counts_hold_for_the_law_at_hand(as_given: bool, verdict: str) -> None:
    """A decoder that says that its drafts come from elsewhere than the draft it is handed is not held to that draft's law;
    as a step it is not asked at all.
    """
    facts = Facts(drafts_as_given=as_given)
    (found,) = evidence_of(Decoder("own", build=several_drafts, facts=facts), "acceptance/").values()
    assert found.verdict == verdict
    assert ("not drawn from the draft law at hand" in " ".join(found.notes)) == (not as_given)
    step = Step("own step", lambda target, draft, prefix: [[0]], 2, facts)
    planned = plan_for(step, "tests", Settings(BUDGETS["smoke"]))
    assert any(test.test.startswith("acceptance/own step") for test in planned.tests) == as_given


def test_rows_that_all_end_at_once_are_no_question_of_counts() -> None:
    """Accepted counts cannot add up to a length that is never reached; that is skipped, not left open for ever."""

    class Ending(Chain):
        eos_id = 3

        def target_log_probs(self, ids: Tensor) -> Tensor:
            """The end is certain."""
            return torch.tensor([0.0, 0.0, 0.0, 1.0]).log().expand(*ids.shape, 4)

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:  # type: ignore[override]
            """Nothing but ends."""
            rows = len(prompts)
            return Generated(torch.full((rows, max_new_tokens), 3), torch.zeros(rows, 1).long())

    found = evidence_of(Decoder("ending", open=Ending), "acceptance/")
    assert {e.verdict for e in found.values()} == {"skipped"}


class Replaying(Chain):
    """Rows after the first say the same in every call, or every eighth call says what the one before said."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls, self.before = how, 0, 0

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Row by row, each with the stream that it gets."""
        self.calls += 1
        used = self.before if self.how == "every eighth call" and self.calls % 8 == 0 else seed
        self.before = seed
        seeds = [used if row == 0 or self.how != "later rows" else row for row in range(len(prompts))]
        asked = enumerate(zip(prompts, seeds, strict=True))
        rows = [Chain.generate(self, prompt[None], max_new_tokens, one + row) for row, (prompt, one) in asked]
        return torch.cat(rows)


REPLAYS = [("later rows", "refuted"), ("every eighth call", "refuted"), ("never", "certified")]


@pytest.mark.parametrize(("how", "verdict"), REPLAYS)
def test_replays_in_any_row_and_now_and_then_are_seen(how: str, verdict: str) -> None:
    """One repeat of a text that nobody repeats by chance is enough, in whichever row it stands."""
    subject = Decoder("replaying", open=lambda: Replaying(how), facts=Facts(seeded=False))
    (found,) = evidence_of(subject, "seeds/").values()
    assert found.verdict == verdict


class Inverting(Chain):
    """Draws by inverting the law at uniforms that rows, or successive requests, may share."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.shared, self.late, self.again = shared, 0, False

    def _stream(self, rows: int, tokens: int, seed: int) -> Tensor:
        """Numbers (rows, tokens), each row with a stream of its own."""
        streams = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
        return torch.stack([torch.rand(tokens, generator=one) for one in streams])

    def _uniforms(self, rows: int, tokens: int, seed: int) -> Tensor:
        """A number for every token; every second request has that of the one before from the fourth token on."""
        u = self._stream(rows, tokens, seed)
        if self.shared == "requests":
            self.late, self.again = (self.late, False) if self.again else (seed, True)
            u[:, 3:] = self._stream(rows, tokens, self.late)[:, 3:]
        if self.shared == "pairs of rows":
            u[1::2] = u[: 2 * (rows // 2) : 2]
        return u

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Token by token."""
        ids = prompts
        for u in self._uniforms(len(prompts), max_new_tokens, seed).T:
            token = (LAWS[ids[:, -1]].cumsum(1) <= u[:, None]).sum(1).clamp(max=2)
            ids = torch.cat([ids, token[:, None]], 1)
        return ids[:, prompts.shape[1] :]


SHARED = [("requests", "request before"), ("pairs of rows", "row before"), ("nothing", "")]


@pytest.mark.parametrize(("shared", "place"), SHARED)
def test_noise_that_requests_or_rows_share_is_refuted_where_it_is(shared: str, place: str) -> None:
    """Though rows of a call have different prompts, neighbours are compared as they stood, and calls as they came."""
    subject = Decoder("inverting", open=lambda: Inverting(shared), facts=Facts(seeded=False))
    found = evidence_of(subject, "sequence/")["sequence/inverting/own models, every known fault"]
    assert found.verdict == ("refuted" if place else "certified")
    reason = found.judgements()[0].reason
    assert (f"tokens depend on each other: same uniform, {place}" in reason) == bool(place)


def test_calls_are_told_in_the_order_in_which_they_were_made() -> None:
    """Rows of all prompts of a call side by side, whatever number of rows the calls had."""

    class Numbered(Chain):
        """Says the number of the prompt, of the row and of the call."""

        def __init__(self) -> None:
            super().__init__()
            self.calls, self.vocab_size = 0, 100

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
            self.calls += 1
            row = torch.arange(len(prompts))
            return torch.stack([prompts[:, 0], row, torch.full_like(row, self.calls)], 1)

    prompts = torch.tensor([[0], [1], [2]])
    samples = sample_decoder(Numbered(), prompts, 9, 3, 0, name="numbered", max_batch=4)
    calls = list(in_order(samples))
    assert [len(tokens) for tokens, _ in calls] == [4, 4, 1]
    for number, (tokens, kinds) in enumerate(calls, 1):
        assert (tokens[:, 0] == kinds).all()
        assert tokens[:, 1].tolist() == list(range(len(tokens)))
        assert (tokens[:, 2] == number).all()
