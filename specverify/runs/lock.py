"""Who writes to the folder of a run? One process at a time; the lock of a process that was killed is none."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
import weakref
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specverify.errors import UsageError

NAME = "lock"
TRIES, WAIT = 4, 0.05
"""How often, and seconds between, the lock is asked for: whoever lists runs holds it for a moment to see whether it is free."""
UNKNOWN = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What systems say that have no such locks; there nothing keeps two processes apart."""


class RunLock:
    """The lock of a run's folder, held inside a ``with``.

    The system holds it and lets go when the process ends, however it ends; the file only says who holds it, and one that
    lies there unlocked means nothing. Errors on entering: UsageError naming the process that holds it, or why the folder
    cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def take(self) -> None:
        """Take the lock. Errors: UsageError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self.folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        try:
            if not _locked(file, tries=TRIES):
                raise UsageError(f"{self.folder} is in use: {_holder(file)}; wait for it, stop it, or choose another folder")
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(_me()).encode() + b"\n", 0)
        except OSError as error:
            os.close(file)
            raise _unwritable(self.folder, error) from error
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _forget_in_children(self)

    def release(self) -> None:
        """Let go of it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder} cannot be written: {error.strerror or error}; choose another folder, or make room")


def _forget_in_children(lock: RunLock) -> None:
    """A child that is forked would hold the lock on after its parent was killed."""
    kept = weakref.ref(lock)

    def let_go() -> None:
        held = kept()
        if held is not None:
            held.release()

    os.register_at_fork(after_in_child=let_go)


def _locked(file: int, tries: int = 1) -> bool:
    """Whether the lock could be taken; True too where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    for attempt in range(tries):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(WAIT if attempt + 1 < tries else 0)
        except OSError as error:
            if error.errno in UNKNOWN:
                return True
            raise
        else:
            return True
    return False


def _me() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])[:200],
    }


def _holder(file: int) -> str:
    """Who says in the file that it holds the lock."""
    try:
        said = json.loads(os.pread(file, 4096, 0))
        return f"process {said['pid']} on {said['host']} has written to it since {said['since']} ({said['command']})"
    except (ValueError, KeyError, TypeError):
        return "another process writes to it"


def holder(folder: Path) -> str:
    """Who writes to the folder of a run now, "" when nobody does or the folder has no lock that can be read."""
    with contextlib.suppress(OSError):
        file = os.open(folder / NAME, os.O_RDONLY)
        try:
            return "" if _locked(file) else _holder(file)
        finally:
            os.close(file)
    return ""
