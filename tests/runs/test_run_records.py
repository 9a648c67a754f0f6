"""Are the files of a run what they must be? Whole records and no others, an index that is only a cache, one writer."""

import contextlib
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.errors import DrawsDiffer, FolderError, UsageError
from specverify.runs import records
from specverify.runs.index import Index, counted
from specverify.runs.lock import RunLock, holder
from specverify.runs.records import Segment, framed, record_at, whole_records
from specverify.runs.shards import Form, Shard, decoded, encoded
from specverify.runs.store import FOLDER, INDEX, RunShards, TestShards, forget

KEY = {"spec": "x", "settings": {"seed": 0}}
NUMBERS: Form[list[int]] = Form(
    lambda drawn: Shard({}, {"n": np.array(drawn)}), lambda shard: [int(n) for n in shard.arrays["n"]]
)


def draw_all(shards: TestShards, number: int, *, salt: int = 0) -> tuple[list[list[int]], list[int]]:
    """So many shards of a test, and which of them were drawn and not read."""
    drawn: list[int] = []

    def draw(i: int) -> list[int]:
        drawn.append(i)
        return [i, i * i, salt]

    return [shards.drawn({"i": i}, lambda i=i: draw(i), NUMBERS) for i in range(number)], drawn


def stored(folder: Path, number: int, *, test: str = "a/b/c", salt: int = 0) -> tuple[list[list[int]], list[int]]:
    """The same in a run of its own, which is closed at the end."""
    run = RunShards(folder, KEY)
    try:
        return draw_all(run.of(test), number, salt=salt)
    finally:
        run.close()


def counts_in(folder: Path, key: Mapping[str, object] = KEY) -> dict[str, int]:
    """How many shards of each test a run finds in its folder."""
    with contextlib.closing(RunShards(folder, key)) as run:
        return run.index.counts()


def test_a_file_cut_anywhere_gives_the_records_that_are_whole(tmp_path: Path) -> None:
    """Every cut: all records that end before it, and none else."""
    payloads = [b"one", b"", b"three" * 5]
    data, ends = b"", []
    for payload in payloads:
        data += framed(payload)
        ends.append(len(data))
    path = tmp_path / "0001.log"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        assert [p for _, _, p in whole_records(path)] == payloads[: sum(end <= cut for end in ends)]


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """The record that holds it is not whole, and those before it are."""
    data = framed(b"first") + framed(b"second")
    path, first = tmp_path / "0001.log", len(framed(b"first"))
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert [p for _, _, p in whole_records(path)] == ([b"first"] if at >= first else [])
    assert record_at(tmp_path / "none.log", 0) is None


