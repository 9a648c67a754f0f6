"""Are greedy decoders judged by their choices, and accepted counts by what is possible? Ties, rounding, counts that boast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specverify.certify import Runner
from specverify.checks.accepted_counts import bounded, said
from specverify.checks.base import BUDGETS, Settings
from specverify.evidence.measurements import RateMeasurement
from specverify.faults.decoders import factory
from specverify.pairs import named_pair
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.subjects import Decoder, Facts, Generated, Subject
from specverify.theory import block_tail, first_overlap, token_rejection_tail

V = 5
TABLE = torch.tensor(
    [[1.5, 2.0, 1.0, -1.0, 0.5], [3.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 4.0], [1.0] * 5, [0.0, 5.0, 0.0, 0.0, 0.0]]
)


class Greedy:
    """Takes the likeliest token after the last one; ties and small differences as told. Row 3 of the table is one great tie."""

    vocab_size = V

    def __init__(self, nudge: float = 0.0, wrong: bool = False) -> None:
        self.nudge, self.wrong = nudge, wrong

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """The law at temperature 1, whose likeliest token is what counts."""
        return TABLE[ids].log_softmax(-1)

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """The likeliest, the last of equals; ``wrong`` takes the second best after token 2, ``nudge`` moves token 0."""
        ids = prompts
        for _ in range(max_new_tokens):
            logits = TABLE[ids[:, -1]] + torch.tensor([self.nudge, 0, 0, 0, 1e-9 * (seed % 7)])
            best = V - 1 - logits.flip(-1).argmax(-1)
            second = logits.scatter(1, best[:, None], -torch.inf).argmax(-1)
            best = torch.where((ids[:, -1] == 2) & torch.tensor(self.wrong), second, best)
            ids = torch.cat([ids, best[:, None]], 1)
        return ids[:, prompts.shape[1] :]


def evidence_of(subject: Subject, only: str = "") -> list[Evidence]:
    """Evidence of every test of a subject at the smoke budget, or of those whose name contains ``only``."""
    plan = plan_for(subject, "tests", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    return [runner.run(p) for p in plan.tests if p.expected == "certified" and only in p.test]


def greedy(**how: Any) -> Decoder:
    """A subject that declares the greedy rule."""
    facts = Facts(rule="greedy", logit_tolerance=how.pop("tolerance", 0.0))
    return Decoder("greedy", open=lambda: Greedy(**how), facts=facts)


def test_a_greedy_decoder_is_certified_by_its_choices() -> None:
    """Whichever of equal tokens it takes, and nothing that needs a sample is asked of it."""
    evidence = evidence_of(greedy())
    assert {e.verdict for e in evidence} <= {"certified", "skipped"}
    assert "sequence/greedy/own models, greedy choices" in {e.test for e in evidence}
    assert not any(e.alpha for e in evidence)


def test_a_token_that_is_not_the_likeliest_refutes() -> None:
    """With the place, and how far it lies below."""
    refuted = [e for e in evidence_of(greedy(wrong=True)) if e.verdict == "refuted"]
    assert [e.test for e in refuted] == ["sequence/greedy/own models, greedy choices"]
    assert "below the largest log-probability" in refuted[0].judgements()[0].reason


def test_rounding_that_was_declared_is_no_fault() -> None:
    """A logit off by 0.8 chooses token 0 where it is second by 0.5; refuted unless that much is declared."""
    assert "refuted" in {e.verdict for e in evidence_of(greedy(nudge=0.8))}
    assert "refuted" in {e.verdict for e in evidence_of(greedy(nudge=0.8, tolerance=0.2))}
    assert "refuted" not in {e.verdict for e in evidence_of(greedy(nudge=0.8, tolerance=0.3))}


def over_accepting(target: Any, draft: Any, k: int, eos_id: int | None = None) -> Any:
    """A loop that reports one more accepted token in its first round than it should, and hides it in the next."""
    inner = factory()(target, draft, k, eos_id)

    class Reporting:
        vocab_size = inner.vocab_size
        target_log_probs = staticmethod(inner.target_log_probs)

        def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
            made = inner.generate(prompts, max_new_tokens, seed)
            assert made.accepted is not None
            accepted = made.accepted.clone()
            moved = (accepted[:, 0] < k) & (accepted[:, 1:2].squeeze(1) > 0) if accepted.shape[1] > 1 else accepted[:, 0] < 0
            accepted[moved, 0] += 1
            accepted[moved, 1] -= 1
            return Generated(made.tokens, accepted)

    return Reporting()


def test_more_accepted_tokens_than_any_exact_rule_can_accept_refute() -> None:
    """Counts that add up but say more of the first round than block verification could do."""
    wrong = Decoder("boasting", build=over_accepting, facts=Facts(rule="token rejection"))
    (found,) = evidence_of(wrong, "acceptance/boasting/table models")
    assert found.verdict == "refuted"
    good = Decoder("plain", build=factory(), facts=Facts(rule="token rejection"))
    (found,) = evidence_of(good, "acceptance/plain/table models")
    assert found.verdict == "certified"
    assert "token rejection accepts 1.198, at most 1.231 are possible" in found.notes[0]


@pytest.mark.parametrize("size", [(3, 2), (4, 3)])
def test_the_bounds_are_those_of_the_pair(size: tuple[int, int]) -> None:
    """Exact counts are within them at the most that is possible, and beyond them one token more in ten rounds refutes."""
    pair = named_pair(*size)
    best = float(block_tail(pair).sum())
    assert float(token_rejection_tail(pair).sum()) <= best + 1e-12
    rounds = 20_000
    first, mean = (m for m in bounded([1] * int(rounds * best / pair.k) * pair.k, pair, 0) if isinstance(m, RateMeasurement))
    assert first.bound == pytest.approx(first_overlap(pair), abs=1e-4)
    assert mean.bound == pytest.approx(best / pair.k, abs=1e-4)
    accepted = [pair.k] * int(rounds * best / pair.k) + [0] * (rounds - int(rounds * best / pair.k))
    assert bounded(accepted, pair, 0)[1].judge(1e-8).verdict == "certified"
    more = [pair.k] * int(rounds * (best + 0.1) / pair.k) + [0] * (rounds - int(rounds * (best + 0.1) / pair.k))
    assert bounded(more, pair, 0)[1].judge(1e-8).verdict == "refuted"


def test_a_rule_whose_acceptance_is_not_known_is_only_compared_with_the_bound() -> None:
    """The note says what came and what is possible."""
    pair = named_pair(3, 2)
    assert "accepts" not in said([1, 0, 2], pair, "my own").replace("accepted", "")
    assert "at most" in said([1, 0, 2], pair, None)


class Slipping(Greedy):
    """Takes the second best in one step of two hundred, by its seed; reports that it never accepts, or always does."""

    def __init__(self, slips: float = 0.005, accepted: int | None = None) -> None:
        super().__init__()
        self.slips, self.reported = slips, accepted

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor | Generated:  # type: ignore[override]
        """The likeliest, but for slips."""
        generator, ids = torch.Generator().manual_seed(seed), prompts
        for _ in range(max_new_tokens):
            logits = TABLE[ids[:, -1]]
            best = logits.argmax(-1)
            second = logits.scatter(1, best[:, None], -torch.inf).argmax(-1)
            ids = torch.cat(
                [ids, torch.where(torch.rand(len(ids), generator=generator) < self.slips, second, best)[:, None]], 1
            )
        tokens = ids[:, prompts.shape[1] :]
        if self.reported is None:
            return tokens
        rounds = -(-max_new_tokens // (self.reported + 1))
        return Generated(tokens, torch.full((len(ids), rounds), self.reported))


def test_rare_slips_are_found_among_many_prompts() -> None:
    """One wrong token in two hundred, and the note says what share would have been seen."""
    (found,) = evidence_of(Decoder("slips", open=Slipping, facts=Facts(rule="greedy")), "greedy choices")
    assert found.verdict == "refuted"
    assert found.notes[0].startswith("2400 tokens after 100 prompts: more than 0.0019 of them wrong")


@pytest.mark.parametrize(("accepted", "verdict"), [(0, "inconclusive"), (1, "certified")])
def test_a_greedy_decoder_that_never_accepts_passes_no_test_of_speculation(accepted: int, verdict: str) -> None:
    """What never happened is not known to be right."""
    subject = Decoder("never", open=lambda: Slipping(0.0, accepted), facts=Facts(rule="greedy"))
    (found,) = evidence_of(subject, "greedy choices")
    assert found.verdict == verdict
