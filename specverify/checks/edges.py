"""Does it hold at the edges? Draws at the ends of their range, and laws that are equal, one ulp apart, certain or disjoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from specverify.checks.base import Context, Counterexample, Found, Part, Planned, Settings, Skipped
from specverify.checks.explain import confirm_refutation, counterexample_from, show_law
from specverify.checks.rounds import rounds_emission
from specverify.edge_pairs import edge_pairs, zeros_pair
from specverify.errors import OpaqueRandomness, PathBudgetExceeded, SubjectError, SubjectTimeout
from specverify.evidence.measurements import AnyMeasurement, LawMeasurement, OutcomeMeasurement, ProbeMeasurement
from specverify.exact import Emission, emission
from specverify.exact.probing import LENGTH, Event, Probed, probe
from specverify.exact.tasks import Effort
from specverify.exact.trees import drafting_step
from specverify.laws import Pair
from specverify.pairs import named_pair, pair_for
from specverify.randomness import derive
from specverify.subjects import Decoder, Emitted, Step, Verifier
from specverify.trees import TreeVerifier
from specverify.unknown_law import OnOff

NAME = "edges"
QUESTION = "Do boundary draws and degenerate laws never emit an impossible token, nor crash it?"

BOUNDARY, LAWS = "boundary draws", "edge laws"
ROUND_LENGTH = 2
"""Tokens over which a decoder's law is compared: with K = 1 a rejection and the round after it."""
TOO_LIKELY = 1e-3
"""Paths that crash with more probability than this in all are an error even if no draw of the grid was seen to lead there."""
ENOUGH = 3
"""Pairs that fail alike before more of the kind are left out."""
DECODER = Effort(ends_alone=60, ties_alone=70)
ENDS_ONLY = Effort(ends=1, ties=0, ends_alone=40, ties_alone=0)


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:  # noqa: ARG001 - the same at every budget
    """Two tests without false alarms; a decoder needs ``build`` for them."""
    if isinstance(part, Decoder) and part.build is None:
        return Skipped(NAME, part.name, "boundary draws need a decoder that can be built over table models (Decoder.build)")
    return [Planned(NAME, part.name, BOUNDARY, False), Planned(NAME, part.name, LAWS, False)]


def run(planned: Planned, context: Context) -> Found:
    """Push the draws of every pair to their boundaries; on edge pairs compare the exact law as well."""
    if planned.variant == BOUNDARY:
        return _boundary(context)
    return _edge_laws(context)


def _chain(context: Context) -> Verifier | Step | Decoder:
    """The part; a tree verifier with the drafting of its trees around it, as a step."""
    assert not isinstance(context.part, OnOff)
    return drafting_step(context.part) if isinstance(context.part, TreeVerifier) else context.part


def _ks(part: Part) -> tuple[int, ...]:
    """Draft lengths to try: a small and a larger one where the part leaves it open."""
    if isinstance(part, Step):
        return (part.k,)
    if isinstance(part, Decoder):
        return (2,)
    return tuple(k for k in (1, 3) if k <= (part.facts.max_k or k)) or (1,)


def _boundary(context: Context) -> Found:
    part = _chain(context)
    ks = _ks(part)
    tokens = max(3, _least_vocab(context.part))
    named = named_pair(tokens, min(ks[-1], 2) if isinstance(part, Verifier) else ks[0], zeros=0.4)
    pairs = [*(zeros_pair(k) for k in ks if tokens <= 4), named]
    measurements: list[AnyMeasurement] = []
    draws: list[str] = []
    notes: list[str] = []
    for given in pairs:
        pair = pair_for(part.facts.rule, given)
        effort = DECODER if isinstance(part, Decoder) else None
        found = probe(part, pair, seed=derive(context.seed, given.name), effort=effort)
        measurements.append(_measured(pair, found))
        draws += found.draws
        notes += _notes(pair, found)
    notes = [f"draws seen: {'; '.join(dict.fromkeys(draws)) or 'none'}", *notes]
    return Found(tuple(measurements), _counterexample(measurements, context), tuple(dict.fromkeys(notes)))


