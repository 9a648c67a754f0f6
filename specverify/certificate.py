"""What does a run leave behind? The certificate: evidence, the verdict it implies, and a way to recompute that verdict.

``recheck`` needs neither the subject nor torch for float64 evidence: it judges every measurement again and compares. A
changed byte is noticed by the digest, which covers everything else in the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jsonschema

from specverify.errors import CertificateError
from specverify.evidence.ledger import Ledger
from specverify.evidence.measurements import (
    Verdict,
    worst,
)
from specverify.notebook import as_html, as_markdown
from specverify.record import CONTROL, Evidence, control_share
from specverify.runs.store import cannot_write
from specverify.sentence import sentence

SCHEMA_VERSION = 1
EXIT_CODES: dict[Verdict, int] = {"certified": 0, "refuted": 1, "inconclusive": 2, "error": 3}

SCOPE = (
    "The verdict is about this version of the subject, on the pairs, prompts and settings listed, at the stated false-alarm "
    "probability. Exact checks hold for the listed pairs up to rounding; statistical checks can miss deviations that are too "
    "small for the number of draws."
)


CLAIM = "for all prefixes: P(next tokens of the subject) = P(next tokens of its target model)"

ON_OFF = "decoder, on and off"
"""Kind of a subject whose target law is not known."""
ON_OFF_CLAIM = "for all prefixes: P(next tokens with speculation) = P(next tokens without); the target law is not known"
ON_OFF_SCOPE = (
    " The target law is not known here: only speculation on was compared with off, so a mistake that both share is not seen."
)


@dataclass(frozen=True)
class Certificate:
    """The outcome of one run."""

    subject: Mapping[str, Any]
    settings: Mapping[str, Any]
    ledger: Ledger
    evidence: tuple[Evidence, ...]
    skipped: tuple[Mapping[str, str], ...]
    environment: Mapping[str, Any]
    planned: tuple[str, ...] = ()
    timing: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def law_unknown(self) -> bool:
        """Whether the subject was judged without its target law, by speculation on against off."""
        return self.subject.get("kind") == ON_OFF

    @property
    def scope(self) -> str:
        """What the verdict is about, and what it is not."""
        return SCOPE + (ON_OFF_SCOPE if self.law_unknown else "")

    @property
    def missing(self) -> list[str]:
        """Planned tests that left no evidence."""
        there = {e.test for e in self.evidence}
        return [test for test in self.planned if test not in there]

    @property
    def verdict(self) -> Verdict:
        """Refuted, error, inconclusive or certified; never certified while a control or a planned test is missing."""
        own = [e.verdict for e in self.evidence if e.expected == "certified"]
        verdict = worst(own)
        if verdict == "skipped":
            verdict = "inconclusive"
        if verdict == "refuted":
            return verdict
        if not all(e.as_expected for e in self.evidence):
            return "error"
        if verdict == "certified" and (self.missing or not any(e.expected == "refuted" for e in self.evidence)):
            return "inconclusive"
        return verdict

    def sentence(self) -> str:
        """The verdict in one sentence, and what it leaves open."""
        return sentence(self)

    def to_json(self) -> dict[str, Any]:
        """The certificate as written, with its digest."""
        body = {
            "schema": SCHEMA_VERSION,
            "claim": ON_OFF_CLAIM if self.law_unknown else CLAIM,
            "verdict": self.verdict,
            "sentence": self.sentence(),
            "scope": self.scope,
            "subject": dict(self.subject),
            "settings": dict(self.settings),
            "ledger": self.ledger.to_json(),
            "planned": list(self.planned),
            "evidence": [e.to_json() for e in self.evidence],
            "skipped": [dict(s) for s in self.skipped],
            "environment": dict(self.environment),
            "timing": None if self.timing is None else dict(self.timing),
        }
        return {**body, "digest": digest(body)}

    def _repr_html_(self) -> str:
        """The certificate as notebooks show it."""
        return as_html(self)

    def _repr_markdown_(self) -> str:
        """The same for front ends that show Markdown."""
        return as_markdown(self)

    def write(self, path: Path) -> None:
        """Write ``certificate.json`` atomically. Errors: FolderError when there is no room; one that was there stays."""
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise cannot_write(path, path.parent, error) from error


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything but the digest."""
    canonical = json.dumps({k: v for k, v in body.items() if k != "digest"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def environment() -> dict[str, Any]:
    """Versions and machine, as they matter for reproducing a run."""
    versions = {}
    for name in ("specverify", "torch", "numpy", "scipy", "hypothesis", "pytest", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.machine()}",
        "device": "cpu",
        "versions": versions,
    }


def schema() -> dict[str, Any]:
    """The JSON Schema of a certificate."""
    text = resources.files("specverify").joinpath("certificate.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def load(path: Path) -> dict[str, Any]:
    """Read a certificate and check its schema and digest. Errors: CertificateError saying what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CertificateError(f"{path} is not JSON: {error}") from error
    try:
        jsonschema.validate(data, schema())
    except jsonschema.ValidationError as error:
        place = "/".join(map(str, error.absolute_path)) or "the top level"
        raise CertificateError(f"{path} is not a certificate: at {place}, {error.message[:200]}") from error
    if digest(data) != data["digest"]:
        raise CertificateError(f"{path} was changed after it was written: its digest does not fit its content")
    return data  # type: ignore[no-any-return]


def from_data(data: Mapping[str, Any]) -> Certificate:
    """Rebuild a certificate from loaded JSON; verdicts are recomputed from the evidence. Errors: CertificateError."""
    evidence = []
    for number, one in enumerate(data["evidence"]):
        try:
            evidence.append(Evidence.from_json(one))
            evidence[-1].judgements()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CertificateError(
                f"evidence {number} ({one.get('test')}) holds numbers that cannot be judged: {error}"
            ) from error
    return Certificate(
        data["subject"],
        data["settings"],
        Ledger(data["ledger"]["alpha"], data["ledger"]["shares"]),
        tuple(evidence),
        tuple(data["skipped"]),
        data["environment"],
        tuple(data["planned"]),
        data["timing"],
    )


def recheck(data: Mapping[str, Any]) -> Certificate:
    """Recompute every verdict of a loaded certificate. Errors: CertificateError naming the first that does not follow."""
    certificate = from_data(data)
    _check_ledger(certificate)
    for evidence, stored in zip(certificate.evidence, data["evidence"], strict=True):
        _check_place(evidence, certificate)
        for judgement, measured in zip(evidence.judgements(), stored["measurements"], strict=True):
            if judgement.verdict != measured["verdict"]:
                raise CertificateError(
                    f"{evidence.test}: recorded as {measured['verdict']}, but its numbers say {judgement.verdict}: "
                    f"{judgement.reason}"
                )
        if evidence.verdict != stored["verdict"]:
            raise CertificateError(
                f"{evidence.test}: recorded as {stored['verdict']}, but its measurements say {evidence.verdict}"
            )
    if certificate.verdict != data["verdict"]:
        raise CertificateError(f"recorded as {data['verdict']}, but the evidence says {certificate.verdict}")
    return certificate


def _check_ledger(certificate: Certificate) -> None:
    """Refuse shares that sum to more than the total or are not equal, and shares of tests that are not planned."""
    ledger = certificate.ledger
    if ledger.spent > ledger.alpha * (1 + 1e-9):
        raise CertificateError(f"the ledger's shares sum to {ledger.spent:g}, more than its total of {ledger.alpha:g}")
    if len({round(share / ledger.alpha, 12) for share in ledger.shares.values()}) > 1:
        raise CertificateError("the ledger's shares differ, though every test has the same; was a number changed by hand?")
    if strange := sorted(set(ledger.shares) - set(certificate.planned)):
        raise CertificateError(f"the ledger has a share for {strange[0]}, which is not among the planned tests")


def _check_place(evidence: Evidence, certificate: Certificate) -> None:
    """Refuse evidence that has no place in the plan: not planned, expected to come out otherwise, or judged at another share.

    Both directions of a wrong share matter: above it the total is overspent, below it nothing would be refuted.
    """
    test, alpha, ledger = evidence.test, evidence.alpha, certificate.ledger
    if test not in certificate.planned:
        raise CertificateError(f"there is evidence for {test}, which is not among the planned tests")
    if not test.startswith(f"{evidence.check}/{evidence.part}/"):
        raise CertificateError(f"{test} is recorded as a test of check {evidence.check} on part {evidence.part}")
    control = evidence.part.startswith(CONTROL)
    if (evidence.expected == "refuted") != control:
        said = f"a control, whose part begins with {CONTROL}" if control else f"no control, whose part begins with {CONTROL}"
        raise CertificateError(f"{test} is recorded as expected to be {evidence.expected}, but it is {said}")
    allowed = (0.0, control_share(ledger)) if control else (ledger.share(test),)
    if alpha not in allowed:
        where = "" if control or test in ledger.shares else " (it does not stand in the ledger)"
        raise CertificateError(f"{test} was judged at {alpha:g}, its share is {allowed[-1]:g}{where}")
