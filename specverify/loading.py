"""Which subject does a name mean? Finding ``"pkg.mod:attr"``, and a digest of the source files behind it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from specverify.errors import SubjectError
from specverify.subjects import Decoder, DecoderLike, Step, Subject, Verifier, decoder

PROCESS = "process:"
"""How the names of engines begin that run in a process of their own; a command follows."""


def load_subject(spec: str) -> Subject:
    """Find the subject named by ``"pkg.mod:attr"``, ``"pkg.mod"`` (its attribute ``subject``) or ``"path/file.py:attr"``.

    ``"process:COMMAND"`` is an engine in a process of its own (:mod:`specverify.adapters.process`), which is started.
    The current directory is importable. Errors: SubjectError that says what could not be imported or used.
    """
    if spec.startswith(PROCESS):
        from specverify.adapters.process import process_subject

        return process_subject(spec.removeprefix(PROCESS))
    module_name, _, attribute = spec.partition(":")
    attribute = attribute or "subject"
    if not module_name:
        raise SubjectError(f"{spec!r} names no module; write pkg.mod:attr")
    module = _import(module_name)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n in dir(module) if not n.startswith("_")]
            raise SubjectError(
                f"{module_name} has no attribute {attribute!r}; it has {', '.join(public[:12]) or 'nothing public'}"
            )
        target = getattr(target, part)
    return as_subject(target, spec)


def _import(module_name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        if module_name.endswith(".py"):
            path = Path(module_name)
            if not path.exists():
                raise SubjectError(f"there is no file {module_name}")
            if str(path.resolve().parent) not in sys.path:
                sys.path.append(str(path.resolve().parent))  # for the modules beside it
            name = path.stem if path.stem not in sys.modules else f"specverify_subject_{path.stem}"
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module
            found.loader.exec_module(module)
            return module
        return importlib.import_module(module_name)
    except SubjectError:
        raise
    except ModuleNotFoundError as error:
        raise SubjectError(
            f"cannot import {module_name}: {error}; install it, or run from the folder that contains it"
        ) from error
    except Exception as error:
        hint = "; name it pkg.module:attr and run from the folder above pkg" if "relative import" in str(error) else ""
        raise SubjectError(f"importing {module_name} failed: {type(error).__name__}: {error}{hint}") from error
    except SystemExit as stop:
        raise SubjectError(f"importing {module_name} ended in sys.exit({stop.code!r}); keep scripts under __main__") from stop


def as_subject(target: Any, name: str) -> Subject:
    """Turn what was found under a name into a subject: a subject, an object with the right methods, or a class of such."""
    from specverify.trees import TreeVerifier  # these import the module of the other kinds
    from specverify.unknown_law import OnOff, OnOffLike, on_off

    if isinstance(target, (Verifier, Step, Decoder, TreeVerifier, OnOff)):
        return target
    if inspect.isclass(target):
        try:
            target = target()
        except Exception as error:
            raise SubjectError(f"{name} is a class and calling it without arguments failed: {error}") from error
    if isinstance(target, (Verifier, Step, Decoder, TreeVerifier, OnOff)):
        return target
    if isinstance(target, DecoderLike):
        return replace(decoder(target), name=name)
    if isinstance(target, OnOffLike):
        return replace(on_off(target), name=name)
    if callable(getattr(target, "verify", None)):
        return Verifier(name, target.verify)
    methods = ("vocab_size", "generate", "baseline" if hasattr(target, "baseline") else "target_log_probs")
    missing = [m for m in methods if not hasattr(target, m)]
    if 0 < len(missing) < len(methods):
        hint = "; where the law is not known, give baseline(prompts, max_new_tokens, seed), the decoder without speculation"
        raise SubjectError(
            f"{name} looks like a decoder but has no {' and no '.join(missing)}{hint if methods[-1] in missing else ''}"
        )
    if inspect.isfunction(target):
        raise SubjectError(
            f"{name} is a plain function; put @specverify.verifier above it if it takes (draft_tokens, draft_probs, "
            "target_probs), or @specverify.step(k) if it takes (target, draft, prefix)"
        )
    raise SubjectError(
        f"{name} is a {type(target).__name__}; a subject is made with specverify.verifier, specverify.step, "
        "specverify.tree_verifier, specverify.decoder or specverify.on_off, or has vocab_size, generate and target_log_probs, "
        "or vocab_size, generate and baseline"
    )


def source_digest(subject: Subject) -> str:
    """SHA-256 over the source files that define the subject's callables, or "unknown" when none can be read.

    A callable that runs something else may name its files as ``source_files``, a tuple of paths.
    """
    callables: list[Any] = []
    for one in (subject, *getattr(subject, "parts", ())):
        callables += [getattr(one, n, None) for n in ("verify", "step", "open", "build")]
    files: set[str] = set()
    for c in callables:
        inner = getattr(c, "func", c)
        held = [x.cell_contents for x in getattr(inner, "__closure__", None) or ()]
        for thing in (inner, type(inner), *held, *map(type, held)):
            named = getattr(thing, "source_files", None)
            files.update(named if isinstance(named, tuple) else ())
            try:
                found = inspect.getsourcefile(thing)
            except (TypeError, ValueError):
                continue
            if found:
                files.add(found)
    digest = hashlib.sha256()
    read = 0
    for path in sorted(files):
        try:
            content = Path(path).read_bytes()
        except OSError:
            continue
        digest.update(Path(path).name.encode() + b"\0" + content)
        read += 1
    return digest.hexdigest() if read else "unknown"
