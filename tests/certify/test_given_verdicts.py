"""Checks judge verifiers that take their numbers as arguments exactly and by sampling, and refute their wrong twins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "exact"))

import given_subjects as given

from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.plan import plan_for

SETTINGS = Settings(BUDGETS["smoke"])


def verdicts(subject: object) -> dict[str, tuple[str, str]]:
    """Verdict and reasons of every test that is not a control, by name."""
    plan = plan_for(subject, "given", SETTINGS)  # type: ignore[arg-type]
    runner = Runner(plan)
    found = {}
    for planned in plan.tests:
        if planned.expected == "certified":
            evidence = runner.run(planned)
            check, _, variant = planned.test.split("/")
            found[f"{check}/{variant}"] = (evidence.verdict, " ".join(j.reason for j in evidence.judgements()))
    return found


@pytest.mark.parametrize("subject", [given.numpy_rejection, given.races], ids=lambda s: s.name)
def test_right_rules_pass_every_check(subject: object) -> None:
    """Single step and acceptance are exact; rounds of code that is not torch are left to sampling, and it says why."""
    found = verdicts(subject)
    assert {v for v, _ in found.values()} <= {"certified", "skipped"}, found
    exact = {name for name, (verdict, _) in found.items() if verdict == "certified"}
    assert {"single_step/named pairs", "single_step/generated pairs", "acceptance/exact"} <= exact
    if subject is given.numpy_rejection:
        assert "numpy arrays" in found["rounds/table models"][1]


def test_one_row_per_call_is_judged_exactly_on_fewer_sizes() -> None:
    """Plain Python with max_batch = 1: at most 64 drafts and two tokens per draft, and still certified on generated pairs."""
    plan = plan_for(given.python_rejection, "given", SETTINGS)
    sizes = plan.find("single_step/python_rejection/named pairs").params["sizes"]
    assert max(v**k for v, k in sizes) == 64
    evidence = Runner(plan).run(plan.find("single_step/python_rejection/generated pairs"))
    assert evidence.verdict == "certified"


@pytest.mark.parametrize(
    "twin",
    [
        given.numpy_twin("resample_from_target"),
        given.numpy_twin("one_uniform"),
        given.kernel_coin_kept,
        given.race_twin("softmax_residual"),
    ],
    ids=lambda s: s.name,
)
def test_wrong_twins_are_refuted_exactly(twin: object) -> None:
    """The exact law refutes each with a counterexample."""
    plan = plan_for(twin, "given", SETTINGS)  # type: ignore[arg-type]
    planned = next(p for p in plan.tests if p.test.endswith("named pairs"))
    evidence = Runner(plan).run(planned)
    assert evidence.verdict == "refuted"
    assert evidence.counterexample is not None


def test_what_cannot_be_bisected_is_judged_by_sampling() -> None:
    """Products of uniforms are skipped exactly, with the reason, and refuted by sampling."""
    found = verdicts(given.numpy_twin("products"))
    assert found["single_step/named pairs"][0] == "skipped"
    assert "jointly" in found["single_step/named pairs"][1]
    assert "refuted" in {verdict for name, (verdict, _) in found.items() if name.startswith("sequence")}
