"""``check_exact``, its certificate in a notebook, and ``parametrize_with_checks``: verdicts as errors, one test per check."""

import random
import re
import sys
import types
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import specverify
from specverify.asserting import undisturbed
from specverify.certificate import Certificate
from specverify.evidence.ledger import Ledger
from specverify.evidence.measurements import OutcomeMeasurement
from specverify.loading import load_subject
from specverify.naming import named_subject
from specverify.parametrizing import Check, parametrize_with_checks
from specverify.record import Evidence

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"<!-- run: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
BLOCKS = {m[1]: m[2] for page in ("README.md", "docs/own-tests.md") for m in MARKED.finditer((ROOT / page).read_text())}


@specverify.verifier
def matching(draft_tokens, draft_probs, target_probs):
    """Sample and match: exact."""
    B, places, V = target_probs.shape
    drawn = torch.multinomial(target_probs.reshape(B * places, V), 1).reshape(B, places)
    return drawn, (drawn[:, :-1] == draft_tokens).long().cumprod(1).sum(1) + 1


@specverify.verifier
def hopeful(draft_tokens, draft_probs, target_probs):
    """Accepts every draft."""
    return torch.cat([draft_tokens, torch.multinomial(target_probs[:, -1], 1)], 1)


@specverify.verifier
def crashing(draft_tokens, draft_probs, target_probs):
    """No call comes back."""
    raise RuntimeError("out of <memory>")


def states():
    """The random streams of all three libraries, and the threads."""
    drawn = np.random.get_state()
    return torch.random.get_rng_state().tolist(), random.getstate(), drawn[1].tolist(), drawn[2], torch.get_num_threads()


def test_the_page_on_own_tests_certifies_and_refutes_as_it_says(tmp_path, monkeypatch, capsys):
    """Its lines in a notebook return a certificate and print a refutation, and leave all random streams as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(BLOCKS["mine.py"])
    scope, before = {}, states()
    exec(compile(BLOCKS["notebook"], "own-tests.md", "exec"), scope)
    certificate = scope["certificate"]
    assert certificate.verdict == "certified"
    assert certificate.missing == []
    assert sum(e.expected == "refuted" for e in certificate.evidence) == 32
    assert certificate.subject["spec"] == "mine.py:mine"
    exec(compile(BLOCKS["hopeful"], "own-tests.md", "exec"), scope)
    assert states() == before
    printed = capsys.readouterr().out
    assert "hopeful does not sample from its target law" in printed
    assert "smallest counterexample" in printed


def drawn_and_failed():
    """Draw from every library and end in an error."""
    with undisturbed():
        assert torch.get_num_threads() == 1
        torch.rand(3), random.random(), np.random.rand(3)
        raise KeyError


def test_streams_and_threads_are_given_back_whatever_a_subject_draws_from():
    """Within, there is one thread; draws from torch, numpy and Python are forgotten afterwards, also after an error."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        before = states()
        with pytest.raises(KeyError):
            drawn_and_failed()
        assert states() == before
    finally:
        torch.set_num_threads(threads)


def test_a_refutation_is_an_assertion_error_that_ends_after_its_check():
    """The message holds sentence, counterexample and a snippet that runs as it stands; later checks were not run."""
    with pytest.raises(AssertionError) as caught:
        specverify.check_exact(hopeful)
    error = caught.value
    assert isinstance(error, specverify.NotExact)
    message = str(error)
    assert "target p [" in message
    assert {e.check for e in error.certificate.evidence} == {"single_step"}
    assert error.certificate.verdict == "refuted"
    snippet = "\n".join(line[2:] for line in message.partition("run it yourself:\n")[2].splitlines())
    assert "test_own_tests.py:hopeful" in snippet
    exec(compile(snippet, "snippet", "exec"), {})


