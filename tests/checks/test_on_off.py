"""Is a decoder of unknown law judged rightly by its speculation on against off? Right ones, wrong ones, and odd ones."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from on_off_subjects import FAULTY, Modes, SharedRows, plainly
from torch import Tensor

import specverify
from specverify.certify import Runner
from specverify.checks import on_off as check
from specverify.checks.base import BUDGETS, Settings
from specverify.errors import SubjectError
from specverify.evidence.measurements import OnOffMeasurement
from specverify.faults.decoders import keep_past_eos
from specverify.pairs import named_pair
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.subjects import Facts
from specverify.unknown_law import OnOff


def judged(decoder: Any, pairs: int | None = None, timeout: float = 300.0, **facts: Any) -> Evidence:
    """Evidence of the one test of such a subject, with the budget's pairs or fewer."""
    budget = BUDGETS["smoke"] if pairs is None else dataclasses.replace(BUDGETS["smoke"], pairs=pairs)
    plan = plan_for(OnOff("it", lambda: decoder, Facts(**facts)), "it", Settings(budget, timeout=timeout))
    (planned,) = (p for p in plan.tests if p.expected == "certified")
    return Runner(plan).run(planned)


def compared(evidence: Evidence) -> OnOffMeasurement:
    """The comparison among the measurements."""
    (found,) = (m for m in evidence.measurements if isinstance(m, OnOffMeasurement))
    return found


def test_a_right_decoder_is_certified_and_the_pass_says_what_it_would_have_shown() -> None:
    """Speculation over table models against plain sampling: the control is refuted, the decoder is not."""
    evidence = judged(Modes(), pairs=1_500)
    assert evidence.verdict == "certified"
    judgement = evidence.judgements()[0]
    share, pairs = judgement.numbers["replaced"], judgement.numbers["replaced_pairs"]
    assert share in (0.3, 0.1, 0.03)
    assert 0 < pairs <= judgement.numbers["pairs"] == 1_500
    assert f"a decoder that replaces {share:.0%} of its tokens would have been refuted in {pairs:.0f} pairs" in judgement.reason


@pytest.mark.parametrize("name", FAULTY)
def test_wrong_decoders_are_refuted(name: str) -> None:
    """Faults of the rule, of the loop, of seeds and of rows, each within the smoke budget, and no control is run for them."""
    evidence = judged(FAULTY[name]())
    assert evidence.verdict == "refuted"
    found = compared(evidence)
    assert found.pairs < BUDGETS["smoke"].pairs
    assert all(call.control is None for call in found.calls)
    assert "furthest apart is token" in evidence.judgements()[0].reason


def test_the_faulty_loops_run_rightly_with_a_right_rule() -> None:
    """The loop that the wrong rules are run in is itself not refuted, so the rules are what is seen."""
    from on_off_subjects import WithRule

    from specverify.faults.rounds import token_rejection

    evidence = judged(WithRule(token_rejection), pairs=500)
    assert evidence.verdict == "inconclusive"


def test_rows_that_depend_on_each_other_in_both_modes_are_one_law() -> None:
    """What both modes share is no difference, though rows of a call repeat each other: calls are exchanged whole."""
    evidence = judged(SharedRows(("generate", "baseline")), pairs=600)
    assert evidence.verdict != "refuted"
    assert compared(evidence).path.highest[-1] < 5


def test_too_few_pairs_are_inconclusive_and_say_how_many_more() -> None:
    """With a control that is not refuted nothing follows, and the reason says so."""
    evidence = judged(Modes(), pairs=400)
    assert evidence.verdict == "inconclusive"
    assert "400 pairs are too few" in evidence.judgements()[0].reason
    assert "needed" in evidence.judgements()[0].reason


class Slow(Modes):
    """Takes its time for every call, on a machine of any speed."""

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """The same after a pause."""
        time.sleep(0.03)
        return super().generate(prompts, max_new_tokens, seed)


def test_pairs_that_time_did_not_allow_are_noted() -> None:
    """A slow decoder is judged by the pairs that half of its time allowed."""
    evidence = judged(Slow(), timeout=1.0)
    assert evidence.verdict == "inconclusive"
    assert 0 < compared(evidence).pairs < BUDGETS["smoke"].pairs
    assert evidence.notes == (f"time allowed {compared(evidence).pairs} of 5000 pairs",)


