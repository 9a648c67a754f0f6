"""Reported bugs of real engines: each refuted by the check it needs, its repaired twin not."""

import json

import pytest
from subjects_for_tests import good

from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.evidence import worst
from specverify.faults import MORE_FAULTS
from specverify.faults.cases import CASES
from specverify.plan import plan_for
from specverify.record import Evidence

SETTINGS = Settings(BUDGETS["smoke"])


def evidence_of(subject, checks=None):
    """Evidence of every planned test of a subject, without the controls."""
    plan = plan_for(subject, "tests", SETTINGS)
    runner = Runner(plan)
    found = [runner.run(p) for p in plan.tests if p.expected == "certified" and (checks is None or p.check in checks)]
    for evidence in found:  # what cannot be written and read again would end a run
        again = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
        assert [j.verdict for j in again.judgements()] == [j.verdict for j in evidence.judgements()]
    return found


SEEN_BY = {
    "C01": {"single_step"},
    "C02": {"single_step", "acceptance"},
    "C03": {"single_step", "sequence"},
    "C04": {"sequence", "acceptance"},
    "C06_noise_unfilled": {"sequence"},
    "C06_unfilled_beside_seeds": {"rows"},
    "C19": {"rows"},
    "C17_same_stream_for_rows": {"seeds", "sequence"},
    "C17_same_coins_for_rows": {"sequence"},
    "C18": {"seeds"},
    "C21": {"seeds"},
    "C22": {"single_step", "sequence"},
    "C05_distribution_function": {"single_step", "rounds", "sequence"},
    "C05_race_scores": {"sequence"},
    "C07": {"single_step"},
    "C08": {"edges"},
    "C09": {"edges"},
    "C10": {"single_step", "sequence"},
    "C11": {"rounds"},
    "C12": {"rounds"},
    "C13_bonus_unwarped": {"single_step", "rounds", "sequence"},
    "C13_bonus_unprocessed": {"sequence"},
    "C14_products_of_uniforms": {"single_step", "sequence"},
    "C14_token_residual": {"single_step", "sequence"},
    "C15": {"stopping"},
    "C16": {"acceptance"},
    "C20": {"single_step", "rounds", "edges"},
}
"""By case, or by the faulty subject where a case has several that need different checks."""
SEEN_AS = {"C09": "error", "C22": "inconclusive"}
"""The verdict, where it is not a refutation: 0/0 is a crash; what never happened is not known."""


@pytest.mark.parametrize("name", CASES)
def test_a_reported_bug_is_refuted_by_the_check_it_needs(name):
    """The faulty subject is refuted (or seen to crash), and by the checks that must see it."""
    case = CASES[name]
    seen_by = SEEN_BY.get(name) or SEEN_BY[case.id]
    refuting = {e.check for e in evidence_of(case.faulty, seen_by) if e.verdict == SEEN_AS.get(case.id, "refuted")}
    assert refuting == seen_by


@pytest.mark.parametrize("name", sorted({c.repaired.name for c in CASES.values()}))
def test_its_repaired_twin_is_not(name):
    """The repaired subject is certified in every test."""
    repaired = next(c.repaired for c in CASES.values() if c.repaired.name == name)
    evidence = evidence_of(repaired)
    assert {e.verdict for e in evidence} == {"certified"}, [(e.test, e.verdict) for e in evidence]


@pytest.mark.parametrize("name", MORE_FAULTS)
def test_a_fault_of_the_round_is_refuted_exactly_and_by_sampling(name):
    """The faults that are no controls are refuted at the smoke budget too, by the exact law and by sampled sequences."""
    evidence = evidence_of(MORE_FAULTS[name].make(2), {"single_step", "sequence"})
    assert {e.check for e in evidence if e.verdict == "refuted"} == {"single_step", "sequence"}
    assert not [e.test for e in evidence if e.verdict not in ("refuted", "certified")]


@pytest.mark.parametrize("name", ["C12_prompt_position", "C11_not_rolled_back"])
def test_the_first_token_is_right_where_rounds_are_needed(name):
    """These faults pass every test of the first token, so the rounds check earns its place."""
    from specverify.checks.rounds import rounds_law
    from specverify.laws import sequence_law
    from specverify.pairs import named_pair

    pair = named_pair(2, 1) if name.startswith("C12") else named_pair(2, 2)
    emitted = rounds_law(CASES[name].faulty, pair, 3)
    first = [sum(m for t, m in emitted.items() if t[0] == token) for token in range(pair.vocab_size)]
    assert first == pytest.approx(sequence_law(pair.target, 1, pair.prompt).tolist(), abs=1e-12)


def test_a_right_rule_passes_every_test():
    """The textbook rule is certified in every test that applies to a verifier."""
    assert worst([e.verdict for e in evidence_of(good)]) == "certified"
