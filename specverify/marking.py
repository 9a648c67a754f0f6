"""How does text become Markdown that shows it as it is? Escaped lines, tables and blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&#~])")


def plain(text: str) -> str:
    """Text from a certificate as one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Make a table whose cells are escaped."""
    body = ["| " + " | ".join(map(plain, row)) + " |" for row in rows]
    return ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *body, ""]


def fenced(text: str, language: str = "text") -> list[str]:
    """Make a block of code with a fence longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text, fence, ""]
