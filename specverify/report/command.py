"""Which certificate is shown, and where do page and summary go? The command ``python -m specverify.report``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from specverify.certificate import EXIT_CODES, load, recheck
from specverify.errors import CertificateError, UsageError
from specverify.report.markdown import render_summary
from specverify.report.model import page_of
from specverify.report.page import render_page

USAGE_EXIT = 64
RUNS = Path("reports")
SAMPLE = "sample"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Argparse exits with 2, which is a verdict here."""
        raise UsageError(f"{message}; try python -m specverify.report --help")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m specverify.report", description="Write index.html and summary.md for a certificate.")
    parser.add_argument(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="a run's directory or its certificate.json; the newest under ./reports by default",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; next to the certificate by default")
    return parser.parse_args(argv)


def newest_certificate(runs: Path = RUNS) -> Path:
    """Find the certificate written last under ``runs``, the committed sample aside. Errors: UsageError if none."""
    found = [p for p in runs.glob("**/certificate.json") if p.relative_to(runs).parts[0] != SAMPLE]
    if not found:
        raise UsageError(
            f"there is no run under {runs}/ yet; make one with: specverify certify SUBJECT --out {runs}/first "
            "(or name a run: python -m specverify.report RUN)"
        )
    return max(found, key=lambda p: (p.stat().st_mtime_ns, str(p)))


def certificate_at(run: Path | None) -> Path:
    """Find what ``run`` names: a file, a directory, or nothing for the newest. Errors: UsageError."""
    if run is None:
        return newest_certificate()
    if run.is_dir():
        inside = run / "certificate.json"
        if not inside.is_file():
            raise UsageError(
                f"{run} holds no certificate.json; a run writes it when it ends (--resume continues one that was stopped)"
            )
        return inside
    if not run.exists():
        raise UsageError(f"{run} does not exist; name a run's directory or its certificate.json")
    return run


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_report(certificate_path: Path, out: Path) -> tuple[Path, Path]:
    """Write ``index.html`` and ``summary.md`` into ``out`` and return their paths.

    Errors: CertificateError when the file is no certificate, was changed, or its verdicts do not follow from its
    evidence; UsageError when ``out`` cannot be written.
    """
    data = load(certificate_path)
    page = page_of(recheck(data), data["digest"])
    html, summary = out / "index.html", out / "summary.md"
    texts = {html: render_page(page), summary: render_summary(page)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            _write(path, text)
    except OSError as error:
        raise UsageError(f"cannot write into {out}: {error.strerror}; choose another --out") from error
    return html, summary


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; 0 when written, 64 for usage errors, 3 when the certificate cannot be trusted."""
    try:
        arguments = _arguments(sys.argv[1:] if argv is None else argv)
        certificate = certificate_at(arguments.run)
        written = write_report(certificate, arguments.out or certificate.parent)
    except UsageError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return USAGE_EXIT
    except CertificateError as error:
        sys.stderr.write(f"error: no report was written: {' '.join(str(error).split())}\n")
        return EXIT_CODES["error"]
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    sys.stdout.writelines(f"{path}\n" for path in written)
    return 0