def _edge_laws(context: Context) -> Found:
    part = _chain(context)
    measurements: list[AnyMeasurement] = []
    notes: list[str] = []
    left_out: set[str] = set()
    failed: Counter[str] = Counter()
    least = _least_vocab(context.part)
    pending, larger = edge_pairs(_k(part, 1), least, part.facts.dtype), isinstance(context.part, TreeVerifier)
    while pending and failed["error"] < ENOUGH:
        pair = pair_for(part.facts.rule, pending.pop(0))
        found = probe(part, pair, seed=derive(context.seed, pair.name), effort=ENDS_ONLY)
        probed = _measured(pair, found)
        notes += _notes(pair, found)
        here: list[AnyMeasurement] = [probed] if failed[probed.judge(0).verdict] < ENOUGH else []
        # What crashes needs no law, and what was refuted often enough needs no more.
        if not left_out and failed["refuted"] < ENOUGH and probed.judge(0).verdict != "error":
            try:
                measured, said = _law(part, pair)
                here += [] if measured is None else [measured]
                notes += [said] if said else []
            except (OpaqueRandomness, PathBudgetExceeded) as error:
                left_out.add(f"the exact laws of edge pairs were left out: {error}")
        measurements += here
        failed.update({m.judge(0).verdict for m in here} - {"certified"})
        if not pending and not larger:
            larger, pending = True, _larger_edges(part, found.alone)
    if pending or max(failed.values(), default=0) >= ENOUGH:
        notes.append(f"after {ENOUGH} pairs that failed alike, others were tried for other failures only")
    measurements += [OutcomeMeasurement("skipped", reason) for reason in left_out]
    shown = _counterexample(measurements, context) or _wrong_law(measurements, context)
    return Found(tuple(measurements), shown, tuple(dict.fromkeys(notes)))


def _wrong_law(measurements: list[AnyMeasurement], context: Context) -> Counterexample | None:
    """The first exact law that is off, with code that shows it again."""
    rounds = isinstance(context.part, Decoder)
    laws = [m for m in measurements if isinstance(m, LawMeasurement)]
    shown = (counterexample_from(m, context.spec, context.part.name, rounds) for m in laws)
    return next((s for s in shown if s is not None), None)


def _least_vocab(part: Part) -> int:
    """Fewest tokens of an edge pair: two, or as many as a node of a tree has distinct children."""
    return max(2, part.shape.width) if isinstance(part, TreeVerifier) else 2


def _larger_edges(part: Part, alone: bool) -> list[Pair]:
    """Those of three tokens and two drafts, where many rows can be walked in one call; of two tokens where they cannot."""
    k = _k(part, 2)
    if isinstance(part, Decoder) or k != 2 or (alone and not isinstance(part, Verifier)):
        return []
    return edge_pairs(k, 2 if alone else 3, part.facts.dtype)


def _k(part: Part, wanted: int) -> int:
    if isinstance(part, Step):
        return part.k
    return 1 if isinstance(part, Decoder) else min(wanted, part.facts.max_k or wanted)


def _law(part: Verifier | Step | Decoder, pair: Pair) -> tuple[LawMeasurement | OutcomeMeasurement | None, str]:
    """The exact law on a pair, and a note about paths that crash where no draw that can happen was seen to lead."""
    length = ROUND_LENGTH if isinstance(part, Decoder) else pair.k + 1
    crashed, note = 0.0, ""
    try:
        found = rounds_emission(part, pair, length) if isinstance(part, Decoder) else emission(part, pair)
    except SubjectTimeout:
        raise
    except SubjectError as error:
        said = " ".join(str(error).split())
        if isinstance(part, Decoder):
            return None, f"{pair.name}: {said}; no draw that can happen was seen to lead there, and the law was left out"
        found, crashed = _weighed(part, pair)
        if crashed > TOO_LIKELY:
            return OutcomeMeasurement(
                "error", f"{pair.name}: crashes with probability {crashed:.3g}: {said}", str(pair.to_json())
            ), ""
        note = f"{pair.name}: the exact law has paths of probability {crashed:.2g} on which it {said.split(' (on a path')[0]}, "
        note += "but no draw on the sampler's grid was seen to lead there"
    measurement = LawMeasurement(pair, length, found.tokens, part.facts.dtype, unexplored=found.unexplored)
    if not crashed:
        confirm_refutation(measurement, found)
    return measurement, note


