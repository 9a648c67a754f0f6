"""How does a verdict read? One sentence about the whole certificate, with the first reason and what a pass leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specverify.evidence.measurements import CellMeasurement, CoverageMeasurement
from specverify.evidence.pointwise import FAULT_LAWS
from specverify.evidence.wealth import WealthMeasurement
from specverify.record import Evidence

if TYPE_CHECKING:
    from specverify.certificate import Certificate


def sentence(of: Certificate) -> str:
    """The verdict in one sentence."""
    own = [e for e in of.evidence if e.expected == "certified"]
    controls = [e for e in of.evidence if e.expected == "refuted"]
    name = of.subject["name"]
    caught = sum(e.verdict == "refuted" for e in controls)
    if of.verdict == "certified":
        passed = sum(e.verdict == "certified" for e in own)
        aside = f" ({len(own) - passed} more could not be put to it)" if passed < len(own) else ""
        what = "samples from its target law"
        if of.law_unknown:
            what = "writes with speculation as without it, its target law being unknown,"
        return (
            f"{name} {what} in all {passed} tests{aside}, "
            f"at a false-alarm budget of {of.ledger.alpha:g}; "
            f"{caught} of {len(controls)} runs of known-bad rules were refuted beside it.{_reservations(of)}"
        )
    if of.verdict == "refuted":
        bad = [e for e in own if e.verdict == "refuted"]
        refuting = [
            (m.kind, j.reason) for m, j in zip(bad[0].measurements, bad[0].judgements(), strict=True) if j.verdict == "refuted"
        ]
        about_law = any(
            m.kind in ("law", "cells", "probes", "wealth", "on_off")
            for e in bad
            for m, j in zip(e.measurements, e.judgements(), strict=True)
            if j.verdict == "refuted"
        )
        differs = "does not sample from its target law"
        if any(part.get("facts", {}).get("lossy") for part in of.subject.get("parts", ())):
            differs += ", and is lossy by its own declaration"
        if of.law_unknown:
            differs = "does not write with speculation as without it (its target law is not known)"
        what = differs if about_law else "breaks what it promises, though no test of the law refutes it"
        many = f"{len(bad)} of {len(own)} tests refute it"
        fits = "" if refuting[0][0] == "wealth" else _diagnosis(bad)
        return f"{name} {what}: {many}, first {bad[0].test}: {refuting[0][1]}.{fits}"
    if of.verdict == "error":
        failed = [e for e in own if e.verdict == "error"]
        if failed:
            reason = next(j.reason for j in failed[0].judgements() if j.verdict == "error")
            many = f"{len(failed)} of {len(own)} tests ended in an error"
            return f"{name} could not be judged: {many}, first {failed[0].test}: {reason}."
        missed = [e.test for e in controls if e.verdict != "refuted"]
        return f"The run itself is in error: {len(missed)} known-bad controls were not refuted, first {missed[0]}."
    open_tests = [e for e in own if e.verdict == "inconclusive"]
    if open_tests:
        reason = next(j.reason for j in open_tests[0].judgements() if j.verdict == "inconclusive")
        many = f"{len(open_tests)} of {len(own)} tests are inconclusive"
        return f"Nothing refutes {name}, but {many}, first {open_tests[0].test}: {reason}."
    if of.missing:
        left = f"{len(of.missing)} of {len(of.planned)} planned tests left no evidence"
        return f"Nothing refutes {name}, but {left}, first {of.missing[0]}."
    return f"Nothing refutes {name}, but no test could judge it, or no control ran."


def _diagnosis(bad: Sequence[Evidence]) -> str:
    """Which fault the sampled tokens fit, from the test that stopped when it was sure, else from any."""
    found = [
        m
        for e in bad
        for m, j in zip(e.measurements, e.judgements(), strict=True)
        if isinstance(m, WealthMeasurement) and j.verdict == "refuted" and not m.impossible
    ]
    first = min(found, key=lambda m: m.until is None, default=None)
    return "" if first is None else f" What its tokens say: {first.diagnosis()}."


def _reservations(of: Certificate) -> str:
    """What a pass does not cover: a subject that no exact test reached, with what sampling would show; unknown coverage."""
    said = ""
    if of.law_unknown:
        said += _shown_by_control(of)
    passed = [e for e in of.evidence if e.expected == "certified" and e.verdict == "certified"]
    # Laws of edge pairs are too special to say that the rule was read exactly.
    exact = {e.part for e in passed if e.check != "edges" and any(m.kind == "law" for m in e.measurements)}
    seen = [
        j.numbers["detectable_tv"]
        for e in passed
        if e.part not in exact
        for m, j in zip(e.measurements, e.judgements(), strict=True)
        if isinstance(m, CellMeasurement) and "joint" in m.label
    ]
    if seen:
        said += " No exact test reached it: it is judged by sampling alone, "
        said += f"which would show a joint deviation of TV {max(seen):.2g} or more."
        sought = [m for e in passed for m in e.measurements if isinstance(m, WealthMeasurement) and m.until]
        if sought:
            most = max(m.until or 0.0 for m in sought)
            share = "every token" if most == 1 else f"{most:.0%} of the tokens"
            blind = any(len(m.faults) < len(FAULT_LAWS) for m in sought)
            said += f" A known fault that {'needs no draft laws and ' if blind else ''}differs on its models would have been "
            said += f"refuted, had it governed {share}."
            said += " The others were not bet on: give draft_log_probs." if blind else ""
    if any(isinstance(m, CoverageMeasurement) and not m.known for e in passed for m in e.measurements):
        said += " Coverage is not known, since it reports no accepted counts."
    return said


def _shown_by_control(of: Certificate) -> str:
    """What a comparison of on against off would have refuted, by its own control."""
    shown = [
        j.numbers
        for e in of.evidence
        for m, j in zip(e.measurements, e.judgements(), strict=True)
        if m.kind == "on_off" and "replaced" in j.numbers
    ]
    said = " Only speculation on was compared with off: a mistake that both share is not seen."
    for n in shown:
        said += f" A decoder that replaces {n['replaced']:.0%} of its tokens by evenly drawn ones would "
        said += f"have been refuted after {n['replaced_pairs']:.0f} of the {n['pairs']:.0f} pairs; "
        said += "other mistakes may be harder to see."
    return said
