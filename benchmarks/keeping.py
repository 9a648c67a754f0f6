"""What does it cost to keep what is drawn? The share of a sampled test's time that goes into packing and writing its shards.

    python benchmarks/keeping.py --subject reference

Every sampled test of the subject is run once, all into one folder, and the seconds spent on packing shards, writing them and
their index, and putting them and the evidence on disk are taken inside the same run, so that a busy machine slows both alike.
Of the controls one is run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from specverify.certify import Runner
from specverify.checks.base import Planned, Settings, budget_named
from specverify.evidence_file import EvidenceFile
from specverify.loading import load_subject
from specverify.plan import Plan, plan_for
from specverify.runs import store


class Timed:
    """Calls of some functions, and the seconds that they took, those of calls inside them counted once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a clock around it."""

        def timed(*arguments: Any, **named: Any) -> Any:
            started, outermost = time.perf_counter(), self._depth == 0
            self._depth += 1
            try:
                return function(*arguments, **named)
            finally:
                self._depth -= 1
                if outermost:
                    self.seconds += time.perf_counter() - started

        return timed


def patched(timed: Timed) -> list[AbstractContextManager[Any]]:
    """Clocks around all that keeping takes: packing, writing with the index, and the disk."""
    return [
        mock.patch.object(store.TestShards, "keep", timed.of(store.TestShards.keep)),
        mock.patch.object(os, "fsync", timed.of(os.fsync)),
    ]


def written(folder: Path) -> int:
    """Bytes of all shards."""
    return sum(file.stat().st_size for file in (folder / store.FOLDER).glob("*.log"))


def measure(plan: Plan, chosen: list[Planned], folder: Path) -> None:
    """Run the tests and print a line for each, and the sum."""
    timed, total = Timed(), 0.0
    file, shards = EvidenceFile(folder / "evidence.jsonl", plan.key), store.RunShards(folder, plan.key)
    file.start()
    runner = Runner(plan, shards)
    with contextlib.ExitStack() as clocks:
        for clock in patched(timed):
            clocks.enter_context(clock)
        for planned in chosen:
            before, size, started = timed.seconds, written(folder), time.perf_counter()
            evidence = runner.run(planned)
            file.add(evidence)
            seconds, kept = time.perf_counter() - started, timed.seconds - before
            total += seconds
            print(
                f"{100 * kept / seconds:6.2f} %  {1e3 * kept:8.1f} of {1e3 * seconds:9.1f} ms  "
                f"{(written(folder) - size) / 1e3:8.1f} kB  {evidence.verdict:<12} {planned.test}",
                flush=True,
            )
    shards.close()
    print(f"{100 * timed.seconds / total:6.2f} %  {1e3 * timed.seconds:8.1f} of {1e3 * total:9.1f} ms  all together")


def main() -> None:
    """Print a line per sampled test, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subject", default="reference")
    parser.add_argument("--budget", default="standard")
    parser.add_argument("--only", default="", help="tests whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = plan_for(load_subject(options.subject), options.subject, Settings(budget_named(options.budget)))
    control = next(p for p in plan.tests if p.statistical and p.expected == "refuted")
    chosen = [p for p in plan.tests if p.statistical and p.expected == "certified" and options.only in p.test]
    with tempfile.TemporaryDirectory() as folder:
        measure(plan, [*chosen, control], Path(folder))


if __name__ == "__main__":
    main()
