"""Has speculation become slower than in an earlier run? Speed-ups of equal configurations side by side, never raw times.

A speed-up is a ratio within one run of one machine, so it survives a change of clock rate or load that hits both sides alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specverify.errors import UsageError
from specverify.timing.exported import OWN

FAIL_ABOVE = 0.1
"""Share of an earlier speed-up that may be lost."""

Key = tuple[float | None, int, str, int]
"""Temperature (None: the decoder's own), batch, draft and K."""


@dataclass(frozen=True)
class Change:
    """The speed-up of one configuration in two runs: medians with quartiles, and the share of the old one that was lost.

    regressed: more than the stated share was lost, and the quartiles of the two runs do not overlap.
    """

    key: Key
    old: Mapping[str, float]
    new: Mapping[str, float]
    lost: float
    regressed: bool


def read_timing(path: Path) -> Mapping[str, Any]:
    """Read the timing in a file of ``--json``, in a certificate, or a bare one. Errors: UsageError that says what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path} to compare with: {error.strerror}; write one with --json FILE") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}); compare with a file written by --json FILE") from error
    found = data
    if isinstance(data, dict):
        found = data[OWN] if OWN in data else data.get("timing", data)
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not all(_is_run(run) for run in runs):
        raise UsageError(f"{path} holds no timing of specverify; compare with a file written by --json FILE")
    try:  # whatever else is damaged shows now, before anything is measured
        _settings(found)
        if not dict(_speedups(found)):
            raise UsageError(f"{path} holds no speed-ups; compare with a file written by --json FILE")
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {error}); write it again with --json FILE") from error
    read: Mapping[str, Any] = found
    return read


def _is_run(run: Any) -> bool:
    spread = run.get("speedup") if isinstance(run, dict) else None
    if not isinstance(spread, dict) or not {"draft", "k"} <= run.keys():
        return False
    numbers = [spread.get(name) for name in ("median", "low", "high")]
    return all(isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x < math.inf for x in numbers)


def compare(old: Mapping[str, Any], new: Mapping[str, Any], fail_above: float = FAIL_ABOVE) -> list[Change]:
    """Changes of every configuration that both timings have, in the order of the new one.

    Errors: UsageError when they are of different subjects, models, numbers of tokens, devices, threads or baselines, or have no
    configuration in common, or when ``fail_above`` is not in [0, 1).
    """
    if not 0 <= fail_above < 1:
        raise UsageError(f"--fail-above {fail_above:g} is no share; give the part of a speed-up that may be lost, such as 0.1")
    differing = [
        f"{name} {was!r} then and {now!r} now"
        for name, was, now in zip(SAME, _settings(old), _settings(new), strict=True)
        if was != now
    ]
    if differing:
        raise UsageError(f"the two timings are not comparable: {'; '.join(differing)}; measure again with equal settings")
    before, after = dict(_speedups(old)), dict(_speedups(new))
    shared = [key for key in after if key in before]
    if not shared:
        raise UsageError(f"the two timings have nothing in common: {_words(before)} then, {_words(after)} now")
    return [_change(key, before[key], after[key], fail_above) for key in shared]


SAME = ("subject", "models", "tokens", "base", "device", "threads")


def _settings(timing: Mapping[str, Any]) -> tuple[Any, ...]:
    machine = timing.get("machine") or {}
    return (*(timing.get(name) for name in SAME[:4]), *(machine.get(name) for name in SAME[4:]))


def _speedups(timing: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, float]]]:
    for run in timing["runs"]:
        yield (None, timing.get("batch", 1), run["draft"], run["k"]), run["speedup"]
    for one in (timing.get("temperatures") or {}).get("at", []):
        for run in filter(_is_run, one.get("runs", [])):
            yield (one["temperature"], one["batch"], run["draft"], run["k"]), run["speedup"]
    for one in (timing.get("batches") or {}).get("at", []):
        if one["batch"] != timing.get("batch", 1):
            for run in filter(_is_run, one.get("runs", [])):
                yield (None, one["batch"], run["draft"], run["k"]), run["speedup"]


def _change(key: Key, old: Mapping[str, float], new: Mapping[str, float], fail_above: float) -> Change:
    lost = 1 - new["median"] / old["median"]
    return Change(key, old, new, lost, lost > fail_above and new["high"] < old["low"])


def _words(speedups: Mapping[Key, Any]) -> str:
    names = [_name(key) for key in speedups]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _name(key: Key) -> str:
    temperature, batch, draft, k = key
    return f"{draft} K={k}" + (f" batch {batch}" if batch != 1 else "") + ("" if temperature is None else f" T={temperature:g}")


def render_changes(changes: list[Change], fail_above: float = FAIL_ABOVE) -> str:
    """Write what regressed as a table, or that nothing did."""
    worse = [change for change in changes if change.regressed]
    if not worse:
        most = max(changes, key=lambda change: change.lost)
        return (
            f"no regression: none of {len(changes)} speed-ups lost more than {fail_above:.3g} of its value beyond the spread "
            f"({'most lost' if most.lost > 0 else 'least gained'}: {abs(most.lost):.0%}, {_name(most.key)})"
        )
    lines = [
        f"{len(worse)} of {len(changes)} speed-ups lost more than {fail_above:.0%}, and their quartiles do not overlap:",
        f"{'configuration':<28}{'then (quartiles)':>22}{'now (quartiles)':>22}{'lost':>7}",
    ]
    lines += [
        f"{_name(c.key):<28}{_quartiles(c.old):>22}{_quartiles(c.new):>22}{c.lost:>7.0%}"
        for c in sorted(worse, key=lambda c: -c.lost)
    ]
    return "\n".join(lines)


def _quartiles(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
