"""Does every row of a mixed batch get what its own request asks for? Law, length, greedy choice, and no say in other rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.own_tokens import MOST_PROBABILITIES
from specverify.checks.sampling import seeded
from specverify.checks.seeds import RARE
from specverify.checks.served import MOST_NEW, TWIN_NEW, Mixer, Served, Server
from specverify.errors import SubjectError
from specverify.evidence.measurements import AnyMeasurement, RateMeasurement, ViolationMeasurement
from specverify.evidence.watch import StreamWatch
from specverify.evidence.wealth import measured
from specverify.laws import Array
from specverify.randomness import derive, stream
from specverify.requests import Request, Serving
from specverify.runs.shards import Form, Shard, Shards
from specverify.subjects import Decoder, DecoderLike, Facts

NAME = "rows"
QUESTION = "Does every row of a mixed batch follow the law of its own request, whatever stands beside it?"

CALLS = {"smoke": 100, "standard": 150, "certify": 600}
"""Mixed batches to serve, of ten rows each."""
FEWEST = 4
"""Mixed batches at least, however large the vocabulary is."""
SERVED_AGAIN = 8
"""Mixed batches whose requests are served once more, alone and with other batch-mates."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """One statistical test on the decoder's own models."""
    if not isinstance(part, Decoder) or part.open is None:
        return Skipped(NAME, part.name, "requests are served by decoders with models of their own")
    if not part.serves:
        said = "the decoder has no serve(requests), or does not declare it with serves=True"
        return Skipped(NAME, part.name, f"{said}: rows of different length, seed and temperature cannot be asked for")
    return [Planned(NAME, part.name, "mixed batch", True, {"calls": CALLS[settings.budget.name]})]


def run(planned: Planned, context: Context) -> Found:
    """Serve mixed batches, judge every row by its own request, then serve some of the requests again in other company."""
    part, decoder = context.part, context.opened
    assert isinstance(part, Decoder)
    assert decoder is not None
    if not isinstance(decoder, Serving):
        raise SubjectError(
            f"{part.name} declares serves=True, but what it opens has no serve(requests); give it one, or leave it out"
        )
    server = Server(decoder, decoder, part.name, greedy_only=part.facts.rule == "greedy")
    with seeded(derive(context.seed, "rows")):
        return _judged(server, context, _calls(planned.params["calls"], decoder))


