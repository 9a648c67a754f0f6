"""Sampled sequences against the target law."""

import pytest


@pytest.mark.specverify_check("sequence", "on_off")
def test_sampled_sequences_follow_the_target_law(planned, judge):
    """Support, joint cells and conditionals of sampled sequences fit the law computed from the target model."""
    judge(planned)


@pytest.mark.specverify_check("rows")
def test_rows_of_a_mixed_batch_follow_their_own_requests(planned, judge):
    """Rows of different length, seed and temperature get what their own request asks for, whatever stands beside them."""
    judge(planned)


@pytest.mark.specverify_check("seeds")
def test_requests_and_rows_are_separate_samples(planned, judge):
    """A seed replays; other seeds and other rows give samples of their own."""
    judge(planned)
