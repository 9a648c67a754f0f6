"""How does a certificate read as plain text? ``summary.md``, legible in a terminal and on a code host."""

from __future__ import annotations

from collections.abc import Sequence

from specverify.marking import fenced, plain, table
from specverify.report.controls import Control
from specverify.report.model import Page, Test
from specverify.report.wording import GLYPHS, clipped


def _mark(verdict: str) -> str:
    return f"{GLYPHS[verdict]} {verdict}"


def _test(test: Test) -> tuple[str, str, str]:
    return (_mark(test.verdict), test.name, clipped(test.headline, 160))


def _missed(controls: Sequence[Control]) -> list[str]:
    return [f"{c.name} ({way})" for c in controls for way, (verdict, _) in c.outcomes.items() if verdict != "refuted"]


def _problems(page: Page) -> list[str]:
    lines: list[str] = []
    if page.example:
        lines += ["## Counterexample", "", f"From {plain(page.example.test)}:", "", *fenced(page.example.lines)]
        lines += [page.example.confirmed, "", "### Run it yourself", "", *fenced(page.example.snippet, "python")]
    if page.failures:
        lines += ["## Errors", ""]
        for failure in page.failures:
            lines += [f"- {plain(failure.message)} (ended: {plain(', '.join(failure.tests))})"]
        lines.append("")
        commands = [command for failure in page.failures for command in failure.commands]
        lines += ["Reproduce with:", "", *fenced("\n".join(commands), "sh")] if commands else []
    return lines


def _controls(page: Page) -> list[str]:
    missed = _missed(page.controls)
    said = f"Known-bad rules that ran beside the subject: {page.caught}."
    if missed:
        said += f" Not refuted, which puts the run in error: {plain(', '.join(missed))}."
    return ["## Known-bad rules", "", said, ""]


def _not_run(page: Page) -> list[str]:
    if not (page.skipped or page.missing):
        return []
    lines = ["## Not run", ""]
    lines += [f"- {plain(test)}: planned, but without evidence" for test in page.missing]
    lines += [f"- {plain(check)}: {plain(reason)} ({plain(parts)})" for check, reason, parts in page.skipped]
    return [*lines, ""]


def render_summary(page: Page) -> str:
    """Write the summary as Markdown."""
    tests = [test for question in page.questions for test in question.tests]
    facts = {
        name: value
        for name, value in page.facts
        if name in ("Loaded as", "Source digest", "Budget", "Root seed", "Device", "Packages")
    }
    lines = [
        f"# {plain(page.name)}: {_mark(page.verdict)}",
        "",
        plain(page.sentence),
        "",
        f"{page.meaning} {page.scope}",
        "",
        *_problems(page),
        "## Tests",
        "",
        *table(("verdict", "test", "found"), map(_test, tests)),
        *_controls(page),
        "## False-alarm ledger",
        "",
        "; ".join(f"{name.lower()}: {value}" for name, value in page.ledger)
        + ". If the subject is exact, this certificate says refuted with at most the total probability.",
        "",
    ]
    if page.timings:
        lines += ["## Speed", "", plain(page.timings.sentence), ""]
        lines += table(page.timings.heads, page.timings.rows) if page.timings.rows else []
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in page.timings.facts), ""]
    lines += [
        *_not_run(page),
        "## Environment",
        "",
        *(f"- {name}: {plain(value)}" for name, value in facts.items()),
        "",
        "## Recheck",
        "",
        "The verdicts above were recomputed from the evidence. To do it again, without the subject:",
        "",
        *fenced("specverify recheck certificate.json", "sh"),
        f"SHA-256 of its content: {page.digest}",
    ]
    return "\n".join(lines) + "\n"