def _calls(planned: int, decoder: DecoderLike) -> int:
    """Mixed batches to serve: as planned, or as many as stay within the most probabilities."""
    per_call = (6 * (MOST_NEW + 1) // 2 + 4 * TWIN_NEW) * decoder.vocab_size
    return min(planned, max(FEWEST, MOST_PROBABILITIES // per_call))


def _judged(server: Server, context: Context, calls: int) -> Found:
    facts, seed = context.part.facts, context.seed
    mixer, rng = Mixer.of(server), stream(seed, "requests")
    tally = Tally(server, facts, seed)
    batches: list[list[Served]] = []
    for call in range(calls):
        units = mixer.batch(call, rng)
        for number, requests in enumerate(_split([r for unit in units for r in unit], facts.max_batch)):
            rows = _in_a_shard(server, requests, context.shards, derive(seed, "rows", call, number))
            tally.add(rows)
            if call < SERVED_AGAIN:
                batches.append(rows)
    found = tally.measurements()
    if facts.seeded:
        found.append(replayed(server, batches))
    if facts.max_batch != 1:
        found += in_other_company(server, facts, batches)
    return Found(tuple(found))


def _split(requests: Sequence[Request], most: int | None) -> Iterable[list[Request]]:
    """Requests in batches of at most ``most``."""
    size = most or len(requests)
    return (list(requests[i : i + size]) for i in range(0, len(requests), size))


def _in_a_shard(server: Server, requests: Sequence[Request], shards: Shards, seed: int) -> list[Served]:
    """Serve a batch, or read what it got before a kill. Rows without a seed draw from a stream that is seeded for the batch."""

    def draw() -> list[Served]:
        with seeded(seed):
            return server.serve(requests)

    def pack(rows: list[Served]) -> Shard:
        tokens = {str(i): np.array(row.tokens, np.int64) for i, row in enumerate(rows)}
        return Shard({"wrong": [row.wrong for row in rows], "greedy": [row.greedy for row in rows]}, tokens)

    def unpack(shard: Shard) -> list[Served]:
        facts = zip(requests, shard.facts["wrong"], shard.facts["greedy"], strict=True)
        return [Served(r, tuple(shard.arrays[str(i)].tolist()), w, g) for i, (r, w, g) in enumerate(facts)]

    asked = {"what": "mixed batch", "seed": seed, "requests": derive(seed, repr(list(requests)))}
    return shards.drawn(asked, draw, Form(pack, unpack))


class Tally:
    """What the rows of mixed batches add up to."""

    def __init__(self, server: Server, facts: Facts, seed: int) -> None:
        self.server, self.tolerance, self.alone = server, facts.logit_tolerance, facts.max_batch == 1
        self.watches = {
            kind: StreamWatch(False, server.vocab_size, seed=derive(seed, "ranks", kind), logit_tolerance=facts.logit_tolerance)
            for kind in ("with a seed", "without a seed")
        }
        self.tokens = self.rows = self.greedy = 0
        self.impossible: list[str] = []
        self.wrong: list[str] = []
        self.not_best: list[str] = []
        self.twins = {kind: [0, 0] for kind in self.watches}

    def add(self, rows: Sequence[Served]) -> None:
        """Judge the rows of one batch."""
        self.rows += len(rows)
        self.wrong += [f"{r.wrong}; {described(r)}" for r in rows if r.wrong]
        for row in rows:
            if row.greedy and row.tokens:
                self.greedy += 1
                self.not_best += not_the_best(self.server, row, self.tolerance)
        for kind, watch in self.watches.items():
            of_kind = [r for r in rows if r.tokens and not r.greedy and (r.request.seed is None) == (kind == "without a seed")]
            if of_kind:
                self._sampled(kind, watch, of_kind)

    def _sampled(self, kind: str, watch: StreamWatch, rows: Sequence[Served]) -> None:
        laws = self.server.laws(rows)
        for row, law in zip(rows, laws, strict=True):
            place = self.server.impossible(row, law)
            if place is not None:
                self.impossible.append(f"token {row.tokens[place]} at place {place} of {described(row)}")
        self.tokens += sum(len(row.tokens) for row in rows)
        p, tokens = _padded(rows, laws)
        watch.add(p, None, tokens)
        for (one, law), (two, _) in itertools.pairwise(zip(rows, laws, strict=True)):
            if one.request.prompt == two.request.prompt and one.request.temperature == two.request.temperature:
                chance = law[np.arange(len(one.tokens)), list(one.tokens)].prod()
                self.twins[kind][0] += bool(one.tokens == two.tokens and chance <= RARE)
                self.twins[kind][1] += 1

    def measurements(self) -> list[AnyMeasurement]:
        """All of it as measurements; which ones there are depends on the requests alone."""
        sampled: list[AnyMeasurement] = []
        if not self.server.greedy_only:
            bets = [replace(measured(f"all bets on rows {kind}", watch), impossible=0) for kind, watch in self.watches.items()]
            sampled = [*bets, _violations("no sampled token of probability 0", self.impossible, self.tokens)]
        return [
            _violations("every row has the tokens it asked for, or ends at eos", self.wrong, self.rows),
            _violations("greedy rows take the likeliest token, up to rounding", self.not_best, self.greedy),
            *sampled,
            *(
                RateMeasurement(f"equal rows {kind} of one prompt: dependent rows", equal, pairs, RARE)
                for kind, (equal, pairs) in self.twins.items()
                if not self.alone and pairs
            ),
        ]


def _padded(rows: Sequence[Served], laws: Sequence[Array]) -> tuple[Array, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Laws (R, L, V) and tokens (R, L) of rows of different length; tokens are -1 past a row's end, where p means nothing."""
    length = max(len(row.tokens) for row in rows)
    p = np.ones((len(rows), length, laws[0].shape[1]))
    tokens = np.full((len(rows), length), -1, np.int64)
    for b, (row, law) in enumerate(zip(rows, laws, strict=True)):
        p[b, : len(law)], tokens[b, : len(law)] = law, row.tokens
    return p, tokens


def _violations(label: str, examples: Sequence[str], trials: int) -> ViolationMeasurement:
    return ViolationMeasurement(label, len(examples), trials, examples[0] if examples else "")


def described(row: Served, most: int = 12, place: int | None = None) -> str:
    """A row for a person: what was asked and what came, up to a place that matters."""
    r = row.request
    prompt = f"{list(r.prompt[:most])}" + (f" and {len(r.prompt) - most} more" if len(r.prompt) > most else "")
    own = "" if r.seed is None and r.temperature is None else f", seed {r.seed}, temperature {r.temperature}"
    end = most if place is None else max(most, place + 1)
    more = f" and {len(row.tokens) - end} more" if len(row.tokens) > end else ""
    return f"a row with prompt {prompt}, {r.max_new_tokens} tokens{own}: {list(row.tokens[:end])}{more}"


def not_the_best(server: Server, row: Served, tolerance: float) -> list[str]:
    """Words for the first token of a greedy row that lies further below the likeliest than rounding explains; else nothing."""
    gaps, margins = server.below_best(row, tolerance)
    over = np.flatnonzero(gaps > margins)
    if not len(over):
        return []
    place = int(over[0])
    off = f"{gaps[place]:.3g} below the largest log-probability (margin {margins[place]:.2g})"
    return [f"token {row.tokens[place]} at place {place} lies {off} in {described(row, place=place)}"]


def replayed(server: Server, batches: Sequence[Sequence[Served]]) -> ViolationMeasurement:
    """Whether a seeded request that is served alone, one of each batch, gets the same tokens when it is served again."""
    asked = [
        next((r.request for r in rows if r.request.seed is not None and r.request.temperature != 0), None) for rows in batches
    ]
    twice = [(server.serve([one])[0], server.serve([one])[0]) for one in asked if one is not None]
    parted = [f"{list(again.tokens)} instead of {described(row)}" for row, again in twice if row.tokens != again.tokens]
    return _violations("a seeded request that is served alone replays", parted, len(twice))


def in_other_company(server: Server, facts: Facts, batches: Sequence[Sequence[Served]]) -> list[ViolationMeasurement]:
    """Whether requests get the same tokens alone and among other batch-mates.

    Greedy ones must, but where the tokens that differ are tied within the margin; seeded ones when the decoder is declared
    seeded and batch-invariant.
    """
    invariant = facts.seeded and facts.batch_invariant
    parted: dict[bool, list[str]] = {True: [], False: []}
    asked = {True: 0, False: 0}
    for number, rows in enumerate(batches):
        again = [r for r in rows if r.greedy or (invariant and r.request.seed is not None)]
        others = [r.request for r in batches[(number + 1) % len(batches)] if r.request.seed is None]
        for row, (company, tokens) in _served_again(server, again, others, facts.max_batch):
            asked[row.greedy] += 1
            if not _same(server, row, tokens, facts.logit_tolerance):
                parted[row.greedy].append(f"{list(tokens)} {company} instead of {described(row)}")
    found = [_violations("a greedy row is the same in other company, up to ties", parted[True], asked[True])]
    if invariant and not server.greedy_only:
        found.append(_violations("a seeded row is the same in other company", parted[False], asked[False]))
    return found


def _served_again(
    server: Server, rows: Sequence[Served], others: Sequence[Request], most: int | None
) -> Iterable[tuple[Served, tuple[str, tuple[int, ...]]]]:
    """Each row with its company and the tokens it got: alone, and in reverse order between requests of another batch."""
    for row in rows:
        yield row, ("alone", server.serve([row.request])[0].tokens)
    size = most or len(rows) + len(others)
    spread = itertools.zip_longest(reversed(rows), others)
    mixed = [one for pair in spread for one in pair if one is not None]
    for first in range(0, len(mixed), size):
        part = mixed[first : first + size]
        served = server.serve([one.request if isinstance(one, Served) else one for one in part])
        for one, got in zip(part, served, strict=True):
            if isinstance(one, Served):
                yield one, ("among other requests", got.tokens)


def _same(server: Server, row: Served, tokens: tuple[int, ...], tolerance: float) -> bool:
    """Whether the tokens are those of the row; for a greedy one, whether those that part first are tied."""
    if row.tokens == tokens:
        return True
    if not row.greedy:
        return False
    place = next((i for i, (a, b) in enumerate(zip(row.tokens, tokens, strict=False)) if a != b), None)
    if place is None:
        return False
    either = (row, replace(row, tokens=tokens))
    return all(not not_the_best(server, replace(r, tokens=r.tokens[: place + 1]), tolerance) for r in either)
