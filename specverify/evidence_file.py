"""What is known of a run that was killed? Evidence as JSON lines, written as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specverify.errors import CertificateError, UsageError
from specverify.record import Evidence
from specverify.runs.store import SYNC_EVERY, cannot_write

DIFFERENT = {
    "specverify": "another version of specverify",
    "spec": "another subject",
    "source": "another version of the subject's source",
    "settings": "other settings",
}
"""Parts of a plan's key, and what it means that one of them differs."""


class EvidenceFile:
    """Evidence as JSON lines, one per finished test, flushed at once; the first line names the plan it belongs to."""

    def __init__(self, path: Path, key: Mapping[str, Any], said: Mapping[str, Any] | None = None) -> None:
        """said: what else the first line says about the run, for whoever lists or resumes it; not compared."""
        self.path, self.key, self.said = path, dict(key), dict(said or {})
        self._synced = time.monotonic()

    def read(self) -> list[Evidence]:
        """Evidence of an earlier run of the same plan; a last line cut short by a kill is dropped.

        Errors: UsageError when the file belongs to another plan, naming what differs, or is damaged, naming the line.
        """
        if not self.path.exists():
            return []
        lines = whole_lines(self.path)
        if not lines:
            return []
        first = self._object(1, lines[0])
        self._check_key(first)
        self.said = {name: value for name, value in first.items() if name != "plan"}
        return [self._evidence(number, line) for number, line in enumerate(lines[1:], start=2)]

    def _object(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise self._damaged(number, "holds bytes that are not UTF-8") from None
        except (ValueError, RecursionError):
            raise self._damaged(number, "is not JSON") from None
        if not isinstance(found, dict):
            raise self._damaged(number, f"is a JSON {type(found).__name__}, not an object")
        return found

    def _check_key(self, first: Mapping[str, Any]) -> None:
        if not isinstance(first.get("plan"), dict):
            raise self._damaged(1, "does not say which plan the evidence belongs to")
        differences = _differences(first["plan"], self.key)
        if differences:
            raise UsageError(
                f"{self.path} belongs to {'; to '.join(differences)}; choose another --out, or remove it and start again"
            )

    def _evidence(self, number: int, line: bytes) -> Evidence:
        found = self._object(number, line)
        try:
            evidence = Evidence.from_json(found)
            evidence.judgements()
        except KeyError as error:
            raise self._damaged(number, f"is not the evidence of a test: it has no {error}") from error
        except (CertificateError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise self._damaged(number, f"is not evidence that can be judged: {error}") from error
        return evidence

    def _damaged(self, number: int, why: str) -> UsageError:
        again = "start again without --resume, in another folder"
        cure = again if number == 1 else f"delete that line, so that its test runs again, or {again}"
        return UsageError(f"{self.path}, line {number}, {why}; {cure}")

    def start(self, keep: Sequence[Evidence] = ()) -> None:
        """Begin the file anew with what is kept; until the new one is complete and on disk the old one stays.

        Errors: UsageError when the folder cannot be written.
        """
        part = self.path.with_suffix(".part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as stream:
                stream.write(json.dumps({"plan": self.key, **self.said}) + "\n")
                stream.writelines(json.dumps(e.to_json()) + "\n" for e in keep)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise UsageError(
                f"{self.path} cannot be written: {error.strerror or error}; choose a folder on a disk with room that may be "
                "written (what it held is still there)"
            ) from error

    def add(self, evidence: Evidence) -> None:
        """Append one finished test; every few seconds wait until all is on disk, which only a crash of the system asks for.

        Errors: FolderError when it cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(evidence.to_json()) + "\n")
                stream.flush()
                if time.monotonic() - self._synced > SYNC_EVERY:
                    os.fsync(stream.fileno())
                    self._synced = time.monotonic()
        except OSError as error:
            raise cannot_write(self.path, self.path.parent, error) from error


def whole_lines(path: Path) -> list[bytes]:
    """Lines of a file without a last one cut short: a kill leaves a beginning of a line at the end, and nothing else."""
    lines = path.read_bytes().split(b"\n")
    return lines if _is_whole(lines[-1]) else lines[:-1]


def first_line(path: Path) -> dict[str, Any]:
    """What the first line of a run's evidence says: its plan, and what else is known of it. Errors: UsageError."""
    lines = whole_lines(path) if path.exists() else []
    file = EvidenceFile(path, {})
    found = file._object(1, lines[0]) if lines else {}
    if not isinstance(found.get("plan"), dict):
        raise UsageError(f"{path} does not say which plan it belongs to, so there is nothing to continue; start again")
    return found


def _is_whole(last: bytes) -> bool:
    """Whether what follows the last line break is a line that only lacks its own; the beginning of an object never is JSON."""
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return False
    return True


def _differences(stored: Mapping[str, Any], key: Mapping[str, Any]) -> list[str]:
    """What differs between the key in a file and that of the plan, in words, with both values where they are short."""
    found = []
    for name in dict.fromkeys([*key, *stored]):
        was, now = stored.get(name), key.get(name)
        if was == now:
            continue
        said = DIFFERENT.get(name, f"another {name}")
        if isinstance(was, dict) and isinstance(now, dict):
            inner = [
                f"{k} was {was.get(k)!r}, is {now.get(k)!r}" for k in dict.fromkeys([*now, *was]) if was.get(k) != now.get(k)
            ]
            found.append(f"{said} ({', '.join(inner)})")
        elif name == "source":
            found.append(said)
        else:
            found.append(f"{said} (was {'not recorded' if was is None else repr(was)}, is {now!r})")
    return found