def test_what_cannot_be_judged_is_another_error(monkeypatch):
    """A crash is no assertion error, and says how to repeat it; so are a control that is not refuted, and an odd call."""
    monkeypatch.setattr("specverify.asserting.plan_for", few_tests(lambda p: p.variant == "named pairs"))
    with pytest.raises(specverify.NotJudged, match=r"^error: crashing could not be judged.*out of <memory>") as caught:
        specverify.check_exact(crashing)
    assert not isinstance(caught.value, AssertionError)
    assert "reproduce: specverify certify" in str(caught.value)
    assert caught.value.certificate.verdict == "error"
    with pytest.raises(specverify.NotJudged, match=r"^inconclusive: .*no control ran"):
        specverify.check_exact(matching)
    with pytest.raises(specverify.errors.SubjectError, match="a subject is made with"):
        specverify.check_exact(3)
    with pytest.raises(specverify.errors.UsageError, match="no budget is called 'large'"):
        specverify.check_exact(matching, budget="large")
    with pytest.raises(specverify.errors.UsageError, match="must lie between 0 and 1"):
        specverify.check_exact(matching, alpha=2)


def test_a_subject_at_hand_is_named_so_that_it_can_be_loaded(tmp_path, monkeypatch):
    """By its file, by its package, by the notebook that holds it, else after itself; a name stays as it is given."""
    assert named_subject(matching)[1].endswith("test_own_tests.py:matching")
    assert load_subject(named_subject(matching)[1]).name == "matching"
    monkeypatch.chdir(ROOT)
    assert named_subject(matching)[1] == "tests/certify/test_own_tests.py:matching"
    inside = load_subject("specverify.templates.step:subject")
    assert named_subject(inside) == (inside, "specverify.templates.step:subject")
    in_notebook = specverify.verifier(name="cell")(lambda d, q, p: d)
    assert named_subject(in_notebook) == (in_notebook, "cell")
    notebook = types.ModuleType("notebook_for_this_test")
    notebook._ = notebook.rule = in_notebook
    monkeypatch.setitem(sys.modules, "notebook_for_this_test", notebook)
    assert named_subject(in_notebook)[1] == "notebook_for_this_test:rule"
    assert load_subject("notebook_for_this_test:rule") is in_notebook
    assert named_subject("specverify.templates.step")[1] == "specverify.templates.step"


def few_tests(chosen):
    """A planner that leaves out all tests but those chosen, and the controls."""
    from specverify.plan import plan_for

    def planned(*arguments):
        plan = plan_for(*arguments)
        return replace(plan, tests=tuple(p for p in plan.tests if p.expected == "certified" and chosen(p)))

    return planned


class Reader(HTMLParser):
    """Collects elements and text."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        """One more element."""
        self.tags.append(tag)

    def handle_data(self, data):
        """Text as it is shown."""
        self.text += data


def test_a_notebook_shows_the_certificate_and_nothing_in_it_is_taken_for_markup():
    """Name, reasons and counterexample appear as they are, in HTML and Markdown, however they are spelled."""
    name = "<script>alert(1)</script> *a* `b` | c"
    outcome = OutcomeMeasurement("error", "raised <img src=x onerror=1> & ```", "specverify certify")
    example = {"pair": {}, "lines": ["p = <b>1/2</b> ```"], "snippet": "print('<i>')"}
    evidence = Evidence("edges/x/y", "edges", "x", "?", "certified", 0.0, (outcome,), example)
    shown = Certificate({"name": name, "kind": "verifier"}, {}, Ledger(1e-8, {}), (evidence,), (), {}, ("edges/x/y",))
    page, text = shown._repr_html_(), shown._repr_markdown_()
    reader = Reader()
    reader.feed(page)
    assert set(reader.tags) <= {"div", "p", "strong", "table", "tr", "th", "td", "pre", "details", "summary"}
    for part in (name, "error", "1 error", "<img src=x onerror=1> & ```", "p = <b>1/2</b> ```", "print('<i>')"):
        assert part in reader.text
    assert r"\<script\>alert(1)\</script\> \*a\* \`b\` \| c" in text
    assert "````text\n" in text
    assert "| edges | 1 error |" in text
    outside = re.sub(r"````text.*?````", "", text, flags=re.DOTALL)
    assert "<img" not in outside.replace(r"\<", "")


def test_a_test_file_of_ones_own_has_a_test_per_planned_test(pytester, monkeypatch):
    """The page's file runs in two workers without any option or file left behind; a wrong subject fails with its reasons."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(mine=BLOCKS["mine.py"])
    rule = BLOCKS["hopeful"].partition("\n\n\ntry")[0]
    wrong = f"import torch\nimport specverify\n\n{rule}\n\n\n" + BLOCKS["test_mine.py"].partition("\n\n\n")[2]
    wrong = wrong.replace("[mine]", "[hopeful]")
    pytester.makepyfile(test_right=BLOCKS["test_mine.py"], test_wrong=wrong)
    chosen = ["-k", "named or acceptance or (fault and stale_bonus) or naive_accept_resample"]
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "-v", *chosen, "--strict-markers")
    text = result.stdout.str()
    assert "PASSED test_right.py::test_mine_is_exact[single_step/mine/named pairs]" in text
    assert "PASSED test_right.py::test_mine_is_exact[single_step/fault:naive_accept_resample/control, exact]" in text
    assert "FAILED test_wrong.py::test_mine_is_exact[single_step/hopeful/named pairs]" in text
    assert "NotExact: refuted (expected certified): " in text
    assert "run it yourself:" in text
    assert "asserting.py" not in text
    assert not (pytester.path / "reports").exists()


