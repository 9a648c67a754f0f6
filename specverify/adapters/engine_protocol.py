"""What is said to an engine in a process, and what does it say? Numbered requests and answers as lines of JSON.

``docs/processes.md`` is the protocol. Here is what holds for every call: the greeting, the numbers of requests, errors as
answers, and how a line is read. Whatever is no answer to the request at hand ends the process, since nothing that follows
could be trusted; an answer that can be read but not be used is an error of that call alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from specverify.adapters.engine_process import Engine, plain
from specverify.breakdowns import note_breakdown
from specverify.errors import SubjectError
from specverify.given import Numbers, read_given
from specverify.subjects import DTYPES, Facts, facts_from

PROTOCOL = 1
HELLO_BYTES = 1 << 20
NUMBER_BYTES, SPARE_BYTES = 64, 1 << 16
"""An answer may have so many bytes for each number that is asked for, and so many more."""
_HELLO = {"protocol", "kind", "name", "facts", "given", "vocab_size", "eos_id", "prompts", "calls"}


@dataclass(eq=False)
class Asked:
    """An engine and the protocol: numbered requests, one answer each, the same greeting from every process."""

    engine: Engine
    start_timeout: float
    number: int = 0
    greeting: dict[str, Any] | None = None

    def hello(self) -> dict[str, Any]:
        """Start the engine, greet it, and return what it says of itself, checked as far as its form goes.

        Errors: SubjectError.
        """
        if self.greeting is None:
            self.engine.ready()
            self.greeting = self._greet()
        return self.greeting

    def _greet(self) -> dict[str, Any]:
        said = self._exchange("hello", {"protocol": PROTOCOL}, HELLO_BYTES, self.start_timeout)
        if "error" in said:
            self.engine.lose(f"answered hello with an error: {plain(str(said['error']))}")
        if unknown := set(said) - _HELLO:
            self.engine.lose(
                f"says {plain(', '.join(sorted(unknown)))} of itself, which is not known; known are {listed(_HELLO)}"
            )
        if type(said.get("protocol")) is not int or said["protocol"] != PROTOCOL:
            self.engine.lose(
                f"speaks protocol {plain(repr(said.get('protocol')), 40)}; this version of specverify speaks {PROTOCOL}"
            )
        if said.get("kind") not in ("verifier", "decoder"):
            self.engine.lose(f"says that its kind is {plain(repr(said.get('kind')), 40)}; say verifier or decoder")
        if not isinstance(said.get("name", ""), str):
            self.engine.lose("has a name that is no string")
        if isinstance(said.get("calls"), list):
            said["calls"] = sorted(said["calls"], key=str)  # their order says nothing, and may change from process to process
        if self.greeting is not None and said != self.greeting:
            self.engine.lose(
                "says something else of itself than before it was started again, so that another law may be judged"
            )
        return said

    def __call__(self, call: str, arguments: dict[str, Any], numbers: int) -> dict[str, Any]:
        """Ask one call whose answer holds so many numbers. Errors: SubjectError, also when the engine answers with one."""
        if self.engine.ready():
            self._greet()
        said = self._exchange(call, arguments, SPARE_BYTES + NUMBER_BYTES * numbers)
        if "error" in said:
            raise SubjectError(f"{self.engine.title} answered {call} with an error: {plain(str(said['error']))}")
        return said

    def refuse(self, call: str, why: str) -> NoReturn:
        """Raise for an answer that can be read but not be used, and note it: a better one, another time, undoes nothing.

        Errors: SubjectError, always.
        """
        message = f"{self.engine.title} answered {call} with {why}"
        note_breakdown(message)
        raise SubjectError(message)

    def _exchange(self, call: str, arguments: dict[str, Any], most: int, timeout: float | None = None) -> dict[str, Any]:
        self.number += 1
        line = json.dumps({"id": self.number, "call": call, **arguments}, separators=(",", ":"), allow_nan=False)
        what = f"{call}, request {self.number}"
        answer = self.engine.ask(line.encode() + b"\n", most, what, timeout)
        try:
            said = json.loads(answer.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            shown = plain(answer[:400].decode("utf-8", "replace"), 120)
            why = f"not UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else plain(str(error))
            self.engine.lose(
                f"answered {what} with what is no JSON ({why}): {shown!r}; write answers on stdout, all else on stderr"
            )
        if not isinstance(said, dict):
            self.engine.lose(f"answered {what} with a JSON {type(said).__name__}, not an object")
        if type(said.get("id")) is not int or said["id"] != self.number:
            self.engine.lose(f"answered {what} with the id {plain(repr(said.get('id')), 40)}")
        del said["id"]
        return said


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON; write null for a log-probability of -inf")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def listed(names: set[str]) -> str:
    """Names in order, for messages."""
    return ", ".join(sorted(names))


def is_table(value: object, rows: int) -> bool:
    """Whether a value is a list of so many lists of whole numbers."""
    return (
        isinstance(value, list)
        and len(value) == rows
        and all(isinstance(row, list) and all(type(x) is int for x in row) for row in value)
    )


def in_range(values: Sequence[int], low: int, high: int) -> bool:
    """Whether no number is below ``low`` or above ``high``."""
    return all(low <= x <= high for x in values)


_POSITIVE = ("max_k", "max_batch", "drafts")
_FLAGS = ("seeded", "batch_invariant", "lossy", "drafts_as_given")


def declared_facts(hello: Mapping[str, Any]) -> Facts:
    """The declared facts. Errors: SubjectError naming the one that cannot be."""
    said = hello.get("facts", {})
    if not isinstance(said, dict):
        raise SubjectError(f"the engine says facts = {plain(repr(said), 40)}; give an object")
    for key, value in said.items():
        fits = {
            **dict.fromkeys(_POSITIVE, type(value) is int and value >= 1),
            **dict.fromkeys(_FLAGS, isinstance(value, bool)),
            "rule": isinstance(value, str),
            "dtype": isinstance(value, str) and value in DTYPES,
            "logit_tolerance": type(value) in (int, float),
        }
        if value is None and key in ("rule", "max_k", "max_batch"):
            continue
        if not fits.get(key, True):
            raise SubjectError(f"the engine says {key} = {plain(repr(value), 40)} of itself, which it cannot be")
    known = {**said, "rule": plain(said["rule"], 80)} if isinstance(said.get("rule"), str) else said
    return facts_from(known)


def declared_given(hello: Mapping[str, Any]) -> tuple[Numbers, ...]:
    """The random numbers that a verifier asks for. Errors: SubjectError that shows how to write it."""
    said = hello.get("given")
    if said is not None and not isinstance(said, str):
        if not isinstance(said, dict) or not all(isinstance(form, str) for form in said.values()):
            raise SubjectError(
                f'the engine says given = {plain(repr(said), 80)}; write "uniforms", or {{"u": "uniforms (B, K+1)"}}'
            )
        said = {plain(name, 40): form for name, form in said.items()}
    return read_given(said)
