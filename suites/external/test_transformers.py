"""A decoder from outside: the released step and assisted generation of Hugging Face transformers, unmodified.

Their tests have a false-alarm budget of their own and stand beside the certificate of the subject; a certificate of theirs is
made by ``specverify certify specverify.adapters.transformers``.

The edges of the step are refuted, and are expected to be: it accepts a token of probability 0 when a uniform is exactly 0, and
divides 0 by 0 when the draft equals the target up to rounding (docs/transformers.md). Those two findings are known; the
test of the edges passes only if they are there, and fails on any other.
"""

import importlib.util

import pytest

SPEC = "specverify.adapters.transformers"
MISSING = "transformers is not installed: pip install specverify[transformers]"
KNOWN = {
    ("impossible", "rand_like", "exactly 0"),
    ("error", "rand_like", "the largest value below 1"),
}
"""What is known to happen at the edges of the step: kind, the function that draws, the value it gives."""
NOT_A_NUMBER = "probability tensor contains"


def _plan(attribute=""):
    from specverify.checks.base import BUDGETS, Settings
    from specverify.loading import load_subject
    from specverify.plan import plan_for

    return plan_for(load_subject(SPEC + attribute), SPEC + attribute, Settings(BUDGETS["smoke"]))


def _own(attribute="", check=None):
    return [p for p in _plan(attribute).tests if p.expected == "certified" and (check is None or p.check == check)]


if importlib.util.find_spec("transformers") is None:
    PARAMS = EDGES = [pytest.param(None, id="transformers", marks=pytest.mark.skip(reason=MISSING))]
else:
    PARAMS = [pytest.param(p, id=p.test) for p in _own() if p.check != "edges"]
    EDGES = [pytest.param((a, p), id=p.test) for a in (":step", ":step_float32") for p in _own(a, "edges")]


@pytest.fixture(scope="module")
def runner():
    """Opens the tiny models once per process."""
    from specverify.certify import Runner

    return Runner(_plan())


@pytest.mark.parametrize("outside", PARAMS)
def test_transformers_samples_from_its_target(outside, runner):
    """The released code follows the law of its main model, exactly for the step and by sampling for whole generation."""
    evidence = runner.run(outside)
    assert evidence.verdict in ("certified", "skipped"), "\n".join(j.reason for j in evidence.judgements())


@pytest.mark.parametrize("outside", EDGES)
def test_the_edges_of_the_step_show_the_known_findings_and_no_others(outside):
    """A uniform of exactly 0 refutes the released step; its exact laws are right, and nothing else goes wrong."""
    from specverify.certify import Runner

    attribute, planned = outside
    evidence = Runner(_plan(attribute)).run(planned)
    assert evidence.verdict == "refuted", "the known finding is gone: update docs/transformers.md and this test"
    for measurement, judgement in zip(evidence.measurements, evidence.judgements(), strict=True):
        if measurement.kind != "probes":
            assert judgement.verdict == "certified", judgement.reason
            continue
        for finding in measurement.findings:
            found = (finding["kind"], finding["source"], finding["boundary"])
            assert found in KNOWN, measurement.describe(finding)
            assert finding["kind"] == "impossible" or NOT_A_NUMBER in finding["message"], finding["message"]
