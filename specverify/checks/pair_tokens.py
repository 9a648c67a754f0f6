"""What do tokens of table models show? All bets on the tokens of samples, against the target as the subject was given it."""

from __future__ import annotations

import numpy as np

from specverify.checks.sampling import Sample
from specverify.evidence.watch import TableWatch
from specverify.evidence.wealth import WealthMeasurement, calls_of, measured
from specverify.laws import Pair, TableModel
from specverify.randomness import derive


class PairTokens:
    """A watch over the contexts of both models of a pair. target: the pair's, in the subject's precision."""

    def __init__(self, pair: Pair, target: TableModel, seed: int, tolerance: float = 0.0) -> None:
        self.pair, self.target = pair, target
        self._one_context = target.size == pair.draft.size  # which then chooses both laws
        each = np.arange(target.size if self._one_context else target.size * pair.draft.size)
        p, q = target.laws[each % target.size], pair.draft.laws[each if self._one_context else each // target.size]
        self.watch = TableWatch(p, q, seed=derive(seed, "ranks"), logit_tolerance=tolerance)

    def see(self, sample: Sample) -> None:
        """Let the watch see the tokens of a sample, one call after the other."""
        start = len(self.pair.prompt)
        for tokens in calls_of(sample.sequences, sample.calls):
            prompt = np.tile(np.asarray(self.pair.prompt, np.int64), (len(tokens), 1))
            ids = np.concatenate([prompt, tokens], axis=1)
            contexts = self.target.contexts_along(ids)[:, start:-1]
            if not self._one_context:
                contexts = contexts + self.target.size * self.pair.draft.contexts_along(ids)[:, start:-1]
            self.watch.add(contexts, tokens)


def wealth(sample: Sample, pair: Pair, target: TableModel, seed: int, tolerance: float = 0.0) -> WealthMeasurement:
    """All bets on the tokens of one sample."""
    tokens = PairTokens(pair, target, seed, tolerance)
    tokens.see(sample)
    return measured("all bets together", tokens.watch)
