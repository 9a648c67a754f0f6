"""Small certificates made by hand: certified, refuted, in error, with timing, and one full of hostile text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from specverify.certificate import Certificate
from specverify.evidence.ledger import Ledger
from specverify.evidence.measurements import (
    AnyMeasurement,
    BoundMeasurement,
    CellMeasurement,
    CoverageMeasurement,
    LawMeasurement,
    OutcomeMeasurement,
    ProbeMeasurement,
    RateMeasurement,
    ViolationMeasurement,
)
from specverify.evidence.multinomial import CellGroup
from specverify.laws import Pair, TableModel, all_sequences, sequence_law
from specverify.record import Evidence

ALPHA = 1e-8
HOSTILE = "<script>alert(1)</script>\"' & <img src=x onerror=alert(2)> | `x` </pre></style>"
PAIR = Pair(TableModel.from_weights([[2, 1], [1, 3], [1, 1]]), TableModel.from_weights([[1, 1]]), 1, name="V2-K1")
LINES = ("V = 2 tokens, K = 1 drafted per round", "    came out      [1/3, 2/3]")
SNIPPET = "from specverify.laws import Pair\nprint(Pair)"


def law(*, right: bool) -> LawMeasurement:
    """Make a law of two tokens after the prompt, right or with the first token's probabilities swapped."""
    target = sequence_law(PAIR.target, 2, PAIR.prompt)
    emitted = {tuple(map(int, s)): float(target[tuple(s)]) for s in all_sequences(2, 2)}
    if not right:
        emitted = {(1 - a, b): mass for (a, b), mass in emitted.items()}
    return LawMeasurement(PAIR, 2, emitted)


def cells(*, right: bool) -> CellMeasurement:
    """Make counts of 1000 draws in three joint cells."""
    counts = (498, 301, 201) if right else (301, 498, 201)
    return CellMeasurement("joint law of 2 tokens", (CellGroup("joint", counts, (0.5, 0.3, 0.2)),))


def probes(*, right: bool) -> ProbeMeasurement:
    """Make a probe of a pair that gives token 1 probability 0, with a u of 0 that accepts it or without."""
    pair = Pair(TableModel.from_weights([[1, 0]]), TableModel.from_weights([[1, 1]]), 1)
    what = {"kind": "impossible", "message": "", "boundary": "exactly 0", "chance": 2.0**-24, "tokens": [1, 0]}
    where = {"draw": 0, "element": 0, "source": "rand", "dtype": "float32", "where": "toys.py:3"}
    again = {"drafted": [1], "draws": [[0.0], [0.0]], "repeated": True}
    return ProbeMeasurement("zeros", pair, 1234, 56, () if right else ({**what, **where, **again},))


