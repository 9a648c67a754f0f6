"""The ``specverify`` command: init, certify, recheck, runs, report, bench, faults."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

from specverify import __version__
from specverify.errors import CertificateError, FolderError, SpecverifyError, SubjectError, UsageError

if TYPE_CHECKING:
    from specverify.checks.base import Settings

USAGE_ERROR = 64
"""Exit code of a wrong call; 2, argparse's own, means inconclusive here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def say(text: str = "", stream: IO[str] | None = None) -> None:
    """Write one line for a person."""
    (stream or sys.stdout).write(text + "\n")
    (stream or sys.stdout).flush()


def run_folder(spec: str, base: Path = Path("reports")) -> Path:
    """A fresh folder for a run of ``spec`` under ``base``."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", spec)[:80].strip("-") or "subject"
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = base / f"{slug}-{stamp}"
    number = 2
    while folder.exists():
        folder = base / f"{slug}-{stamp}-{number}"
        number += 1
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specverify", description="Certify that a speculative decoder samples exactly from its target model.")
    parser.add_argument("--version", action="version", version=f"specverify {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    init = commands.add_parser(
        "init",
        help="write an adapter to begin with, for a kind of subject",
        description="Write an adapter for a kind of subject. It is certified as it stands and says which lines to replace.",
    )
    init.add_argument("kind", nargs="?", default=None, metavar="KIND", help="the kind of subject; listed when it is left out")
    init.add_argument("--out", type=Path, default=None, metavar="FILE", help="file to write (default my_KIND.py)")

    certify = commands.add_parser(
        "certify",
        help="judge a subject: exit 0 certified, 1 refuted, 2 inconclusive, 3 error",
        description="Judge a subject. Exit code 0 certified, 1 refuted, 2 inconclusive, 3 error, 64 wrong usage.",
    )
    certify.add_argument(
        "subject",
        nargs="?",
        default=None,
        help="pkg.mod:attr, pkg.mod (its 'subject'), path/file.py:attr, or 'process:COMMAND'; may be left out with --resume",
    )
    certify.add_argument("--budget", default=None, help="smoke, standard (default) or certify")
    certify.add_argument(
        "--alpha", type=float, default=None, help="false-alarm probability of the whole certificate (default 1e-8)"
    )
    certify.add_argument(
        "--max-tokens",
        type=int,
        default=None,
        help="most tokens per test that goes on until every known fault would have been seen (default: what the budget says)",
    )
    certify.add_argument("--seed", type=int, default=None, help="root seed of everything drawn (default 0)")
    certify.add_argument("--timeout", type=float, default=None, help="seconds allowed per test (default 300)")
    certify.add_argument("--out", type=Path, default=None, help="folder to write to (default reports/SUBJECT-DATE)")
    certify.add_argument(
        "--resume",
        type=Path,
        default=None,
        metavar="DIR",
        help="continue a killed run in DIR; without SUBJECT, the subject and all settings are those of the run",
    )
    certify.add_argument(
        "--only", default=None, metavar="TEXT", help="run only tests whose name contains TEXT; never certifies"
    )
    certify.add_argument("--report", action="store_true", help="write the HTML and Markdown report too")

    recheck = commands.add_parser("recheck", help="recompute every verdict of a certificate, without the subject")
    recheck.add_argument("certificate", type=Path, help="certificate.json, or the folder of a run")

    runs = commands.add_parser("runs", help="list the runs in a folder: verdict or how far they got, and how to resume")
    runs.add_argument("folder", nargs="?", type=Path, default=Path("reports"), help="folder of runs (default reports)")

    report = commands.add_parser("report", help="write the report of a run (the same as python -m specverify.report)")
    report.add_argument("rest", nargs=argparse.REMAINDER)

    bench = commands.add_parser("bench", help="measure what speculation is worth on this machine")
    bench.add_argument("rest", nargs=argparse.REMAINDER)

    faults = commands.add_parser("faults", help="list the known wrong rules")
    faults.add_argument("--json", action="store_true", help="as JSON, with advice and source")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["report"]:
        from specverify.report import main as report_main

        return report_main(arguments[1:])
    if arguments[:1] == ["bench"]:
        from specverify.bench import main as bench_main

        return bench_main(arguments[1:])
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        chosen = {"init": _init, "certify": _certify, "recheck": _recheck, "runs": _runs, "faults": _faults}
        return chosen[options.command](options)
    except UsageError as error:
        say(f"specverify: {error}", sys.stderr)
        return USAGE_ERROR
    except SpecverifyError as error:
        say(f"specverify: {error}", sys.stderr)
        return 3 if isinstance(error, (SubjectError, CertificateError, FolderError)) else USAGE_ERROR
    except OSError as error:
        say(f"specverify: {error.strerror or error}: {error.filename}", sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        say("\nspecverify: interrupted; what was drawn and judged is kept, continue with --resume", sys.stderr)
        return 130


def _init(options: argparse.Namespace) -> int:
    from specverify.templates import listing, write_template

    if options.kind is None:
        raise UsageError(f"say which kind of subject it is: specverify init KIND, with KIND one of\n{listing()}")
    path = write_template(options.kind, options.out)
    say(f"{path} is an adapter that is certified as it stands; put your own code where it says so")
    say(f"judge it with: specverify certify {shlex.quote(str(path))} --budget smoke")
    return 0


def _certify(options: argparse.Namespace) -> int:
    import torch

    from specverify.certificate import EXIT_CODES
    from specverify.certify import certify
    from specverify.loading import load_subject
    from specverify.plan import plan_for

    torch.set_num_threads(1)
    if options.resume is not None and not options.resume.is_dir():
        raise UsageError(f"there is no run to resume in {options.resume}")
    spec, settings = _asked(options)
    out = options.resume or options.out or run_folder(spec)
    if options.resume is None and (out / "evidence.jsonl").exists():
        raise UsageError(f"{out} holds a run; continue it with --resume {out}, or choose another --out")
    subject = load_subject(spec)
    plan = plan_for(subject, spec, settings)
    own = sum(p.expected == "certified" for p in plan.tests)
    say(
        f"{subject.name}: {own} tests and {len(plan.tests) - own} runs of known-bad rules, "
        f"false-alarm budget {settings.alpha:g}, seed {settings.seed}, evidence in {out}"
    )
    with _progress(len(plan.tests)) as bar:
        certificate = certify(
            spec,
            settings,
            subject=subject,
            out=out,
            resume=options.resume is not None,
            only=options.only,
            on_done=bar,
        )
    say(_summary(certificate))
    if options.report:
        from specverify.report import main as report_main

        report_main([str(out)])
    else:
        say(f"certificate  {out / 'certificate.json'}")
        say(f"report       python -m specverify.report {out}")
    return EXIT_CODES[certificate.verdict]


def _asked(options: argparse.Namespace) -> tuple[str, Settings]:
    """Subject and settings of a call; those of the run that it resumes where no subject is given. Errors: UsageError."""
    from specverify.checks.base import Settings, budget_named
    from specverify.evidence.ledger import DEFAULT_ALPHA
    from specverify.evidence_file import first_line

    spec = options.subject
    given: dict[str, Any] = {name: getattr(options, name) for name in ("budget", "alpha", "seed", "timeout", "max_tokens")}
    if spec is None:
        if options.resume is None:
            raise UsageError("a subject is required: give pkg.mod:attr, or --resume DIR to continue a run")
        first = first_line(options.resume / "evidence.jsonl")
        kept = {**first["plan"]["settings"], "max_tokens": first.get("max_tokens")}
        spec, given = first["plan"]["spec"], {name: kept[name] if value is None else value for name, value in given.items()}
    default: dict[str, Any] = {"budget": "standard", "alpha": DEFAULT_ALPHA, "seed": 0, "timeout": 300.0, "max_tokens": None}
    settings = {name: default[name] if value is None else value for name, value in given.items()}
    return spec, Settings(budget_named(settings.pop("budget")), **settings)


class _progress:  # noqa: N801 - used like a function
    """A progress bar on a terminal; in a log, a line for every test that was not certified (or, for controls, refuted)."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.said: dict[str, str] = {}
        """Reasons given so far, with the test that gave each first."""

    def __enter__(self) -> Self:
        from tqdm import tqdm

        self.bar = tqdm(total=self.total, unit="test", leave=False, disable=not sys.stderr.isatty(), file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def __call__(self, evidence: Any, done: int, total: int) -> None:
        self.bar.total = total
        self.bar.set_description(evidence.test[:48])
        self.bar.update(done - self.bar.n)
        if evidence.verdict != evidence.expected:
            reason = next(j.reason for j in evidence.judgements() if j.verdict == evidence.verdict)
            if reason in self.said:
                reason = f"as in {self.said[reason]}"
            else:
                self.said[reason] = evidence.test
            self.bar.write(f"{evidence.verdict:<12} {evidence.test}: {reason}", file=sys.stderr)


def _summary(certificate: Any) -> str:
    """The outcome as a short table, the smallest counterexample, and the sentence."""
    from specverify.showing import counterexample_lines, error_lines, rows_of

    own = [e for e in certificate.evidence if e.expected == "certified"]
    rows = rows_of(certificate.evidence)
    width = max((len(check) for check, _ in rows), default=8)
    lines = ["", *(f"  {check:<{width}}  {said}" for check, said in rows)]
    lines += [*counterexample_lines(own), *error_lines(own)]
    if certificate.missing:
        lines += ["", "only a part of the plan was run, which never certifies"]
        if not own:
            lines[-1] = "nothing of the subject was tested: no test of it has that text in its name, only controls have"
    lines += ["", f"{certificate.verdict.upper()}: {certificate.sentence()}", ""]
    return "\n".join(lines)


def _recheck(options: argparse.Namespace) -> int:
    from specverify.certificate import EXIT_CODES, load, recheck

    path: Path = options.certificate / "certificate.json" if options.certificate.is_dir() else options.certificate
    if not path.is_file():
        raise UsageError(f"there is no certificate at {path}")
    data = load(path)
    certificate = recheck(data)
    say(
        f"{len(certificate.evidence)} tests judged again from their numbers; every verdict follows, "
        f"digest {data['digest'][:16]}"
    )
    say(f"{certificate.verdict.upper()}: {certificate.sentence()}")
    return EXIT_CODES[certificate.verdict]


def _runs(options: argparse.Namespace) -> int:
    from specverify.runs.listing import listed, table

    say(table(listed(options.folder), options.folder))
    return 0


def _faults(options: argparse.Namespace) -> int:
    from specverify.faults.catalogue import all_faults

    known = all_faults()
    if options.json:
        rows = [{"name": f.name, "summary": f.summary, "advice": f.advice, "source": f.source} for f in known.values()]
        say(json.dumps(rows, indent=1))
        return 0
    width = max(map(len, known))
    for fault in known.values():
        say(f"{fault.name:<{width}}  {fault.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
