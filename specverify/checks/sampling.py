"""How are sequences sampled from a subject? Rounds run until L tokens exist; the first L are kept, whatever was accepted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specverify.evidence.measurements import CoverageMeasurement
from specverify.laws import Array, Ints, Pair, Tokens
from specverify.randomness import derive, stream
from specverify.subjects import DecoderLike, Emitted, Step, Verifier, naming_inputs, normalise_generated
from specverify.tables import torch_models
from specverify.tree_drafts import some_trees
from specverify.trees import TreeVerifier

MOST_ROWS = 4096
"""Rows that a verifier or a step is handed in one call."""
DECODER_ROWS = 2048
"""Rows that a decoder is asked for in one call."""
ENOUGH = 20.0
"""How often an event must have happened before a pass says anything about it."""


@dataclass
class Sample:
    """Sequences of equal length, and how often the interesting events happened while they were made."""

    sequences: list[Tokens] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """How many sequences, in their order, came out of each call."""
    accepted: int = 0
    rejected: int = 0
    bonus: int = 0
    later_rounds: int = 0
    counts_known: bool = True
    reported: list[tuple[Tokens, list[int]]] = field(default_factory=list)
    """For decoders that report it: tokens and accepted counts per round, row by row."""
    arrays: list[Ints] = field(default_factory=list, compare=False, repr=False)
    """The sequences once more, as they came out of each call, (B, L); empty where they did not come as arrays."""

    def add(self, tokens: Ints) -> None:
        """Add the sequences (B, L) of one call."""
        self.sequences.extend(map(tuple, tokens.tolist()))
        self.calls.append(len(tokens))
        self.arrays.append(tokens)

    def count(self, counts: Ints, k: int, first_round: bool) -> None:
        """Add one round in which ``counts`` (B,) tokens were emitted per row."""
        self.accepted += int((counts - 1).sum())
        self.rejected += int((counts <= k).sum())
        self.bonus += int((counts == k + 1).sum())
        if not first_round:
            self.later_rounds += len(counts)

    def count_all(self, other: Sample) -> None:
        """Add the events of another sample, and what it reported; its sequences stay where they are."""
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.bonus += other.bonus
        self.later_rounds += other.later_rounds
        self.counts_known = other.counts_known
        self.reported += other.reported

    def events(self) -> dict[str, float]:
        """Numbers for the coverage measurement."""
        return {
            "accepted": float(self.accepted),
            "rejected": float(self.rejected),
            "bonus": float(self.bonus),
            "later rounds": float(self.later_rounds),
        }


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global stream seeded for the block and put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _draw(laws: Array, rng: np.random.Generator) -> Ints:
    """One token per row from laws (B, V), by inverse distribution function; never one of probability 0."""
    cumulative = laws.cumsum(1)
    u = rng.random(len(laws)) * cumulative[:, -1]
    tokens: Ints = (cumulative <= u[:, None]).sum(1)
    return tokens


SMALL_BATCHES = (1, 2, 3, 8, 64)
"""Batch sizes of the small-batch test, in turn: code often takes another path there."""


def _batches(n: int, most: int, small: bool) -> Iterator[int]:
    """Sizes of the calls that make ``n`` rows in all."""
    sizes = itertools.cycle([min(s, most) for s in SMALL_BATCHES] if small else [most])
    while n > 0:
        size = min(next(sizes), n)
        yield size
        n -= size


def sample_verifier(verifier: Verifier, pair: Pair, n: int, length: int, seed: int, *, small: bool = False) -> Sample:
    """``n`` sequences of ``length`` tokens from a verifier used round after round, drafting from the pair's draft."""
    rng = stream(seed, "drafts")
    numbers = torch.Generator().manual_seed(derive(seed, "given"))  # for verifiers that take theirs as arguments

    def judge(ids: Ints, ends: Ints) -> Emitted:
        work, lines = ids.copy(), np.arange(len(ids))
        for j in range(pair.k):
            laws = pair.draft.laws[pair.draft.contexts_along(work)[lines, ends + j]]
            work[lines, ends + j] = _draw(laws, rng)
        span = ends[:, None] + np.arange(pair.k + 1)
        q = pair.draft.laws[np.take_along_axis(pair.draft.contexts_along(work), span[:, :-1], 1)]
        p = pair.target.laws[np.take_along_axis(pair.target.contexts_along(work), span, 1)]
        drafted = np.take_along_axis(work, span[:, :-1], 1)
        return verifier(torch.from_numpy(drafted), torch.from_numpy(q), torch.from_numpy(p), generator=numbers)

    sizes = _batches(n, min(verifier.facts.max_batch or MOST_ROWS, MOST_ROWS), small)
    return _sample_rounds(judge, pair.k, pair.prompt, sizes, length, seed)


def sample_tree_verifier(verifier: TreeVerifier, pair: Pair, n: int, length: int, seed: int, *, small: bool = False) -> Sample:
    """``n`` sequences of ``length`` tokens from a tree verifier used round after round, on trees that the draft makes."""
    rng = stream(seed, "drafts")

    def judge(ids: Ints, ends: Ints) -> Emitted:
        drafted = some_trees(verifier.shape, verifier.children, pair, ids, ends, lambda q: _draw(q, rng))
        return verifier(*drafted.tensors())

    sizes = _batches(n, min(verifier.facts.max_batch or MOST_ROWS, MOST_ROWS), small)
    return _sample_rounds(judge, verifier.k, pair.prompt, sizes, length, seed)


