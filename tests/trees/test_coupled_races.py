"""Coupled exponential races: the emitted tokens follow the target, and the two choices agree as often as the theory says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from reference.rules import coupled_races
from specverify.exact import step_emission
from specverify.laws import Array, Pair, complete, sequence_law
from specverify.pairs import named_pair
from specverify.subjects import Step
from specverify.tables import torch_models

ROWS = 100_000


def agreement(p: Array, q: Array) -> float:
    """Probability that argmin E/p and argmin E/q agree: sum_x 1 / sum_y max(p_y / p_x, q_y / q_x)."""
    both = [x for x in range(len(p)) if p[x] > 0 and q[x] > 0]
    return float(sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both))


def races(k: int) -> Step:
    """The rule with k drafts."""
    return Step("coupled races", partial(coupled_races.step, k=k), k)


@pytest.mark.parametrize("seed", range(3))
def test_law_and_acceptance_by_sampling(seed: int) -> None:
    """Blocks completed from the target have its law, and the first draft is accepted as often as stated.

    100 000 rows: every cell within five standard deviations, which at 3^3 cells fails for a right rule with chance 2e-5.
    """
    pair = named_pair(3, 2, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        emitted = races(2)(*torch_models(pair), torch.tensor([pair.prompt]).repeat(ROWS, 1)).rows()
    seen: dict[tuple[int, ...], float] = {}
    for row in emitted:
        seen[row] = seen.get(row, 0.0) + 1 / ROWS
    law, right = complete(seen, pair.target, 3, pair.prompt), sequence_law(pair.target, 3, pair.prompt)
    assert law[right == 0].sum() == 0
    assert (np.abs(law - right) <= 5 * np.sqrt(right * (1 - right) / ROWS)).all()
    expected = agreement(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt))
    kept = sum(mass for row, mass in seen.items() if len(row) > 1)
    assert abs(kept - expected) <= 5 * np.sqrt(expected * (1 - expected) / ROWS)


def test_agreement_lies_between_its_bounds() -> None:
    """The agreement is at least (1 - TV) / (1 + TV) and at most 1 - TV, and 1 where the laws are equal."""
    for seed in range(10):
        pair = named_pair(4, 1, seed=seed)
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        tv = np.abs(p - q).sum() / 2
        assert (1 - tv) / (1 + tv) - 1e-12 <= agreement(p, q) <= 1 - tv + 1e-12
        assert agreement(p, p) == pytest.approx(1)


@pytest.mark.parametrize("pair", [named_pair(3, 1), named_pair(3, 2)], ids=["K=1", "K=2"])
def test_law_and_acceptance_exactly(pair: Pair) -> None:
    """With clocks that run two races the law is the target's, and the acceptance the stated one."""
    law = step_emission(races(pair.k), pair).tokens
    length = pair.k + 1
    ours, right = complete(law, pair.target, length, pair.prompt), sequence_law(pair.target, length, pair.prompt)
    assert np.abs(ours - right).max() <= 1e-12
    kept = sum(mass for tokens, mass in law.items() if len(tokens) > 1)
    assert kept == pytest.approx(agreement(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)), abs=1e-12)
