"""What can be asked of ``specverify bench``? Its options, and the sweeps they mean for a subject."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specverify.errors import UsageError

if TYPE_CHECKING:
    from specverify.timing.measure import Sweep
    from specverify.timing.opening import Opened

USAGE_ERROR = 64
TOKENS, REPETITIONS, KS = 80, 5, tuple(range(1, 9))
QUICK_TOKENS, QUICK_REPETITIONS, QUICK_KS = 48, 3, (1, 2, 4, 8)
VARIED_TOKENS, VARIED_REPETITIONS, VARIED_KS = 40, 3, (2, 4, 8)
"""What temperatures and batches are swept with, one draft, unless --full: each of them is a measurement of its own."""
TEMPERATURES, BATCHES, NONE = "0,0.7,1", "1,2,4,8,16,32", "none"
NEWEST = Path()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command; it exits with 64 on a wrong call."""
    made = _Parser(
        prog="specverify bench",
        description="Measure baselines and speculation, interleaved, beside what costs and acceptance predict. "
        "Exit code 0 measured, 1 slower than --compare allows or a certificate that does not hold, 3 not measurable, "
        "64 wrong usage.",
    )
    made.add_argument("subject", nargs="?", default="reference", help="any decoder (default: reference); see docs/timing.md")
    made.add_argument("--k", default=None, help="draft tokens per round, such as 4, 1,2,4 or 1..8 (default 1..8)")
    made.add_argument("--drafts", default=None, help="names of drafts, such as aligned,mismatched (default: all)")
    made.add_argument("--tokens", type=int, default=None, help=f"new tokens per row (default {TOKENS})")
    made.add_argument("--repetitions", type=int, default=None, help=f"times all is measured (default {REPETITIONS})")
    made.add_argument("--batch", type=int, default=1, help="rows per run (default 1)")
    made.add_argument("--prompts", type=int, default=None, metavar="N", help="use the first N prompts (default: all)")
    made.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    made.add_argument("--device", default=None, help="where to run, such as cuda: timed with events (default: where it is)")
    made.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time, which leaves out other processes"
    )
    made.add_argument("--seed", type=int, default=0, help="root seed of tokens and order (default 0)")
    made.add_argument(
        "--temperatures", default=None, help=f"temperatures to compare, or none (default {TEMPERATURES}; with --quick none)"
    )
    made.add_argument("--batches", default=None, help=f"batch sizes to compare, or none (default {BATCHES}; with --quick none)")
    made.add_argument("--full", action="store_true", help="temperatures and batches with every draft, K and repetition")
    made.add_argument("--quick", action="store_true", help="48 tokens, 3 repetitions, K = 1, 2, 4, 8, nothing varied")
    made.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the timing as pytest-benchmark does")
    made.add_argument("--plots", type=Path, default=None, metavar="DIR", help="write the plots as SVG files")
    made.add_argument("--compare", type=Path, default=None, metavar="OLD.json", help="fail if speed-ups are below those of OLD")
    made.add_argument(
        "--fail-above", type=float, default=0.1, metavar="SHARE", help="share of a speed-up that may be lost (default 0.1)"
    )
    made.add_argument(
        "--attach",
        type=Path,
        nargs="?",
        const=NEWEST,
        default=None,
        metavar="RUN_DIR",
        help="put the timing into the certificate of a run (default: the newest under reports/)",
    )
    return made


