"""Accepted counts: reported as they are, and within what exactness allows."""

import pytest


@pytest.mark.specverify_check("acceptance")
def test_acceptance_is_what_an_exact_rule_can_have(planned, judge):
    """Reported counts match the tokens, and no more is accepted than an exact rule can accept."""
    judge(planned)
