"""Which runs are in a folder, what came of them, and which can be continued? Read from their files; nothing is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from specverify.errors import UsageError
from specverify.runs.index import counted
from specverify.runs.lock import holder
from specverify.runs.store import FOLDER, INDEX


@dataclass(frozen=True)
class Run:
    """One run. outcome: its verdict, or how far it got. resumable: "yes", or why not."""

    folder: Path
    subject: str
    outcome: str
    started: str
    budget: str
    seed: str
    resumable: str


def listed(folder: Path) -> list[Run]:
    """Runs in a folder, or the one that it is, the newest last. Errors: UsageError when there is no such folder."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; runs are in the folder given with --out, by default under reports/")
    each = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    found = [run_in(path) for path in each if (path / "evidence.jsonl").exists() or (path / "certificate.json").exists()]
    return sorted(found, key=lambda run: run.started)


def run_in(folder: Path) -> Run:
    """The run of a folder, read from its first line of evidence, its certificate and its shards."""
    certificate = _json(_read(folder / "certificate.json"))
    first, *rest = _read(folder / "evidence.jsonl").split(b"\n") or [b""]
    said = _json(first)
    plan = _object(said.get("plan"))
    settings = _object(plan.get("settings")) or _object(certificate.get("settings"))
    done = sum(1 for line in rest if _json(line).get("test"))
    planned = said.get("tests") or len(certificate.get("planned") or ())
    in_certificate, who = len(certificate.get("evidence") or ()), holder(folder)
    if who:
        outcome, resumable = _progress(folder, rest, done, planned), f"no: {who}"
    elif certificate and in_certificate >= max(planned, 1) and done in (0 if not plan else in_certificate, in_certificate):
        outcome, resumable = str(certificate["verdict"]), "no: it is finished"
    elif not plan:
        outcome, resumable = "nothing that can be read", "no: its evidence does not say which plan it belongs to"
    else:
        outcome, resumable = _progress(folder, rest, done, planned), "yes"
    return Run(
        folder,
        str(plan.get("spec") or _object(certificate.get("subject")).get("spec") or "?"),
        outcome,
        str(said.get("started") or _changed(folder)),
        str(settings.get("budget", "?")),
        str(settings.get("seed", "?")),
        resumable,
    )


def _progress(folder: Path, lines: Sequence[bytes], done: int, planned: int) -> str:
    """Tests judged, and shards of those that were begun and not judged."""
    judged = {_json(line).get("test") for line in lines}
    begun = {test: n for test, n in counted(folder / FOLDER, folder / INDEX).items() if test not in judged}
    within = "".join(f", {n} shards of {test}" for test, n in begun.items())
    return f"{done} of {planned or '?'} tests{within}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _json(text: bytes) -> dict[str, Any]:
    """A JSON object, empty when it is none: a line may be torn."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _object(found)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _changed(folder: Path) -> str:
    """When the newest file of a run that does not say when it began was written."""
    newest = max(path.stat().st_mtime for path in folder.iterdir() if path.is_file())
    return datetime.fromtimestamp(newest).astimezone().isoformat(timespec="seconds")


def table(runs: Sequence[Run], folder: Path) -> str:
    """Runs as lines for a person, and how to continue one."""
    if not runs:
        return f"there are no runs in {folder}"
    lines = []
    for run in runs:
        lines.append(f"{run.started[:16].replace('T', ' ')}  {run.folder}: {run.subject}, budget {run.budget}, seed {run.seed}")
        lines.append(f"    {run.outcome}; can be resumed: {run.resumable}")
    if any(run.resumable == "yes" for run in runs):
        newest = next(run for run in reversed(runs) if run.resumable == "yes")
        lines.append(f"continue with specverify certify --resume {newest.folder}")
    return "\n".join(lines)
