"""A document that is one session: its Python blocks, what each printed when it was written, and what it prints now.

``PYTHONPATH=. python tests/shared/walked_document.py docs/tour.md`` runs the document and writes its outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```(?:\n\n(?:<!-- (?P<kind>[^>]+) -->\n)?```text\n(?P<printed>.*?)```)?", re.DOTALL
)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?|(?<![\w.])-?\d+e-?\d+")


def marked_blocks(text: str) -> dict[str, str]:
    """Code blocks by the name in the comment before them."""
    return {m[1]: m[2] for m in re.finditer(r"<!-- run: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)}


@dataclass(frozen=True)
class Block:
    """Code and the output below it.

    kind says how outputs are compared: "exact", letter by letter; "within X", words letter by letter and numbers with a
    decimal point to within X; "timed", as "within", numbers not at all.
    """

    code: str
    printed: str
    kind: str = "exact"

    def difference(self, found: str) -> str | None:
        """What is not as in the document, in words; None where nothing is."""
        if self.kind == "exact":
            return None if found == self.printed else f"printed\n{found}instead of\n{self.printed}"
        if NUMBER.sub("#", found).split() != NUMBER.sub("#", self.printed).split():
            return f"the words differ: printed\n{found}instead of\n{self.printed}"
        if self.kind == "timed":
            return None
        tolerance = float(self.kind.removeprefix("within "))
        for now, then in zip(NUMBER.findall(found), NUMBER.findall(self.printed), strict=True):
            if not abs(float(now) - float(then)) <= tolerance:
                return f"{now} instead of {then}, more than {tolerance} apart, in\n{found}"
        return None


def blocks_of(text: str) -> list[Block]:
    """Return the Python blocks of a document in order."""
    return [Block(m["code"], m["printed"] or "", m["kind"] or "exact") for m in BLOCK.finditer(text)]


def printed_by(blocks: list[Block], name: str) -> list[str]:
    """Run blocks one after the other in one session and return what each printed."""
    scope: dict[str, object] = {}
    printed = []
    for number, block in enumerate(blocks, start=1):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.code, f"{name}, block {number}", "exec"), scope)
        printed.append(out.getvalue())
    return printed


def rewritten(text: str, printed: list[str]) -> str:
    """Return the document with other outputs."""
    found = iter(printed)

    def replaced(match: re.Match[str]) -> str:
        output = next(found)
        if match["printed"] is None:
            assert not output, f"a block printed and the document shows nothing of it:\n{match['code']}"
            return match[0]
        return match[0][: match.start("printed") - match.start()] + output + "```"

    return BLOCK.sub(replaced, text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    page = path.read_text(encoding="utf-8")
    path.write_text(rewritten(page, printed_by(blocks_of(page), path.name)), encoding="utf-8")