def check(options: argparse.Namespace) -> None:
    """Refuse what can be seen to be wrong before anything is opened. Errors: UsageError."""
    for name in ("tokens", "repetitions", "batch", "prompts", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; it must be at least 1")
    if options.quick and options.full:
        raise UsageError("--quick and --full contradict each other; choose one")
    if not 0 <= options.fail_above < 1:
        raise UsageError(f"--fail-above {options.fail_above:g} is no share; give a number from 0 to below 1, such as 0.1")
    if options.json is not None and not options.json.parent.is_dir():
        raise UsageError(f"there is no folder {options.json.parent} for --json")
    if options.json is not None and options.json.is_dir():
        raise UsageError(f"--json {options.json} is a folder; name a file")
    if options.plots is not None and not options.plots.exists() and not options.plots.parent.is_dir():
        raise UsageError(f"there is no folder {options.plots.parent} for --plots")
    if options.plots is not None and options.plots.exists() and not options.plots.is_dir():
        raise UsageError(f"--plots {options.plots} is a file; name a folder")
    if options.clock == "cpu" and options.threads > 1:
        raise UsageError("--clock cpu counts every thread's time; use it with --threads 1")
    if options.device is not None:
        import torch

        try:
            kind = torch.device(options.device).type
        except RuntimeError:
            raise UsageError(f"--device {options.device} is no device of torch; write cpu, cuda or cuda:1") from None
        if kind not in ("cpu", "cuda"):  # calls return before their work is done, and no clock here waits for it
            raise UsageError(f"--device {options.device} has no clock here; write cpu, cuda or cuda:1")


def read_ks(text: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """Read "4", "1,2,4" or "1..8". Errors: UsageError unless every K is among those ``known``."""
    ks: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            upper = min(int(last), known[-1] + 1) if dots else 0  # one too many is enough to be refused
            ks += range(int(first), upper + 1) if dots else [int(first)]
    except ValueError:
        raise UsageError(f"--k {text!r} is no list of numbers; write 4, 1,2,4 or 1..8") from None
    if not ks or not set(ks) <= set(known):
        consecutive = known == tuple(range(known[0], known[-1] + 1)) and len(known) > 1
        said = f"{known[0]}..{known[-1]}" if consecutive else ", ".join(map(str, known))
        raise UsageError(f"--k {text} must lie within {said}, what this subject drafts")
    return tuple(sorted(set(ks)))


def sweep_of(options: argparse.Namespace, opened: Opened) -> Sweep:
    """Return the main sweep for a subject. Errors: UsageError where the options do not fit it."""
    from specverify.timing.measure import Sweep, shortest

    tokens, repetitions, ks = (QUICK_TOKENS, QUICK_REPETITIONS, QUICK_KS) if options.quick else (TOKENS, REPETITIONS, KS)
    known = tuple(opened.timing.drafts)
    drafts = known if options.drafts is None else tuple(dict.fromkeys(options.drafts.split(",")))
    for draft in drafts:
        if draft not in known:
            raise UsageError(f"{opened.name} has no draft {draft!r}; it has {', '.join(known)}")
    ks = (few_of(opened.ks, ks) or opened.ks) if options.k is None else read_ks(options.k, opened.ks)
    tokens = options.tokens or tokens
    if tokens < shortest(max(ks)):
        raise UsageError(f"--tokens {tokens} is too short for K = {max(ks)}; ask for {shortest(max(ks))} or more")
    if opened.max_batch is not None and options.batch > opened.max_batch:
        raise UsageError(f"{opened.name} takes at most {opened.max_batch} rows, not {options.batch}")
    if options.prompts is not None and options.prompts > len(opened.prompts):
        raise UsageError(f"{opened.name} has {len(opened.prompts)} prompts, not {options.prompts}")
    return Sweep(drafts, ks, tokens, options.repetitions or repetitions, options.batch, options.seed)


def varied(sweep: Sweep, full: bool) -> Sweep:
    """Return the sweep made at every temperature and batch: all of the main one, or its first draft at a few K."""
    from dataclasses import replace

    from specverify.timing.measure import shortest

    if full:
        return replace(sweep, uncached=False)
    ks = few_of(sweep.ks, VARIED_KS) or sweep.ks[-1:]
    tokens = max(min(sweep.tokens, VARIED_TOKENS), shortest(max(ks)))
    repetitions = min(sweep.repetitions, VARIED_REPETITIONS)
    few = replace(sweep, drafts=sweep.drafts[:1], ks=ks, tokens=tokens, repetitions=repetitions, uncached=False)
    return replace(few, base_runs=1, phase_calls=4)


def few_of(known: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the wanted K that are known, and the largest one known where more are wanted."""
    return tuple(k for k in known if k in wanted or (k == max(known) and k < max(wanted)))


def asked(given: str | None, default: str, quick: bool) -> str | None:
    """Return the list that an option asks for, None for none."""
    text = given if given is not None else NONE if quick else default
    return None if text == NONE else text
