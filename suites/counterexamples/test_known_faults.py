"""Negative controls: every catalogued fault is refuted in the same run, or the run itself is in error."""

import pytest


@pytest.mark.specverify_controls
def test_a_known_fault_is_refuted(planned, judge):
    """A rule that is known to be wrong is refuted, exactly and by sampling."""
    judge(planned)
