"""Cells of sampled sequences: chosen before sampling, complete, and right about support."""

import numpy as np

from specverify.checks.sequence import table_laws
from specverify.evidence.cells import grow, sort_into
from specverify.laws import TableModel, sequence_law

MODEL = TableModel.from_weights([[1, 2, 1], [0, 3, 1], [5, 1, 1]])


def draw(n: int, length: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Sequences from the model itself."""
    law = sequence_law(MODEL, length)
    flat = np.random.default_rng(seed).choice(law.size, n, p=law.ravel())
    return [tuple(int(i) for i in np.unravel_index(f, law.shape)) for f in flat]


def test_joint_cells_hold_every_sequence_and_all_probability():
    """Counts over the joint cells sum to the sample and probabilities to one, whatever the sample size."""
    for n in (100, 1000, 20_000):
        cells = sort_into(grow(table_laws(MODEL, ()), 4, n), draw(n, 4))
        assert cells.joint.total == n
        assert abs(sum(cells.joint.probs) - 1) < 1e-9
        assert not cells.forbidden


def test_cells_do_not_depend_on_the_sample():
    """Two different samples of one size get the same joint cells."""
    tree = grow(table_laws(MODEL, ()), 3, 500)
    assert sort_into(tree, draw(500, 3, 1)).joint.probs == sort_into(tree, draw(500, 3, 2)).joint.probs


def test_joint_probabilities_are_those_of_the_law():
    """With many draws every cell is one sequence with its exact probability."""
    tree = grow(table_laws(MODEL, ()), 3, 10**7)
    law = sequence_law(MODEL, 3)
    cells = sort_into(tree, draw(1000, 3))
    assert len(tree.mass) > 20
    for prefix, mass in tree.mass.items():
        marginal = law[prefix]
        assert abs(mass - float(np.sum(marginal))) < 1e-12
    assert cells.joint.total == 1000


def test_a_token_of_probability_zero_is_never_pooled_away():
    """One impossible token in a large sample is found and named."""
    sample = [*draw(5000, 2), (2, 0)]
    prefix = next(p for p in [(0,), (1,), (2,)] if MODEL.next_law(p)[0] == 0)
    sample[-1] = (*prefix, 0)
    cells = sort_into(grow(table_laws(MODEL, ()), 2, len(sample)), sample)
    assert cells.forbidden == (((*prefix, 0), 1),)


def test_sequences_end_at_eos():
    """Tokens after an eos belong to no cell."""
    tree = grow(table_laws(MODEL, ()), 3, 1000, eos_id=1)
    assert all(1 not in prefix for prefix in tree.laws)
    sample = [(1, -1, -1)] * 500 + [(0, 1, 1)] * 250 + [(2, 1, -1)] * 250
    assert sort_into(tree, sample).joint.total == 1000