class Padded(Modes):
    """The same law in both modes, speculation padding with -1 after an eos where the plain mode repeats it."""

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Plain sampling, padded otherwise."""
        tokens = plainly(self.target, prompts, max_new_tokens, seed, self.eos_id)
        before = (tokens == self.eos_id).long().cumsum(1) - (tokens == self.eos_id).long()
        return torch.where(before > 0, -1, tokens)


def test_padding_tells_nothing() -> None:
    """Rows that end are read alike however they are padded."""
    evidence = judged(Padded(eos_id=2), pairs=600)
    assert evidence.verdict != "refuted"
    assert compared(evidence).path.highest[-1] < 5
    for call in compared(evidence).calls:
        assert (call.with_speculation >= 0).all()


def test_tokens_after_an_eos_are_refuted_as_such() -> None:
    """Tokens of an accepted run behind an eos do not count as sequences, and are reported."""
    evidence = judged(Modes(eos_id=2, cut=keep_past_eos), pairs=160)
    assert evidence.verdict == "refuted"
    assert ["nothing follows an EOS" in j.reason for j in evidence.judgements() if j.verdict == "refuted"] == [True]


class Recording(Modes):
    """Keeps the calls that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, tuple[int, ...]]] = []

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> object:
        """Recorded."""
        self.calls.append(("on", seed, tuple(prompts.shape)))
        return super().generate(prompts, max_new_tokens, seed)

    def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Recorded."""
        self.calls.append(("off", seed, tuple(prompts.shape)))
        return super().baseline(prompts, max_new_tokens, seed)


def test_every_call_has_a_seed_of_its_own_and_the_order_is_random() -> None:
    """No seed comes twice except in the replays; both orders come; lengths vary between calls."""
    decoder = Recording()
    judged(decoder, pairs=320)
    pairs = decoder.calls[4:84]
    assert [a[1] == b[1] for a, b in zip(decoder.calls[:4:2], decoder.calls[1:4:2], strict=True)] == [True, True]
    seeds = [seed for _, seed, _ in decoder.calls[4:]]
    assert len(set(seeds)) == len(seeds) == 120
    first = [a[0] for a, b in zip(pairs[::2], pairs[1::2], strict=True) if {a[0], b[0]} == {"on", "off"}]
    assert len(first) == 40
    assert 8 < first.count("on") < 32
    assert {shape for _, _, shape in pairs} == {(8, 2), (8, 4), (8, 7)}


def test_one_row_per_call_is_respected() -> None:
    """max_batch=1 gives calls of one row, and the pairs of the budget for single rows."""
    decoder = Recording()
    evidence = judged(decoder, pairs=60, max_batch=1)
    assert {shape[0] for _, _, shape in decoder.calls} == {1}
    assert compared(evidence).pairs == 60
    assert len({int(call.prompts[0]) for call in compared(evidence).calls}) == 12


class Unseeded(Modes):
    """Speculation follows torch's global stream, whatever the seed."""

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Seeded from elsewhere."""
        return plainly(self.target, prompts, max_new_tokens, int(torch.randint(2**31, ())))


def test_a_seed_that_does_not_replay_is_refuted_where_it_is_promised() -> None:
    """seeded=False takes the promise back."""
    evidence = judged(Unseeded(), pairs=80)
    assert evidence.verdict == "refuted"
    assert any("with speculation: 1 of 1 violate" in j.reason for j in evidence.judgements())
    assert judged(Unseeded(), pairs=80, seeded=False).verdict == "inconclusive"


def returning(raw: Any) -> Modes:
    """A decoder whose plain mode returns something odd."""
    decoder = Modes()
    decoder.baseline = lambda prompts, max_new_tokens, seed: raw(prompts, max_new_tokens)  # type: ignore[method-assign]
    return decoder


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (lambda prompts, n: torch.zeros(len(prompts), n + 1).long(), "it.baseline returned shape (8, 13), asked for (8, 12)"),
        (lambda prompts, n: torch.full((len(prompts), n), 3), "it.baseline returned token id 3 in row 0"),
        (lambda prompts, n: 1 // 0, "it.baseline raised ZeroDivisionError"),
    ],
)
def test_bad_outputs_are_errors_with_their_inputs(raw: Any, said: str) -> None:
    """What cannot be read is an error of that mode, with the call that shows it."""
    evidence = judged(returning(raw))
    (judgement,) = evidence.judgements()
    assert judgement.verdict == "error"
    assert said in judgement.reason
    assert "inputs: prompts = [[" in evidence.measurements[0].reproduce  # type: ignore[union-attr]
    assert "seed = " in evidence.measurements[0].reproduce  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([[0, 1], [2]], "cannot be read as ids"),
        (torch.zeros(2, 2), "dtype torch.float32"),
        ([0, 1], "shape (2,)"),
        ([[0, 3]], "outside 0..2"),
    ],
)
def test_prompts_that_are_no_ids_are_errors(prompts: Any, said: str) -> None:
    """Each says what is wrong."""
    decoder = Modes()
    decoder.prompts = prompts  # type: ignore[attr-defined]
    assert said in judged(decoder).judgements()[0].reason


def test_own_prompts_are_used() -> None:
    """Each in two rows of a call where there is room, and all of them in turn."""
    own = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [1, 1], [2, 0]])
    decoder = Modes()
    decoder.prompts = own  # type: ignore[attr-defined]
    groups = check.prompt_groups(decoder, "it", 0, 8)
    assert [which.tolist() for _, which in groups] == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 4, 4, 5, 5, 5, 5]]
    for prompts, which in groups:
        assert torch.equal(prompts, own[torch.from_numpy(np.asarray(which))])


def test_what_is_missing_is_named() -> None:
    """An object without the plain mode, or without a number of tokens, is an error that says what to give."""

    class Half:
        vocab_size = 3

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> None: ...

    with pytest.raises(SubjectError, match="has no baseline"):
        OnOff("half", Half).opened()  # type: ignore[arg-type]
    decoder = Modes()
    decoder.vocab_size = 1
    with pytest.raises(SubjectError, match="an int of at least 2"):
        OnOff("one", lambda: decoder).opened()


def test_two_functions_make_a_subject() -> None:
    """The helper takes functions whatever their arguments are called, or an object, and says what is missing."""
    right = Modes(named_pair(3, 2))

    def on(ids: Tensor, n: int, s: int) -> object:
        return right.generate(ids, n, s)

    def off(ids: Tensor, n: int, s: int) -> Tensor:
        return right.baseline(ids, n, s)

    subject = specverify.on_off(on, off, vocab_size=3, max_batch=2)
    assert (subject.name, subject.kind, subject.facts.max_batch) == ("on", "decoder, on and off", 2)
    assert subject.opened().baseline(torch.tensor([[0]]), 3, seed=1).shape == (1, 3)  # type: ignore[union-attr]
    assert specverify.on_off(right, name="right").opened() is right
    for wrong, said in (
        ({"baseline": off}, "number of token ids"),
        ({}, "without speculation too"),
        ({"baseline": 3, "vocab_size": 3}, "two functions"),
        ({"baseline": lambda ids: ids, "vocab_size": 3}, "prompts, max_new_tokens, seed"),
        ({"baseline": off, "vocab_size": 3, "fast": True}, "unknown fact"),
        ({"baseline": off, "vocab_size": 3, "logit_tolerance": 0.1}, "on against off knows none"),
    ):
        with pytest.raises(SubjectError, match=said):
            specverify.on_off(on, **wrong)  # type: ignore[arg-type]


def test_no_two_calls_draw_from_the_same_stream() -> None:
    """A decoder that takes torch's global stream draws other numbers in every call, those of a pair and a replay included."""
    streams: list[int] = []

    class Global(Modes):
        """Notes how torch's stream was seeded."""

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
            """The same, noted."""
            streams.append(torch.initial_seed())
            return super().generate(prompts, max_new_tokens, seed)

        def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
            """The same, noted."""
            streams.append(torch.initial_seed())
            return super().baseline(prompts, max_new_tokens, seed)

    judged(Global(), pairs=40)
    assert len(streams) == len(set(streams)) == 4 + 3 * 5
