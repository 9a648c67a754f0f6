"""Under which name can a subject at hand be loaded again? For the commands and snippets that reproduce what was found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from specverify.loading import as_subject, load_subject
from specverify.subjects import Subject


def named_subject(given: Any) -> tuple[Subject, str]:
    """A subject and the name to load it by, from such a name or from any object that can be plugged in.

    An object that is a global of a module is named by it, as ``path/file.py:attr`` or ``pkg.mod:attr``; in a notebook that is
    ``__main__:attr``, which the same notebook can load. Any other is named after itself, and cannot be loaded by that.
    Errors: SubjectError when it cannot be loaded or is no subject.
    """
    if isinstance(given, str):
        return load_subject(given), given
    subject = as_subject(given, getattr(given, "__name__", type(given).__name__))
    return subject, _spec(given) or subject.name


def _spec(given: Any) -> str | None:
    """The first public global, of all modules there are, that is the object itself."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):  # some packages leave other things among the modules
            continue
        for attribute, value in list(names.items()):
            if value is given and not attribute.startswith("_"):
                return f"{_loadable(module)}:{attribute}"
    return None


def _loadable(module: Any) -> str:
    """How a module is named for loading: by its file where it stands alone, since its folder need not be importable."""
    file = str(getattr(module, "__file__", None))
    if getattr(module, "__package__", None) or not file.endswith(".py"):
        return str(module.__name__)
    path = Path(file).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
