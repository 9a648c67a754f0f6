"""Would statistics alone have seen the reported bugs? The tests that draw samples, without any exact law, on every case."""

from __future__ import annotations

import pytest

from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.faults.cases import CASES
from specverify.plan import plan_for

NEVER_SAMPLED = {
    "C08": "a uniform that is exactly 0 comes once in 2^24 draws, or never",
    "C09": "laws that are equal up to one ulp leave nothing to recover from; sampled pairs are not",
    "C15": "what stands after an end is counted, not sampled",
    "C16": "a verifier's reported count is compared with what it emitted, exactly",
    "C20": "tokens of probability 0 come once in 10^9 draws",
}
"""Cases whose fault has no law that differs by a probability that samples could show, and why."""
EXPECTED = {"C22": "inconclusive"}


@pytest.mark.parametrize("name", CASES)
def test_sampling_alone_sees_the_case(name: str) -> None:
    """At the smoke budget; what cannot be seen that way is certified by samples, which is why they are not alone."""
    case = CASES[name]
    plan = plan_for(case.faulty, "tests", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    verdicts = {runner.run(p).verdict for p in plan.tests if p.expected == "certified" and p.statistical}
    if case.id in NEVER_SAMPLED:
        assert verdicts <= {"certified", "skipped"}
    else:
        assert EXPECTED.get(case.id, "refuted") in verdicts