def cases(subjects, **options):
    """What a decorated test is called with, by id."""
    mark = parametrize_with_checks(subjects, **options).mark
    assert mark.args[0] == ("subject", "check")
    return dict(zip(mark.kwargs["ids"], mark.args[1], strict=True))


def test_every_planned_test_is_there_once_and_alpha_is_shared():
    """Two subjects have their own tests, the controls come once, and each subject has half of the false-alarm probability."""
    found = cases([matching, hopeful], alpha=1e-6)
    own = [name for name in found if "fault:" not in name]
    assert len(found) == 11 + 11 + 32
    assert all(isinstance(check, Check) and check.planned.test == name for name, (_, check) in found.items())
    assert {subject for name, (subject, _) in found.items() if name in own} == {matching, hopeful}
    assert {found[name][1].runner.plan.settings.alpha for name in own} == {5e-7}
    assert cases([matching], controls=False).keys() == {name for name in own if "matching" in name}
    with_tree = cases(["specverify.templates.tree:subject", matching])
    assert sum("fault:" in name for name in with_tree) == 42


def test_a_check_judges_its_own_subject_and_says_what_came_of_it():
    """Evidence for a pass, a skip where it does not apply, errors of two kinds, and a refusal of another subject."""
    name = "single_step/{}/named pairs"
    _, check = cases([matching], controls=False)[name.format("matching")]
    evidence = check(matching)
    assert evidence.verdict == "certified"
    with pytest.raises(specverify.errors.UsageError, match="not for another"):
        check(hopeful)
    with pytest.raises(specverify.NotExact, match="came out") as caught:
        cases([hopeful])[name.format("hopeful")][1](hopeful)
    assert caught.value.evidence.verdict == "refuted"
    with pytest.raises(specverify.NotJudged, match="out of <memory>"):
        cases([crashing])[name.format("crashing")][1](crashing)
    kernel, skipping = cases(["specverify.templates.given:subject"])["rounds/my kernel/table models"]
    with pytest.raises(pytest.skip.Exception, match="numpy arrays"):
        skipping(kernel)


def test_a_known_bad_rule_that_passes_is_an_error_and_not_a_pass(monkeypatch):
    """A control that is not refuted says that the checks see nothing; the subject is not what is wrong."""
    fault, check = cases([matching])["single_step/fault:naive_accept/control, exact"]
    assert check(fault).verdict == "refuted"
    monkeypatch.setattr("specverify.certify.control_part", lambda name: matching)
    with pytest.raises(specverify.NotJudged, match=r"^certified \(expected refuted\)"):
        check(fault)


@pytest.mark.parametrize(
    ("subjects", "options", "said"),
    [
        ([], {}, "at least one subject"),
        ([matching, matching], {}, "two subjects are called matching"),
        ([matching], {"alpha": 1.5}, "must lie between 0 and 1"),
        ([matching, hopeful], {"alpha": 1.5}, "must lie between 0 and 1"),
        ([matching], {"budget": "huge"}, "no budget is called 'huge'"),
    ],
)
def test_wrong_calls_of_the_decorator_say_what_is_wrong(subjects, options, said):
    """Before any test is collected."""
    with pytest.raises(specverify.errors.UsageError, match=said):
        parametrize_with_checks(subjects, **options)