def _sample_rounds(
    judge: Callable[[Ints, Ints], Emitted], k: int, prompt: Tokens, sizes: Iterator[int], length: int, seed: int
) -> Sample:
    """Rounds until every row of every batch has ``length`` tokens; ``judge`` drafts after ids[r, : ends[r]] and verifies."""
    out, start = Sample(), len(prompt)
    with seeded(derive(seed, "verifier")):
        for rows in sizes:
            ids = np.zeros((rows, start + length + 2 * k + 1), np.int64)
            ids[:, :start] = prompt
            ends = np.full(rows, start)
            unfinished, first = np.arange(rows), True
            while len(unfinished):
                at = ends[unfinished]
                emitted = judge(ids[unfinished], at)
                tokens, counts = emitted.tokens.numpy(), emitted.counts.numpy()
                for j in range(k + 1):
                    on = counts > j
                    ids[unfinished[on], at[on] + j] = tokens[on, j]
                out.count(counts, k, first)
                ends[unfinished] += counts
                unfinished, first = np.flatnonzero(ends < start + length), False
            out.add(ids[:, start : start + length])
    return out


def sample_step(step: Step, pair: Pair, n: int, length: int, seed: int) -> Sample:
    """``n`` sequences of ``length`` tokens from a step run round after round on the pair's table models."""
    target, draft = torch_models(pair, step.facts.torch_dtype)
    start = len(pair.prompt)
    out = Sample()
    rows = min(step.facts.max_batch or MOST_ROWS, MOST_ROWS)
    with seeded(derive(seed, "step")):
        for first_row in range(0, n, rows):
            batch = min(rows, n - first_row)
            ids = np.zeros((batch, start + length + step.k + 1), np.int64)
            ids[:, :start] = pair.prompt
            ends = np.full(batch, start)
            while (ends < start + length).any():
                shortest = int(ends.min())
                now = np.flatnonzero(ends == shortest)
                emitted = step(target, draft, torch.from_numpy(ids[now, :shortest]))
                tokens, counts = emitted.tokens.numpy(), emitted.counts.numpy()
                for j in range(step.k + 1):
                    on = counts > j
                    ids[now[on], shortest + j] = tokens[on, j]
                out.count(counts, step.k, shortest == start)
                ends[now] += counts
            out.add(ids[:, start : start + length])
    return out


def dealt(made: int, rows: int, kinds: int) -> list[int]:
    """Number of the prompt that each row of a call gets, after ``made`` rows of earlier calls: in turn."""
    return [(made + r) % kinds for r in range(rows)]


def in_order(samples: Sequence[Sample]) -> Iterator[tuple[Ints, Ints]]:
    """Calls of :func:`sample_decoder` as they were made: tokens (R, L), and the number of each row's prompt (R,)."""
    rows = [iter(sample.sequences) for sample in samples]
    made = 0
    for sizes in zip(*(sample.calls for sample in samples), strict=True):
        kinds = dealt(made, sum(sizes), len(samples))
        made += len(kinds)
        yield np.array([next(rows[kind]) for kind in kinds], np.int64), np.array(kinds, np.int64)


def coverage(sample: Sample) -> CoverageMeasurement:
    """Whether acceptances, rejections, bonus tokens and later rounds all happened; for decoders, as far as they report it."""
    events = sample.events()
    if sample.reported:
        events = {name: events[name] for name in ("accepted", "later rounds")}
    return CoverageMeasurement(events, ENOUGH, known=sample.counts_known)


def sample_decoder(
    decoder: DecoderLike,
    prompts: Tensor,
    n: int,
    length: int,
    seed: int,
    *,
    name: str,
    max_batch: int | None,
    small: bool = False,
    made: int = 0,
) -> list[Sample]:
    """About ``n`` sequences of ``length`` tokens in all, one :class:`Sample` per prompt (P, T).

    Rows of one call hold different prompts wherever the decoder takes more than one row, so that rows that are mixed up show
    in the law. Every call has a seed of its own. made: rows that were made before, after which prompts are dealt on.
    """
    kinds = len(prompts)
    samples = [Sample(counts_known=False) for _ in range(kinds)]
    call = 0
    eos = getattr(decoder, "eos_id", None)
    with seeded(derive(seed, "decoder")):
        for batch in _batches(n, min(max_batch or DECODER_ROWS, DECODER_ROWS, max(n, 1)), small):
            kind = dealt(made, batch, kinds)
            call_seed = derive(seed, "call", call) % 2**31
            with naming_inputs(f"{name}.generate", prompts=prompts[kind], max_new_tokens=length, seed=call_seed):
                raw = decoder.generate(prompts[kind], length, seed=call_seed)
                result = normalise_generated(raw, batch, length, decoder.vocab_size, eos, name)
            accepted = None if result.accepted is None else result.accepted.tolist()
            for r, tokens in enumerate(map(tuple, result.tokens.tolist())):
                sample = samples[kind[r]]
                sample.sequences.append(tokens)
                if accepted is not None:
                    counts = [c for c in accepted[r] if c >= 0]
                    sample.counts_known = True
                    sample.reported.append((tokens, counts))
                    sample.accepted += sum(counts)
                    sample.later_rounds += max(0, len(counts) - 1)
            for number, sample in enumerate(samples):
                sample.calls.append(kind.count(number))
                sample.arrays.append(result.tokens.numpy()[np.array(kind) == number])
            made += batch
            call += 1
    return samples
