"""How does one begin? An adapter for every kind of subject, which is certified as it stands and says what to replace.

The files of this folder are those adapters; ``specverify init KIND`` writes a copy.
"""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

from specverify.errors import UsageError

KINDS = {
    "verifier": "one verification step: drafted tokens and both laws in, emitted tokens out; it draws its own randomness",
    "given": "the same for a kernel that is given its random numbers, in numpy, torch or anything else",
    "tree": "one verification step over a tree of drafts, several for one position",
    "step": "one round with its drafting inside, over models that it is handed",
    "decoder": "a whole decoder with models of its own, whose log-probabilities are known",
    "build": "a decode loop that can be built over models handed in, which are then walked exactly",
    "on_off": "an engine whose log-probabilities are not known: speculation on against off",
}
"""Every kind of subject with one line; a file of this folder is named after each."""

PLACE = "THIS_FILE"
"""Where an adapter names the file that it stands in."""


def listing() -> str:
    """All kinds, one a line."""
    width = max(map(len, KINDS))
    return "\n".join(f"  {kind:<{width}}  {line}" for kind, line in KINDS.items())


def template(kind: str, path: str) -> str:
    """The text of the adapter for a kind, for a file at ``path``. Errors: UsageError that lists the kinds."""
    if kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r} of subject; specverify init KIND, with KIND one of\n{listing()}")
    text = resources.files(__name__).joinpath(f"{kind}.py").read_text(encoding="utf-8")
    return text.replace(PLACE, shlex.quote(path))


def write_template(kind: str, out: Path | None = None) -> Path:
    """Write the adapter for a kind to ``out``, or to ``my_KIND.py`` here, and return its path.

    Errors: UsageError when the kind is not known, ``out`` is no Python file or is there already; OSError.
    """
    path = Path(f"my_{kind}.py") if out is None else out
    text = template(kind, str(path))
    if path.suffix != ".py":
        raise UsageError(f"{path} would not be read as a Python file; let --out end with .py")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already and stays as it is; choose another --out") from None
    return path
