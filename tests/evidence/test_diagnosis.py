"""Is the fault that fits named? With how much more it has than the next, and before bets that learn."""

from __future__ import annotations

import pytest

from specverify.evidence.diagnosis import EXPLAINED, diagnosed


def wealth(**logs: float) -> dict[tuple[str, str], float]:
    """Ln wealth by family_name, largest first."""
    found = {(key.split("_", 1)[0], key.split("_", 1)[1]): log for key, log in logs.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


YET_MORE = (
    "fits best of the known faults: b, e^60 times as much wealth as c; "
    "yet more is wrong, the ranks by p are uneven with e^10 times as much"
)


@pytest.mark.parametrize(
    ("logs", "family", "words"),
    [
        ({"fault_lenience": 50.0, "fault_typical": 10.0}, "fault", "fits best: lenience, e^40 times as much wealth as typical"),
        ({"fault_lenience": 50.0}, "fault", "fits best: lenience"),
        ({"fault_a": 50.0, "fault_b": 48.0}, "fault", "fits best: a, though b fits about as well"),
        ({"fault_a": 50.0, "fault_b": 50.0, "ranks_p": 1.0}, "fault", "fits best: a or b, whose laws are the same here"),
        ({"fault_a": 50.0, "fault_b": 50.2, "fault_c": 50.1}, "fault", "fits best: b (37% of the wealth, c 33%)"),
        ({"direction_towards q": 50.0, "fault_b": 9.0}, "direction", "no known fault fits; tokens lean towards q, e^41"),
        ({"ranks_ranks by p": 50.0, "fault_b": 9.0}, "ranks", "no known fault fits; the ranks by p are uneven"),
        ({"dependence_same token, row before": 50.0, "fault_b": 49.0}, "dependence", "tokens depend on each other: same"),
        ({"place_law of the row before": 50.0, "fault_b": 9.0}, "place", "no known fault fits; tokens follow the law of"),
        ({"leak_token 3": 50.0, "fault_b": 9.0}, "leak", "no known fault fits; too much of token 3"),
        ({"ranks_ranks by p": 100.0, "fault_b": 90.0, "fault_c": 30.0}, "fault", YET_MORE),
    ],
)
def test_what_the_wealth_lies_with_is_said(logs: dict[str, float], family: str, words: str) -> None:
    """In the words of its family, beside the next."""
    found = diagnosed(wealth(**logs))
    assert found.family == family
    assert found.words.startswith(words)


def test_a_fault_is_an_explanation_from_a_part_of_the_evidence_on() -> None:
    """Just above it is named, just below no known fault fits."""
    assert diagnosed(wealth(ranks_p=100.0, fault_b=100 * EXPLAINED + 1)).name == "b"
    assert diagnosed(wealth(ranks_p=100.0, fault_b=100 * EXPLAINED - 1)).family == "ranks"
