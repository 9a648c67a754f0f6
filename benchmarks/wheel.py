"""Does the installed package stand alone? Every command from an unrelated folder, and what they take.

    tox -e wheel                                  builds the wheel, installs it into an empty environment, and runs this there
    python benchmarks/wheel.py README.md          in an environment where specverify is installed

The adapter of the README must be certified and a faulty one refuted, each in under 30 seconds. Printed are seconds as they
passed and seconds of a processor; the limit is on the latter, which other work on the machine does not lengthen by waiting. A
command that fails, leaves files that were not asked for, or reads from a clone ends this with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 30.0
"""Seconds of a processor that the adapter of the README may take, and its faulty twin."""
FAULT = ("(target_probs[:, :K] - draft_probs).clamp(min=0)", "target_probs[:, :K]")
"""A line of the adapter and what a mistake makes of it: the recovered token comes from p."""


def example(readme: Path) -> str:
    """The adapter as it stands in the README."""
    found = re.search(r"<!-- run: mine.py -->\n```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    if found is None or found[1].count(FAULT[0]) != 1:
        raise SystemExit(f"{readme} holds no adapter called mine.py with the line {FAULT[0]}")
    return found[1]


class Folder:
    """A folder to run commands in, which counts what fails."""

    def __init__(self, path: Path) -> None:
        self.path, self.failed = path, 0

    def run(self, code: int, *command: str, limit: float = 600.0, said: str = "") -> str:
        """Run ``python -m COMMAND``; print what it took; count it where exit code, words or time are not as they must be."""
        started, before = time.perf_counter(), os.times()
        done = subprocess.run([sys.executable, "-m", *command], cwd=self.path, capture_output=True, text=True, check=False)  # noqa: S603
        took, after = time.perf_counter() - started, os.times()
        worked = after.children_user + after.children_system - before.children_user - before.children_system
        right = done.returncode == code and said in done.stdout and worked < limit
        self.failed += not right
        print(
            f"{'ok' if right else 'FAILED':<6} {took:6.1f} s ({worked:5.1f} s)  exit {done.returncode}  {' '.join(command)}",
            flush=True,
        )
        if not right:
            print(done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout


def main() -> int:
    """Run everything; 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readme", type=Path, help="README.md, whose adapter is judged")
    right = example(parser.parse_args().readme)
    for name in ("PYTHONPATH", "SPECVERIFY_SUBJECT"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as place:
        here = Folder(Path(place))
        (here.path / "mine.py").write_text(right)
        (here.path / "faulty.py").write_text(right.replace(*FAULT))
        where = "import specverify, reference; print(specverify.__file__, reference.__file__)"
        found = subprocess.run([sys.executable, "-c", where], cwd=place, capture_output=True, text=True, check=True)  # noqa: S603
        outside = [path for path in found.stdout.split() if not Path(path).is_relative_to(sys.prefix)]
        if outside:
            raise SystemExit(f"not installed in this environment but read from {', '.join(outside)}")
        smoke = ("--budget", "smoke")
        here.run(0, "specverify", "certify", "mine.py:mine", *smoke, "--out", "run", limit=LIMIT, said="CERTIFIED: mine")
        here.run(1, "specverify", "certify", "faulty.py:mine", *smoke, "--out", "faulty", limit=LIMIT, said="REFUTED: mine")
        here.run(0, "specverify", "recheck", "run", said="every verdict follows")
        here.run(1, "specverify", "recheck", "faulty", said="every verdict follows")
        here.run(0, "specverify", "report", "run", said="index.html")
        here.run(0, "specverify.report", "faulty", said="summary.md")
        here.run(0, "specverify", "faults", said="naive_accept")
        here.run(0, "specverify", "init", "verifier", said="my_verifier.py")
        here.run(0, "specverify", "certify", "my_verifier.py", *smoke, "--out", "begun", said="CERTIFIED: my verifier")
        here.run(0, "specverify", "bench", "reference", "--quick", "--plots", "plots", "--json", "timing.json", said="plots/")
        suites = ("pytest", "--pyargs", "specverify.suites", "-n", "2", "-q", "--specverify-budget", "smoke")
        here.run(0, *suites, "--specverify-subject", "mine.py:mine", "--specverify-out", "suites", said="CERTIFIED: mine")
        here.run(0, "pytest", "--pyargs", "specverify.suites.timing", "-n", "0", "-q", said="passed")
        tools = {"__pycache__", ".pytest_cache", ".hypothesis"}  # what Python, pytest and Hypothesis write wherever they run
        written = {path.name for path in here.path.iterdir()} - tools
        files = {"mine.py", "faulty.py", "my_verifier.py", "timing.json", "run", "faulty", "begun", "plots", "suites"}
        if written != files:
            here.failed += 1
            print(f"FAILED written but not asked for, or the reverse: {sorted(written ^ files)}")
    return 1 if here.failed else 0


if __name__ == "__main__":
    sys.exit(main())
