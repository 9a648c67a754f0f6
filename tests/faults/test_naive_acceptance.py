"""The printed counterexample to naive acceptance is true, smallest, and what the documentation quotes."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest

from specverify.exact import round_law
from specverify.faults import naive
from specverify.faults.catalogue import fault
from specverify.laws import Pair, TableModel

PAGE = Path(__file__).parents[2] / "docs" / "naive-acceptance.md"
RULES = {"naive_accept": naive.naive_accept, "naive_accept_resample": naive.naive_accept_resample}


def quoted_output(page: str) -> str:
    """Return the block of the page that follows the command."""
    _, _, after = page.partition("python -m specverify.faults.naive\n```\n")
    return after.partition("```text\n")[2].partition("```")[0]


def test_page_quotes_the_program() -> None:
    """The page shows exactly what the program prints."""
    assert quoted_output(PAGE.read_text(encoding="utf-8")) == naive.text()


@pytest.mark.parametrize("name", RULES)
def test_counterexample_refutes_the_executable_rule(name: str) -> None:
    """The exact law of the rule itself on the printed pair is the printed law, and not the target."""
    p, q = naive.smallest_counterexample(RULES[name])
    assert (p, q) == ((Fraction(2, 3), Fraction(1, 3)), (Fraction(1, 2), Fraction(1, 2)))
    pair = Pair(TableModel.from_weights([[2, 1]]), TableModel.from_weights([[1, 1]]), 1)
    emitted = [0.0, 0.0]
    for tokens, mass in round_law(fault(name).make(1), pair).items():
        emitted[tokens[0]] += mass
    law = naive.emitted_law(RULES[name](p, q))
    assert law != p
    assert emitted == pytest.approx([float(x) for x in law], abs=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_no_smaller_weights_would_do(name: str) -> None:
    """Among positive weights without a tie in p, a sum of 5 is the least possible, and the search takes the first."""
    smallest = next(w for w in naive.weights_by_size() if w[0][0] > w[0][1])
    assert smallest == ((2, 1), (1, 1))
    assert naive.smallest_counterexample(RULES[name]) == tuple(naive.law_of(w) for w in smallest)


def test_token_rejection_is_right_in_fractions() -> None:
    """The rule shown beside the faulty ones emits p on every small pair, with equality of fractions."""
    pairs = [(naive.law_of(a), naive.law_of(b)) for a, b in islice(naive.weights_by_size(), 300)]
    assert all(naive.emitted_law(naive.token_rejection(p, q)) == p for p, q in pairs)
