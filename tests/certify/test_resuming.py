"""Runs that survive: whatever ends a run, the resumed one comes to the same evidence, and draws no more than it must."""

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import slow_subjects
import subjects_for_tests as subjects
import torch

import reference
from specverify.certificate import load, recheck
from specverify.certify import ANEW, Runner, certify
from specverify.checks import in_shards
from specverify.checks.base import BUDGETS, Context, Planned, Settings
from specverify.checks.sampling import MOST_ROWS, Sample, in_order, sample_decoder
from specverify.cli import main
from specverify.errors import FolderError
from specverify.evidence_file import EvidenceFile
from specverify.faults import served
from specverify.pairs import named_pair
from specverify.plan import Plan, plan_for
from specverify.runs.listing import listed, run_in
from specverify.runs.records import whole_records
from specverify.runs.shards import head_of
from specverify.runs.store import FOLDER, RunShards
from specverify.subjects import Decoder, Facts, Generated, Subject
from specverify.unknown_law import OnOff

HERE = Path(__file__).parent
SMOKE = Settings(BUDGETS["smoke"], max_tokens=4_000)


class Reporting(slow_subjects.Quick):
    """Reports accepted counts, which must survive too."""

    def generate(self, prompts, max_new_tokens, seed):
        """One accepted token a round."""
        tokens = super().generate(prompts, max_new_tokens, seed)
        return Generated(tokens, torch.ones(len(prompts), -(-max_new_tokens // 2), dtype=torch.int64))


class Modes:
    """The same law with speculation on and off."""

    vocab_size, prompts = 4, torch.tensor([[0], [1], [2]])

    def generate(self, prompts, max_new_tokens, seed):
        """As the tiny decoder."""
        return subjects.TinyDecoder().generate(prompts, max_new_tokens, seed)

    baseline = generate


def planned_of(subject: Subject, name: str, change: Mapping[str, Any], settings: Settings = SMOKE) -> tuple[Plan, Planned]:
    """The plan of a subject and one of its tests, with some of its parameters changed."""
    plan = plan_for(subject, "tests", settings)
    planned = plan.find(name)
    return plan, replace(planned, params={**planned.params, **change})


SAMPLED = {
    "verifier, one row": (subjects.one_row, "sequence/one_row/table models V3-K2", {"draws": 80}),
    "verifier": (subjects.good, "sequence/good/table models V3-K2", {"draws": 9_000}),
    "verifier, going on": (subjects.good, "sequence/good/every known fault", {}),
    "verifier, small batches": (subjects.good, "sequence/good/small batches V3-K2", {"draws": 1_400}),
    "step": (reference.subject, "sequence/reference.step.k2/every known fault", {}),
    "tree": (reference.subject, "sequence/reference.tree.top_k/every known fault", {}),
    "decoder": (slow_subjects.quick, "sequence/quick/own models", {"draws": 600}),
    "decoder, going on": (slow_subjects.quick, "sequence/quick/own models, every known fault", {}),
    "decoder, stopping": (slow_subjects.quick, "stopping/quick/own models", {"rows": 400}),
    "decoder, acceptance": (Decoder("r", Reporting, facts=Facts(max_batch=8)), "acceptance/r/own models", {"draws": 600}),
    "rows": (served.SERVER_FAULTS["seed_and_place"], "rows/seed_and_place/mixed batch", {"calls": 4}),
    "on and off": (OnOff("modes", Modes), "on_off/modes/own models", {"pairs": 160}),
}


def without_times(evidence: dict[str, Any]) -> dict[str, Any]:
    """Evidence or a certificate without what differs between any two runs."""
    kept = {name: value for name, value in evidence.items() if name not in ("seconds", "environment", "digest")}
    return {**kept, "evidence": [without_times(e) for e in kept["evidence"]]} if "evidence" in kept else kept


def evidence_in(folder: Path, plan: Plan, planned: Planned) -> dict[str, Any]:
    """Evidence of a test in a run's folder, in which it may have been begun before."""
    with contextlib.closing(RunShards(folder, plan.key)) as shards:
        return without_times(Runner(plan, shards).run(planned).to_json())


def drawn_before(folder: Path) -> list[tuple[int, int]]:
    """Where the shards in the first file of a run begin and end; its first record says which plan it is."""
    return [(start, end) for start, end, _ in whole_records(folder / FOLDER / "0001.log")][1:]


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_test_that_was_cut_anywhere_comes_to_the_same_evidence(kind, tmp_path):
    """Kept or not, begun or not, cut between shards or within one: the same numbers, and only what was missing is drawn."""
    plan, planned = planned_of(*SAMPLED[kind])
    whole = evidence_in(tmp_path / "whole", plan, planned)
    assert without_times(Runner(plan).run(planned).to_json()) == whole
    places, log = drawn_before(tmp_path / "whole"), (tmp_path / "whole" / FOLDER / "0001.log").read_bytes()
    assert len(places) >= 2
    middle, last = places[len(places) // 2], places[-1]
    for kept, cut in ((len(places) // 2, middle[0] + 11), (len(places) - 1, last[0]), (0, places[0][0] - 1)):
        folder = tmp_path / str(cut)
        (folder / FOLDER).mkdir(parents=True)
        (folder / FOLDER / "0001.log").write_bytes(log[:cut])
        assert evidence_in(folder, plan, planned) == whole
        added = folder / FOLDER / "0002.log"
        assert len(list(whole_records(added))) - 1 == len(places) - kept
    assert evidence_in(tmp_path / "whole", plan, planned) == whole
    assert not (tmp_path / "whole" / FOLDER / "0002.log").exists()


def test_another_seed_gives_other_evidence(tmp_path):
    """The control of the comparison above: it would notice other draws."""
    plan, planned = planned_of(*SAMPLED["decoder"])
    other, planned_other = planned_of(*SAMPLED["decoder"], replace(SMOKE, seed=1))
    assert evidence_in(tmp_path / "a", plan, planned) != evidence_in(tmp_path / "b", other, planned_other)


def test_a_shard_that_was_changed_in_its_file_is_drawn_again(tmp_path):
    """A damaged record is not read, so no verdict rests on it."""
    plan, planned = planned_of(*SAMPLED["decoder"])
    whole = evidence_in(tmp_path, plan, planned)
    path, (start, end) = tmp_path / FOLDER / "0001.log", drawn_before(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[(start + end) // 2] ^= 1
    path.write_bytes(data)
    (tmp_path / "index.sqlite").unlink()
    assert evidence_in(tmp_path, plan, planned) == whole


def test_noise_that_begins_anew_in_every_process_is_not_taken_for_new(tmp_path):
    """An exact decoder with a generator of its own: after a kill its test begins anew, and says so; nothing is refuted by it.

    Without that, the noise of the first shards would come once more in the later ones: no new evidence, taken for some.
    """
    plan, planned = planned_of(slow_subjects.own_noise, "sequence/own_noise/own models", {"draws": 1_500})
    whole = evidence_in(tmp_path, plan, planned)
    assert whole["verdict"] == "certified"
    places, path = drawn_before(tmp_path), tmp_path / FOLDER / "0001.log"
    path.write_bytes(path.read_bytes()[: places[3][0]])
    (tmp_path / "index.sqlite").unlink()
    again = evidence_in(tmp_path, plan, planned)
    assert again["notes"][-1] == ANEW
    assert again["verdict"] == "certified"
    heads = [head_of(record) for _, _, record in whole_records(tmp_path / FOLDER / "0002.log")]
    assert heads[1]["anew"]
    assert [head["number"] for head in heads[2:]] == list(range(len(places)))
    assert {**evidence_in(tmp_path, plan, planned), "notes": again["notes"]} == again  # all of it is there now


def test_a_sample_in_shards_is_one_sample():
    """Rows, prompts in turn across shards, calls, seeds: nothing is lost, doubled or moved."""
    decoder, prompts = slow_subjects.Quick(), slow_subjects.Quick.prompts
    context = Context(slow_subjects.quick, "x", SMOKE, 5, 1e-9)
    rows = in_shards.rows_of_a_shard(8, 2048)
    samples = in_shards.sampled_decoder(context, decoder, prompts, 2 * rows + 7, 6)
    assert sum(len(s.sequences) for s in samples) == 2 * rows + 7
    first = sample_decoder(decoder, prompts, rows, 6, 5, name="x", max_batch=8)
    for sample, begun in zip(samples, first, strict=True):
        assert sample.sequences[: len(begun.sequences)] == begun.sequences
        assert sum(sample.calls) == len(sample.sequences)
    kinds = [kind for _, of_call in in_order(samples) for kind in of_call.tolist()]
    assert kinds == [i % 3 for i in range(2 * rows + 7)]
    (alone,) = in_shards.sampled_decoder(context, decoder, prompts[:1], 2 * rows, 6)
    assert alone.sequences[:rows] != alone.sequences[rows:]
    verified = in_shards.sampled_part(Context(subjects.good, "x", SMOKE, 5, 1e-9), named_pair(3, 2), 2 * MOST_ROWS, 5, 5)
    assert verified.sequences[:MOST_ROWS] != verified.sequences[MOST_ROWS:]


@pytest.mark.parametrize(
    ("max_batch", "small", "rows"),
    [(None, False, 4096), (1, False, 32), (8, False, 256), (1000, False, 4096), (None, True, 1248)],
)
def test_a_shard_is_what_a_few_calls_take(max_batch, small, rows):
    """One large call, or many small ones."""
    assert in_shards.rows_of_a_shard(max_batch, 4096, small=small) == rows


@pytest.mark.parametrize(
    "samples",
    [
        [Sample([(1, 2), (0, -1)], [2], 1, 2, 3, 4, False)],
        [Sample([(1, 2), (0, -1)], [1, 1], reported=[((1, 2), [1, 0]), ((0, -1), [])]), Sample([(70_000, 3)], [0, 1])],
        [Sample([(1,), (2,)], [2], reported=[((2,), [4])]), Sample([], [0])],
    ],
)
def test_a_sample_comes_back_from_its_shard_as_it_was(samples):
    """Sequences, calls, events and reports."""
    assert in_shards.unpack(in_shards.pack(samples)) == samples


ONLY = "sequence/slow/own models"


def command(folder: Path, *more: str) -> list[str]:
    """A run of the slow decoder in a process of its own, or its continuation."""
    start = ["slow_subjects:slow", "--budget", "smoke", "--out", str(folder)]
    begun = ["--resume", str(folder)] if (folder / "evidence.jsonl").exists() else start
    return [sys.executable, "-m", "specverify", "certify", *begun, "--only", ONLY, *more]


ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
}


def certificate_in(folder: Path) -> dict[str, Any]:
    """What a run came to, after its certificate was checked."""
    data = load(folder / "certificate.json")
    recheck(data)
    return without_times(data)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The certificate of a run of the slow decoder that nothing disturbs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    certify("slow_subjects:slow", Settings(BUDGETS["smoke"]), subject=slow_subjects.slow, out=folder, only=ONLY)
    return certificate_in(folder)


def test_a_run_that_is_killed_at_random_moments_comes_to_the_same_certificate(tmp_path, uninterrupted, capsys):
    """Killed twice with no warning: what was whole on disk then is there afterwards, and the run may be continued at once.

    While a process writes to it, another is refused with 64 and the name of the first, and the run is listed as running.
    """
    rng, folder, kept = random.Random(3), tmp_path / "run", []
    for _ in range(2):
        with subprocess.Popen(command(folder), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
            segments = len(list((folder / FOLDER).glob("*.log")))
            while run.poll() is None and len(list((folder / FOLDER).glob("*.log"))) == segments:
                time.sleep(0.01)
            assert main(command(folder)[3:]) == 64
            assert f"is in use: process {run.pid} on" in capsys.readouterr().err
            assert f"no: process {run.pid} on" in run_in(folder).resumable
            time.sleep(rng.uniform(0.0, 0.3))
            run.send_signal(signal.SIGKILL)
        assert run.returncode == -signal.SIGKILL
        shards = sum(len(list(whole_records(path))) - 1 for path in (folder / FOLDER).glob("*.log"))
        assert shards > sum(kept)
        kept.append(shards - sum(kept))
        assert run_in(folder).resumable == "yes"
    assert main(command(folder)[3:]) == 2
    assert certificate_in(folder) == uninterrupted


def test_a_disk_that_is_full_ends_the_run_and_spoils_nothing(tmp_path, uninterrupted):
    """Exit 3 with the reason and the way on; once there is room, the resumed run comes to the same certificate."""

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    folder = tmp_path / "run"
    run = subprocess.run(command(folder), env=ENVIRONMENT, capture_output=True, text=True, check=False, preexec_fn=no_room)
    assert run.returncode == 3, run.stderr
    assert "cannot be written: File too large; what was written before is kept" in run.stderr
    assert f"continue with --resume {folder}" in run.stderr
    assert "Traceback" not in run.stderr
    assert len(drawn_before(folder)) > 0
    assert main(command(folder)[3:]) == 2
    assert certificate_in(folder) == uninterrupted


def test_no_room_at_the_start_or_the_end_is_said_too(tmp_path, monkeypatch, capsys):
    """At the start a usage error; at the end all evidence is there, and resuming writes the certificate."""
    monkeypatch.chdir(tmp_path)
    call = ["certify", "slow_subjects:quick", "--budget", "smoke", "--only", "seeds/quick", "--out", "run"]
    write, replaced = Path.open, Path.replace

    def full(path, mode="r", *more, **named):
        if "w" in mode and path.suffix == ".part":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, mode, *more, **named)

    with monkeypatch.context() as then:
        then.setattr(Path, "open", full)
        assert main(call) == 64
    assert "evidence.jsonl cannot be written: No space left on device; choose a folder" in capsys.readouterr().err

    def no_certificate(path, target):
        if Path(target).name == "certificate.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replaced(path, target)

    with monkeypatch.context() as then:
        then.setattr(Path, "replace", no_certificate)
        assert main(call) == 3
    assert "certificate.json cannot be written: No space left on device; what was written" in capsys.readouterr().err
    assert sorted(p.name for p in Path("run").iterdir() if p.suffix == ".part") == []
    assert main(["certify", "--resume", "run", "--only", "seeds/quick"]) == 2
    assert load(Path("run/certificate.json"))["evidence"][0]["verdict"] == "certified"


def test_evidence_that_cannot_be_appended_ends_the_run(tmp_path, monkeypatch):
    """What was appended before is whole and is read again."""
    plan = plan_for(slow_subjects.quick, "x", SMOKE)
    file = EvidenceFile(tmp_path / "evidence.jsonl", plan.key)
    file.start()
    evidence = Runner(plan).run(plan.find("seeds/quick/own models"))
    file.add(evidence)
    before = file.path.read_bytes()
    file.path.unlink()
    file.path.symlink_to("/dev/full")
    with pytest.raises(FolderError, match=r"evidence.jsonl cannot be written: No space left on device"):
        file.add(evidence)
    file.path.unlink()
    file.path.write_bytes(before + before[-400:-200])
    assert [e.test for e in file.read()] == [evidence.test]


def test_a_folder_that_may_not_be_written_is_a_usage_error(capsys):
    """New and resumed runs, as a user who may only read."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o555)
        as_root = os.geteuid() == 0
        if as_root:
            os.seteuid(65534)
        try:
            assert main(["certify", "slow_subjects:quick", "--budget", "smoke", "--out", f"{parent}/run"]) == 64
        finally:
            if as_root:
                os.seteuid(0)
    error = capsys.readouterr().err
    assert f"{parent}/run cannot be written: Permission denied; choose another folder" in error
    assert "Traceback" not in error


def test_a_run_is_continued_with_its_own_subject_and_settings(tmp_path, monkeypatch, capsys):
    """Without them in the call; what is given and differs is refused, and nothing is changed by that."""
    monkeypatch.chdir(tmp_path)
    some = ["--only", "seeds/quick"]
    settings = ["--budget", "smoke", "--seed", "7", "--alpha", "1e-6", "--timeout", "99"]
    assert main(["certify", "slow_subjects:quick", *settings, *some, "--out", "run"]) == 2
    before = Path("run/evidence.jsonl").read_bytes()
    assert main(["certify", "--resume", "run", "--seed", "8", *some]) == 64
    assert "seed was 7, is 8" in capsys.readouterr().err
    assert Path("run/evidence.jsonl").read_bytes() == before
    assert main(["certify", "--resume", "run", "--only", "stopping/quick"]) == 2
    kept = load(Path("run/certificate.json"))
    assert {e["check"] for e in kept["evidence"]} == {"seeds", "stopping"}
    assert kept["settings"] == {"budget": "smoke", "alpha": 1e-6, "seed": 7, "timeout": 99.0, "max_tokens": 200_000}
    shutil.copytree("run", "bare")
    Path("bare/evidence.jsonl").unlink()
    assert main(["certify", "--resume", "bare"]) == 64
    assert "does not say which plan it belongs to" in capsys.readouterr().err


def test_runs_are_listed_with_what_came_of_them(tmp_path, monkeypatch, capsys):
    """Finished, stopped within a test, unreadable; a folder that is none is a usage error, one without runs says so."""
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 64
    assert "there is no folder reports" in capsys.readouterr().err
    Path("reports").mkdir()
    assert main(["runs"]) == 0
    assert "there are no runs in reports" in capsys.readouterr().out
    assert (
        main(
            [
                "certify",
                "slow_subjects:quick",
                "--budget",
                "smoke",
                "--only",
                "own models",
                "--max-tokens",
                "900",
                "--out",
                "reports/a",
            ]
        )
        == 2
    )
    shutil.copytree("reports/a", "reports/b")
    lines = Path("reports/b/evidence.jsonl").read_bytes().split(b"\n")
    judged = [json.loads(line)["test"] for line in lines[1:] if line]
    Path("reports/b/evidence.jsonl").write_bytes(b"\n".join(lines[:3]) + b"\n" + lines[3][:50])
    shutil.copytree(HERE.parents[1] / "reports" / "sample", "reports/sample")
    Path("reports/c").mkdir()
    Path("reports/c/evidence.jsonl").write_bytes(b"\xff")
    capsys.readouterr()
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    found = {run.folder.name: run for run in listed(Path("reports"))}
    assert found["a"].outcome == f"{len(judged)} of 37 tests"
    assert found["b"].outcome.startswith("2 of 37 tests, ")
    assert any(f" shards of {test}" in found["b"].outcome for test in judged[2:])
    assert (found["b"].subject, found["b"].budget, found["b"].seed) == ("slow_subjects:quick", "smoke", "0")
    assert (found["sample"].outcome, found["sample"].resumable) == ("certified", "no: it is finished")
    assert "does not say which plan" in found["c"].resumable
    assert "continue with specverify certify --resume reports/" in out
    assert all(str(run.folder) in out for run in found.values())
