"""How do other tools read a timing? As the JSON of pytest-benchmark, one benchmark per configuration, our own record inside."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specverify import __version__
from specverify.timing.measure import Samples

OWN = "specverify"
"""Key of our record at the top of the file; every benchmark has its part of it as ``extra_info``."""
FORMAT = "5.1.0"
"""Version of pytest-benchmark whose shape this is."""


def exported(record: Mapping[str, Any], samples: Samples) -> dict[str, Any]:
    """Make the contents of a file that pytest-benchmark's tools read. Its times are seconds of a whole run."""
    return {
        "machine_info": machine_info(),
        "commit_info": commit_info(),
        "benchmarks": list(_benchmarks(record, samples)),
        "datetime": datetime.now(UTC).isoformat(),
        "version": FORMAT,
        OWN: dict(record),
    }


def _benchmarks(record: Mapping[str, Any], samples: Samples) -> Iterator[dict[str, Any]]:
    subject = str(record["subject"])
    for name, bases in samples.baselines.items():
        own = {"tokens_per_second": record["baselines"][name], "subject": subject}
        yield _benchmark(subject, "baseline", f"{name}_baseline", {}, [base.seconds for base in bases], own)
    for run in record["runs"]:
        draft, k = run["draft"], run["k"]
        seconds = [one.seconds for one in samples.runs[draft, k]]
        yield _benchmark(
            subject, f"draft {draft}", "speculative", {"draft": draft, "k": k}, seconds, {**run, "subject": subject}
        )


def _benchmark(
    subject: str, group: str, name: str, params: Mapping[str, Any], seconds: Sequence[float], own: Mapping[str, Any]
) -> dict[str, Any]:
    param = "-".join(str(value) for value in params.values()) or None
    full = name if param is None else f"{name}[{param}]"
    return {
        "group": group,
        "name": full,
        "fullname": f"specverify bench {subject}::{full}",
        "params": dict(params) or None,
        "param": param,
        "extra_info": dict(own),
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": len(seconds),
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": stats(seconds),
    }


def stats(seconds: Sequence[float]) -> dict[str, Any]:
    """Statistics of pytest-benchmark over seconds of runs, in the order they were measured; at least one."""
    ordered = sorted(seconds)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    low, median, high = quartiles
    mean, iqr = statistics.fmean(ordered), high - low
    deviation = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    inner = [s for s in ordered if low - 1.5 * iqr <= s <= high + 1.5 * iqr]
    far = len(ordered) - len(inner)
    beyond = sum(abs(s - mean) > deviation for s in ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(ordered),
        "median": median,
        "iqr": iqr,
        "q1": low,
        "q3": high,
        "iqr_outliers": far,
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{far}",
        "ld15iqr": inner[0],
        "hd15iqr": inner[-1],
        "ops": 1 / mean if mean else 0.0,
        "total": sum(ordered),
        "data": list(seconds),
        "iterations": 1,
    }


def machine_info() -> dict[str, Any]:
    """Describe the machine and the Python that runs, without its name."""
    return {
        "node": "",
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_compiler": platform.python_compiler(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "python_build": list(platform.python_build()),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {},
        "specverify": __version__,
    }


def commit_info() -> dict[str, Any]:
    """Describe the commit of the working directory, as far as git tells."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=10)  # noqa: S603, S607
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"id": "unversioned", "time": None, "author_time": None, "dirty": False, "project": "", "branch": "(unknown)"}
    root = git("rev-parse", "--show-toplevel") or ""
    return {
        "id": commit,
        "time": git("show", "-s", "--format=%cI", "HEAD"),
        "author_time": git("show", "-s", "--format=%aI", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "project": Path(root).name,
        "branch": git("rev-parse", "--abbrev-ref", "HEAD") or "(unknown)",
    }


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a file as JSON that any reader takes: no NaN, no infinity."""
    path.write_text(json.dumps(contents, indent=1, allow_nan=False) + "\n", encoding="utf-8")
