"""Which records of a file are whole? Frames with a checksum, appended and never changed; a kill leaves a torn last one."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = b"SVR1"
CHECKSUM = 16
"""Bytes of the checksum."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
_HEAD = struct.Struct(f"<4sI{CHECKSUM}s")


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=CHECKSUM).digest()


def framed(payload: bytes) -> bytes:
    """A record as it stands in a file: what it is, how long, its checksum, itself."""
    return _HEAD.pack(MAGIC, len(payload), _checksum(payload)) + payload


def _whole(head: bytes, payload: bytes) -> bool:
    magic, length, checksum = _HEAD.unpack(head)
    return bool(magic == MAGIC and len(payload) == length and _checksum(payload) == checksum)


def whole_records(path: Path, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Records from byte ``start`` on as (first byte, byte after the last, payload), up to the first that is not whole."""
    with path.open("rb") as stream:
        stream.seek(start)
        at = start
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            magic, length, _ = _HEAD.unpack(head)
            if magic != MAGIC:
                return
            payload = stream.read(length)
            if not _whole(head, payload):
                return
            end = at + _HEAD.size + length
            yield at, end, payload
            at = end


def record_at(path: Path, offset: int) -> bytes | None:
    """The record that begins at a byte; None when no whole one does."""
    try:
        return next((payload for at, _, payload in whole_records(path, offset) if at == offset), None)
    except OSError:
        return None


class Segment:
    """A new file of records that one process appends to; a file that was written before is never opened for writing again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.number = folder, last_segment(folder)
        while True:
            self.number += 1
            try:
                self._file = os.open(segment_path(folder, self.number), NEW, 0o644)
            except FileExistsError:  # another process of this run was faster
                continue
            break
        self.broken = False

    def append(self, payload: bytes) -> tuple[int, int]:
        """Write a record in one go; returns where it begins and ends.

        When that fails, or is broken off by an alarm, ``broken`` stays True: what follows a torn record would be lost, so the
        next one belongs into a new segment. Errors: OSError.
        """
        self.broken = True
        left = memoryview(framed(payload))
        start = os.lseek(self._file, 0, os.SEEK_END)
        end = start + len(left)
        while left:
            left = left[os.write(self._file, left) :]
        self.broken = False
        return start, end

    def sync(self) -> None:
        """Ask the system to put on disk what was written. Errors: OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def segment_path(folder: Path, number: int) -> Path:
    """Where the segment of that number lies."""
    return folder / f"{number:04d}.log"


def segments(folder: Path) -> list[int]:
    """Numbers of the segments there are, in the order in which they were begun."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdecimal())


def last_segment(folder: Path) -> int:
    """Number of the newest segment, 0 without one."""
    return max(segments(folder), default=0)