def _weighed(part: Verifier | Step, pair: Pair) -> tuple[Emission, float]:
    """The law of a part that crashes on some paths, one row per call, and the probability of those paths."""

    def calmed(*inputs: Any) -> Emitted:
        try:
            return part(*inputs)
        except SubjectError as error:
            if isinstance(error, SubjectTimeout) or "Symbolic" in str(error):
                raise
            return Emitted(torch.tensor([[0]]), torch.tensor([1]), torch.tensor([-1]))

    facts = replace(part.facts, max_batch=1)
    quiet = Verifier(part.name, calmed, facts) if isinstance(part, Verifier) else Step(part.name, calmed, part.k, facts)
    found = emission(quiet, pair)
    crashed = sum(mass for (accepted, _), mass in found.reported.items() if accepted < 0)
    tokens = dict(found.tokens)
    tokens[(0,)] = tokens.get((0,), 0.0) - crashed
    return replace(found, tokens=tokens), crashed


def _measured(pair: Pair, found: Probed) -> ProbeMeasurement:
    """What probing showed on a pair, as a measurement."""
    return ProbeMeasurement(pair.name, pair, found.probes, found.runs, tuple(_finding(e) for e in found.events))


def _finding(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "message": event.message,
        "boundary": event.boundary,
        "chance": event.chance,
        "draw": event.draw,
        "element": event.element,
        "source": event.source,
        "dtype": event.dtype,
        "where": event.where,
        "drafted": list(event.drafted),
        "tokens": list(event.tokens),
        "draws": [d.to(torch.float64).tolist() for d in event.draws],
        "repeated": event.repeated,
    }


def _notes(pair: Pair, found: Probed) -> list[str]:
    """What else is to be said: what cannot be pushed, what a sampler does not give, what came only once."""
    said = []
    if found.unfollowed:
        said.append(f"drawn, but without a boundary to push to: {', '.join(found.unfollowed)}")
    for event in found.events:
        what = "an impossible token" if event.kind == "impossible" else event.message
        if event.chance == 0:
            where = f"{event.source} in {event.dtype} at {event.where} gives {event.boundary}"
            said.append(f"{pair.name}: {what} when {where}, which it is documented not to give: not counted")
        if not event.repeated:
            said.append(f"{pair.name}: {what}, but not again with the same draws: it draws by other means as well")
    return said


def _counterexample(measurements: list[AnyMeasurement], context: Context) -> Counterexample | None:
    """The first impossible token that can happen, else the first crash, with code that shows it again."""
    for kind in ("impossible", "error"):
        for m in measurements:
            if isinstance(m, ProbeMeasurement):
                for finding in m.findings:
                    if finding["kind"] == kind and finding["chance"] > 0:
                        return _shown(m, finding, context)
    return None


def _shown(m: ProbeMeasurement, finding: dict[str, Any] | Any, context: Context) -> Counterexample:
    pair, tokens = m.pair, tuple(finding["tokens"])
    at = m.place(finding) or 0
    before = tokens[:at]
    lines = [f"V = {pair.vocab_size} tokens, K = {pair.k} drafted per round, prompt {list(pair.prompt)}"]
    for place in range(len(finding["drafted"]) + 1 if finding["drafted"] else at + 1):
        prefix = (*pair.prompt, *(finding["drafted"] or tokens)[:place])
        p, q = pair.target.fractions(prefix), pair.draft.fractions(prefix)
        lines.append(f"    token {place + 1} after {list(prefix)}: target p {show_law(p)}, draft q {show_law(q)}")
    lines += [f"drafted {finding['drafted']}" if finding["drafted"] else "it drafts itself"]
    lines += [f"    draw {i}: {values}" for i, values in enumerate(finding["draws"])]
    lines += [m.describe(finding)]
    snippet = [
        "from specverify.plan import find_part",
        "from specverify.exact.probing import run_with",
        "from specverify.laws import Pair",
        f"part = find_part({context.spec!r}, {context.part.name!r})",
        f"pair = Pair.from_json({pair.to_json()!r})",
        f"draws = {finding['draws']!r}  # of one row, in order",
        f"print(run_with(part, pair, draws, {tuple(finding['drafted'])!r}, {LENGTH}))",
    ]
    token = tokens[at] if finding["kind"] == "impossible" else -1
    right = float(pair.target.next_law((*pair.prompt, *before))[token]) if token >= 0 else 0.0
    return Counterexample(pair.to_json(), before, token, float(finding["chance"]), right, tuple(lines), "\n".join(snippet))
