"""Does a run survive kill -9 at any moment? Runs killed once each at random, resumed, and compared with an undisturbed one.

    python benchmarks/kills.py --kills 50

Every run is a process of its own that is ended by the system without warning, at a moment drawn uniformly over the time that
an undisturbed run takes; then another process resumes it. The certificates must agree in everything but times. A line per kill
says how far the run had come; the last line counts the certificates that agree. Exit 1 when one does not. The subject is an
exact decoder that pauses in every call; another may be named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import specverify
from specverify.cli import main as command
from specverify.faults.requests import serving
from specverify.runs.records import whole_records
from specverify.runs.store import FOLDER

PAUSE = 0.001
"""Seconds that the subject pauses in a call."""


class Paced:
    """The exact decoder of the fault catalogue, at a pace at which it can be killed."""

    def __init__(self) -> None:
        self._inner = serving()
        self.vocab_size = self._inner.vocab_size
        self.target_log_probs, self.draft_log_probs = self._inner.target_log_probs, self._inner.draft_log_probs

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Any:
        """The same after a pause."""
        time.sleep(PAUSE)
        return self._inner.generate(prompts, max_new_tokens, seed)


subject = specverify.Decoder("paced", Paced, facts=specverify.Facts(max_batch=4))


def started(arguments: list[str]) -> int:
    """Run the command in a process of its own; returns its number."""
    child = os.fork()
    if child == 0:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os._exit(command(arguments))
    return child


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def certificate_in(folder: Path) -> dict[str, Any]:
    """The certificate of a run without times and machine."""
    found: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    for evidence in found["evidence"]:
        del evidence["seconds"]
    return {name: value for name, value in found.items() if name not in ("digest", "environment")}


def reached(folder: Path) -> tuple[int, int]:
    """Tests judged and shards kept in a run's folder."""
    file = folder / "evidence.jsonl"
    judged = max(file.read_bytes().count(b"\n") - 1, 0) if file.exists() else 0
    return judged, sum(len(list(whole_records(path))) - 1 for path in (folder / FOLDER).glob("*.log"))


def main() -> int:
    """Kill, resume, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--subject", default=f"{Path(__file__).resolve()}:subject")
    parser.add_argument("--budget", default="smoke")
    parser.add_argument("--only", default="own models", help="tests whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    torch.set_num_threads(1)
    asked = ["certify", options.subject, "--budget", options.budget, "--only", options.only]
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as parent:
        undisturbed, begun = Path(parent) / "undisturbed", time.monotonic()
        code = ended(started([*asked, "--out", str(undisturbed)]))
        seconds, whole = time.monotonic() - begun, certificate_in(undisturbed)
        tests, shards = reached(undisturbed)
        print(f"undisturbed: {seconds:.1f} s, {tests} tests, {shards} shards, {whole['verdict']}", flush=True)
        same = killed = 0
        for number in range(options.kills):
            folder, moment = Path(parent) / str(number), rng.uniform(0, seconds)
            child = started([*asked, "--out", str(folder)])
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
            killed += ended(child) == -signal.SIGKILL
            judged, kept = reached(folder)
            if not (folder / "evidence.jsonl").exists():  # killed before anything was begun
                resumed = ended(started([*asked, "--out", str(folder)]))
            else:
                resumed = ended(started(["certify", "--resume", str(folder), "--only", options.only]))
            agrees = resumed == code and certificate_in(folder) == whole
            same += agrees
            drawn = reached(folder)[1] - kept
            print(
                f"{number + 1:3}  killed after {moment:5.2f} s: {judged} tests, {kept:3} shards kept; {drawn:3} drawn then "
                f"({kept + drawn - shards:+d}), certificate {'the same' if agrees else 'DIFFERS'}",
                flush=True,
            )
    print(f"{same} of {options.kills} certificates are the undisturbed one's; {killed} runs were killed before their end")
    return int(same != options.kills)


if __name__ == "__main__":
    sys.exit(main())
