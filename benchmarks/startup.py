"""What does the plugin cost test runs that do not use it? Collecting an empty test file, with and without it, interleaved.

    python benchmarks/startup.py --runs 40

Every pair is a ``pytest --collect-only`` of one empty file in a process of its own, once as it is and once with
``-p no:specverify``, in random order. Printed are the medians, the ratio of the medians, the spread of the ratios of the
pairs, and what ``python -X importtime`` says the plugin imports beyond pytest itself. A busy machine widens the spread, that
of wall time more than that of processor time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLLECT = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_empty.py")
WITHOUT = ("-p", "no:specverify")


def seconds(folder: Path, *more: str) -> tuple[float, float]:
    """Wall and processor seconds of one collection in a process of its own."""
    started, before = time.perf_counter(), os.times()
    done = subprocess.run([sys.executable, *COLLECT, *more], cwd=folder, capture_output=True, check=False)  # noqa: S603
    if done.returncode != 5:  # no tests collected
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    took, after = time.perf_counter() - started, os.times()
    return took, after.children_user + after.children_system - before.children_user - before.children_system


def own_imports() -> list[tuple[str, int]]:
    """Modules that the plugin imports after pytest, each with its own microseconds."""
    script = "import pytest, sys; before = set(sys.modules); import specverify.pytest_plugin; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, check=True)  # noqa: S603
    names = run.stdout.split()
    rows = [line.removeprefix("import time:").split("|") for line in run.stderr.splitlines() if line.startswith("import time:")]
    return [(name.strip(), int(own)) for own, _, name in rows if name.strip() in names]


def compared(name: str, pairs: list[tuple[float, float]]) -> str:
    """Medians with and without the plugin, their ratio, and where half of the pairs' ratios lie."""
    having, lacking = (statistics.median(took) for took in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    low, high = ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]
    return (
        f"{name} time, median of {len(pairs)} collections: {having * 1000:.0f} ms with the plugin, "
        f"{lacking * 1000:.0f} ms without; ratio {having / lacking:.3f}, half of the pairs between {low:.3f} and {high:.3f}"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="pairs of collections")
    options = parser.parse_args()
    for name, own in own_imports():
        print(f"imported by the plugin: {name}, {own / 1000:.2f} ms")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_empty.py").write_text("")
        pairs = []
        for _ in range(options.runs + 1):
            ways = [(0, ()), (1, WITHOUT)]
            random.shuffle(ways)
            pairs.append([took for _, took in sorted((way, seconds(Path(folder), *more)) for way, more in ways)])
    for clock, name in enumerate(("wall", "processor")):
        print(compared(name, [(a[clock], b[clock]) for a, b in pairs[1:]]))  # the first reads files that no later one has to
    return 0


if __name__ == "__main__":
    sys.exit(main())
