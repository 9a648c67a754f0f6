"""Which shards are there, and where? A small SQLite index over the files of records: a cache, never the truth.

It is brought up to date from the files whenever a run is opened, and made anew from them when it is missing or damaged.
It keeps a rollback journal and not a write-ahead log: one process writes, a commit comes every few seconds, and a folder that
is read-only or on a network can still be read. What a crash of the system takes from it is read from the files again, so it
waits for no disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specverify.runs.records import record_at, segment_path, segments, whole_records
from specverify.runs.shards import head_of

Check = Callable[[Path, dict[str, Any]], None]
VERSION = 1
_TABLES = """
CREATE TABLE shards (test TEXT, number INTEGER, segment INTEGER, offset INTEGER, PRIMARY KEY (test, number)) WITHOUT ROWID;
CREATE TABLE segments (segment INTEGER PRIMARY KEY, bytes INTEGER);
"""

_ENTER = """
INSERT INTO shards VALUES (?, ?, ?, ?) ON CONFLICT (test, number)
DO UPDATE SET segment = excluded.segment, offset = excluded.offset WHERE excluded.segment >= shards.segment
"""


class Index:
    """Places of the shards in ``folder``; ``path`` is the index file, None for an index in memory.

    An index that cannot be kept in its file (a full disk, a read-only folder) is kept in memory: nothing is lost by it.
    check: asked about the head of each file's first record; may raise.
    """

    def __init__(self, folder: Path, path: Path | None, check: Check = lambda *_: None) -> None:
        self.folder, self.path, self._check = folder, path, check
        self._waiting: list[tuple[int, int, int, dict[str, Any]]] = []
        """Records that were appended and are not noted yet: noting them one by one would cost more than writing them."""
        self._tables = self._opened()
        self._guarded(self._catch_up)

    def _opened(self) -> sqlite3.Connection:
        if self.path is not None:
            for _ in range(2):
                try:
                    return _connected(self.path)
                except sqlite3.Error:  # damaged, of another version, or no place to write to
                    with contextlib.suppress(OSError):
                        self.path.unlink(missing_ok=True)
        return _connected(None)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do something with the index; when SQLite cannot, do it with one in memory, read from the files."""
        try:
            act()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._tables.close()
            self.path, self._tables = None, _connected(None)
            self._catch_up()
            act()

    def _catch_up(self) -> None:
        """Read what was appended since; all of it where the index knows more than there is."""
        known = dict(self._tables.execute("SELECT segment, bytes FROM segments"))
        there = {number: segment_path(self.folder, number).stat().st_size for number in segments(self.folder)}
        if any(size > there.get(number, -1) for number, size in known.items()):
            self._tables.execute("DELETE FROM shards")
            self._tables.execute("DELETE FROM segments")
            known = {}
        for number in there:
            path = segment_path(self.folder, number)
            first = record_at(path, 0)
            if first is None:
                continue
            self._check(path, head_of(first))
            for offset, end, payload in whole_records(path, known.get(number, 0)):
                self._enter(number, offset, end, head_of(payload))
        self._tables.commit()

    def _enter(self, segment: int, offset: int, end: int, head: dict[str, Any]) -> None:
        """Note a record; what a later file says counts, also when an orphan of a killed run goes on with an earlier one."""
        if head.get("anew"):
            self._tables.execute("DELETE FROM shards WHERE test = ? AND segment <= ?", (head["test"], segment))
        elif "number" in head:
            self._tables.execute(_ENTER, (head["test"], head["number"], segment, offset))
        self._tables.execute("INSERT OR REPLACE INTO segments VALUES (?, ?)", (segment, end))

    def enter(self, segment: int, offset: int, end: int, head: dict[str, Any]) -> None:
        """Note a record that was just appended."""
        self._waiting.append((segment, offset, end, head))

    def _note(self) -> None:
        for record in self._waiting:
            self._enter(*record)
        self._waiting.clear()

    def place(self, test: str, number: int) -> tuple[Path, int] | None:
        """File and first byte of a shard; None when it is not there."""
        found: list[tuple[int, int]] = []

        def look() -> None:
            self._note()
            query = "SELECT segment, offset FROM shards WHERE test = ? AND number = ?"
            found[:] = self._tables.execute(query, (test, number)).fetchall()

        self._guarded(look)
        return (segment_path(self.folder, found[0][0]), found[0][1]) if found else None

    def counts(self) -> dict[str, int]:
        """How many shards there are of each test."""
        found: dict[str, int] = {}
        self._guarded(self._note)
        query = "SELECT test, COUNT(*) FROM shards GROUP BY test"
        self._guarded(lambda: found.update(self._tables.execute(query)))
        return found

    def rebuild(self) -> None:
        """Read all files again."""
        self._guarded(self._emptied)
        self._guarded(self._catch_up)

    def _emptied(self) -> None:
        self._tables.execute("DELETE FROM shards")
        self._tables.execute("DELETE FROM segments")

    def commit(self) -> None:
        """Write what was appended since."""
        self._guarded(self._note)
        self._guarded(self._committed)

    def _committed(self) -> None:
        self._tables.commit()

    def close(self) -> None:
        """Write what was appended since, and let go of the file."""
        self.commit()
        self._tables.close()


def _connected(path: Path | None) -> sqlite3.Connection:
    """An index with its tables. Errors: sqlite3.Error, also for one of another version."""
    tables = sqlite3.connect(":memory:" if path is None else path, timeout=1.0)
    try:
        tables.execute("PRAGMA journal_mode = DELETE")
        tables.execute("PRAGMA synchronous = OFF")
        (version,) = tables.execute("PRAGMA user_version").fetchone()
        if version == 0:
            tables.executescript(_TABLES)
            tables.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"an index of version {version}")
        tables.execute("SELECT COUNT(*) FROM shards, segments").fetchone()
    except sqlite3.Error:
        tables.close()
        raise
    return tables


def counted(folder: Path, path: Path) -> dict[str, int]:
    """How many shards of each test the index at ``path`` knows, without writing; read from the files where it cannot tell."""
    try:
        tables = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        try:
            return dict(tables.execute("SELECT test, COUNT(*) FROM shards GROUP BY test"))
        finally:
            tables.close()
    except sqlite3.Error:
        with contextlib.closing(Index(folder, None)) as index:
            return index.counts()
