"""How is an engine in a process of its own asked, whatever it does? Lines in, lines out, within bounds of time and memory.

An :class:`Engine` starts a command, writes one line and reads one line at a time. It reads both of the process's streams
while it writes, so neither side waits for ever on a full pipe, and keeps no more of them than it needs. A process that dies,
hangs, floods its output or answers out of turn is killed with all its descendants, and what happened is raised and noted
(:mod:`specverify.breakdowns`). How it is started and ended stands in :mod:`specverify.adapters.running`.

A call that failed is never asked again: answers of a process that are kept only where it did not crash follow another law
than its own. Within one test a lost process stays lost; the next test gets a fresh one, a fixed number of times.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import time
import weakref
from pathlib import Path
from typing import NoReturn

from specverify.adapters.running import FAREWELL, Running, started
from specverify.breakdowns import broken_here, note_breakdown
from specverify.errors import SpecverifyError, SubjectError

CHUNK = 1 << 18
"""Bytes read from a pipe at a time."""
KEPT_STDERR, SHOWN_LINES = 8192, 5
"""Bytes of stderr that are kept, and lines of them that an error shows."""
LOOK = 0.05
"""Seconds between two looks at whether the process still runs: a descendant may hold its pipes open."""


def plain(text: str, most: int = 300) -> str:
    """One line of text that can be written anywhere: control characters and lone surrogates replaced, cut to ``most``."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= most else line[:most] + " ..."


