"""How much memory do the target alone and speculation take? Peaks beyond what was held before, and caches where told.

On CUDA the allocator of torch counts every byte. On the CPU the peak of the process is read, in pages of the resident set, with
what malloc holds in reserve given back before: memory that is freed and taken again inside a run is seen once, memory that
other parts of the process still hold in reserve is not seen, so it is a lower bound and coarse. Without Linux's peak counter it
is what the process peaked at above all earlier peaks, which is often nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Timeable
from specverify.timing.measure import Sweep

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What Linux takes to forget the peak of the resident set, proc(5)."""
HOW = {
    "cuda": "torch.cuda.max_memory_allocated beyond what was allocated before",
    "linux": "peak of the resident set (VmHWM) beyond what was resident before; a lower bound, in pages",
    "other": "growth of the largest resident set so far; memory used before and again does not show, so often 0",
}


def memory_json(timing: Timeable, prompts: Tensor, sweep: Sweep, device: str) -> dict[str, Any]:
    """Bytes that one run of each kind takes at its peak, and bytes of the caches by model where the decoder tells.

    Runs are those of ``sweep``'s batch and tokens: the baseline, and the first draft at the largest K. Returns {"how": what was
    read, "bytes": {name: bytes, None where nothing could be read}, "caches": {name: bytes} or None}. Errors: SubjectError when
    ``timing.memory`` returns anything but bytes by name.
    """
    rows = prompts[torch.arange(sweep.batch) % len(prompts)]
    cached = bool(getattr(timing, "has_cache", True))
    draft, k = sweep.drafts[0], max(sweep.ks)
    peak: Callable[[Callable[[], object]], int | None]
    if torch.device(device).type == "cuda":
        how, peak = "cuda", partial(_cuda_peak, device)
    else:
        how, peak = _host_peak()
    runs: dict[str, Callable[[], object]] = {
        ("cached" if cached else "uncached"): lambda: timing.baseline(rows, sweep.tokens, cached=cached, seed=sweep.seed),
        f"{draft} K={k}": lambda: timing.speculative(rows, sweep.tokens, draft=draft, k=k, seed=sweep.seed),
    }
    return {
        "how": HOW[how],
        "bytes": {name: peak(run) for name, run in runs.items()},
        "caches": _caches(timing, sweep.batch, rows.shape[1] + sweep.tokens),
    }


def _caches(timing: Timeable, batch: int, length: int) -> dict[str, int] | None:
    tell = getattr(timing, "memory", None)
    if tell is None:
        return None
    try:
        told = tell(batch, length)
    except Exception as error:
        raise SubjectError(f"memory({batch}, {length}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(told, dict) or not all(isinstance(n, int) and n >= 0 for n in told.values()):
        raise SubjectError(f"memory({batch}, {length}) returned {told!r}; return bytes by name, such as {{'target': 4096}}")
    return {str(name): count for name, count in told.items()}


def _cuda_peak(device: str, run: Callable[[], object]) -> int:
    """Bytes of torch's allocator on one device, with nothing of an earlier run pending and all of this one done."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _host_peak() -> tuple[str, Callable[[Callable[[], object]], int | None]]:
    try:
        CLEAR.write_text(RESET_PEAK)
        _status("VmHWM")
    except (OSError, ValueError):
        return "other", _growth
    return "linux", _linux_peak


def _linux_peak(run: Callable[[], object]) -> int:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text(RESET_PEAK)
    before = _status("VmRSS")
    run()
    return max(_status("VmHWM") - before, 0)


def _status(name: str) -> int:
    """Bytes of an entry of the process's status. ValueError without it."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"{STATUS} has no {name}")


def _growth(run: Callable[[], object]) -> int | None:
    try:
        import resource
    except ImportError:  # as on Windows
        return None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
