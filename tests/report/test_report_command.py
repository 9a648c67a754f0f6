"""The command finds a certificate, refuses what cannot be trusted, and writes two files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_certificates import LINES, SNIPPET, certified, in_error, refuted, timing

from specverify.certificate import Certificate, digest
from specverify.errors import CertificateError
from specverify.report import main, write_report
from specverify.report.markdown import fenced, plain


def written(certificate: Certificate, folder: Path) -> Path:
    """Write a certificate into a folder and return its path."""
    certificate.write(folder / "certificate.json")
    return folder / "certificate.json"


def test_report_is_written_beside_the_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's directory, or its certificate, gives index.html and summary.md there, and their paths on the screen."""
    path = written(certified(), tmp_path / "run")
    for given in (path, path.parent):
        assert main([str(given)]) == 0
        assert capsys.readouterr().out.split() == [str(path.parent / "index.html"), str(path.parent / "summary.md")]
    assert sorted(p.name for p in path.parent.iterdir()) == ["certificate.json", "index.html", "summary.md"]


def test_report_goes_where_it_is_told(tmp_path: Path) -> None:
    """--out names another directory, which is made."""
    path = written(refuted(), tmp_path / "run")
    assert main([str(path), "--out", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / "index.html").is_file()
    assert not (tmp_path / "run" / "index.html").exists()


def test_newest_run_is_taken_and_the_sample_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the certificate written last under reports/ is shown, never the committed sample."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("sample", "new", "old")):
        path = written(certified(), tmp_path / "reports" / name)
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert main([]) == 0
    assert [p.parent.name for p in tmp_path.glob("reports/*/index.html")] == ["new"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "specverify certify"),
        (["nowhere"], "does not exist"),
        (["empty"], "holds no certificate.json"),
        (["a", "b"], "--help"),
        (["--colour"], "--help"),
    ],
)
def test_usage_errors_are_one_line_and_64(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with the call is said in one line that tells what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(arguments) == 64
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_unwritable_place_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the directory should be is named, with a way out."""
    path = written(certified(), tmp_path)
    (tmp_path / "taken").touch()
    assert main([str(path), "--out", str(tmp_path / "taken")]) == 64
    assert "--out" in capsys.readouterr().err


def test_changed_byte_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate with one byte changed gives no report, and the reason is said."""
    path = written(certified(), tmp_path)
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8', 1))
    assert main([str(path)]) == 3
    assert "was changed after it was written" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()


def test_stored_verdict_is_not_believed(tmp_path: Path) -> None:
    """A refuted run relabelled as certified, with a fresh digest, is refused: the verdict does not follow."""
    path = written(refuted(), tmp_path)
    data = json.loads(path.read_text())
    data["verdict"] = "certified"
    data["digest"] = digest(data)
    path.write_text(json.dumps(data))
    with pytest.raises(CertificateError, match="the evidence says refuted"):
        write_report(path, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00"])
def test_other_files_are_no_certificates(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not a certificate is refused with exit code 3 and a reason."""
    (tmp_path / "certificate.json").write_text(text)
    assert main([str(tmp_path)]) == 3
    assert "no report was written" in capsys.readouterr().err


def test_module_runs_as_a_command(tmp_path: Path) -> None:
    """Python -m specverify.report exits with the code of main."""
    ran = subprocess.run([sys.executable, "-m", "specverify.report"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 64
    assert ran.stderr.startswith("error: there is no run under reports/")


def test_help_exits_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """--help is no error."""
    assert main(["--help"]) == 0
    assert "--out" in capsys.readouterr().out


def test_summary_of_a_refutation(tmp_path: Path) -> None:
    """The summary gives verdict, sentence, tests, counterexample with code, controls and ledger."""
    _, summary = write_report(written(refuted(), tmp_path), tmp_path)
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# toy: ✗ refuted\n")
    assert "```text\n" + "\n".join(LINES) + "\n```" in text
    assert "```python\n" + SNIPPET + "\n```" in text
    assert "| ✗ refuted | sequence/toy/table models |" in text
    assert "2 of 2 controls refuted" in text
    assert "1e-08" in text
    assert "## Speed" not in text


def test_summary_of_errors_and_of_speed(tmp_path: Path) -> None:
    """Errors come with their commands, and timing with a sentence and a table."""
    _, summary = write_report(written(in_error(), tmp_path / "e"), tmp_path / "e")
    assert "specverify certify toys:subject --only 'seeds/toy/own models'" in summary.read_text(encoding="utf-8")
    _, summary = write_report(written(certified(timing()), tmp_path / "t"), tmp_path / "t")
    assert "| aligned, K = 3 | 696 (661 to 731) | 1.74 (1.65 to 1.83) |" in summary.read_text(encoding="utf-8")


def test_markdown_is_escaped() -> None:
    """Text cannot open tags, tables or fences of its own."""
    assert plain("a|b <i>\n`c`") == r"a\|b \<i\> \`c\`"
    assert fenced("```\nx")[0] == "````text"


def test_real_run_is_reported(tmp_path: Path) -> None:
    """What certify writes for a wrong rule becomes a page with the counterexample of that run."""
    from specverify.certify import certify
    from specverify.checks.base import BUDGETS, Settings

    certify(
        "specverify.faults:naive_accept",
        Settings(BUDGETS["smoke"]),
        only="single_step/naive_accept/named",
        out=tmp_path,
    )
    index, summary = write_report(tmp_path / "certificate.json", tmp_path)
    assert "Both probabilities were recomputed from the evidence and agree." in index.read_text(encoding="utf-8")
    assert "# naive\\_accept: ✗ refuted" in summary.read_text(encoding="utf-8")
