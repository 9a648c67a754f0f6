"""One quick sweep per session, of the subject that the other suites judge; skipped where timing means nothing."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

QUIET = "timing needs a quiet machine: run pytest suites/timing -n 0"


@pytest.fixture(scope="session")
def timing(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Measure the subject once and print the table; skip under xdist and for subjects that cannot be timed."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip(QUIET)
    from specverify.errors import SubjectError
    from specverify.pytest_plugin import _plan
    from specverify.timing.measure import Sweep, measure
    from specverify.timing.opening import open_timeable
    from specverify.timing.record import timing_json
    from specverify.timing.table import render

    plan = _plan(request.config)
    try:
        opened = open_timeable(plan.subject, plan.settings.seed)
    except SubjectError as error:
        pytest.skip(str(error))
    ks = tuple(k for k in (1, 2, 4, 8) if k in opened.ks) or opened.ks
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    sweep = Sweep(tuple(opened.timing.drafts), ks, tokens=48, repetitions=3, seed=plan.settings.seed)
    samples = measure(opened.timing, opened.prompts, sweep)
    record = timing_json(samples, subject=opened.name, load=load, models=opened.models, notes=opened.say())
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n\n{render(record)}\n")  # noqa: T201 - the table is what this suite is run for
    return record


@pytest.fixture(autouse=True)
def recorded(timing: dict[str, Any], record_property: Any) -> None:
    """Leave the measured numbers in the properties of every test, where a JUnit file shows them."""
    record_property("specverify_timing", json.dumps({k: timing[k] for k in ("machine", "baselines", "best", "slower_from")}))
