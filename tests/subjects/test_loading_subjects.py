"""Subjects are found under the names people write, and wrong names say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specverify.errors import SubjectError
from specverify.loading import load_subject, source_digest
from specverify.subjects import Decoder, Step, Verifier

SOURCE = """
import torch
from specverify import subjects

@subjects.verifier
def rule(tokens, draft, target):
    return torch.zeros(len(tokens), 1, dtype=torch.int64)

subject = rule
drafting = subjects.step(2)(lambda target, draft, prefix: [[0]])
number = 3

class Decoding:
    vocab_size = 2
    def generate(self, prompts, max_new_tokens, seed): ...
    def target_log_probs(self, ids): ...

class Verifying:
    def verify(self, tokens, draft, target): return [[0]]

class Needy:
    def __init__(self, size): ...

def factory():
    return rule

class nested:
    inner = rule
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder to stand in, with a module of subjects; what it imports is forgotten afterwards."""
    (tmp_path / "some_subjects.py").write_text(SOURCE)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "mod.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith(("specverify", "torch", "numpy")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("some_subjects", Verifier),
        ("some_subjects:rule", Verifier),
        ("some_subjects:", Verifier),
        ("pkg.mod:drafting", Step),
        ("some_subjects.py", Verifier),
        ("pkg/mod.py:rule", Verifier),
        ("some_subjects:Decoding", Decoder),
        ("some_subjects:Verifying", Verifier),
        ("pkg.mod:nested.inner", Verifier),
    ],
)
def test_subjects_are_found(folder: Path, spec: str, kind: type) -> None:
    """Modules, packages, files, classes and attributes of attributes all name subjects."""
    found = load_subject(spec)
    assert isinstance(found, kind)
    if "Decoding" in spec:
        assert found.name == spec
        assert found.open().vocab_size == 2  # type: ignore[union-attr]


def test_an_absolute_path_is_a_name_too(folder: Path) -> None:
    """A file anywhere can be named by its path."""
    assert load_subject(f"{folder / 'some_subjects.py'}:rule").name == "rule"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:x", "cannot import no_such_module: No module named.*install it, or run from the folder"),
        ("pkg.nothing", "cannot import pkg.nothing"),
        ("no/such/file.py", "there is no file no/such/file.py"),
        ("some_subjects:missing", "some_subjects has no attribute 'missing'; it has Decoding, Needy, Verifying"),
        ("pkg", "has no attribute 'subject'; it has nothing public"),
        (":x", "names no module; write pkg.mod:attr"),
        ("some_subjects:number", "is a int; a subject is made with specverify.verifier"),
        ("some_subjects:Needy", "is a class and calling it without arguments failed.*size"),
        ("some_subjects:nested.other", "has no attribute 'nested.other'"),
    ],
)
def test_wrong_names_say_what_is_wrong(folder: Path, spec: str, message: str) -> None:
    """Missing modules, files and attributes and things that are no subjects are named, with what to write instead."""
    with pytest.raises(SubjectError, match=message):
        load_subject(spec)


@pytest.mark.parametrize("spec", ["broken", "broken.py"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 / 0", "importing broken(.py)? failed: ZeroDivisionError"),
        ("def x(:", "failed: SyntaxError"),
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
        ("from os import nothing_like_it", "failed: ImportError"),
    ],
)
def test_broken_imports_are_errors_of_the_subject(folder: Path, spec: str, content: str, message: str) -> None:
    """What goes wrong while importing is told, whatever it is."""
    (folder / "broken.py").write_text(content)
    with pytest.raises(SubjectError, match=message):
        load_subject(spec)


def test_the_digest_follows_the_source(folder: Path) -> None:
    """Two subjects of one file share a digest, and a changed file has another one."""
    first = source_digest(load_subject("some_subjects.py:rule"))
    assert first == source_digest(load_subject("some_subjects.py:drafting")) != "unknown"
    (folder / "some_subjects.py").write_text(SOURCE + "# changed\n")
    assert source_digest(load_subject("some_subjects.py:rule")) != first
    assert source_digest(Verifier("builtin", print)) == "unknown"
