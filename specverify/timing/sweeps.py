"""What becomes of the speed-up at other temperatures and in larger batches? A short sweep at each, beside its own baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specverify.errors import SubjectError, UsageError
from specverify.timing.clocks import Clock
from specverify.timing.measure import Sweep, measure
from specverify.timing.opening import Opened
from specverify.timing.predict import slower_from
from specverify.timing.record import sweep_json

Heard = Callable[[str], None]


def sweep_temperatures(
    opened: Opened, temperatures: Sequence[float], sweep: Sweep, clock: Clock, on_done: Heard
) -> dict[str, Any]:
    """Time ``sweep`` at every temperature, each against the target alone at that temperature.

    Returns {"at": one record of a sweep per temperature, with "temperature"}; {"missing": what to add} where the decoder cannot
    be had at another temperature. A temperature that fails has "failed" instead of numbers.
    """
    heat = getattr(opened.timing, "at", None)
    if heat is None:
        return {"missing": "temperatures need timing.at(temperature), which returns the same decoder at another one"}
    found = []
    for temperature in temperatures:

        def there(temperature: float = temperature) -> dict[str, Any]:
            heated = replace(opened, timing=heat(temperature))
            return sweep_json(measure(heated.timing, opened.prompts, sweep, clock=clock, on_done=on_done))

        found.append({"temperature": temperature, **or_failed(there)})
    return {"at": found}


def sweep_batches(opened: Opened, batches: Sequence[int], sweep: Sweep, clock: Clock, on_done: Heard) -> dict[str, Any]:
    """Time ``sweep`` at every batch size, each against the target alone at that size.

    Returns {"at": one record of a sweep per size, "best": the largest speed-up over K at each size, by size as text, of the
    first draft, "stops_paying": the size from which on every size measured is slower than the baseline at its best K, None
    where the largest still pays, "predicted_stops_paying": the same predicted}. Sizes above ``max_batch`` are left out and
    named in "left_out". A size that fails has "failed" instead of numbers.
    """
    most = opened.max_batch
    allowed = [b for b in batches if most is None or b <= most]
    found = []
    for batch in allowed:

        def there(batch: int = batch) -> dict[str, Any]:
            wide = replace(sweep, batch=batch)
            return sweep_json(measure(opened.timing, opened.prompts, wide, clock=clock, on_done=on_done))

        found.append({"batch": batch, **or_failed(there)})
    best = {one["batch"]: _best(one) for one in found if "failed" not in one}
    foreseen = {b: p for b, (_, p) in best.items() if p is not None}
    return {
        "at": found,
        "best": {str(b): speedup for b, (speedup, _) in best.items()},
        "stops_paying": slower_from({b: speedup for b, (speedup, _) in best.items()}),
        "predicted_stops_paying": slower_from(foreseen) if len(foreseen) == len(best) else None,
        "left_out": [b for b in batches if b not in allowed],
    }


def _best(one: dict[str, Any]) -> tuple[float, float | None]:
    """Largest speed-up of the first draft, and the largest one predicted."""
    best = next(iter(one["best"].values()))
    return best["speedup"], best["predicted_speedup"]


def or_failed(measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, or that it failed and why: what was measured before it is worth keeping."""
    try:
        return measured()
    except SubjectError as error:
        return {"failed": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def read_temperatures(text: str) -> tuple[float, ...]:
    """Read "0,0.7,1". Errors: UsageError unless all are numbers from 0 on, each once."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--temperatures {text!r} is no list of numbers; write for instance 0,0.7,1") from None
    if not all(0 <= t < float("inf") for t in found) or len(set(found)) < len(found):
        raise UsageError(f"--temperatures {text} must be numbers of at least 0, each once")
    return found


def read_batches(text: str) -> tuple[int, ...]:
    """Read "1,2,4". Errors: UsageError unless all are whole numbers from 1 on."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"--batches {text!r} is no list of whole numbers; write for instance 1,2,4,8,16,32") from None
    if found[0] < 1:
        raise UsageError(f"--batches {text} must be at least 1")
    return found
