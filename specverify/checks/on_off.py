"""Does a decoder write alike with speculation on and off? Pairs of calls with unrelated seeds, bet on as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specverify.checks.base import Context, Found, Part, Planned, Settings
from specverify.checks.sampling import seeded
from specverify.checks.stopping import after_eos
from specverify.evidence.measurements import AnyMeasurement, OnOffMeasurement, ViolationMeasurement
from specverify.evidence.on_off import Call
from specverify.evidence.two_sample import PairedBets
from specverify.laws import Ints
from specverify.opening import read_prompts
from specverify.randomness import derive, stream
from specverify.runs.shards import UNKEPT, Form, Shard, Shards
from specverify.subjects import naming_inputs, normalise_generated
from specverify.unknown_law import OnOff, OnOffLike

NAME = "on_off"
QUESTION = "Where the target law is not known: does the decoder write alike with speculation on and off?"

LENGTH = 12
"""New tokens of a sequence: several rounds of any usual K."""
ROWS = 8
"""Most rows of a call. A call is bet on as a whole and pays at most 2, so many small calls tell more than few large ones."""
LENGTHS = (2, 4, 7)
"""Lengths of random prompts, where a decoder brings none."""
MOST_PROMPTS = 32
SAMPLING, CONTROLLING = 0.5, 0.75
"""Shares of a test's time after which no pairs, and no batches of the control, are sampled any more."""


