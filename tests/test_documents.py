"""The README and the documents: their code runs, their commands do what they say, their links lead somewhere."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from walked_document import Block, blocks_of, marked_blocks, printed_by

import reference
from reference.families import FAMILIES
from reference.rules import token_rejection, typical_acceptance
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.cli import main
from specverify.loading import load_subject
from specverify.plan import plan_for

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readme_works_as_pasted(tmp_path, monkeypatch, capsys):
    """The ten lines are certified by the command below them, and the refutation is one."""
    blocks = marked_blocks((ROOT / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(blocks["mine.py"])
    for name, code in (("certify", 0), ("refuted", 1)):
        command, *arguments = shlex.split(blocks[name].strip())
        assert command == "specverify"
        assert main(arguments) == code
    assert "target p" in capsys.readouterr().out


def test_the_page_on_runs_works_as_pasted(tmp_path, monkeypatch, capsys):
    """A part of a run, its continuation to the certificate, and the list, which knows of both; every file it names is there."""
    text = (ROOT / "docs" / "runs.md").read_text()
    blocks = marked_blocks(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(marked_blocks((ROOT / "README.md").read_text())["mine.py"])
    for name, code, said in (
        ("start", 2, "only a part of the plan was run"),
        ("list", 0, "can be resumed: yes"),
        ("resume", 0, "CERTIFIED"),
        ("list", 0, "certified; can be resumed: no: it is finished"),
    ):
        command, *arguments = shlex.split(blocks[name].strip())
        assert command == "specverify"
        assert main(arguments) == code
        assert said in capsys.readouterr().out
    named = re.findall(r"^\| `([\w./]+)`", text.partition("## What is lost")[0], re.MULTILINE)
    assert len(named) == 5
    assert all((tmp_path / "reports" / "mine" / file).exists() for file in named)


def test_the_plug_in_fits_in_about_ten_lines():
    """The README promises ten lines: imports, decorator and body."""
    lines = [line for line in marked_blocks((ROOT / "README.md").read_text())["mine.py"].splitlines() if line.strip()]
    assert len(lines) <= 12


DOCUMENTED = (
    *("my_rule", "my_numpy_rule", "my_racing_rule", "my_tree_rule", "my_step"),
    *("my_decoder", "my_server", "my_loop", "my_modes"),
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_kind_of_subject_in_the_documents_is_certified(name):
    """The verifiers, the step and the decoders of docs/subjects.md pass the first test of every check that applies to them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "subjects.md").read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile("\n".join(blocks), "subjects.md", "exec"), scope)
    plan = plan_for(scope[name], name, Settings(BUDGETS["smoke"]))
    assert (name == "my_server") == ("rows" in {p.check for p in plan.tests})
    runner = Runner(plan)
    first = {planned.check: planned for planned in reversed(plan.tests) if planned.expected == "certified"}
    assert len(first) >= (1 if name == "my_modes" else 3)
    for planned in first.values():
        evidence = runner.run(planned)
        assert evidence.verdict in ("certified", "skipped"), (planned.test, [j.reason for j in evidence.judgements()])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document):
    """Every relative link names a file that exists."""
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_page_on_the_exact_engine_runs_as_it_stands():
    """Its example runs, its own assertions included, and gives a whole law."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "exact.md").read_text(), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "exact.md", "exec"), scope)
    assert block.count("assert ") == 2
    assert scope["law"].mass == pytest.approx(1, abs=1e-12)


def test_the_page_on_the_reference_runs_as_it_stands():
    """Its example runs, its own assertions included; every family and module it names is there."""
    text = (ROOT / "docs" / "reference.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "reference.md", "exec"), {})
    assert block.count("assert ") == 2
    table = text.partition("## Families")[2].partition("## Use it")[0]
    assert set(re.findall(r"^\| `(\w+)`(?:, `\w+`)? \|", table, re.MULTILINE)) == set(FAMILIES) - {"mismatched"}
    for name in re.findall(r"^\| `([^|]+)` \|", text.partition("## Families")[0], re.MULTILINE):
        for part in name.replace("`", "").split(", "):
            assert (ROOT / "reference" / part).exists(), part
    for subject in re.findall(r"`reference:(\w+)`", text):
        assert getattr(reference, subject).kind == "decoder"


def test_the_page_on_the_method_runs_as_it_stands():
    """One example refutes what it says and names the fault; the other ends without having seen enough."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "method.md").read_text(), re.DOTALL)
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "method.md", "exec"), scope)
        assert block.count("assert ") == 1
    assert "too few tokens" in scope["evidence"].judgements()[0].reason
    assert scope["fault"] == "accept_always"


