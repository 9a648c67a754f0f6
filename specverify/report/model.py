"""What stands on the page? A rechecked certificate as plain data, sorted so that refutations and errors come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specverify.certificate import Certificate
from specverify.evidence.measurements import Judgement, LawMeasurement, OutcomeMeasurement, ProbeMeasurement
from specverify.laws import first_difference
from specverify.record import Evidence
from specverify.report.controls import Control, Judged, controls_of
from specverify.report.figures import conditional, figures_of, overviews
from specverify.report.svg import Figure
from specverify.report.tables import Table, headline, tables_of
from specverify.report.timings import Timings, timings_of
from specverify.report.wording import MEANING, ON_OFF_MEANING, WORST_FIRST, number, plural, tally


@dataclass(frozen=True)
class Example:
    """A counterexample: lines and code as recorded, and whether its probabilities follow from the evidence."""

    test: str
    anchor: str
    lines: str
    snippet: str
    confirmed: str
    figure: Figure | None


@dataclass(frozen=True)
class Failure:
    """An error, the tests it ended, and the command that reproduces each."""

    message: str
    tests: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Test:
    """One test of the subject."""

    name: str
    anchor: str
    part: str
    variant: str
    verdict: str
    headline: str
    outcomes: tuple[tuple[str, str, str], ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    example: Example | None
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A check: its question and its tests."""

    name: str
    anchor: str
    question: str
    verdict: str
    tally: str
    tests: tuple[Test, ...]


@dataclass(frozen=True)
class Page:
    """Everything the page and the summary show."""

    name: str
    verdict: str
    sentence: str
    meaning: str
    scope: str
    digest: str
    tiles: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, ...], ...]
    ledger: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, str], ...]
    questions: tuple[Question, ...]
    overviews: tuple[tuple[str, Figure], ...]
    example: Example | None
    failures: tuple[Failure, ...]
    control_ways: tuple[str, ...]
    controls: tuple[Control, ...]
    caught: str
    skipped: tuple[tuple[str, str, str], ...]
    missing: tuple[str, ...]
    timings: Timings | None


def page_of(certificate: Certificate, digest: str) -> Page:
    """Everything to show of a certificate whose verdicts have been recomputed."""
    judged = [(e, e.judgements()) for e in certificate.evidence]
    own = sorted((j for j in judged if j[0].expected == "certified"), key=_worst_first)
    controls = [j for j in judged if j[0].expected == "refuted"]
    tests = [(e.check, e.question, _test(e, judgements, f"test-{i}")) for i, (e, judgements) in enumerate(own, 1)]
    ways, rows = controls_of(controls)
    caught = f"{sum(e.verdict == 'refuted' for e, _ in controls)} of {plural(len(controls), 'control')} refuted"
    name = str(certificate.subject["name"])
    return Page(
        name=name,
        verdict=certificate.verdict,
        sentence=certificate.sentence(),
        meaning=(ON_OFF_MEANING if certificate.law_unknown else MEANING)[certificate.verdict],
        scope=certificate.scope,
        digest=digest,
        tiles=(
            ("tests of the subject", tally([t.verdict for _, _, t in tests])),
            ("known-bad rules", caught),
            ("false-alarm budget", number(certificate.ledger.alpha)),
        ),
        facts=_facts(certificate),
        parts=tuple(_part(p) for p in certificate.subject["parts"]),
        ledger=_ledger(certificate),
        shares=tuple((test, number(share)) for test, share in certificate.ledger.shares.items()),
        questions=_questions(tests),
        overviews=tuple(overviews(own)),
        example=min((t.example for _, _, t in tests if t.example), key=_size, default=None),
        failures=_failures(own),
        control_ways=ways,
        controls=rows,
        caught=caught,
        skipped=_skipped(certificate.skipped),
        missing=tuple(certificate.missing),
        timings=timings_of(certificate.timing),
    )


def _worst_first(judged: Judged) -> int:
    return WORST_FIRST.index(judged[0].verdict)


def _size(example: Example) -> int:
    """Short code means a small pair, and a small pair is the best example."""
    return len(example.snippet)


def _test(evidence: Evidence, judgements: Sequence[Judgement], anchor: str) -> Test:
    outcomes = tuple((m.verdict, m.message, m.reproduce) for m in evidence.measurements if isinstance(m, OutcomeMeasurement))
    facts = [("false-alarm share:", number(evidence.alpha) if evidence.alpha else "none needed")]
    facts += [("seed", str(evidence.seed)), ("took", f"{evidence.seconds:.2f} s")]
    figures = tuple(figures_of(evidence, judgements))
    return Test(
        evidence.test,
        anchor,
        evidence.part,
        evidence.test.removeprefix(f"{evidence.check}/{evidence.part}/"),
        evidence.verdict,
        headline(evidence, judgements, evidence.verdict),
        outcomes,
        tables_of(evidence, judgements),
        figures,
        _example(evidence, anchor, figures[0] if figures else None),
        tuple(facts),
        evidence.notes,
    )


def _example(evidence: Evidence, anchor: str, figure: Figure | None) -> Example | None:
    stored = evidence.counterexample
    if stored is None:
        return None
    lines = stored["lines"] if isinstance(stored["lines"], list | tuple) else [stored["lines"]]
    return Example(evidence.test, anchor, "\n".join(map(str, lines)), str(stored["snippet"]), _confirmed(evidence), figure)


