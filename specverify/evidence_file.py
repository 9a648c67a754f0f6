"""What is known of a run that was killed? Evidence as JSON lines, written as it comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specverify.errors import (
    UsageError,
)
from specverify.record import Evidence


class EvidenceFile:
    """Evidence as JSON lines, one per finished test, flushed at once; the first line names the plan it belongs to."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path, self.key = path, dict(key)

    def read(self) -> list[Evidence]:
        """Evidence of an earlier run of the same plan; a line cut short by a kill is dropped. Errors: UsageError when the
        file belongs to another plan.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        if not records:
            return []
        if records[0].get("plan") != self.key:
            raise UsageError(
                f"{self.path} belongs to another subject version or other settings; choose another --out, or remove it"
            )
        return [Evidence.from_json(r) for r in records[1:]]

    def start(self, keep: Sequence[Evidence] = ()) -> None:
        """Begin the file anew with what is kept."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps({"plan": self.key}) + "\n")
            stream.writelines(json.dumps(e.to_json()) + "\n" for e in keep)

    def add(self, evidence: Evidence) -> None:
        """Append one finished test."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(evidence.to_json()) + "\n")
