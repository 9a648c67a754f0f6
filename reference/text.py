"""Which texts the models are trained on and prompted with, and how characters become ids.

Everything is read from the running Python: its documentation topics, and its own source code with comments and
docstrings removed. Ids: 0 ends a document, 1 is the newline, 2.. are the printable ASCII characters; any other
character becomes "?".
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

EOS_ID = 0
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
VOCAB_SIZE = 1 + len(ALPHABET)

_ID_OF = {character: i + 1 for i, character in enumerate(ALPHABET)}


def encode(text: str) -> Tensor:
    """Return the ids (T,) of a text, without an end."""
    unknown = _ID_OF["?"]
    return torch.tensor([_ID_OF.get(c, unknown) for c in text], dtype=torch.int64)


def decode(ids: Tensor) -> str:
    """Return the text of ids (T,), up to the end of the document if there is one. Errors: ValueError for ids outside
    0..V-1.
    """
    values = ids.tolist()
    if EOS_ID in values:
        values = values[: values.index(EOS_ID)]
    if any(not 0 < i < VOCAB_SIZE for i in values):
        raise ValueError(f"ids run from 0 to {VOCAB_SIZE - 1}; got {min(values)} to {max(values)}")
    return "".join(ALPHABET[i - 1] for i in values)


def documentation() -> tuple[list[str], list[str]]:
    """Read Python's documentation topics: (training, held out): every tenth topic in alphabetical order is held out."""
    from pydoc_data.topics import topics

    return _split([topics[name] for name in sorted(topics)])


def codec_source() -> tuple[list[str], list[str]]:
    """Read the modules of Python's character codecs, mostly tables, without comments and docstrings: (training, held
    out), every tenth module in alphabetical order being held out.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) / "encodings"
    return _split([_without_words(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))])


def as_stream(documents: Sequence[str]) -> Tensor:
    """Join documents to one stream of ids (T,) with an end after each document."""
    end = torch.tensor([EOS_ID])
    return torch.cat([part for document in documents for part in (encode(document), end)])


def prompts(rows: int, length: int) -> Tensor:
    """Return prompts (rows, length): the openings of held-out documentation topics, then passages further on."""
    held_out = [encode(d) for d in documentation()[1]]
    passages: list[Tensor] = []
    start = 0
    while len(passages) < rows:
        found = [d[start : start + length] for d in held_out if len(d) >= start + length]
        if not found:
            raise ValueError(f"there are only {len(passages)} held-out passages of {length} characters, not {rows}")
        passages += found
        start += 4 * length
    return torch.stack(passages[:rows])


def _split(documents: list[str]) -> tuple[list[str], list[str]]:
    return [d for i, d in enumerate(documents) if i % 10 != 5], documents[5::10]


def _without_words(source: str) -> str:
    """Return source code without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)
