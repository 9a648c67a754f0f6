"""What is speculation worth on this machine? The command ``specverify bench``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specverify.errors import CertificateError, SpecverifyError, SubjectError, UsageError

if TYPE_CHECKING:
    from specverify.timing.measure import Sweep
    from specverify.timing.opening import Opened

USAGE_ERROR = 64
TOKENS, REPETITIONS, KS = 128, 7, tuple(range(1, 9))
QUICK_TOKENS, QUICK_REPETITIONS, QUICK_KS = 48, 3, (1, 2, 4, 8)
NEWEST = Path()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="specverify bench",
        description="Measure baselines and speculation, interleaved. "
        "Exit code 0 measured, 1 a certificate that does not hold, 3 not measurable, 64 wrong usage.",
    )
    parser.add_argument("subject", nargs="?", default="reference", help="a decoder with a 'timing' (default: reference)")
    parser.add_argument("--k", default=None, help="draft tokens per round, such as 4, 1,2,4 or 1..8 (default 1..8)")
    parser.add_argument("--drafts", default=None, help="names of drafts, such as aligned,mismatched (default: all)")
    parser.add_argument("--tokens", type=int, default=None, help="new tokens per row (default 128)")
    parser.add_argument("--repetitions", type=int, default=None, help="times all is measured (default 7)")
    parser.add_argument("--batch", type=int, default=1, help="rows per run (default 1)")
    parser.add_argument("--prompts", type=int, default=None, metavar="N", help="use the first N prompts (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="root seed of tokens and order (default 0)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the timing as JSON")
    parser.add_argument(
        "--attach",
        type=Path,
        nargs="?",
        const=NEWEST,
        default=None,
        metavar="RUN_DIR",
        help="put the timing into the certificate of a run (default: the newest under reports/)",
    )
    parser.add_argument("--quick", action="store_true", help="48 tokens, 3 repetitions, K = 1, 2, 4, 8")
    return parser


def read_ks(text: str, largest: int) -> tuple[int, ...]:
    """Read "4", "1,2,4" or "1..8". Errors: UsageError unless every K lies in 1..largest."""
    ks: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            ks += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError:
        raise UsageError(f"--k {text!r} is no list of numbers; write 4, 1,2,4 or 1..8") from None
    if not ks or min(ks) < 1 or max(ks) > largest:
        raise UsageError(f"--k {text} must lie within 1..{largest}, the most this subject drafts")
    return tuple(sorted(set(ks)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        options = _parser().parse_args(sys.argv[1:] if argv is None else list(argv))
        return _bench(options)
    except SystemExit as stop:
        return int(stop.code or 0)
    except SpecverifyError as error:
        sys.stderr.write(f"specverify bench: {error}\n")
        return 3 if isinstance(error, SubjectError) else 1 if isinstance(error, CertificateError) else USAGE_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("\nspecverify bench: interrupted; nothing was written\n")
        return 130


def _bench(options: argparse.Namespace) -> int:
    for name in ("tokens", "repetitions", "batch", "prompts", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; it must be at least 1")
    if options.json is not None and not options.json.parent.is_dir():
        raise UsageError(f"there is no folder {options.json.parent} for --json")

    import torch

    from specverify.loading import load_subject
    from specverify.timing.attach import attach, certificate_of, newest_run
    from specverify.timing.opening import open_timeable
    from specverify.timing.table import render

    subject = load_subject(options.subject)
    folder = newest_run() if options.attach == NEWEST else options.attach
    if folder is not None:
        certificate_of(folder, subject)  # whatever is wrong with it is said before minutes are spent
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        timing = _measured(options, open_timeable(subject, options.seed))
    finally:
        torch.set_num_threads(threads)
    sys.stdout.write(render(timing) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(timing, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"timing       {options.json}\n")
    if folder is not None:
        sys.stdout.write(f"certificate  {attach(timing, folder, subject)}\n")
    return 0


def _measured(options: argparse.Namespace, opened: Opened) -> dict[str, Any]:
    from tqdm import tqdm

    from specverify.timing.measure import measure
    from specverify.timing.record import timing_json

    sweep = _sweep(options, opened)
    prompts = opened.prompts[: options.prompts]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with tqdm(total=sweep.steps, unit="run", leave=False, disable=not sys.stderr.isatty(), file=sys.stderr) as bar:

        def on_done(label: str) -> None:
            bar.set_description(label)
            bar.update()

        samples = measure(opened.timing, prompts, sweep, on_done=on_done)
    return timing_json(samples, subject=opened.name, load=load)


def _sweep(options: argparse.Namespace, opened: Opened) -> Sweep:
    from specverify.timing.measure import Sweep

    tokens, repetitions, ks = (QUICK_TOKENS, QUICK_REPETITIONS, QUICK_KS) if options.quick else (TOKENS, REPETITIONS, KS)
    known, largest = tuple(opened.timing.drafts), opened.timing.max_k
    drafts = known if options.drafts is None else tuple(dict.fromkeys(options.drafts.split(",")))
    for draft in drafts:
        if draft not in known:
            raise UsageError(f"{opened.name} has no draft {draft!r}; it has {', '.join(known)}")
    ks = tuple(k for k in ks if k <= largest) if options.k is None else read_ks(options.k, largest)
    tokens = options.tokens or tokens
    if tokens < 2 * (max(ks) + 2):
        raise UsageError(f"--tokens {tokens} is too short for K = {max(ks)}; ask for {2 * (max(ks) + 2)} or more")
    if opened.max_batch is not None and options.batch > opened.max_batch:
        raise UsageError(f"{opened.name} takes at most {opened.max_batch} rows, not {options.batch}")
    if options.prompts is not None and options.prompts > len(opened.prompts):
        raise UsageError(f"{opened.name} has {len(opened.prompts)} prompts, not {options.prompts}")
    return Sweep(drafts, ks, tokens, options.repetitions or repetitions, options.batch, options.seed)


if __name__ == "__main__":
    sys.exit(main())
