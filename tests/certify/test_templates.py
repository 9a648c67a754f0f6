"""``specverify init``: adapters are certified as they stand, a fault in one is refuted, and no file is lost."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import specverify
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Planned, Settings
from specverify.cli import main
from specverify.loading import load_subject
from specverify.plan import Plan, plan_for
from specverify.templates import KINDS, template

LIGHT = Settings(replace(BUDGETS["smoke"], sequences=2000, single=500, pairs=2500))
"""A third of the draws of smoke, for adapters and for their faults alike."""
FAULTS = {
    "verifier": ("residual = (target_probs[:, :K] - draft_probs).clamp(min=0)", "residual = target_probs[:, :K]"),
    "given": ("residual = np.clip(p[place] - q[place], 0, None)", "residual = p[place]"),
    "tree": ("law = residual / residual.sum() if residual.sum() > 0 else law", "pass"),
    "step": ("residual = (p[row, j] - q[row, j]).clamp(min=0)", "residual = p[row, j]"),
    "decoder": ("kept, law = j, (p - q).clamp(min=0)", "kept, law = j, p"),
    "build": ("law, kept = p[self.k], self.k", "law, kept = p[self.k - 1], self.k"),
    "on_off": ("recovered = torch.multinomial((p - q).clamp(min=0),", "recovered = torch.multinomial(p,"),
}
"""One line of each adapter, and what a mistake would make of it."""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Files are written into a fresh folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def first_tests(plan: Plan) -> Iterator[Planned]:
    """The first test of every check on the subject, in order."""
    seen = set()
    for planned in plan.tests:
        if planned.expected == "certified" and planned.check not in seen:
            seen.add(planned.check)
            yield planned


@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_is_certified_as_it_is_written(kind, tmp_path, capsys):
    """The command says what to do next, and the first test of every check that applies passes."""
    assert main(["init", kind]) == 0
    said = capsys.readouterr().out
    file = f"my_{kind}.py"
    assert f"specverify certify {file} --budget smoke" in said
    assert f"specverify certify {file}``" in (tmp_path / file).read_text()
    plan = plan_for(load_subject(file), file, LIGHT)
    runner = Runner(plan)
    verdicts = {planned.test: runner.run(planned).verdict for planned in first_tests(plan)}
    assert set(verdicts.values()) <= {"certified", "skipped"}, verdicts
    assert "certified" in verdicts.values()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_one_line_of_an_adapter_is_refuted(kind, tmp_path):
    """Where a user's code is wrong in the place of the adapter's, the same tests refute it."""
    right, wrong = FAULTS[kind]
    text = template(kind, "faulty.py")
    assert text.count(right) == 1
    (tmp_path / "faulty.py").write_text(text.replace(right, wrong))
    plan = plan_for(load_subject("faulty.py"), "faulty.py", LIGHT)
    runner = Runner(plan)
    assert any(runner.run(planned).verdict == "refuted" for planned in first_tests(plan))


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_says_where_ones_own_code_goes(kind):
    """One place begins and ends, between the two marks."""
    text = template(kind, "x.py")
    assert text.count("# --- yours from here") == 1
    assert text.count("# --- to here") == 1
    assert text.index("# --- yours from here") < text.index("# --- to here")
    assert "THIS_FILE" not in text


def test_every_kind_has_its_adapter_and_its_line_in_the_documents():
    """The files of the folder, the kinds, the faults tried here and the table in docs/subjects.md name the same."""
    root = Path(specverify.__file__).parent
    assert {path.stem for path in (root / "templates").glob("*.py")} - {"__init__"} == set(KINDS) == set(FAULTS)
    page = (Path(__file__).parents[2] / "docs" / "subjects.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| \[.*\]\(#(.*)\) \|$", page, re.MULTILINE)
    assert [kind for kind, _ in rows] == list(KINDS)
    headings = {re.sub(r"[^a-z -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^##+ (.*)$", page, re.MULTILINE)}
    assert {anchor for _, anchor in rows} <= headings


@pytest.mark.parametrize("arguments", [["init"], ["init", "sampler"]])
def test_kinds_are_listed_when_none_or_an_unknown_one_is_named(arguments, tmp_path, capsys):
    """A usage error with all kinds, one a line; nothing is written."""
    assert main(arguments) == 64
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(KINDS)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_left_alone(tmp_path, capsys):
    """Nothing is overwritten, and what cannot be written says why in one line."""
    (tmp_path / "mine.py").write_text("precious")
    for out, said in (("mine.py", "is there already"), ("mine", "end with .py"), ("no/such/folder.py", "No such file")):
        assert main(["init", "step", "--out", out]) == 64
        assert said in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert main(["init", "step", "--out", "in here.py"]) == 0
    assert "specverify certify 'in here.py'" in (tmp_path / "in here.py").read_text()
