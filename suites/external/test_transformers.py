"""A decoder from outside: the released step and assisted generation of Hugging Face transformers, unmodified.

Their tests have a false-alarm budget of their own and stand beside the certificate of the subject; a certificate of theirs is
made by ``specverify certify specverify.adapters.transformers``.
"""

import importlib.util

import pytest

SPEC = "specverify.adapters.transformers"
MISSING = "transformers is not installed: pip install specverify[transformers]"


def _plan():
    from specverify.certify import plan_for
    from specverify.checks.base import BUDGETS, Settings
    from specverify.subjects import load_subject

    return plan_for(load_subject(SPEC), SPEC, Settings(BUDGETS["smoke"]))


if importlib.util.find_spec("transformers") is None:
    PARAMS = [pytest.param(None, id="transformers", marks=pytest.mark.skip(reason=MISSING))]
else:
    PARAMS = [pytest.param(p, id=p.test) for p in _plan().tests if p.expected == "certified"]


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
