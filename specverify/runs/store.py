"""How are shards kept in the folder of a run, and used again? Appended one by one, each with its checksum; read when resumed.

A shard that is read saves drawing it. Before anything new is drawn in a resumed test, its last kept shard is drawn once more
and compared: a subject whose numbers do not follow from its seeds (a generator of its own, begun anew in every process) would
otherwise repeat noise that was used before, and pass it off as new. Such a test is begun anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from specverify.errors import DrawsDiffer, FolderError, UsageError
from specverify.runs.index import Index
from specverify.runs.records import Segment, record_at
from specverify.runs.shards import Form, Shard, Shards, decoded, encoded, head_of

T = TypeVar("T")
FOLDER, INDEX = "shards", "index.sqlite"
SYNC_EVERY = 2.0
"""Seconds after which what was written is put on disk, and the index too: a crash of the system loses as much at most."""


def plan_digest(key: Mapping[str, Any]) -> str:
    """A short name for the plan that shards belong to."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def forget(folder: Path) -> None:
    """Remove the shards of an earlier run, where a new one begins in its folder."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    (folder / INDEX).unlink(missing_ok=True)


class RunShards:
    """The shards of a run, as one process reads and appends them.

    folder: of the run. key: of its plan. own_index: whether this process keeps the index; workers, which only append, do not.
    Errors: UsageError when shards in the folder belong to another plan.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], *, own_index: bool = True) -> None:
        self.folder, self.plan, self._own_index = folder, plan_digest(key), own_index
        self._segment: Segment | None = None
        self._synced = time.monotonic()
        self.index = Index(folder / FOLDER, folder / INDEX if own_index else None, self._check)

    def _check(self, path: Path, head: Mapping[str, Any]) -> None:
        if head.get("plan") != self.plan:
            raise UsageError(f"{path} belongs to another plan; choose another --out, or remove {path.parent} and start again")

    def of(self, test: str) -> TestShards:
        """The shards of one test."""
        return TestShards(self, test)

    def stored(self, test: str, number: int) -> bytes | None:
        """The record of a shard; None when there is none that is whole."""
        for _ in range(2):
            place = self.index.place(test, number)
            if place is None:
                return None
            record = record_at(*place)
            if record is not None:
                head = head_of(record)
                if (head.get("test"), head.get("number")) == (test, number):
                    return record
            self.index.rebuild()
        return None

    def append(self, record: bytes, head: dict[str, Any]) -> None:
        """Keep a record. Errors: FolderError when it cannot be written; what was kept before is not harmed."""
        try:
            segment = self._writable()
            offset, end = segment.append(record)
            self.index.enter(segment.number, offset, end, head)
            if time.monotonic() - self._synced > SYNC_EVERY:
                self.sync()
        except OSError as error:
            raise cannot_write(self.folder / FOLDER, self.folder, error) from error

    def _writable(self) -> Segment:
        if self._segment is not None and self._segment.broken:
            self._segment.close()
            self._segment = None
        if self._segment is None:
            self._segment = Segment(self.folder / FOLDER)
            head = {"plan": self.plan}
            offset, end = self._segment.append(encoded(Shard(), head))
            self.index.enter(self._segment.number, offset, end, head)
        return self._segment

    def sync(self) -> None:
        """Put on disk what was written. Errors: OSError."""
        if self._segment is not None:
            self._segment.sync()
        self.index.commit()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Put on disk what was written and let go of the files. Errors: FolderError."""
        try:
            if self._segment is not None:
                self._segment.sync()
                self._segment.close()
        except OSError as error:
            raise cannot_write(self.folder / FOLDER, self.folder, error) from error
        finally:
            self._segment = None
            self.index.close()


def cannot_write(path: Path, folder: Path, error: OSError) -> FolderError:
    """What to say when the folder of a run takes no more."""
    return FolderError(
        f"{path} cannot be written: {error.strerror or error}; what was written before is kept: "
        f"make room or allow it, and continue with --resume {folder}"
    )


class TestShards(Shards):
    """The shards of one test, numbered in the order in which they are drawn."""

    __test__ = False  # no test of pytest's

    def __init__(self, run: RunShards, test: str) -> None:
        self._run, self._test = run, test
        self._number = 0
        self._reading = True
        self._again: Callable[[], bool] | None = None
        """Draws the shard that was read last again, and says whether it comes out the same."""

    def drawn(self, asked: Mapping[str, Any], draw: Callable[[], T], form: Form[T]) -> T:
        """The next shard, read where an earlier process drew it.

        Errors: DrawsDiffer when what that process drew does not come again; FolderError when it cannot be kept.
        """
        head = {"test": self._test, "number": self._number, "asked": dict(asked)}
        self._number += 1
        if self._reading:
            record = self._read(head)
            if record is not None:
                self._again = lambda: encoded(form.pack(draw()), head) == record
                return form.unpack(decoded(record))
            self._reading = False
            if self._again is not None and not self._again():
                raise DrawsDiffer(f"{self._test}: drawn again, shard {self._number - 2} comes out otherwise")
        drawn = draw()
        self.keep(form.pack, drawn, head)
        return drawn

    def keep(self, pack: Callable[[T], Shard], drawn: T, head: dict[str, Any]) -> None:
        """Append what was drawn. Errors: FolderError."""
        self._run.append(encoded(pack(drawn), head), head)

    def _read(self, head: Mapping[str, Any]) -> bytes | None:
        """The record of a shard, if it is whole and what is asked for."""
        record = self._run.stored(self._test, int(head["number"]))
        if record is None:
            return None
        try:
            decoded(record)
        except (ValueError, KeyError):
            return None
        asked = json.loads(json.dumps(head["asked"]))  # as it stands in a record, where tuples are lists
        return record if head_of(record).get("asked") == asked else None

    def begin_anew(self) -> TestShards:
        """Leave all shards of the test so far; from now on none of them counts. Errors: FolderError."""
        head = {"test": self._test, "anew": True}
        self._run.append(encoded(Shard(), head), head)
        return self._run.of(self._test)
