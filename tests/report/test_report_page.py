"""The page says what the certificate proves, in one safe and self-contained file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from report_certificates import (
    HOSTILE,
    LINES,
    SNIPPET,
    Markup,
    certified,
    evidence,
    in_error,
    law,
    missed_control,
    probes,
    refuted,
    timing,
)

from specverify.certificate import SCOPE, Certificate, digest, recheck
from specverify.laws import first_difference
from specverify.report.model import page_of
from specverify.report.page import render_page
from specverify.report.plots import Against, log_overview
from specverify.report.timings import timings_of
from specverify.report.wording import GLYPHS, number, probability_bound, squeezed

KINDS: dict[str, Callable[[], Certificate]] = {
    "certified": certified,
    "refuted": refuted,
    "error": in_error,
    "missed": missed_control,
    "timed": lambda: certified(timing()),
}


def page(certificate: Certificate) -> str:
    """Render a certificate."""
    return render_page(page_of(certificate, certificate.to_json()["digest"]))


def words(html: str) -> str:
    """Return the text of a page with single spaces."""
    return " ".join(" ".join(Markup(html).words).split())


@pytest.mark.parametrize("kind", KINDS)
def test_page_needs_nothing_but_itself(kind: str) -> None:
    """No element of the page names another file or host; every link leads to a place on the page."""
    parsed = Markup(page(KINDS[kind]()))
    ids = [a["id"] for _, a in parsed.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert not [t for t, a in parsed.tags if a.get("src") or t in ("img", "iframe", "object", "embed", "base")]
    assert [a["href"] for a in parsed.named("link")] == ["data:,"]
    targets = [str(a["href"]) for a in parsed.named("a")]
    assert all(t.startswith("#") and t[1:] in ids for t in targets)
    assert "url(" not in page(KINDS[kind]())


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_accessible(kind: str) -> None:
    """Headings descend one level at a time, header cells have a scope, plots have names, and the language is given."""
    parsed = Markup(page(KINDS[kind]()))
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(a.get("scope") in ("col", "row") for a in parsed.named("th"))
    assert all(a.get("role") == "img" and a.get("aria-label") for a in parsed.named("svg"))
    assert len(parsed.named("title")) == 1 + len(parsed.named("svg")) == 1 + len(parsed.named("desc"))
    assert parsed.named("html") == [{"lang": "en"}]


@pytest.mark.parametrize("kind", KINDS)
def test_page_shows_verdict_sentence_and_scope(kind: str) -> None:
    """The verdict stands there as glyph and word, with the sentence, the scope and the way to recheck."""
    certificate = KINDS[kind]()
    text = words(page(certificate))
    assert f"{GLYPHS[certificate.verdict]} {certificate.verdict}" in text
    assert " ".join(certificate.sentence().split()) in text
    assert SCOPE in text
    assert "recomputed from the recorded evidence" in text
    assert "specverify recheck certificate.json" in text
    assert certificate.to_json()["digest"] in text


def test_refutation_comes_first_with_its_code() -> None:
    """A refuted page opens with the counterexample and its code, and lists the refuted checks before the others."""
    html = page(refuted())
    text = words(html)
    assert all(" ".join(line.split()) in text for line in LINES)
    assert "Run it yourself" in text
    assert " ".join(SNIPPET.split()) in text
    assert html.index('id="example"') < html.index('id="meaning"') < html.index('id="checks"')
    asked = re.findall(r"What does (\w+) ask", html)
    assert asked == ["sequence", "single_step", "acceptance"]


def test_counterexample_is_compared_with_the_evidence() -> None:
    """The page says whether the recorded probabilities of a counterexample follow from the evidence."""
    ours, right = law(right=False).laws()
    assert first_difference(ours, right, 1e-9) == ((), 0)
    assert "recomputed from the evidence and agree" in words(page(refuted()))
    false = refuted()
    for e in false.evidence:
        if e.counterexample:
            e.counterexample["got"] = 0.9  # type: ignore[index]
    assert "could not be recomputed" in words(page(false))


@pytest.mark.parametrize("right", [True, False])
def test_boundary_draws_are_shown_with_their_probability(right: bool) -> None:
    """A probe shows how often it pushed and what came out; an impossible token is recomputed from its pair."""
    probe = probes(right=right)
    shown = {"pair": probe.pair.to_json(), "context": [], "token": 1, "got": 2.0**-24, "right": 0.0}
    shown |= {"lines": ["emits token 1"], "snippet": "print(1)"}
    one = evidence("edges", "boundary draws", [probe], counterexample=None if right else shown)
    certificate = replace(certified(), evidence=(*certified().evidence, one), planned=())
    text = words(page(certificate))
    assert "1,234" in text
    assert ("nothing impossible and no crash in 1,234 boundary draws" in text) == right
    assert ("rand in float32 at toys.py:3) gives exactly 0: probability 2^-24 per draw" in text) != right
    assert ("the emitted token probability 0 there was recomputed" in text) != right
    assert certificate.verdict == ("certified" if right else "refuted")


def test_one_cause_of_many_errors_is_told_once() -> None:
    """Tests that ended in the same error share one entry, with the commands that reproduce them."""
    found = page_of(in_error(), "0" * 64)
    assert [len(f.tests) for f in found.failures] == [2]
    text = words(page(in_error()))
    assert "raised ValueError: no weights" in text
    assert "specverify certify toys:subject --only 'seeds/toy/own models' --seed 3" in text


def test_every_measured_number_is_on_the_page() -> None:
    """Draws, degrees of freedom, bounds, the companion chi-square, deviations and tolerances can be read."""
    text = words(page(certified()))
    for said in (
        "1,000",
        "n KL",
        "bound p",
        "for reading only",
        "deviation",
        "allowed",
        "TV",
        "accepted 812",
        "a note",
    ):
        assert said in text
    assert "seeds are given to decoders" in text


def test_controls_have_a_column_for_each_way() -> None:
    """The table of known-bad rules says of each whether it was refuted, exactly and by sampling."""
    found = page_of(certified(), "0" * 64)
    assert found.control_ways == ("exact", "sampled")
    assert {way: v for way, (v, _) in found.controls[0].outcomes.items()} == {"exact": "refuted", "sampled": "refuted"}


def test_missed_control_puts_the_run_in_error() -> None:
    """A control that was not refuted is named as such beside an error verdict."""
    text = words(page(missed_control()))
    assert "! error" in text
    assert "! not refuted" in text


def test_hostile_text_stays_text() -> None:
    """Markup in names, messages and drafts of a certificate never becomes markup of the page."""
    hostile = in_error(HOSTILE, HOSTILE)
    timed = {**timing(), "runs": [{**timing()["runs"][0], "draft": HOSTILE}]}
    html = page(Certificate(**{**vars(hostile), "timing": timed}))
    parsed = Markup(html)
    assert len(parsed.named("script")) == 1
    assert not parsed.named("img")
    assert not [a for _, attributes in parsed.tags for a in attributes if a.startswith("on")]
    assert HOSTILE in "".join(parsed.words)
    assert "alert(1)" not in (parsed.named("meta")[1].get("content") or "")


def test_sentence_of_the_file_is_not_trusted() -> None:
    """A stored sentence that does not follow from the evidence is replaced by the recomputed one."""
    data = refuted().to_json()
    data["sentence"] = "toy is perfect."
    data["digest"] = digest(data)
    html = render_page(page_of(recheck(data), data["digest"]))
    assert "toy is perfect" not in html
    assert "does not sample from its target law" in words(html)


def test_timing_is_shown_when_there_is_some() -> None:
    """Speed has a sentence, a table and plots when timed, and no section when not."""
    assert 'id="timing"' not in page(certified())
    text = words(page(certified(timing())))
    assert "With the aligned draft, speculation is at best 1.74 times as fast as the cached baseline (K = 3" in text
    assert "slower from K = 2 on" in text
    found = timings_of(timing())
    assert found is not None
    assert [plot.name for plot in found.plots] == ["speed-up", "mismatch-tax", "phases", "tokens-per-second"]
    assert len(found.rows) == 8


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"runs": None, "machine": None, "baselines": [], "slower_from": 3},
        {"runs": [{}, 3, {"k": None}, {"k": 2}]},
        {"runs": [{"k": 2, "draft": None, "speedup": {"low": 1.0}, "tps": 12, "costs": {"c": "x"}}]},
        {"runs": [{"k": 1, "speedup": {"median": 0.0}, "tps": {"median": 0.0}}]},
        {"runs": [{"k": 3, "predicted_speedup": 1.4}]},
        {"baselines": {"cached": {"median": float("nan")}}},
    ],
)
def test_timing_with_missing_fields_is_shown_as_far_as_it_goes(broken: dict[str, object]) -> None:
    """Whatever part of the timing is missing or odd, the page is written."""
    assert 'id="timing"' in page(certified(broken))


def test_marks_beyond_the_scale_stand_at_its_end() -> None:
    """A bound far below the scale is drawn at the end of it and said to lie beyond."""
    figure = log_overview("all", [Against("t", 400.0, 9.0, "refuted")], 0, 20, str)
    assert "beyond" in figure.image
    assert "nan" not in figure.image


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (6000.0, "6,000"), (11491.4, "11,491"), (0.12345, "0.1235"), (1e-10, "1e-10"), (None, "not known")],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    """Counts are given in full and other numbers with four digits at most."""
    assert number(value) == shown


def test_bounds_below_floating_point_are_named() -> None:
    """A bound that has underflowed is not shown as zero."""
    assert probability_bound(0.0) == "<1e-300"


def test_long_names_lose_their_middle() -> None:
    """A name that is too long keeps both ends, which tell tests apart."""
    assert squeezed("abcdefghij", 5) == "ab…ij"
    assert squeezed("abc", 5) == "abc"


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_contrast_enough() -> None:
    """Text reaches 4.5 to 1 on every ground it stands on, plots 3 to 1, light and dark."""
    style = resources.files("specverify.report").joinpath("page.css").read_text(encoding="utf-8")
    schemes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in style.split(":root")[1:3]]
    for scheme in schemes:
        for ground in ("paper", "card", "faint"):
            for ink in ("ink", "muted", "link", "good", "bad", "open", "fault"):
                assert _contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
        for ink in ("good", "bad", "open", "fault"):
            assert _contrast(scheme[ink], scheme[f"{ink}-wash"]) >= 4.5, ink
        for ink in ("came", "should", "s0", "s1", "s2", "s3"):
            assert _contrast(scheme[ink], scheme["paper"]) >= 3, ink


def test_template_and_style_are_in_the_package() -> None:
    """The page's sources are found as package data, wherever the package is installed."""
    names = {Path(str(f)).name for f in resources.files("specverify.report").iterdir()}
    assert {"page.html.j2", "page.css", "page.js"} <= names