def test_the_page_on_timing_works_as_pasted(tmp_path, monkeypatch, capsys):
    """The decoder is timed with all that it tells, its acceptance is the exact one, and a later run is held against it."""
    blocks = marked_blocks((ROOT / "docs" / "timing.md").read_text())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timed.py").write_text(blocks["timed.py"])
    for name in ("bench", "compare"):
        command, *arguments = shlex.split(blocks[name].strip())
        assert command == "specverify"
        assert main(arguments) in ((0,) if name == "bench" else (0, 1))  # 1 only says that this machine was slower then
    out = capsys.readouterr().out
    assert "temperature 0" in out
    assert "speed-ups" in out
    record = json.loads((tmp_path / "old.json").read_text())["specverify"]
    assert all("disturbed the measurement" in note for note in record["notes"])  # which a busy machine may do
    assert all(run["exact"]["possible"] and abs(run["exact"]["z"]) < 6 for run in record["runs"])
    assert {run["draft"]: run["accepted_per_tested"] for run in record["runs"]}["poor"] < 0.5
    assert len(list((tmp_path / "plots").glob("*.svg"))) == 5


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs Perl")
def test_the_page_on_processes_works_as_pasted(tmp_path, monkeypatch, capsys):
    """The decoder in Perl is certified by the command below it; what else stands there is run in tests/adapters."""
    blocks = marked_blocks((ROOT / "docs" / "processes.md").read_text())
    assert set(blocks) == {"verifier.c", "c", "verifier.js", "js", "decoder.pl", "pl"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decoder.pl").write_text(blocks["decoder.pl"])
    command, *arguments = shlex.split(blocks["pl"].strip())
    assert command == "specverify"
    assert main(arguments) == 0
    assert "32 of 32 runs of known-bad rules refuted" in capsys.readouterr().out


def test_the_decoder_of_the_page_on_timing_is_exact(tmp_path, monkeypatch):
    """What is timed there is certified where it is judged by sampling, and no worse than inconclusive anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timed_exactly.py").write_text(marked_blocks((ROOT / "docs" / "timing.md").read_text())["timed.py"])
    plan = plan_for(load_subject("timed_exactly.py:subject"), "timed", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    verdicts = {p.check: runner.run(p).verdict for p in plan.tests if p.expected == "certified"}
    assert verdicts
    assert set(verdicts.values()) <= {"certified", "inconclusive", "skipped"}, verdicts


TOUR = ROOT / "docs" / "tour.md"


def test_the_tour_prints_what_it_shows():
    """Every block of the tour runs, and its output is the one below it, as closely as the page promises."""
    blocks = blocks_of(TOUR.read_text(encoding="utf-8"))
    assert len(blocks) >= 17
    assert all(block.printed for block in blocks)
    for block, printed in zip(blocks, printed_by(blocks, TOUR.name), strict=True):
        assert block.difference(printed) is None, block.difference(printed)


@pytest.mark.parametrize("block", blocks_of(TOUR.read_text(encoding="utf-8")), ids=lambda block: block.code.split("\n", 1)[0])
def test_another_output_would_be_seen(block):
    """The control: an output that lacks a line, says something else or has another number is not what the tour shows."""
    lines = block.printed.splitlines(keepends=True)
    others = ["".join(lines[:-1]), block.printed.replace("e", "o", 1).replace("=", ":", 1)]
    if block.kind.startswith("within") and (numbers := re.findall(r"\d+\.\d+", block.printed)):
        others.append(block.printed.replace(numbers[-1], f"{float(numbers[-1]) + 0.5:.2f}"))
    for other in others:
        assert other == block.printed or block.difference(other)
    assert block.difference(block.printed) is None


def test_a_broken_step_would_be_seen(monkeypatch):
    """The control: with a lossy rule in the place of token rejection, the steps on the rule print something else."""
    blocks = [
        b for b in blocks_of(TOUR.read_text(encoding="utf-8")) if "import round_law" in b.code or "import family_step" in b.code
    ]
    assert len(blocks) == 2
    assert [b.difference(out) for b, out in zip(blocks, printed_by(blocks, TOUR.name), strict=True)] == [None, None]
    monkeypatch.setattr(token_rejection, "verify", typical_acceptance.verify)
    assert all(b.difference(out) for b, out in zip(blocks, printed_by(blocks, TOUR.name), strict=True))


def test_outputs_are_compared_as_they_are_marked():
    """Exact outputs letter by letter, measured numbers within a tolerance, timed numbers by their place alone."""
    assert Block("", "a 1.00\n").difference("a 1.01\n")
    assert Block("", "a 1.00\n", "within 0.02").difference("a 1.01\n") is None
    assert Block("", "a 1.00\n", "within 0.02").difference("a 1.03\n")
    assert Block("", "a 1.00\n", "within 0.02").difference("a nan\n")
    assert Block("", "a 1.00\n", "timed").difference("a 3.00\n") is None
    assert Block("", "a 1.00\n", "timed").difference("b 3.00\n")
    assert Block("", "a 1.00\n", "timed").difference("a 3.00 2.00\n")
