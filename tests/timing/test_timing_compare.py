"""The file that others read, and a run against an earlier one: what is lost is seen, what is noise is not."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from scripted import Telling

from specverify.errors import UsageError
from specverify.timing.clocks import WallClock
from specverify.timing.compare import compare, read_timing, render_changes
from specverify.timing.exported import exported, stats, write_json
from specverify.timing.measure import Sweep, measure
from specverify.timing.opening import Opened
from specverify.timing.record import timing_json
from specverify.timing.sweeps import sweep_batches, sweep_temperatures

PROMPTS = torch.arange(12).reshape(4, 3) % 4


@pytest.fixture(scope="module")
def contents() -> dict:
    """Make what --json writes of a scripted decoder, temperatures and batches included."""
    timing = Telling()
    clock = WallClock(timing.clock)
    samples = measure(timing, PROMPTS, Sweep(timing.drafts, (1, 4), tokens=64, repetitions=4), clock=clock)
    opened, short = Opened("scripted", timing, PROMPTS), Sweep(("aligned",), (4,), tokens=64, repetitions=2)
    further = {
        "temperatures": sweep_temperatures(opened, (0.0, 1.0), short, clock, lambda _: None),
        "batches": sweep_batches(opened, (1, 2), short, clock, lambda _: None),
    }
    return exported(timing_json(samples, subject="scripted", further=further), samples)


@pytest.fixture
def record(contents) -> dict:
    """Return our own record of it, to be changed."""
    return deepcopy(contents["specverify"])


def test_statistics_are_those_of_pytest_benchmark():
    """Of 1, 2, 3, 4, 100 the quartiles are 2 and 4; 100 is an outlier of both kinds, and data keep their order."""
    found = stats([100.0, 1.0, 3.0, 2.0, 4.0])
    assert (found["min"], found["max"], found["mean"], found["median"]) == (1.0, 100.0, 22.0, 3.0)
    assert (found["q1"], found["q3"], found["iqr"]) == (2.0, 4.0, 2.0)
    assert (found["rounds"], found["iterations"], found["total"], found["ops"]) == (5, 1, 110.0, 1 / 22)
    assert (found["iqr_outliers"], found["stddev_outliers"], found["outliers"]) == (1, 1, "1;1")
    assert (found["ld15iqr"], found["hd15iqr"]) == (1.0, 4.0)
    assert found["data"] == [100.0, 1.0, 3.0, 2.0, 4.0]
    assert stats([2.0])["stddev"] == 0.0


def test_every_configuration_is_a_benchmark(contents):
    """Baselines and runs have group, name, parameters and times, and each carries its part of our record."""
    names = [b["name"] for b in contents["benchmarks"]]
    assert sorted(names) == sorted(
        ["cached_baseline", "uncached_baseline", *(f"speculative[{d}-{k}]" for d in ("aligned", "mismatched") for k in (1, 4))]
    )
    run = next(b for b in contents["benchmarks"] if b["name"] == "speculative[aligned-4]")
    assert (run["group"], run["params"], run["param"]) == ("draft aligned", {"draft": "aligned", "k": 4}, "aligned-4")
    assert run["stats"]["rounds"] == len(run["stats"]["data"]) == 4
    assert run["extra_info"]["speedup"] == contents["specverify"]["runs"][1]["speedup"]
    assert {"machine_info", "commit_info", "datetime", "version"} <= contents.keys()
    assert {"id", "time", "dirty", "branch", "project", "author_time"} <= contents["commit_info"].keys()


def test_the_file_is_read_back(contents, tmp_path):
    """What was written is read, whole or as a certificate holds it, and equals itself."""
    write_json(tmp_path / "new.json", contents)
    found = read_timing(tmp_path / "new.json")
    assert found == contents["specverify"]
    (tmp_path / "certificate.json").write_text(json.dumps({"verdict": "certified", "timing": found}))
    assert read_timing(tmp_path / "certificate.json") == found
    assert all(change.lost == 0 and not change.regressed for change in compare(found, found))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds no timing of specverify"),
        ('{"benchmarks": []}', "holds no timing of specverify"),
        ('{"runs": [{"draft": "a", "k": 1, "speedup": {"median": 0}}]}', "holds no timing of specverify"),
        ('{"timing": null}', "holds no timing of specverify"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(content, message, tmp_path):
    """The message says what to compare with."""
    (tmp_path / "old.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_timing(tmp_path / "old.json")
    with pytest.raises(UsageError, match="cannot read"):
        read_timing(tmp_path / "nothing.json")


def _slowed(record: dict, share: float, wide: float = 0.01) -> dict:
    slow = deepcopy(record)
    for run in slow["runs"]:
        median = run["speedup"]["median"] * (1 - share)
        run["speedup"] = {"median": median, "low": median * (1 - wide), "high": median * (1 + wide)}
    return slow


def test_a_loss_beyond_the_share_and_the_spread_is_a_regression(record):
    """Losing 20 % where 10 % may be lost is named with both values; losing 5 % is not."""
    old = _slowed(record, 0)
    worse = [c for c in compare(old, _slowed(record, 0.2)) if c.regressed]
    assert [c.key for c in worse] == [(None, 1, draft, k) for draft in ("aligned", "mismatched") for k in (1, 4)]
    assert worse[0].lost == pytest.approx(0.2)
    text = render_changes(compare(old, _slowed(record, 0.2)))
    assert "4 of 7 speed-ups lost more than 10%" in text
    assert "aligned K=4" in text
    within = compare(old, _slowed(record, 0.05))
    assert not any(c.regressed for c in within)
    assert "no regression: none of 7 speed-ups lost more than 0.1 of its value" in render_changes(within)
    assert sum(c.regressed for c in compare(old, _slowed(record, 0.05), fail_above=0.01)) == 4


def test_a_loss_within_the_spread_is_none(record):
    """The same 20 % with quartiles 30 % to either side says nothing."""
    assert not any(c.regressed for c in compare(_slowed(record, 0, 0.3), _slowed(record, 0.2, 0.3)))


def test_raw_times_do_not_matter(record):
    """A machine of half the speed with the same ratios has lost nothing."""
    slower = deepcopy(record)
    for run in slower["runs"]:
        run["tps"] = {name: value / 2 for name, value in run["tps"].items()}
    assert not any(c.regressed for c in compare(record, slower))


def test_temperatures_and_batches_are_compared_with_their_like(record):
    """A loss at one temperature or batch is named with it."""
    slow = deepcopy(record)
    for one in (slow["temperatures"]["at"][0], slow["batches"]["at"][1]):
        one["runs"][0]["speedup"] = dict.fromkeys(("median", "low", "high"), 0.1)
    worse = [c.key for c in compare(record, slow) if c.regressed]
    assert worse == [(0.0, 1, "aligned", 4), (None, 2, "aligned", 4)]
    assert "aligned K=4 T=0" in render_changes(compare(record, slow))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subject": "other"}, "subject 'scripted' then and 'other' now"),
        ({"tokens": 12}, "tokens 64 then and 12 now"),
        ({"base": "uncached"}, "base 'cached' then and 'uncached' now"),
        ({"machine": {"device": "cuda", "threads": 1}}, "device 'cpu' then and 'cuda' now"),
    ],
)
def test_runs_of_other_settings_are_not_compared(record, change, said):
    """What differs is named."""
    with pytest.raises(UsageError, match=said):
        compare(record, {**record, **change})


def test_runs_with_nothing_in_common_are_not_compared(record):
    """Other drafts are named, and a share that cannot be is refused."""
    other = {**record, "runs": [{**run, "draft": "new"} for run in record["runs"]], "temperatures": None, "batches": None}
    with pytest.raises(UsageError, match=r"nothing in common: .*aligned K=1.* then, new K=1"):
        compare({**record, "temperatures": None, "batches": None}, other)
    with pytest.raises(UsageError, match="--fail-above 1 is no share"):
        compare(record, record, 1)
