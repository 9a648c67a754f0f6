"""Memory: peaks of runs that allocate, caches as told, and what is said where nothing can be read."""

from __future__ import annotations

import pytest
import torch
from scripted import Scripted, Telling

from specverify.errors import SubjectError
from specverify.timing import memory
from specverify.timing.measure import Sweep
from specverify.timing.memory import memory_json
from specverify.timing.table import render

PROMPTS = torch.arange(12).reshape(4, 3) % 4
SWEEP = Sweep(("aligned", "mismatched"), (1, 3), tokens=20, repetitions=1, batch=2)
MIB = 1 << 20


class Hungry(Telling):
    """Writes 64 MiB during a run with speculation, and nothing else."""

    def speculative(self, *a, **b):
        """Generate as the other does."""
        torch.ones(16 * MIB)
        return super().speculative(*a, **b)


@pytest.fixture
def counters(tmp_path, monkeypatch):
    """A process status of our own, so that its numbers are ours."""
    status = tmp_path / "status"
    status.write_text("VmHWM:\t  5000 kB\nVmRSS:\t  1000 kB\n")
    (tmp_path / "clear_refs").write_text("")
    monkeypatch.setattr(memory, "STATUS", status)
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "clear_refs")
    return tmp_path


def test_the_peak_is_what_was_not_resident_before(counters):
    """A peak of 5000 KiB from 1000 resident is 4000 KiB, of a run whose peak was reset before."""
    found = memory_json(Scripted(), PROMPTS, SWEEP, "cpu")
    assert found["bytes"] == {"cached": 4000 * 1024, "aligned K=3": 4000 * 1024}
    assert (counters / "clear_refs").read_text() == "5"
    assert "lower bound" in found["how"]
    assert found["caches"] is None


def test_without_the_counter_it_is_said_what_was_read(counters, monkeypatch):
    """Where the peak cannot be reset, the growth of the largest resident set is read, and that tells little."""
    monkeypatch.setattr(memory, "CLEAR", counters / "no" / "clear_refs")
    found = memory_json(Scripted(), PROMPTS, SWEEP, "cpu")
    assert "often 0" in found["how"]
    assert all(count is None or count >= 0 for count in found["bytes"].values())


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="the peak of the resident set is read on Linux")
def test_what_a_run_writes_is_seen():
    """64 MiB written while speculating show beside a baseline that writes none."""
    try:
        memory.CLEAR.write_text(memory.RESET_PEAK)
    except OSError:
        pytest.skip("the peak of this process cannot be reset")
    peaks = memory_json(Hungry(), PROMPTS, SWEEP, "cpu")["bytes"]
    assert peaks["aligned K=3"] > 60 * MIB
    assert peaks["cached"] < 60 * MIB


def test_caches_are_those_told_for_the_whole_text():
    """Two rows of what is told for one, and a missing memory() is said in the table."""
    assert memory_json(Telling(told={"target": 10, "draft": 1}), PROMPTS, SWEEP, "cpu")["caches"] == {"target": 20, "draft": 2}


@pytest.mark.parametrize("told", [{"target": 1.5}, {"target": -1}])
def test_bytes_that_cannot_be_are_refused(told):
    """Sizes are whole numbers from 0 on."""
    with pytest.raises(SubjectError, match="return bytes by name"):
        memory_json(Telling(told=told), PROMPTS, SWEEP, "cpu")


def test_the_table_says_what_was_read_and_what_was_not_told():
    """Bytes have units; what could not be read and caches that were not told are named as such."""
    from test_timing_costs import _record

    how = {"how": "by hand", "bytes": {"cached": 3 * MIB, "aligned K=3": None}, "caches": None}
    text = render({**_record(Scripted(), ks=(1,)), "memory": how})
    assert "memory: cached 3.0 MiB, aligned K=3 not read (by hand)" in text
    assert "give timing.memory(batch, length)" in text
    told = {**how, "caches": {"target": 2048, "draft": 5}}
    assert "caches: target 2.0 KiB, draft 5 B" in render({**_record(Scripted(), ks=(1,)), "memory": told})


def test_on_cuda_the_allocator_of_that_device_is_asked(monkeypatch):
    """The peak is forgotten before each run, what was allocated before is no part of it, and all work is waited for."""
    asked: list[tuple[str, str]] = []
    held = {"memory_allocated": 100, "max_memory_allocated": 350}

    def answering(name):
        def answer(device):
            asked.append((name, device))
            return held.get(name)

        return answer

    for name in ("synchronize", "reset_peak_memory_stats", *held):
        monkeypatch.setattr(torch.cuda, name, answering(name))
    found = memory_json(Scripted(), PROMPTS, SWEEP, "cuda:1")
    assert found["bytes"] == {"cached": 250, "aligned K=3": 250}
    assert found["how"].startswith("torch.cuda.max_memory_allocated")
    order = ["synchronize", "reset_peak_memory_stats", "memory_allocated", "synchronize", "max_memory_allocated"]
    assert asked == 2 * [(name, "cuda:1") for name in order]