def evidence(
    check: str,
    variant: str,
    measurements: Sequence[AnyMeasurement],
    *,
    alpha: float = 0.0,
    part: str = "toy",
    expected: Any = "certified",
    counterexample: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Evidence:
    """Make the evidence of one test."""
    test = f"{check}/{part}/{variant}"
    question = f"What does {check} ask?"
    return Evidence(test, check, part, question, expected, alpha, tuple(measurements), counterexample, notes, 7, 0.25)


def certificate(tests: Sequence[Evidence], *, timing: Mapping[str, Any] | None = None, name: str = "toy") -> Certificate:
    """Make a certificate of the tests and of one control that was refuted both ways."""
    controls = [
        evidence("single_step", "control, exact", [law(right=False)], part="fault:accept_always", expected="refuted"),
        evidence(
            "sequence",
            "control, sampled",
            [cells(right=False)],
            alpha=ALPHA,
            part="fault:accept_always",
            expected="refuted",
        ),
    ]
    everything = (*tests, *controls)
    facts = {"rule": "token_rejection", "dtype": "float64", "lossy": False}
    return Certificate(
        subject={
            "name": name,
            "spec": "toys:subject",
            "kind": "verifier",
            "source_digest": "ab" * 32,
            "version": None,
            "parts": [{"name": "toy", "kind": "verifier", "facts": facts}],
        },
        settings={"budget": "smoke", "alpha": ALPHA, "seed": 3, "timeout": 300.0},
        ledger=Ledger.split(ALPHA, [e.test for e in tests if e.alpha]),
        evidence=everything,
        skipped=({"check": "seeds", "part": "toy", "reason": "seeds are given to decoders"},),
        environment={"python": "3.11.7", "device": "cpu", "versions": {"torch": "2.9.0", "numpy": "2.4.0"}},
        planned=tuple(e.test for e in everything),
        timing=timing,
    )


def certified(timing: Mapping[str, Any] | None = None) -> Certificate:
    """Make a certificate with every kind of measurement, all of them good."""
    others = [
        BoundMeasurement("E[accepted] against the optimum", 0.7, 0.8, 1e-12),
        RateMeasurement("acceptance", 40, 100, 0.5),
        ViolationMeasurement("nothing follows an EOS", 0, 12),
        CoverageMeasurement({"accepted": 812.0, "rejected": 188.0}, 20.0),
    ]
    return certificate(
        [
            evidence("single_step", "named pairs", [law(right=True)]),
            evidence("sequence", "table models", [cells(right=True), *others], alpha=ALPHA, notes=("a note",)),
        ],
        timing=timing,
    )


def refuted() -> Certificate:
    """Make a certificate whose last test is an exact refutation with a counterexample."""
    shown = {
        "pair": PAIR.to_json(),
        "context": [],
        "token": 0,
        "got": 0.75,
        "right": 0.25,
        "lines": list(LINES),
        "snippet": SNIPPET,
    }
    return certificate(
        [
            evidence("acceptance", "exact", [BoundMeasurement("E[accepted]", 0.7, 0.8, 1e-12)]),
            evidence("sequence", "table models", [cells(right=False)], alpha=ALPHA),
            evidence("single_step", "named pairs", [law(right=False)], counterexample=shown),
        ]
    )


def in_error(message: str = "raised ValueError: no weights", name: str = "toy") -> Certificate:
    """Make a certificate with one good test and two that ended in the same error."""
    command = "specverify certify toys:subject --only 'seeds/toy/own models' --seed 3"
    failed = OutcomeMeasurement("error", message, command)
    return certificate(
        [
            evidence("single_step", "named pairs", [law(right=True)]),
            evidence("seeds", "own models", [failed]),
            evidence("stopping", "own models", [failed]),
        ],
        name=name,
    )


def missed_control() -> Certificate:
    """Make a certificate whose subject is fine but whose control was not refuted."""
    good = certified()
    blind = evidence("single_step", "control, exact", [law(right=True)], part="fault:accept_always", expected="refuted")
    kept = tuple(e for e in good.evidence if e.test != blind.test)
    return replace(good, evidence=(*kept, blind))


def _spread(median: float, wide: float = 0.05) -> dict[str, float]:
    return {"median": median, "low": median * (1 - wide), "high": median * (1 + wide)}


def timing() -> dict[str, Any]:
    """Make the timing of two drafts: one that pays up to K = 3 and beyond, one that is slower from K = 2 on."""
    runs = []
    for draft, speeds in (("aligned", (1.3, 1.62, 1.74, 1.7)), ("mismatched", (1.02, 0.94, 0.85, 0.77))):
        for k, speed in enumerate(speeds, 1):
            runs.append(
                {
                    "draft": draft,
                    "k": k,
                    "tps": _spread(400 * speed),
                    "speedup": _spread(speed),
                    "accepted_per_tested": 0.8,
                    "accepted_per_drafted": 0.8 / k,
                    "tokens_per_round": 1 + 0.6 * k,
                    "predicted_speedup": speed * 1.03,
                    "costs": {"c": 0.11, "v": 1.2, "o": 0.08},
                }
            )
    return {
        "machine": {"cores": 2, "threads": 1, "device": "cpu", "note": "quiet"},
        "tokens": 256,
        "repetitions": 7,
        "baselines": {"uncached": _spread(80.0), "cached": _spread(400.0)},
        "runs": runs,
        "best": {"aligned": {"k": 3, "speedup": 1.74}},
        "slower_from": {"mismatched": 2},
    }


class Markup(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every such tag."""
        return [attributes for name, attributes in self.tags if name == tag]
