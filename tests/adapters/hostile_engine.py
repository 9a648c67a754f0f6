"""An engine that greets well and then behaves as its first argument says; sampling from the target would be right.

It imports nothing heavy, since a test starts it many times. ``right`` samples each token from the target, which is exact.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import Any

HELLO = {"protocol": 1, "kind": "verifier", "name": "hostile"}
SLEEP = "import time; time.sleep(60)"


def read() -> dict[str, Any]:
    """The next request; the end of stdin ends the process."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)  # type: ignore[no-any-return]


def say(**answer: Any) -> None:
    """One line on stdout."""
    raw(json.dumps(answer).encode() + b"\n")


def raw(data: bytes) -> None:
    """Bytes on stdout."""
    sys.stdout.flush()
    os.write(1, data)


def right(asked: dict[str, Any]) -> list[list[int]]:
    """One token per row, from the target's first law: exact, though it accepts nothing on purpose."""
    tokens = range(asked["vocab_size"])
    return [random.choices(tokens, asked["target_probs"][law][0]) for law in asked["law"]]


def answer(asked: dict[str, Any], **changes: Any) -> None:
    """Say the right answer with changes."""
    say(**{"id": asked["id"], "tokens": right(asked), **changes})


def flood(fd: int) -> None:
    """Write for ever, without a line break."""
    while True:
        os.write(fd, b"x" * 65536)


def noisy(asked: dict[str, Any]) -> None:
    """Two megabytes on stderr before the right answer."""
    sys.stderr.write("progress \x1b[2K\r" * 200_000)
    sys.stderr.flush()
    answer(asked)


def crash_on_zero(asked: dict[str, Any]) -> None:
    """Die rather than emit token 0: what is left of the law is wrong."""
    tokens = right(asked)
    if any(row == [0] for row in tokens):
        sys.exit("token 0 is not supported")
    say(id=asked["id"], tokens=tokens)


def orphan(asked: dict[str, Any], **options: Any) -> None:
    """Leave a child that holds both pipes open, and go."""
    subprocess.Popen([sys.executable, "-S", "-c", SLEEP], **options)
    sys.exit(0)


def first(asked: dict[str, Any], row: list[Any]) -> None:
    """The right answer with another first row."""
    answer(asked, tokens=[row, *right(asked)[1:]])


BEHAVIOURS = {
    "right": answer,
    "noisy": noisy,
    "error": lambda asked: say(id=asked["id"], error="out of \x1b[31mmemory\ud800"),
    "garbage": lambda asked: (raw(b"Loading weights: 100%\n"), answer(asked)),
    "list": lambda asked: say_list(asked),
    "flood": lambda asked: flood(1),
    "flood stderr": lambda asked: flood(2),
    "half a line": lambda asked: (raw(b'{"id": 2, "tok'), time.sleep(60)),
    "half a line, exit": lambda asked: (raw(b'{"id": 2, "tok'), sys.exit(0)),
    "wrong id": lambda asked: answer(asked, id=asked["id"] + 1),
    "old id": lambda asked: answer(asked, id=1),
    "true id": lambda asked: answer(asked, id=True),
    "twice": lambda asked: raw(2 * (json.dumps({"id": asked["id"], "tokens": right(asked)}).encode() + b"\n")),
    "twice the key": lambda asked: raw(b'{"id":%d,"tokens":[],"tokens":[]}\n' % asked["id"]),
    "exit": lambda asked: (sys.stderr.write("first\nCUDA error: out of memory\n"), sys.exit(7)),
    "signal": lambda asked: os.abort(),
    "sleep": lambda asked: time.sleep(60),
    "orphan": orphan,
    "daemon": lambda asked: orphan(asked, start_new_session=True),
    "no utf-8": lambda asked: raw(b'{"id": 2, "tokens": "\xff\xfe"}\n'),
    "huge line": lambda asked: raw(b'{"id":%d,"tokens":[],"x":"' % asked["id"] + b"y" * (1 << 23) + b'"}\n'),
    "deep": lambda asked: raw(b"[" * 60_000 + b"\n"),
    "large number": lambda asked: first(asked, [10**4000]),
    "endless number": lambda asked: raw(b'{"id":%d,"tokens":[[' % asked["id"] + b"1" * 10_000 + b"]]}\n"),
    "nan": lambda asked: first(asked, [float("nan")]),
    "too few rows": lambda asked: answer(asked, tokens=right(asked)[1:]),
    "too many rows": lambda asked: answer(asked, tokens=[*right(asked), [0]]),
    "no tokens": lambda asked: first(asked, []),
    "too many tokens": lambda asked: first(asked, [0] * (asked["k"] + 2)),
    "outside": lambda asked: first(asked, [asked["vocab_size"]]),
    "padding": lambda asked: first(asked, [0, -1]),
    "float": lambda asked: first(asked, [0.0]),
    "boolean": lambda asked: first(asked, [True]),
    "text": lambda asked: first(asked, ["0"]),
    "flat": lambda asked: answer(asked, tokens=[0] * asked["rows"]),
    "accepted lie": lambda asked: answer(asked, accepted=[asked["k"] + 1] * asked["rows"]),
    "accepted short": lambda asked: answer(asked, accepted=[0]),
    "unknown key": lambda asked: answer(asked, counts=[1] * asked["rows"]),
    "nothing": lambda asked: say(id=asked["id"]),
    "null": lambda asked: raw(b"null\n"),
    "closed stdin": lambda asked: (os.close(0), time.sleep(60)),
    "closed stdout": lambda asked: (os.close(1), time.sleep(60)),
    "crash on zero": crash_on_zero,
}


def say_list(asked: dict[str, Any]) -> None:
    """An answer that is no object."""
    raw(json.dumps([asked["id"], right(asked)]).encode() + b"\n")


if __name__ == "__main__":
    say(id=read()["id"], **HELLO)
    while True:
        BEHAVIOURS[sys.argv[1]](read())
