"""Does counting repeated outputs keep its promise? Heavy-tailed laws, where one output is common and all others are rare."""

import math

import numpy as np
import pytest

from specverify.checks.seeds import RARE, rare_repeats
from specverify.evidence.rates import rate_above


@pytest.mark.parametrize("heavy", [0.0, 0.2, 0.9])
def test_repeats_of_independent_outputs_are_no_more_than_promised(heavy):
    """P(p <= t) <= t for every t that counts, although the probabilities are those of the outputs that came."""
    rng = np.random.default_rng(0)
    n, others = 24, 200_000
    found = []
    for _ in range(4_000):
        outputs = [(0,) if rng.random() < heavy else (1 + int(rng.integers(others)),) for _ in range(n)]
        chances = [heavy if o == (0,) else (1 - heavy) / others for o in outputs]
        found.append(rate_above(rare_repeats(outputs, chances), n - 1, RARE))
    for t in (1e-3, 1e-2, 0.1):
        assert np.mean(np.array(found) <= t) <= t + 3 * math.sqrt(t / 4_000)


def test_repeats_are_counted_only_while_coincidences_are_rare():
    """A request that repeats any earlier one counts; one that may well do so by chance does not."""
    assert rare_repeats([(1,), (2,), (1,), (2,), (2,)], [1e-9] * 5) == 3
    assert rare_repeats([(1,), (2,), (2,)], [0.5, 1e-9, 1e-9]) == 0
    assert rare_repeats([(2,), (2,), (1,), (2,)], [1e-9, 1e-9, 0.5, 1e-9]) == 1
