"""The joint law of several rounds, and of rows that stop, exactly where the subject can be built over tables."""

import pytest


@pytest.mark.specverify_check("rounds")
def test_several_rounds_emit_the_target_law(planned, judge):
    """The first tokens of two and more rounds follow the target law jointly, after rejected tokens were taken back."""
    judge(planned)


@pytest.mark.specverify_check("stopping")
def test_rows_stop_where_they_should(planned, judge):
    """A row ends at its first EOS, has exactly the tokens asked for, and what came before keeps its law."""
    judge(planned)