class Engine:
    """A command that answers lines with lines; see the module. One caller at a time.

    timeout: seconds per call. restarts: how often a process that was lost is started again. Errors: SubjectError.
    """

    def __init__(self, command: str | list[str] | tuple[str, ...], *, timeout: float, restarts: int) -> None:
        if os.name != "posix":
            raise SubjectError("engines in processes need a POSIX system; on Windows run specverify in WSL")
        try:
            self.words = tuple(shlex.split(command) if isinstance(command, str) else map(str, command))
        except ValueError as error:
            raise SubjectError(f"the command {command!r} cannot be split into words: {error}; quote it as in a shell") from None
        if not self.words:
            raise SubjectError("the command of the engine is empty; write process:COMMAND, as in process:./engine")
        if not 0 < timeout <= 1e6:
            raise SubjectError(f"timeout={timeout} is not known; give the seconds that one call may take")
        if restarts < 0:
            raise SubjectError(f"restarts={restarts} is not known; give how often a lost process is started again, 0 or more")
        self.timeout, self.restarts = timeout, restarts
        self.starts = 0
        self._running: Running | None = None
        self._finalizer: weakref.finalize[[float], Engine] | None = None
        self._stderr = bytearray()
        self._lost: tuple[list[str] | None, str] | None = None

    @property
    def title(self) -> str:
        """The command, for messages."""
        return plain(shlex.join(self.words), 120)

    @property
    def source_files(self) -> tuple[str, ...]:
        """Files of moderate size that the command names, for the digest of the subject's source."""
        return tuple(word for word in self.words if Path(word).is_file() and Path(word).stat().st_size <= 1 << 26)

    @property
    def pid(self) -> int | None:
        """Number of the process that runs, if one does."""
        return None if self._running is None else self._running.process.pid

    def ready(self) -> bool:
        """See to it that a process runs; True when a fresh one was started.

        Errors: SubjectError when none may be; in the test that lost one SpecverifyError, which no check takes for an error of
        certain inputs.
        """
        if self._running is not None and self._running.owner != os.getpid():
            self._running = None  # this is a fork of the certifier: the process belongs to the one that started it
            self.starts = 0
        if self._running is not None:
            return False
        if self._lost is not None:
            test, message = self._lost
            if test is not None and test is broken_here():
                raise SpecverifyError(f"{message} It is not asked again in the same test.")
            if self.starts > self.restarts:
                raise SubjectError(f"{self.title} was started {self.starts} times, and not again: {message}")
        self._start()
        return True

    def _start(self) -> None:
        self.starts += 1
        self._stderr.clear()
        try:
            self._running = started(self.words)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            hint = "" if shutil.which(self.words[0]) else "; a Python module named process is named process.py:attribute"
            raise SubjectError(f"cannot start {self.title}: {why}{hint}") from None
        self._finalizer = weakref.finalize(self, self._running.end, FAREWELL)

    def stop(self) -> None:
        """End the process, if one runs, with all that it started. The next call starts a fresh one, as if it were the first."""
        self.starts, self._lost = 0, None
        if self._running is not None:
            running, self._running = self._running, None
            self._leave()
            running.end(FAREWELL)

    def _leave(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None

    def ask(self, line: bytes, most: int, what: str, timeout: float | None = None) -> bytes:
        """Write one line and read the line that answers it, of at most ``most`` bytes.

        what: the call, for messages. timeout: seconds, where they are not those of every call. Errors: SubjectError when no
        such line comes; the process is then killed.
        """
        running = self._running
        assert running is not None
        try:
            with contextlib.closing(selectors.DefaultSelector()) as selector:
                return self._exchange(running, selector, memoryview(line), most, what, timeout or self.timeout)
        except SubjectError:
            raise
        except BaseException:  # an alarm, which ends the test, or an interrupt, in the middle of a line
            self._drop(running, f"{self.title} was stopped in the middle of {what}.")
            raise

    def _exchange(
        self,
        running: Running,
        selector: selectors.BaseSelector,
        left: memoryview,
        most: int,
        what: str,
        timeout: float,
    ) -> bytes:
        stdin, stdout, stderr = running.process.stdin, running.process.stdout, running.process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        if early := _read(stdout.fileno()):
            self.lose(f"wrote on stdout before it was asked for {what}: {_shown(early)}")
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        selector.register(stdin, selectors.EVENT_WRITE)
        answer = bytearray()
        until = time.monotonic() + timeout
        look = time.monotonic() + LOOK
        while True:
            now = time.monotonic()
            if now >= until:
                self.lose(f"did not answer {what} within {timeout:g} s, its time limit")
            over = now >= look and running.ended() is not None
            look = now + LOOK if now >= look else look
            for key, _ in selector.select(0 if over else min(LOOK, until - now)):
                if key.fileobj is stdin:
                    try:
                        left = left[os.write(stdin.fileno(), left[:CHUNK]) :]
                    except BlockingIOError:
                        continue
                    except OSError:
                        left = left[:0]
                        over = True
                    if not left:
                        selector.unregister(stdin)
                elif key.fileobj is stderr:
                    read = _read(stderr.fileno())
                    self._keep(read or b"")
                    if read == b"":
                        selector.unregister(stderr)
                else:
                    read = _read(stdout.fileno())
                    seen = len(answer)
                    answer += read or b""
                    end = answer.find(b"\n", seen)
                    if end >= 0 and end <= most:
                        if left:
                            self.lose(f"answered {what} before it had read it to its end: {_shown(answer)}")
                        if len(answer) > end + 1:
                            self.lose(
                                f"wrote more than one line in answer to {what}: {_shown(answer)}; write answers on stdout, "
                                "all else on stderr"
                            )
                        return bytes(answer[:end])
                    if len(answer) > most:
                        self.lose(f"wrote more than {most} bytes in answer to {what}, a line that begins {_shown(answer)}")
                    over = over or read == b""
            if over:
                self._gone(running, answer, what)

    def _gone(self, running: Running, answer: bytearray, what: str) -> NoReturn:
        """Raise for a process that ended, or closed a pipe, before its answer was complete."""
        until = time.monotonic() + FAREWELL
        while not running.ended() and time.monotonic() < until:
            time.sleep(0.005)
        half = f" after half a line, {_shown(answer)}" if answer else ""
        if not running.ended():
            self.lose(f"closed its stdin or stdout instead of answering {what}{half}")
        self._drain(running)
        self.lose(f"{running.ended()} instead of answering {what}{half}")

    def lose(self, why: str) -> NoReturn:
        """Kill the process, which cannot be asked any more, note it and raise. Errors: SubjectError, always."""
        running = self._running
        assert running is not None
        self._drain(running)
        said = f"{self.title} {why}."
        lines = bytes(self._stderr).decode("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        if lines:
            said += f" The end of its stderr: {' | '.join(plain(line, 200) for line in lines)}."
        left = max(0, self.restarts + 1 - self.starts)
        said += f" It was killed; {left} of {self.restarts} restarts are left for later tests."
        note_breakdown(said)
        self._drop(running, said)
        raise SubjectError(said)

    def _drop(self, running: Running, message: str) -> None:
        self._running = None
        self._leave()
        self._lost = (broken_here(), message)
        running.end()

    def _drain(self, running: Running) -> None:
        """Keep what stands in the pipe of stderr, as far as it is there at once."""
        assert running.process.stderr is not None
        for _ in range(8):
            if read := _read(running.process.stderr.fileno()):
                self._keep(read)
            else:
                return

    def _keep(self, read: bytes) -> None:
        self._stderr += read
        del self._stderr[:-KEPT_STDERR]


def _read(pipe: int) -> bytes | None:
    """What can be read at once, b"" at the end, None when there is nothing now."""
    try:
        return os.read(pipe, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _shown(data: bytes | bytearray) -> str:
    return repr(plain(bytes(data[:400]).decode("utf-8", "replace"), 120))
