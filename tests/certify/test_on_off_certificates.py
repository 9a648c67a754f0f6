"""Whole runs of decoders whose target law is not known: what the certificate claims, rechecking, resuming, the report."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import specverify
from specverify import certificate as certificates
from specverify.certificate import digest, load, recheck
from specverify.certify import certify
from specverify.checks import CHECKS
from specverify.checks.base import BUDGETS, Settings
from specverify.cli import main
from specverify.errors import CertificateError, SubjectError
from specverify.loading import as_subject, load_subject
from specverify.plan import controls
from specverify.report import main as report
from specverify.subjects import Decoder
from specverify.unknown_law import OnOff

SMOKE = Settings(replace(BUDGETS["smoke"], pairs=1_500))
SOURCE = """
import torch

LAWS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])


def sampled(laws, prompts, n, seed):
    generator, ids = torch.Generator().manual_seed(seed), prompts
    for _ in range(n):
        ids = torch.cat([ids, torch.multinomial(laws[ids[:, -1]], 1, generator=generator)], 1)
    return ids[:, prompts.shape[1] :]


class Right:
    vocab_size = 3

    def generate(self, prompts, max_new_tokens, seed):
        return sampled(LAWS, prompts, max_new_tokens, seed)

    def baseline(self, prompts, max_new_tokens, seed):
        return sampled(LAWS, prompts, max_new_tokens, seed)


class Wrong(Right):
    def generate(self, prompts, max_new_tokens, seed):
        return sampled(LAWS.flip(1), prompts, max_new_tokens, seed)


class Known(Right):
    def target_log_probs(self, ids):
        return LAWS[ids].log()
"""


@pytest.fixture(scope="module", autouse=True)
def few_controls():
    """Two faults instead of sixteen as controls."""
    every = controls(SMOKE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specverify.plan.controls", lambda _settings: every[:4])
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A file with a right decoder, a wrong one, and one whose law is known."""
    path = tmp_path_factory.mktemp("decoders") / "modes_for_tests.py"
    path.write_text(SOURCE)
    yield path
    sys.path[:] = [p for p in sys.path if p != str(path.parent)]


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory) -> Path:
    """A finished run of the right decoder, not to be changed."""
    out = tmp_path_factory.mktemp("right")
    assert certify(f"{source}:Right", SMOKE, out=out).verdict == "certified"
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_certificate_says_that_the_law_is_unknown(run):
    """Claim, scope and sentence say what was compared, and with which control; it is judged again without the subject."""
    data = load(run / "certificate.json")
    certificate = recheck(data)
    assert certificate.verdict == "certified"
    assert "target law is not known" in data["claim"]
    assert "only speculation on was compared with off" in data["scope"]
    assert "a mistake that both share is not seen" in data["sentence"]
    assert "of its tokens by evenly drawn ones would have been refuted after" in data["sentence"]
    assert data["subject"]["kind"] == certificates.ON_OFF == OnOff.kind
    assert [s["check"] for s in data["skipped"]] == [name for name in CHECKS if name != "on_off"]
    assert all("needs the target law" in s["reason"] for s in data["skipped"])


def test_a_wrong_decoder_is_refuted_and_says_how(source, tmp_path):
    """The sentence speaks of the two modes and does not claim to know the law."""
    certificate = certify(f"{source}:Wrong", SMOKE, out=tmp_path)
    assert certificate.verdict == "refuted"
    assert "does not write with speculation as without it (its target law is not known)" in certificate.sentence()
    assert recheck(load(tmp_path / "certificate.json")).verdict == "refuted"


def test_changed_sequences_are_noticed(run):
    """By the digest first; with a digest that fits, by the wealth that the changed sequences give."""
    data = json.loads((run / "certificate.json").read_text())
    (evidence,) = (e for e in data["evidence"] if e["check"] == "on_off")
    (measured,) = (m for m in evidence["measurements"] if m["kind"] == "on_off")
    measured["with"] = [text.replace("1", "0") for text in measured["with"]]
    changed = run / "changed.json"
    changed.write_text(json.dumps(data))
    with pytest.raises(CertificateError, match="changed after it was written"):
        load(changed)
    data["digest"] = digest(data)
    changed.write_text(json.dumps(data))
    with pytest.raises(CertificateError, match="recorded as certified, but its numbers say refuted"):
        recheck(load(changed))


def test_a_killed_run_is_continued(run, source):
    """Evidence that was written is used again, the pairs too."""
    before = json.loads((run / "certificate.json").read_text())
    lines = (run / "evidence.jsonl").read_text().splitlines(keepends=True)
    (run / "evidence.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    again = certify(f"{source}:Right", SMOKE, out=run, resume=True)
    assert again.verdict == "certified"
    after = json.loads((run / "certificate.json").read_text())
    assert after["evidence"][0] == before["evidence"][0]


def test_the_command_and_the_report(source, tmp_path, capsys):
    """Certified at the command line, judged again there, and a page that says what was compared."""
    assert main(["certify", f"{source}:Right", "--budget", "smoke", "--out", str(tmp_path)]) == 0
    assert main(["recheck", str(tmp_path)]) == 0
    assert report([str(tmp_path)]) == 0
    for name in ("index.html", "summary.md"):
        text = (tmp_path / name).read_text()
        assert "nothing tells on from off in 5000 pairs" in text
        assert "No bet could tell sequences with speculation from sequences without" in text
    assert "highest ln E" in (tmp_path / "index.html").read_text()
    assert "CERTIFIED" in capsys.readouterr().out


def test_an_object_with_a_baseline_is_recognised(source):
    """By its methods; where it tells its law it stays a decoder, since that says more."""
    assert isinstance(load_subject(f"{source}:Right"), OnOff)
    assert isinstance(load_subject(f"{source}:Known"), Decoder)
    right = specverify.on_off(lambda ids, n, seed: ids, lambda ids, n, seed: ids, vocab_size=3)
    assert as_subject(right, "right") is right


def test_what_an_object_lacks_is_named():
    """A decoder that tells no law and has no plain mode may give either; with a plain mode, the rest is asked for."""

    class Neither:
        vocab_size = 3

        def generate(self, prompts, max_new_tokens, seed):
            return torch.zeros(1)

    class Nameless:
        def generate(self, prompts, max_new_tokens, seed):
            return torch.zeros(1)

        baseline = generate

    with pytest.raises(SubjectError, match=r"no target_log_probs; where the law is not known, give baseline"):
        as_subject(Neither, "it")
    with pytest.raises(SubjectError, match=r"it looks like a decoder but has no vocab_size$"):
        as_subject(Nameless, "it")