def plan(part: Part, settings: Settings) -> list[Planned]:
    """One statistical test for a decoder of unknown law; nothing for other parts, which are compared with their law."""
    if not isinstance(part, OnOff):
        return []
    budget = settings.budget
    pairs = min(budget.pairs, budget.single) if part.facts.max_batch == 1 else budget.pairs
    if settings.max_tokens is not None:
        pairs = max(1, settings.max_tokens // (2 * LENGTH))
    return [Planned(NAME, part.name, "own models", True, {"pairs": pairs, "length": LENGTH})]


@dataclass(frozen=True, eq=False)
class Answer:
    """What one call gave: tokens (B, L), and in words the rows in which something stood after an eos."""

    tokens: Ints
    beyond: list[str]


ANSWERS: Form[list[Answer]] = Form(
    lambda answers: Shard({"beyond": [a.beyond for a in answers]}, {str(i): a.tokens for i, a in enumerate(answers)}),
    lambda shard: [Answer(shard.arrays[str(i)], beyond) for i, beyond in enumerate(shard.facts["beyond"])],
)


@dataclass
class Asked:
    """The two modes of a decoder, asked for batches of prompts; every call has a seed of its own."""

    part: OnOff
    decoder: OnOffLike
    length: int
    seed: int
    used: set[int] = field(default_factory=set)
    beyond: list[str] = field(default_factory=list)
    """Rows in which something other than eos or padding stood after an eos."""
    rows: int = 0
    asks: int = 0
    shards: Shards = UNKEPT

    def fresh(self, *names: str | int) -> int:
        """A seed for a call, unlike those of all other calls."""
        found = derive(self.seed, *names) % 2**31
        while found in self.used:
            found = (found + 1) % 2**31
        self.used.add(found)
        return found

    def ask(self, mode: str, prompts: Tensor, seed: int) -> Ints:
        """New tokens (B, length) of a mode, "generate" or "baseline", with eos in all places after an eos."""
        return self.ask_each([(mode, seed)], prompts)[0]

    def ask_each(self, modes: list[tuple[str, int]], prompts: Tensor) -> list[Ints]:
        """The same of several modes, each with a seed, one after the other: a shard."""
        asked = {"rows": len(prompts), "modes": modes}
        answers = self.shards.drawn(asked, partial(self._drawn_each, modes, prompts, self.asks), ANSWERS)
        self.asks += len(modes)
        self.rows += len(prompts) * len(modes)
        for answer in answers:
            self.beyond += answer.beyond
        return [answer.tokens for answer in answers]

    def _drawn_each(self, modes: list[tuple[str, int]], prompts: Tensor, number: int) -> list[Answer]:
        return [self._drawn(mode, prompts, seed, number + i) for i, (mode, seed) in enumerate(modes)]

    def _drawn(self, mode: str, prompts: Tensor, seed: int, number: int) -> Answer:
        """Torch's global stream is another one for every call, those with equal seeds included: a seed alone must replay."""
        name, eos = self.part.name, getattr(self.decoder, "eos_id", None)
        inputs = naming_inputs(f"{name}.{mode}", prompts=prompts, max_new_tokens=self.length, seed=seed)
        with seeded(derive(self.seed, "outer", number)), inputs:
            raw = getattr(self.decoder, mode)(prompts.clone(), self.length, seed=seed)
            read = normalise_generated(raw, len(prompts), self.length, int(self.decoder.vocab_size), eos, name, mode)
        tokens: Ints = read.tokens.numpy().astype(np.int64)
        beyond = []
        if eos is not None:
            beyond = [f"{mode}: {row}" for row in tokens.tolist() if after_eos(tuple(row), int(eos))]
            ended = np.cumsum(tokens == int(eos), axis=1) > 0
            tokens = np.where(ended, int(eos), tokens)
        return Answer(tokens, beyond)


def run(planned: Planned, context: Context) -> Found:
    """Bet on pairs until on and off are told apart or all are used; then bet on the control's pairs in the same way."""
    part = context.part
    assert isinstance(part, OnOff)
    asked = Asked(part, part.opened(), planned.params["length"], context.seed, shards=context.shards)
    groups = prompt_groups(asked.decoder, part.name, context.seed, min(part.facts.max_batch or ROWS, ROWS))
    started, limit = time.monotonic(), context.settings.timeout
    found: list[AnyMeasurement] = replays(asked, groups) if part.facts.seeded else []
    calls, refuted = _pairs(asked, groups, planned.params["pairs"], context.alpha, lambda: _late(started, SAMPLING * limit))
    if not refuted:
        calls = _with_control(asked, groups, calls, lambda: _late(started, CONTROLLING * limit))
    size = int(asked.decoder.vocab_size)
    compared = OnOffMeasurement("on against off", size, tuple(calls), derive(context.seed, "replaced"))
    if getattr(asked.decoder, "eos_id", None) is not None:
        example = asked.beyond[0] if asked.beyond else ""
        found.append(ViolationMeasurement("nothing follows an EOS", len(asked.beyond), asked.rows, example))
    short = compared.pairs < planned.params["pairs"] and not refuted
    notes = (f"time allowed {compared.pairs} of {planned.params['pairs']} pairs",) if short else ()
    return Found((compared, *found), None, notes)


def _late(started: float, seconds: float) -> bool:
    return time.monotonic() - started > seconds


def prompt_groups(decoder: OnOffLike, name: str, seed: int, rows: int) -> list[tuple[Tensor, Ints]]:
    """Prompts of one call each, (R, T), with their numbers (R,): several of one length, two rows each if there is room.

    Two rows of one prompt side by side show it when rows draw the same numbers. Errors: SubjectError on other prompts.
    """
    own = getattr(decoder, "prompts", None)
    if own is None:
        rng = stream(seed, "prompts")
        sets = [torch.from_numpy(rng.integers(0, decoder.vocab_size, (4, length))) for length in LENGTHS]
    else:
        sets = [read_prompts(own, int(decoder.vocab_size), name)[:MOST_PROMPTS]]
    groups, first = [], 0
    for prompts in sets:
        for at in range(0, len(prompts), max(rows // 2, 1)):
            part = prompts[at : at + max(rows // 2, 1)]
            which = np.arange(rows) * len(part) // rows
            groups.append((part[torch.from_numpy(which)], which + first + at))
        first += len(prompts)
    return groups


def replays(asked: Asked, groups: list[tuple[Tensor, Ints]]) -> list[AnyMeasurement]:
    """Whether a seed gives the same tokens again, in both modes."""
    found: list[AnyMeasurement] = []
    for mode, said in (("generate", "with speculation"), ("baseline", "without")):
        seed, prompts = asked.fresh("replay", mode), groups[0][0]
        one, two = asked.ask(mode, prompts, seed), asked.ask(mode, prompts, seed)
        example = "" if (one == two).all() else f"{one[0].tolist()} then {two[0].tolist()}"
        found.append(ViolationMeasurement(f"the same seed gives the same tokens, {said}", int(bool(example)), 1, example))
    return found


def _rounds(groups: list[tuple[Tensor, Ints]], pairs: int) -> Iterator[tuple[int, Tensor, Ints]]:
    """Calls that make up so many pairs, one group after the other."""
    number = made = 0
    while made < pairs:
        prompts, which = groups[number % len(groups)]
        yield number, prompts[: pairs - made], which[: pairs - made]
        made += len(which)
        number += 1


def _pairs(
    asked: Asked, groups: list[tuple[Tensor, Ints]], pairs: int, alpha: float, late: Callable[[], bool]
) -> tuple[list[Call], bool]:
    """Sample pairs of calls, each pair in random order, until they refute; returns them, and whether they did."""
    bets, order = PairedBets(int(asked.decoder.vocab_size)), stream(asked.seed, "order")
    calls: list[Call] = []
    for number, prompts, which in _rounds(groups, pairs):
        if late():
            break
        modes = ("generate", "baseline") if order.random() < 0.5 else ("baseline", "generate")
        seeds = [(mode, asked.fresh(mode, number)) for mode in modes]
        made = dict(zip(modes, asked.ask_each(seeds, prompts), strict=True))
        calls.append(Call(which, made["generate"], made["baseline"]))
        bets.add(made["generate"], made["baseline"], which)
        if bets.refutes(alpha):
            return calls, True
    return calls, False


def _with_control(asked: Asked, groups: list[tuple[Tensor, Ints]], calls: list[Call], late: Callable[[], bool]) -> list[Call]:
    """The calls, each with one more batch without speculation; without such a batch from where time ran out."""
    out = list(calls)
    for number, call in enumerate(calls):
        if late():
            break
        prompts = groups[number % len(groups)][0][: len(call.prompts)]
        out[number] = replace(call, control=asked.ask("baseline", prompts, asked.fresh("control", number)))
    return out
