"""Do the pointwise forms of the laws of faults agree with the laws themselves? On every kind of pair."""

from __future__ import annotations

import numpy as np
import pytest
from odd_laws import laws_of

from specverify.evidence.pointwise import FAULT_LAWS, WITHOUT_Q, At, Rows
from specverify.faults.catalogue import all_faults


@pytest.mark.parametrize("v", [2, 3, 5, 40])
@pytest.mark.parametrize("name", FAULT_LAWS)
def test_the_pointwise_form_is_the_law(name: str, v: int) -> None:
    """At every token, and at single tokens asked for alone."""
    p, q = laws_of(60, v, 1)
    fault = all_faults()[name]
    assert fault.law is not None
    expected = fault.law(p, q)
    everywhere = np.tile(np.arange(v), (60, 1))
    found = FAULT_LAWS[name](At(Rows(p, q), everywhere))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    x = np.random.default_rng(2).integers(0, v, (60, 1))
    np.testing.assert_allclose(FAULT_LAWS[name](At(Rows(p, q), x)), np.take_along_axis(expected, x, 1), rtol=1e-12, atol=1e-14)


def test_every_catalogued_law_of_one_position_has_a_pointwise_form() -> None:
    """A fault that is added to the catalogue is an alternative of the statistics too, or this fails."""
    known = {name for name, fault in all_faults().items() if fault.law is not None}
    bonus_only = {name for name in known if getattr(all_faults()[name], "bonus", None) is not None}
    assert known - bonus_only - {"top_k_sampled"} == set(FAULT_LAWS)


def test_laws_said_not_to_need_the_draft_do_not() -> None:
    """They are the same for another draft; all the others differ."""
    p, q = laws_of(60, 5, 3)
    everywhere = np.tile(np.arange(5), (60, 1))
    other = np.roll(q, 1, axis=0)
    for name, law in FAULT_LAWS.items():
        same = np.allclose(law(At(Rows(p, q), everywhere)), law(At(Rows(p, other), everywhere)))
        assert same == (name in WITHOUT_Q), name
