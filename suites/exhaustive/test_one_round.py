"""The law of one round, exactly."""

import pytest


@pytest.mark.specverify_check("single_step")
def test_one_round_emits_the_target_law(planned, judge):
    """One round emits exactly the target law on fixed and on generated pairs."""
    judge(planned)
