"""The plots of a timing: what each shows, what it leaves out, and files that stand alone."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from report_certificates import HOSTILE, timing

from specverify.report.axes import Axes, nice_step
from specverify.report.svg import standalone
from specverify.report.timing_plots import acceptance_plot, mismatch_plot, phase_plot, rate_plot, speedup_plot
from specverify.report.timing_runs import Spread, by_draft, run_of
from specverify.report.timings import timings_of

SVG = "{http://www.w3.org/2000/svg}"


def _full(draft: str, k: int, speed: float) -> dict[str, Any]:
    return {
        "draft": draft,
        "k": k,
        "speedup": {"median": speed, "low": speed, "high": speed},
        "predicted_speedup": speed,
        "tokens_per_round": 3.0,
        "round": 2.5,
        "costs": {"c": 0.1, "v": 1.25, "o": 0.5, "parts": {"accept": 0.25, "loop": 0.25}},
        "exact": {"tokens_per_round": 2.9, "error": 0.1, "z": 1.0},
        "by_position": [{"tested": 100 - 95 * j // 3, "accepted": 0.5, "exact": 0.6} for j in range(k)],
    }


RUNS = [run_of(_full(draft, k, speed / k)) for draft, speed in (("aligned", 3.0), ("mismatched", 1.0)) for k in (1, 2, 4)]
DRAFTS = by_draft([run for run in RUNS if run is not None])


def _texts(image: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(image).iter() if element.tag.endswith("text")]


def _paths(image: str, style: str) -> list[str]:
    return [e.get("d", "") for e in ElementTree.fromstring(image).iter() if e.tag.endswith("path") and e.get("class") == style]


def test_the_mismatch_tax_is_a_ratio_to_the_first_draft() -> None:
    """With a third of the speed the tax is 3 at every K; the baseline alone costs what the first draft gains."""
    figure = mismatch_plot(DRAFTS)
    assert figure is not None
    assert "mismatched K = 1: 3.00, K = 2: 3.00, K = 4: 3.00" in figure.image
    assert mismatch_plot({"aligned": DRAFTS["aligned"]}) is None


def test_acceptance_leaves_out_positions_tested_seldom() -> None:
    """The fourth of four positions was tested five times and is not drawn; measured and exact shares are."""
    figure = acceptance_plot(DRAFTS)
    assert figure is not None
    assert "aligned 1: 0.50, 2: 0.50, 3: 0.50; mismatched" in figure.image
    for style in ("series series-0", "predicted series-1"):
        (drawn,) = _paths(figure.image, style)
        assert drawn.count("L") == 2
    assert "fewer than 10 times are left out" in figure.note


def test_the_phases_of_a_round_are_stacked() -> None:
    """K draft steps, verify pass, rule and loop follow each other to the length of their sum; unknown phases are not named."""
    figure = phase_plot(DRAFTS)
    assert figure is not None
    bars = [e for e in ElementTree.fromstring(figure.image).iter() if e.tag == "rect" and e.get("height") == "15.0"]
    assert len(bars) == 3 * 4
    for row in (bars[:4], bars[4:8], bars[8:]):
        ends = [float(b.get("x", 0)) + float(b.get("width", 0)) for b in row]
        assert ends[:-1] == pytest.approx([float(b.get("x", 0)) for b in row[1:]], abs=0.11)
    assert "K = 4: K draft steps 0.40, verify pass 1.25, rule 0.25, loop 0.25" in figure.image
    assert "taking back" not in _texts(figure.image)
    assert phase_plot(by_draft([run for run in [run_of({"k": 1})] if run])) is None


def test_speedup_has_its_prediction_and_names_the_baseline() -> None:
    """One line measured and one predicted per draft, and the baseline by its name."""
    figure = speedup_plot(DRAFTS, "uncached")
    assert figure is not None
    assert figure.title == "Speed-up over the uncached baseline against K"
    assert [len(_paths(figure.image, f"{line} series-{i}")) for line in ("series", "predicted") for i in (0, 1)] == [1] * 4


@pytest.mark.parametrize(("crowded", "anchor"), [(1, "end"), (4, "start")])
def test_the_baseline_is_named_where_no_point_lies(crowded: int, anchor: str) -> None:
    """At the other end than the points close to 1."""
    runs = [run_of(_full("a", k, 1.02 if k == crowded else 2.0)) for k in (1, 2, 4)]
    figure = speedup_plot(by_draft([run for run in runs if run is not None]))
    assert figure is not None
    label = next(e for e in ElementTree.fromstring(figure.image).iter() if e.text == "cached baseline")
    assert label.get("text-anchor") == anchor


def test_every_plot_stands_alone_as_a_file() -> None:
    """A file has a namespace, its title as words, its colours and a ground, whatever is in the names."""
    drafts = by_draft([run for run in [run_of(_full(HOSTILE, 2, 2.0)), run_of(_full("b", 2, 1.0))] if run])
    plots = [speedup_plot(drafts), acceptance_plot(drafts), mismatch_plot(drafts), phase_plot(drafts)]
    plots.append(rate_plot({"cached": Spread(1.0, 1.0, 1.0)}, drafts))
    for plot in plots:
        assert plot is not None
        root = ElementTree.fromstring(standalone(plot))
        assert root.tag == f"{SVG}svg"
        style = root.find(f"{SVG}style")
        assert style is not None
        assert "--paper" in (style.text or "")
        assert ".plot text" in (style.text or "")
        assert root.findall(f"{SVG}text")[0].get("class") == "title"
        assert not list(root.iter(f"{SVG}script"))


def test_what_was_varied_is_said_in_words() -> None:
    """Temperatures, batches, memory and notes stand among the facts, failures as such."""
    one = {"best": {"aligned": {"k": 4, "speedup": 1.5, "predicted_speedup": 1.6}}}
    varied = {
        "temperatures": {"at": [{"temperature": 0, **one}, {"temperature": 0.7, "failed": "no <b>such</b> thing"}]},
        "batches": {"at": [{"batch": 8, **one}], "stops_paying": 16, "predicted_stops_paying": 32},
        "memory": {"how": "counted", "bytes": {"cached": 2**21, "other": None}, "caches": {"target": 2**20}},
        "notes": ["something is missing"],
    }
    found = timings_of({**timing(), **varied})
    assert found is not None
    facts = dict(found.facts)
    assert facts["Temperature 0"] == "aligned draft 1.50 times as fast (K = 4), predicted at best 1.60"
    assert facts["Temperature 0.7"] == "not measured: no <b>such</b> thing"
    assert facts["Batches"] == "speculation stops paying at batch 16; predicted at 32"
    assert facts["Memory, peak"] == "cached 2 MiB (counted)"
    assert facts["Memory, caches"] == "target 1 MiB"
    assert facts["Note"] == "something is missing"


@pytest.mark.parametrize("odd", [{"temperatures": 3, "batches": [], "memory": "?", "notes": {}}, {"batches": {"at": [1, {}]}}])
def test_odd_fields_are_passed_over(odd: dict[str, Any]) -> None:
    """Whatever cannot be read is not shown, and nothing fails."""
    assert timings_of({**timing(), **odd}) is not None


@pytest.mark.parametrize(("top", "step"), [(1, 0.2), (2.7, 1), (5, 1), (0.03, 0.01), (70, 20)])
def test_grids_have_few_round_numbers(top: float, step: float) -> None:
    """At most five steps of 1, 2 or 5."""
    assert nice_step(top) == pytest.approx(step)


def test_values_beyond_the_field_stand_at_its_edge() -> None:
    """Nothing is drawn outside of the field."""
    axes = Axes([1, 2], 0, 1, 20)
    assert axes.y(7) == axes.y(1) == 20
    assert axes.y(-3) == axes.y(0) == axes.floor
