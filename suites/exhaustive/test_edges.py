"""The ends of every draw, and laws at their edges."""

import pytest


@pytest.mark.specverify_check("edges")
def test_it_holds_at_the_edges(planned, judge):
    """No draw at the end of its range emits an impossible token, and equal, certain or disjoint laws do not crash it."""
    judge(planned)
