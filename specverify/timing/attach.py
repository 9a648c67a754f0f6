"""How does a timing get into the certificate of a run? It is judged again, completed, and written with a new digest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specverify.certificate import Certificate, load, recheck
from specverify.errors import UsageError
from specverify.loading import source_digest
from specverify.subjects import Subject

FILE = "certificate.json"


def newest_run(base: Path = Path("reports")) -> Path:
    """Find the folder under ``base`` whose certificate was written last. Errors: UsageError when there is none."""
    found = sorted(base.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no run under {base}/ to attach to; run specverify certify first, or name a folder")
    return found[-1].parent


def certificate_of(folder: Path, subject: Subject) -> Certificate:
    """Read the certificate in a folder, judged again so that a wrong verdict is never written anew.

    Errors: UsageError when there is none or it is of another subject or version, CertificateError when it does not
    hold.
    """
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"there is no {FILE} in {folder}")
    certificate = recheck(load(path))
    name = certificate.subject["name"]
    if name != subject.name:
        raise UsageError(f"{path} is of {name}, not of {subject.name}")
    if certificate.subject["source_digest"] != source_digest(subject):
        raise UsageError(f"{path} is of another version of {name}; certify this one first")
    return certificate


def attach(timing: Mapping[str, Any], folder: Path, subject: Subject) -> Path:
    """Write the certificate in ``folder`` again with this timing and return its path. Errors: as `certificate_of`."""
    certificate = certificate_of(folder, subject)
    path = folder / FILE
    dataclasses.replace(certificate, timing=dict(timing)).write(path)
    return path
