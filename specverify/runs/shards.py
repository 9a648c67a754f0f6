"""What is a shard? A part of what a test draws that is kept as a whole: integers, and the numbers that belong to them.

A check hands over how a shard is drawn, and gets it back: from the process that runs now, or from an earlier one that was
killed. Here nothing is kept; :mod:`specverify.runs.store` keeps shards in the folder of a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from specverify.laws import Ints

T = TypeVar("T")
SIZES = tuple((kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in ("int8", "int16", "int32", "int64"))
"""Types that integers are written in, with their range: the smallest that holds them all."""
_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, eq=False)
class Shard:
    """facts: plain numbers, lists and text. arrays: integers of any shape."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True)
class Form(Generic[T]):
    """How what a check draws becomes a shard, and comes back from it unchanged."""

    pack: Callable[[T], Shard]
    unpack: Callable[[Shard], T]


class Shards:
    """What one test draws, shard after shard."""

    def drawn(self, asked: Mapping[str, Any], draw: Callable[[], T], form: Form[T]) -> T:
        """The next shard of the test.

        asked: what is drawn, as plain data: a kept shard for which something else was asked is not used. draw: may be called
        any number of times, and draws the same each time if the subject draws according to its seeds. form: how it is kept.
        """
        del asked, form
        return draw()


UNKEPT = Shards()
"""For tests outside a run that has a folder."""


def encoded(shard: Shard, head: Mapping[str, Any]) -> bytes:
    """A shard as bytes, with a head of plain data; the same bytes for the same shard and head."""
    arrays, body = [], []
    for name, values in shard.arrays.items():
        kind = smallest(values)
        arrays.append([name, kind, values.shape])
        body.append(values.astype(kind).tobytes())
    line = _JSON.encode({**head, "facts": shard.facts, "arrays": arrays})
    return line.encode() + b"\n" + b"".join(body)


def smallest(values: Ints) -> str:
    """The smallest type that holds the integers."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    return next(kind for kind, least, most in SIZES if least <= low and high <= most)


def head_of(record: bytes) -> dict[str, Any]:
    """The head of a record, without its arrays. Errors: ValueError."""
    head = json.loads(record[: record.index(b"\n")])
    if not isinstance(head, dict):
        raise ValueError("the head of a record is no JSON object")
    return head


def decoded(record: bytes) -> Shard:
    """The shard of a record. Errors: ValueError."""
    head = head_of(record)
    arrays, at = {}, record.index(b"\n") + 1
    for name, kind, shape in head["arrays"]:
        found = np.frombuffer(record, np.dtype(kind), math.prod(shape), at)
        arrays[name] = found.astype(np.int64).reshape(shape)
        at += found.nbytes
    return Shard(head["facts"], arrays)
