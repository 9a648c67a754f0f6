"""Does sampling go on as long as it must and no longer? Every way in which a run can end, and what is said then."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.checks.going_on import Goal, go_on
from specverify.checks.sequence import WITHOUT_DRAFT
from specverify.errors import UsageError
from specverify.evidence.measurements import WealthMeasurement
from specverify.evidence.pointwise import FAULT_LAWS, WITHOUT_Q
from specverify.evidence.watch import TableWatch
from specverify.exact.walk import stopping_after
from specverify.faults.catalogue import CATALOGUE
from specverify.faults.requests import C04_filtered_draft, serving
from specverify.faults.rounds import token_rejection
from specverify.laws import Array
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.subjects import Decoder, Subject, Verifier

P = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]])
Q = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]])
right = Verifier("right", token_rejection)


def evidence_of(subject: Subject, variant: str, **settings: object) -> Evidence:
    """Evidence of one variant of the check of sequences."""
    plan = plan_for(subject, "tests", Settings(BUDGETS["smoke"], **settings))
    return Runner(plan).run(plan.find(f"sequence/{subject.name}/{variant}"))


def wealth_of(evidence: Evidence) -> WealthMeasurement:
    """The measurement that decides."""
    (found,) = (m for m in evidence.measurements if isinstance(m, WealthMeasurement))
    return found


def drawing(law: Array, watch: TableWatch, calls: list[int]) -> partial[None]:
    """Rows of ten tokens of a law over both contexts."""

    def add(law: Array, sequences: int, call: int) -> None:
        rng = np.random.default_rng(call)
        contexts = rng.integers(0, 2, (sequences, 10))
        watch.add(contexts, np.minimum((law.cumsum(1)[contexts] <= rng.random((sequences, 10, 1))).sum(-1), 2))
        calls.append(sequences)

    return partial(add, law)


def test_an_exact_rule_is_sampled_until_every_known_fault_would_have_been_seen() -> None:
    """And not much longer: with the tokens of the fault that needs the most, or a call of the fewest sequences more."""
    evidence = evidence_of(right, "every known fault")
    assert evidence.verdict == "certified"
    found = wealth_of(evidence)
    power = found.power(evidence.alpha)
    assert power is not None
    assert not power.needed
    assert len(power.seen) == len(CATALOGUE) + 5  # all that have a law of one position
    judged = found.judge(evidence.alpha)
    assert "had it governed 30% of the tokens" in judged.reason
    assert judged.numbers["contamination"] < 0.3
    fewer = WealthMeasurement("x", found.bets, found.tokens * 9 // 10, 0, found.counted, until=found.until)
    assert fewer.power(evidence.alpha).needed


def test_a_budget_that_ends_before_is_inconclusive_and_names_what_is_left() -> None:
    """With the tokens that each fault needs, the hardest last."""
    evidence = evidence_of(right, "every known fault", max_tokens=2_000)
    assert evidence.verdict == "inconclusive"
    reason = next(j.reason for j in evidence.judgements() if j.verdict == "inconclusive")
    assert "(the budget of 2,000 is spent)" in reason
    assert "shared_noise (about " in reason
    assert "accept_always (about" not in reason
    more = int(reason.split("--max-tokens ")[1].split()[0])
    assert evidence_of(right, "every known fault", max_tokens=more).verdict == "certified"
    assert wealth_of(evidence).tokens == 2_000
    again = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
    assert [j.reason for j in again.judgements()] == [j.reason for j in evidence.judgements()]


@pytest.mark.parametrize("name", ["resample_from_target", "lenience", "accept_always"])
def test_a_fault_ends_the_run_as_soon_as_it_is_refuted(name: str) -> None:
    """Within a part of the tokens that a pass takes."""
    rule = CATALOGUE[name].make(3)
    evidence = evidence_of(rule, "every known fault")
    assert evidence.verdict == "refuted"
    assert wealth_of(evidence).tokens < 20_000


def test_a_fault_in_three_rounds_of_ten_is_refuted_as_was_promised() -> None:
    """Of ten runs of a rule that draws from the target after a third of the rejections, at least nine."""
    wrong = CATALOGUE["resample_from_target"].make(3)
    assert isinstance(wrong, Verifier)

    def mixed(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows by lot."""
        good, bad = token_rejection(tokens, q, p), wrong(tokens, q, p)
        lot = torch.rand(len(tokens)) < 0.35
        return torch.where(lot[:, None], bad.tokens, good[0]), torch.where(lot, bad.counts, good[1])

    verdicts = [evidence_of(Verifier("mixed", mixed), "every known fault", seed=seed).verdict for seed in range(10)]
    assert verdicts.count("refuted") >= 9