def _confirmed(evidence: Evidence) -> str:
    """Whether the recorded probabilities are those of a law in the evidence; recheck does not cover the text."""
    try:
        agree = any(_agrees(m, evidence) for m in evidence.measurements if isinstance(m, LawMeasurement))
    except (TypeError, ValueError):
        agree = False
    if _impossible(evidence):
        return "That the target gives the emitted token probability 0 there was recomputed from the evidence."
    if agree:
        return "Both probabilities were recomputed from the evidence and agree."
    return "These lines are as the run recorded them; they could not be recomputed from the evidence."


def _impossible(evidence: Evidence) -> bool:
    """Whether a finding of a probe, on the pair of the counterexample, emits the token it names and the target never does."""
    stored = evidence.counterexample or {}
    for m in evidence.measurements:
        if isinstance(m, ProbeMeasurement) and m.pair.to_json() == stored["pair"]:
            for finding in m.findings:
                at = m.place(finding)
                if at is not None and [*stored["context"], stored["token"]] == list(finding["tokens"][: at + 1]):
                    return True
    return False


def _agrees(law: LawMeasurement, evidence: Evidence) -> bool:
    stored = evidence.counterexample or {}
    ours, right = law.laws()
    found = first_difference(ours, right, law.tolerance)
    if found is None or law.pair.to_json() != stored["pair"]:
        return False
    context, token = found
    if list(context) != list(stored["context"]) or token != stored["token"]:
        return False
    pairs = ((conditional(ours, context), stored["got"]), (conditional(right, context), stored["right"]))
    return all(abs(float(known[token]) - float(said)) <= law.tolerance for known, said in pairs)


def _questions(tests: Iterable[tuple[str, str, Test]]) -> tuple[Question, ...]:
    grouped: dict[str, list[Test]] = {}
    asked: dict[str, str] = {}
    for check, question, test in tests:
        grouped.setdefault(check, []).append(test)
        asked.setdefault(check, question)
    found = []
    for number_, (check, members) in enumerate(grouped.items(), 1):
        verdicts = [t.verdict for t in members]
        verdict = next(v for v in WORST_FIRST if v in verdicts)
        found.append(Question(check, f"check-{number_}", asked[check], verdict, tally(verdicts), tuple(members)))
    return tuple(found)


def _failures(own: Sequence[Judged]) -> tuple[Failure, ...]:
    """Errors by message, so that one cause with many victims is told once."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for evidence, judgements in own:
        for m, j in zip(evidence.measurements, judgements, strict=True):
            if j.verdict == "error":
                command = m.reproduce if isinstance(m, OutcomeMeasurement) else ""
                grouped.setdefault(j.reason, []).append((evidence.test, command))
    return tuple(
        Failure(message, tuple(t for t, _ in hits), tuple(dict.fromkeys(c for _, c in hits if c)))
        for message, hits in grouped.items()
    )


def _facts(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    subject, settings, where = certificate.subject, certificate.settings, certificate.environment
    versions = where.get("versions")
    listed = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""
    python = " ".join(str(where[k]) for k in ("implementation", "python") if k in where)
    seconds = sum(e.seconds for e in certificate.evidence)
    facts = [
        ("Loaded as", f"{subject['spec']} ({subject['kind']})"),
        ("Version", str(subject.get("version") or "not packaged")),
        ("Source digest", str(subject["source_digest"])),
        ("Budget", str(settings["budget"])),
        ("Root seed", str(settings["seed"])),
        ("Limit per test", f"{number(settings['timeout'])} s"),
        ("Python", python),
        ("Packages", listed),
        ("System", str(where.get("system", ""))),
        ("Device", str(where.get("device", ""))),
        ("Tests took", f"{seconds:.1f} s together"),
    ]
    return tuple((name, value) for name, value in facts if value)


def _part(part: Mapping[str, Any]) -> tuple[str, ...]:
    facts = part["facts"]
    lossy = "lossy by its own declaration" if facts.get("lossy") else ""
    return (
        str(part["name"]),
        str(part["kind"]),
        str(facts.get("rule") or "not declared"),
        str(facts.get("dtype") or "not declared"),
        lossy,
    )


def _ledger(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    ledger = certificate.ledger
    shares = sorted(set(ledger.shares.values()))
    each = " to ".join(number(s) for s in ([shares[0], shares[-1]] if len(shares) > 1 else shares)) or "none needed"
    own = sum(e.expected == "certified" for e in certificate.evidence)
    return (
        ("Total, for the whole certificate", number(ledger.alpha)),
        ("Tests that draw on it", f"{len(ledger.shares)} of {own}, the others are exact or have no false alarms"),
        ("Share of each", each),
        ("Sum of the shares", number(ledger.spent)),
    )


def _skipped(skipped: Iterable[Mapping[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Check, reason and the parts it concerns."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in skipped:
        grouped.setdefault((one["check"], one["reason"]), []).append(one["part"])
    return tuple((check, reason, ", ".join(parts)) for (check, reason), parts in grouped.items())
