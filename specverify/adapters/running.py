"""How is a process ended with whatever it started, whatever becomes of it or of us? By its session, a mark, and a guard.

It leads a session and a group of its own, carries a mark in its environment, by which descendants that left the group are found
where the system tells (Linux), and has a guard beside it that kills the group when the process that started both is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FAREWELL = 0.5
"""Seconds that a process has to end by itself, after its input was closed, before it is killed."""
MARK = "SPECVERIFY_ENGINE"
"""Environment variable that marks a process and its descendants, so that those that left its group are found too."""
_GUARD = 'read -r _; kill -s KILL -- "-$1"'
"""Run by a shell beside every engine: its input ends when the certifier is gone, however that came to pass."""


@dataclass(eq=False)
class Running:
    """A process that was started, with what is needed to end it: ``owner`` is the process that started it."""

    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    mark: str
    owner: int
    closed: bool = False

    def ended(self) -> str | None:
        """How the process itself ended, in words; None while it runs.

        It is not reaped where the system can tell without (Linux), so that its number, and its group's, stays its own.
        """
        if not hasattr(os, "waitid"):
            code = self.process.poll()
            return None if code is None else f"exited with code {code}" if code >= 0 else f"died of signal {-code}"
        try:
            found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "ended"
        if found is None:
            return None
        return f"exited with code {found.si_status}" if found.si_code == os.CLD_EXITED else f"died of signal {found.si_status}"

    def end(self, farewell: float = 0.0) -> None:
        """Close its input, wait ``farewell`` seconds, and kill what is left of it and of all that it started."""
        if os.getpid() != self.owner or self.closed:
            return
        self.closed = True
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        until = time.monotonic() + farewell
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        kill_marked(self.mark)
        self.guard.kill()
        self.guard.wait()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr, self.guard.stdin):
            if pipe is not None:
                pipe.close()


def started(words: Sequence[str]) -> Running:
    """Start a command, without a shell, with pipes that do not block. Errors: OSError or ValueError when that cannot be."""
    mark = uuid.uuid4().hex
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(  # noqa: S603 - the command that the user named, without a shell
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
        guard = subprocess.Popen(  # noqa: S603 - a fixed script and a number
            ["/bin/sh", "-c", _GUARD, "sh", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        if process is not None:
            process.kill()
        raise
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return Running(process, guard, mark, os.getpid())


def kill_marked(mark: str) -> None:
    """Kill every process that carries the mark in its environment, where /proc and pidfd tell (Linux); else nothing."""
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/environ").exists():
        return
    wanted = f"{MARK}={mark}".encode()
    for _ in range(20):  # what forks while it is looked for is found in the next round
        found = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(int(entry.name))
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        found += 1
                finally:
                    os.close(handle)
        if not found:
            return
