"""What is speculation worth on this machine? The command ``specverify bench``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specverify.errors import CertificateError, SpecverifyError, SubjectError, UsageError
from specverify.timing.options import BATCHES, NEWEST, TEMPERATURES, USAGE_ERROR, asked, check, parser, sweep_of, varied

if TYPE_CHECKING:
    from specverify.timing.measure import Samples, Sweep
    from specverify.timing.opening import Opened

REGRESSED, NOT_MEASURABLE = 1, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        options = parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        return _bench(options)
    except SystemExit as stop:
        sys.stderr.write(
            f"specverify bench: the subject called sys.exit({stop.code!r}) while being timed; nothing was written\n"
        )
        return NOT_MEASURABLE
    except SpecverifyError as error:
        sys.stderr.write(f"specverify bench: {error}\n")
        if isinstance(error, SubjectError):
            return NOT_MEASURABLE
        return 1 if isinstance(error, CertificateError) else USAGE_ERROR
    except OSError as error:
        sys.stderr.write(f"specverify bench: {error.strerror or error}: {error.filename}\n")
        return USAGE_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("\nspecverify bench: interrupted; nothing was written\n")
        return 130


def _bench(options: argparse.Namespace) -> int:
    check(options)

    import torch

    from specverify.loading import load_subject
    from specverify.timing.attach import attach, certificate_of, newest_run
    from specverify.timing.compare import read_timing
    from specverify.timing.exported import exported, write_json
    from specverify.timing.opening import open_timeable
    from specverify.timing.table import render

    old = None if options.compare is None else read_timing(options.compare)
    subject = load_subject(options.subject)
    folder = newest_run() if options.attach == NEWEST else options.attach
    if folder is not None:
        certificate_of(folder, subject)  # whatever is wrong with it is said before minutes are spent
    if old is not None and old.get("subject") != subject.name:
        raise UsageError(f"{options.compare} is of {old.get('subject')}, not of {subject.name}; compare runs of one subject")
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        opened = open_timeable(subject, options.seed)
        timing, samples = _measured(options, opened if options.device is None else opened.on(options.device))
    finally:
        torch.set_num_threads(threads)
    _say(render(timing))
    if options.json is not None:
        write_json(options.json, exported(timing, samples))
        _say(f"timing       {options.json}")
    if options.plots is not None:
        for path in _plots(timing, options.plots):
            _say(f"plot         {path}")
    if folder is not None:
        _say(f"certificate  {attach(timing, folder, subject)}")
    return 0 if old is None else _compared(old, timing, options.fail_above)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _compared(old: Mapping[str, Any], new: Mapping[str, Any], fail_above: float) -> int:
    from specverify.timing.compare import compare, render_changes

    changes = compare(old, new, fail_above)
    _say("\n" + render_changes(changes, fail_above))
    return REGRESSED if any(change.regressed for change in changes) else 0


def _plots(timing: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    from specverify.report.svg import standalone
    from specverify.report.timings import timings_of

    folder.mkdir(parents=True, exist_ok=True)
    shown = timings_of(timing)
    for plot in () if shown is None else shown.plots:
        path = folder / f"{plot.name}.svg"
        path.write_text(standalone(plot), encoding="utf-8")
        yield path


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, nothing in a log."""
    from tqdm import tqdm

    with tqdm(total=total, unit="run", leave=False, disable=not sys.stderr.isatty(), file=sys.stderr) as bar:

        def on_done(label: str) -> None:
            bar.set_description(label)
            bar.update()

        yield on_done


def _measured(options: argparse.Namespace, opened: Opened) -> tuple[dict[str, Any], Samples]:
    """Run the main sweep, those over temperatures and batches, and read the memory."""
    from dataclasses import replace

    from specverify.timing.clocks import CudaClock, clock_for
    from specverify.timing.costs import impossible
    from specverify.timing.measure import measure
    from specverify.timing.memory import memory_json
    from specverify.timing.record import timing_json
    from specverify.timing.sweeps import or_failed, read_batches, read_temperatures, sweep_batches, sweep_temperatures

    temperatures = asked(options.temperatures, TEMPERATURES, options.quick)
    batches = asked(options.batches, BATCHES, options.quick)
    heats = None if temperatures is None else read_temperatures(temperatures)
    sizes = None if batches is None else read_batches(batches)
    opened = replace(opened, prompts=opened.prompts[: options.prompts]) if options.prompts is not None else opened
    sweep = sweep_of(options, opened)
    short, clock = varied(sweep, options.full), clock_for(options.device, options.clock)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with _progress(_steps(opened, sweep, short, len(heats or ()) + len(sizes or ()))) as on_done:
        samples = measure(opened.timing, opened.prompts, sweep, clock=clock, on_done=on_done)
        if clock.kind == CudaClock.kind:  # ids may stay on the host
            samples.device = options.device
        further: dict[str, Any] = {}
        if heats is not None:
            further["temperatures"] = sweep_temperatures(opened, heats, short, clock, on_done)
        if sizes is not None:
            further["batches"] = sweep_batches(opened, sizes, short, clock, on_done)
        further["memory"] = or_failed(lambda: memory_json(opened.timing, opened.prompts, sweep, samples.device))
    notes = [*opened.say(), *_lacking(opened, samples), *impossible(samples)]
    return timing_json(samples, subject=opened.name, load=load, models=opened.models, notes=notes, further=further), samples


def _steps(opened: Opened, sweep: Sweep, short: Sweep, times: int) -> int:
    cached = bool(getattr(opened.timing, "has_cache", True))
    return sweep.steps(cached) + times * short.steps(cached)


def _lacking(opened: Opened, samples: Samples) -> list[str]:
    """Say what an own ``timing`` would have to offer for what was not measured."""
    from specverify.timing.phases import FURTHER

    timing = opened.timing
    if opened.models != "its own" or getattr(timing, "whole_only", False):
        return []
    found = []
    if samples.phases and all(samples.phases.values()):
        timed = [phases for several in samples.phases.values() for phases in several]
        if timed and not any(name in phases for phases in timed for name in FURTHER):
            found.append(
                "o holds the rule alone, all else stands in the rest: let timing.phases return cache and loop too, what taking "
                "tokens back costs and the bookkeeping of the loop"
            )
    if not hasattr(timing, "exact_acceptance"):
        found.append(
            "tokens per round stand without their exact value: give timing.exact_acceptance(prompts, made, draft=, k=), the "
            "probabilities (B, R, K) with which tested drafts are accepted"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
