"""What of a run does a person look at first? The smallest counterexample, and why a single test failed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specverify.evidence.measurements import OutcomeMeasurement
from specverify.record import Evidence


def rows_of(evidence: Sequence[Evidence]) -> list[tuple[str, str]]:
    """Every check with how its tests came out, ``("edges", "1 certified, 1 skipped")``, then the known-bad rules."""
    own = [e for e in evidence if e.expected == "certified"]
    controls = [e for e in evidence if e.expected == "refuted"]
    rows = []
    for check in dict.fromkeys(e.check for e in own):
        verdicts = [e.verdict for e in own if e.check == check]
        rows.append((check, ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))))
    if controls:
        caught = sum(e.verdict == "refuted" for e in controls)
        rows.append(("controls", f"{caught} of {len(controls)} runs of known-bad rules refuted"))
    return rows


def smallest_counterexample(own: Sequence[Evidence]) -> tuple[str, Mapping[str, Any]] | None:
    """A title and the smallest counterexample, of a law if there is one, else of the ends of a range; else a failing call."""
    for verdict, title in (("refuted", "smallest counterexample"), ("error", "a call that fails")):
        for edges in (False, True):
            found = [
                e.counterexample
                for e in own
                if e.counterexample is not None and e.verdict == verdict and (e.check == "edges") == edges
            ]
            if found:
                return title, min(found, key=lambda c: len(json.dumps(c["pair"])))
    return None


def error_lines(own: Sequence[Evidence]) -> list[str]:
    """Every error with how to reproduce it."""
    return [
        line
        for e in own
        for m, j in zip(e.measurements, e.judgements(), strict=True)
        if j.verdict == "error" and isinstance(m, OutcomeMeasurement) and m.reproduce
        for line in ("", f"error in {e.test}: {j.reason}", f"  reproduce: {m.reproduce}")
    ]


def counterexample_lines(own: Sequence[Evidence]) -> list[str]:
    """The smallest counterexample with the code that reproduces it, or nothing."""
    shown = smallest_counterexample(own)
    if shown is None:
        return []
    title, smallest = shown
    lines = ["", f"{title}:", *(f"  {line}" for line in smallest["lines"])]
    return [*lines, "", "run it yourself:", *(f"  {line}" for line in smallest["snippet"].splitlines())]


def failure(evidence: Evidence) -> str:
    """Why one test did not come out as it should, with its counterexample or the call that repeats an error."""
    reasons = [j.reason for j in evidence.judgements() if j.verdict == evidence.verdict]
    lines = [f"{evidence.verdict} (expected {evidence.expected}): {evidence.question}", *reasons]
    if evidence.counterexample is not None:
        lines += ["", *evidence.counterexample["lines"], "", "run it yourself:", evidence.counterexample["snippet"]]
    lines += [f"reproduce: {m.reproduce}" for m in evidence.measurements if isinstance(m, OutcomeMeasurement) and m.reproduce]
    return "\n".join(lines)


def why_skipped(evidence: Evidence) -> str:
    """Why a test could not be put to the subject."""
    reasons = [j.reason for j in evidence.judgements() if j.verdict == "skipped"]
    return "; ".join([*reasons, *evidence.notes])