def test_the_run_stops_when_time_is_up() -> None:
    """With what it has, and says so."""
    calls: list[int] = []
    watch = TableWatch(P, Q)
    with stopping_after(0.0):
        found = go_on(watch, drawing(P, watch, calls), 10, Goal(1e-9, 1.0, 10**9))
    assert len(calls) == 1
    assert found.judge(1e-9).verdict == "inconclusive"
    assert "(time is up)" in found.judge(1e-9).reason


def test_calls_grow_and_the_last_one_is_no_larger_than_it_must_be() -> None:
    """Few sequences at first, so that a gross fault is cheap; the budget is kept to the sequence."""
    calls: list[int] = []
    watch = TableWatch(P, Q)
    go_on(watch, drawing(P, watch, calls), 10, Goal(1e-9, 0.1, 7_005))
    assert calls[:4] == [32, 64, 128, 256]
    assert sum(calls) == 701


def test_a_decoder_with_its_own_models_goes_on_too() -> None:
    """Certified when every fault that differs would have been seen; its faulty twin refuted and named."""
    exact = Decoder("exact", open=serving)
    evidence = evidence_of(exact, "own models, every known fault")
    assert evidence.verdict == "certified"
    found = wealth_of(evidence)
    assert found.growing is not None
    assert found.judge(evidence.alpha).numbers["faults_unseen"] == 0
    faulty = evidence_of(C04_filtered_draft, "own models, every known fault")
    assert faulty.verdict == "refuted"
    assert "draft_filtered" in faulty.judgements()[0].reason
    few = evidence_of(exact, "own models, every known fault", max_tokens=500)
    assert few.verdict == "inconclusive"


def test_without_draft_laws_the_evidence_says_what_was_not_bet_on() -> None:
    """Faults whose law depends on the draft."""

    class Bare:
        """A decoder that keeps its draft to itself."""

        def __init__(self) -> None:
            inner = serving()
            self.vocab_size, self.generate, self.target_log_probs = inner.vocab_size, inner.generate, inner.target_log_probs

    evidence = evidence_of(Decoder("bare", open=Bare), "own models, every known fault")
    assert evidence.verdict == "certified"
    assert "no draft_log_probs" in evidence.notes[0]
    assert wealth_of(evidence).tokens >= WITHOUT_DRAFT
    assert f"only {len(WITHOUT_Q)} of {len(FAULT_LAWS)} known faults were bet on" in evidence.judgements()[0].reason


def test_too_few_probabilities_are_said() -> None:
    """The models of a large vocabulary are not asked for ever."""
    calls: list[int] = []
    watch = TableWatch(P, Q)
    found = go_on(watch, drawing(P, watch, calls), 10, Goal(1e-9, 1.0, 10**9), spent=lambda: "enough was asked")
    assert "(enough was asked)" in found.judge(1e-9).reason


@pytest.mark.parametrize("tokens", [0, -5, 10**13])
def test_a_number_of_tokens_that_makes_no_sense_is_refused(tokens: int) -> None:
    """With the range that is possible."""
    with pytest.raises(UsageError, match="most tokens"):
        Settings(max_tokens=tokens)