def test_what_follows_a_torn_record_goes_into_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is broken off leaves its file alone for good; what was in it stays readable."""
    run = RunShards(tmp_path, KEY)
    shards = run.of("t")
    draw_all(shards, 2)
    whole = (tmp_path / FOLDER / "0001.log").read_bytes()
    write = os.write

    def torn(file: int, data: bytes) -> int:
        write(file, bytes(data)[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as while_writing:
        while_writing.setattr(records.os, "write", torn)
        with pytest.raises(KeyboardInterrupt):
            shards.drawn({"i": 2}, lambda: [2, 4, 0], NUMBERS)
    run.of("u").drawn({}, lambda: [7], NUMBERS)
    run.close()
    assert (tmp_path / FOLDER / "0001.log").read_bytes()[: len(whole)] == whole
    assert (tmp_path / FOLDER / "0002.log").exists()
    assert counts_in(tmp_path) == {"t": 2, "u": 1}


def test_a_file_of_an_earlier_process_is_never_written_again(tmp_path: Path) -> None:
    """A resumed run begins a file of its own and leaves the bytes of the others as they are."""
    stored(tmp_path, 3)
    before = (tmp_path / FOLDER / "0001.log").read_bytes()
    stored(tmp_path, 5)
    assert (tmp_path / FOLDER / "0001.log").read_bytes() == before
    first, second = Segment(tmp_path / FOLDER), Segment(tmp_path / FOLDER)
    assert (first.number, second.number) == (3, 4)


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.dictionaries(st.text(max_size=5), arrays.arrays(np.int64, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))),
    st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=4) | st.integers() | st.booleans())),
)
def test_a_shard_comes_back_as_it_was(drawn: dict[str, np.ndarray], facts: dict[str, list[object]]) -> None:
    """Integers of any size and shape, and plain facts."""
    back = decoded(encoded(Shard(facts, drawn), {"test": "t"}))
    assert back.facts == facts
    assert list(back.arrays) == list(drawn)
    for name, values in drawn.items():
        assert back.arrays[name].shape == values.shape
        assert back.arrays[name].dtype == np.int64
        assert (back.arrays[name] == values).all()


def test_shards_that_exist_are_read_and_the_last_is_drawn_once_more(tmp_path: Path) -> None:
    """Of five shards after a kill within the fourth: two are read, the third is compared, two are drawn."""
    whole, drawn = stored(tmp_path / "whole", 5)
    assert drawn == [0, 1, 2, 3, 4]
    stored(tmp_path / "cut", 3)
    again, drawn = stored(tmp_path / "cut", 5)
    assert again == whole
    assert drawn == [2, 3, 4]
    assert stored(tmp_path / "cut", 5) == (whole, [])


def test_what_does_not_come_again_is_not_gone_on_with(tmp_path: Path) -> None:
    """A subject that draws otherwise after a kill: the test is begun anew, and nothing of before counts any more."""
    stored(tmp_path, 3)
    run = RunShards(tmp_path, KEY)
    shards = run.of("a/b/c")
    with pytest.raises(DrawsDiffer, match="a/b/c: drawn again, shard 2 comes out otherwise"):
        draw_all(shards, 4, salt=1)
    anew, drawn = draw_all(shards.begin_anew(), 2, salt=1)
    assert drawn == [0, 1]
    run.close()
    assert stored(tmp_path, 2, salt=1) == (anew, [])
    with_all, drawn = stored(tmp_path, 4, salt=1)
    assert drawn == [1, 2, 3]
    assert with_all[:2] == anew


def test_a_shard_for_which_something_else_was_asked_is_drawn(tmp_path: Path) -> None:
    """A kept shard is used for the same question only."""
    with contextlib.closing(RunShards(tmp_path, KEY)) as run:
        run.of("t").drawn({"rows": 5}, lambda: [5], NUMBERS)
        assert run.of("t").drawn({"rows": 5}, lambda: [0], NUMBERS) == [5]
        assert run.of("t").drawn({"rows": 6}, lambda: [6], NUMBERS) == [6]


def test_shards_of_another_plan_are_refused_also_when_the_index_knows_them(tmp_path: Path) -> None:
    """With and without an index, the error names the file and what to do; a new run there forgets them."""
    stored(tmp_path, 2)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"0001.log belongs to another plan; choose another --out"):
            RunShards(tmp_path, {**KEY, "spec": "y"})
        (tmp_path / INDEX).unlink(missing_ok=True)
    forget(tmp_path)
    assert counts_in(tmp_path, {**KEY, "spec": "y"}) == {}


def _places(folder: Path, path: Path | None = None) -> list[tuple[Path, int] | None]:
    with contextlib.closing(Index(folder / FOLDER, path)) as index:
        return [index.place("a/b/c", i) for i in range(4)]


def _wrong_places(path: Path) -> None:
    with sqlite3.connect(path) as tables:
        tables.execute("UPDATE shards SET offset = offset + 1")
    tables.close()


def _swapped_places(path: Path) -> None:
    with sqlite3.connect(path) as tables:
        tables.execute("UPDATE shards SET number = CASE number WHEN 1 THEN 90 ELSE number END")
        tables.execute("UPDATE shards SET number = 1 WHERE number = 2")
        tables.execute("UPDATE shards SET number = 2 WHERE number = 90")
    tables.close()


def _another_version(path: Path) -> None:
    with sqlite3.connect(path) as tables:
        tables.execute("PRAGMA user_version = 99")
    tables.close()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"no database at all" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(b""),
        _wrong_places,
        _swapped_places,
        _another_version,
    ],
    ids=["gone", "garbage", "cut", "empty", "wrong places", "swapped places", "another version"],
)
def test_the_index_is_made_anew_from_the_files(tmp_path: Path, harm) -> None:
    """Whatever happens to it, every shard is found where it is, and read as it was."""
    whole, _ = stored(tmp_path, 4)
    truth = _places(tmp_path)
    assert _places(tmp_path, tmp_path / INDEX) == truth
    harm(tmp_path / INDEX)
    assert stored(tmp_path, 4) == (whole, [])
    assert _places(tmp_path, tmp_path / INDEX) == truth
    assert counted(tmp_path / FOLDER, tmp_path / INDEX) == {"a/b/c": 4}


def test_an_index_that_knows_of_files_that_are_gone_is_emptied(tmp_path: Path) -> None:
    """And one that is behind is brought up to date."""
    stored(tmp_path, 4)
    old = (tmp_path / INDEX).read_bytes()
    stored(tmp_path, 6)
    (tmp_path / INDEX).write_bytes(old)
    assert counts_in(tmp_path) == {"a/b/c": 6}
    (tmp_path / FOLDER / "0002.log").unlink()
    assert counts_in(tmp_path) == {"a/b/c": 4}


def test_what_an_orphan_adds_to_an_earlier_file_does_not_count_against_a_later_one(tmp_path: Path) -> None:
    """A worker that outlives its killed run goes on with its file; in whatever order files are read, the newest says."""
    orphan = RunShards(tmp_path, KEY, own_index=False)
    shards = orphan.of("a/b/c")
    draw_all(shards, 1)
    newer, _ = stored(tmp_path, 3)
    for number in range(1, 3):
        shards.drawn({"i": number}, lambda: [-1], NUMBERS)
    orphan.close()
    assert stored(tmp_path, 3) == (newer, [])
    (tmp_path / INDEX).unlink()
    assert stored(tmp_path, 3) == (newer, [])


def test_an_index_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    """Nothing is lost by it, and the run goes on."""
    (tmp_path / INDEX).mkdir()
    whole, _ = stored(tmp_path, 3)
    assert stored(tmp_path, 3) == (whole, [])


def test_an_index_that_fails_on_the_way_is_gone_on_with_in_memory(tmp_path: Path) -> None:
    """SQLite finds no room, at whatever is done with it: the shards are what counts, and they are all there."""
    for act in (RunShards.sync, lambda run: run.stored("a/b/c", 1), lambda run: run.index.counts(), RunShards.close):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run = RunShards(folder, KEY)
        whole, _ = draw_all(run.of("a/b/c"), 3)
        run.index._tables.close()  # every call on it fails from now on, as on a disk without room
        act(run)
        run.close()
        assert stored(folder, 3) == (whole, [])


def test_a_full_disk_is_said_and_loses_nothing_that_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do; afterwards every shard is there but the one that did not fit."""
    whole, _ = stored(tmp_path / "whole", 5)
    run = RunShards(tmp_path / "full", KEY)
    shards, write = run.of("a/b/c"), os.write

    def no_room(file: int, data: bytes) -> int:
        if list((tmp_path / "full" / FOLDER).glob("*.log")) and draws[0] > 3:
            write(file, bytes(data)[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    draws = [0]

    def draw(i: int) -> list[int]:
        draws[0] += 1
        return [i, i * i, 0]

    monkeypatch.setattr(records.os, "write", no_room)
    for i in range(3):
        shards.drawn({"i": i}, lambda i=i: draw(i), NUMBERS)
    said = rf"cannot be written: No space left on device; .*continue with --resume {tmp_path / 'full'}"
    with pytest.raises(FolderError, match=said):
        shards.drawn({"i": 3}, lambda: draw(3), NUMBERS)
    monkeypatch.undo()
    run.close()
    assert stored(tmp_path / "full", 5) == (whole, [2, 3, 4])


HOLD = """
import sys, time
from pathlib import Path
from specverify.runs.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time_writes_to_a_run_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    """The second is told which process holds it; after kill -9 of that, the folder is free at once."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert f"process {other.pid} on" in holder(tmp_path)
            with pytest.raises(UsageError, match=rf"is in use: process {other.pid} on .* has written to it since"):
                RunLock(tmp_path).take()
        finally:
            other.send_signal(signal.SIGKILL)
    assert json.loads((tmp_path / "lock").read_text())["pid"] == other.pid  # the file lies there, and means nothing
    assert holder(tmp_path) == ""
    with RunLock(tmp_path):
        assert f"process {os.getpid()} on" in holder(tmp_path)
    assert holder(tmp_path) == ""


def test_a_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """A forked child that outlives a killed parent must not keep the run from being resumed."""
    lock = RunLock(tmp_path)
    lock.take()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        time.sleep(0.2)
        lock.release()
        assert holder(tmp_path) == ""
        with RunLock(tmp_path):
            assert holder(tmp_path) != ""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    """With the reason, and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written: Not a directory; choose another folder"):
        RunLock(tmp_path / "file" / "run").take()
