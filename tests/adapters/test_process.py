"""Engines in processes: those of docs/processes.md are judged rightly; numbers and declarations arrive as they were said."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from walked_document import marked_blocks

from specverify import process_subject
from specverify.adapters.process import CALLS, ProcessDecoder, ProcessVerifier
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.cli import main
from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact.batch import Batch, Item
from specverify.exact.draws import intercepting
from specverify.exact.interception import walking
from specverify.loading import load_subject, source_digest
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.requests import Request
from specverify.subjects import Decoder, Facts, Subject, Verifier
from specverify.unknown_law import OnOff

HERE = Path(__file__).parent
BLOCKS = marked_blocks((HERE.parent.parent / "docs" / "processes.md").read_text(encoding="utf-8"))
PYTHON = [sys.executable, "-S", "-E"]


def evidence_of(subject: Subject, only: str) -> dict[str, Evidence]:
    """Evidence at the smallest budget, by check and variant, of the tests where ``only`` is found in that."""
    plan = plan_for(subject, "process:x", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    named = {f"{p.check}/{p.variant}": p for p in plan.tests if p.expected == "certified"}
    return {name: runner.run(planned) for name, planned in named.items() if re.search(only, name)}


def verdicts(subject: Subject, only: str) -> dict[str, str]:
    """Verdicts of the same."""
    return {name: evidence.verdict for name, evidence in evidence_of(subject, only).items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documented(folder: Path, name: str, fault: tuple[str, str] | None = None) -> str:
    """Write an engine of the document, with one line changed if asked, and return the spec of the command below it."""
    source = BLOCKS[name]
    if fault is not None:
        assert source.count(fault[0]) == 1
        source = source.replace(*fault)
    (folder / name).write_text(source)
    if name.endswith(".c"):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", "verifier", name], cwd=folder, check=True)
    _, _, spec, *_ = shlex.split(BLOCKS[name.split(".")[1]])
    program = spec.removeprefix("process:").split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    return spec


def test_the_verifier_in_c_is_judged_exactly_through_the_pipe(folder: Path) -> None:
    """Named pairs: certified with thousands of rows per call, and judged by sampling where rounds are walked."""
    subject = load_subject(documented(folder, "verifier.c"))
    assert isinstance(subject, Verifier)
    assert isinstance(subject.verify, ProcessVerifier)
    assert verdicts(subject, "single_step/named pairs") == {"single_step/named pairs": "certified"}
    assert subject.verify.asked.number < 1500
    assert verdicts(subject, "V3-K3, block rules") == {"sequence/table models V3-K3, block rules": "certified"}
    (evidence,) = evidence_of(subject, "rounds/").values()
    assert evidence.verdict == "skipped"
    assert "another process" in evidence.judgements()[0].reason


def test_its_twin_with_one_line_wrong_is_refuted_exactly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ratio upside down, with a counterexample whose code starts the engine and shows the law again."""
    spec = documented(folder, "verifier.c", ("u[j] * q[x] >= p[x]", "u[j] * p[x] >= q[x]"))
    subject = load_subject(spec)
    plan = plan_for(subject, spec, Settings(BUDGETS["smoke"]))
    evidence = Runner(plan).run(next(p for p in plan.tests if p.variant == "named pairs"))
    assert evidence.verdict == "refuted"
    assert evidence.counterexample is not None
    exec(evidence.counterexample["snippet"], {})
    assert f"{evidence.counterexample['got']:.4g}"[:5] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "fault", "only"),
    [
        ("verifier.js", ("Math.max(0, mass - q[j][v])", "mass"), "sequence/table models V3-K2"),
        ("decoder.pl", ("$p->[$_] > $q->[$_] ? $p->[$_] - $q->[$_] : 0", "$p->[$_]"), "sequence/own models$"),
    ],
    ids=["JavaScript", "Perl"],
)
def test_engines_that_draw_their_own_are_judged_by_sampling(folder: Path, name: str, fault: tuple[str, str], only: str) -> None:
    """Right ones pass, and twins whose residual is the target itself are refuted."""
    right = load_subject(documented(folder, name))
    assert set(verdicts(right, only).values()) == {"certified"}
    assert set(verdicts(load_subject(documented(folder, name, fault)), only).values()) == {"refuted"}
    if isinstance(right, Verifier):
        for evidence in evidence_of(right, "single_step/").values():
            assert evidence.verdict == "skipped"
            assert evidence.notes == ("judged by sampling alone",)
            assert "in another process" in evidence.judgements()[0].reason


def test_the_twin_in_perl_is_refuted_by_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1."""
    fault = ("$p->[$_] > $q->[$_] ? $p->[$_] - $q->[$_] : 0", "$p->[$_]")
    spec = documented(folder, "decoder.pl", fault)
    assert main(["certify", spec, "--budget", "smoke", "--only", "stopping"]) == 1
    assert "REFUTED" in capsys.readouterr().out


RECORDING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["call"] == "hello":
        said = {"protocol": 1, "kind": "verifier", **json.loads(sys.argv[2])}
    else:
        with open(sys.argv[1], "a") as file:
            file.write(line)
        said = {"tokens": [[0]] * asked["rows"], "accepted": [0] * asked["rows"]}
    print(json.dumps({"id": asked["id"], **said}), flush=True)
"""


def recording(folder: Path, **hello: Any) -> Verifier:
    """A verifier that writes down what it is asked."""
    (folder / "recording.py").write_text(RECORDING)
    subject = process_subject([*PYTHON, "recording.py", str(folder / "asked.jsonl"), json.dumps(hello)])
    assert isinstance(subject, Verifier)
    return subject


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_every_number_arrives_to_its_last_bit(folder: Path, dtype: str) -> None:
    """Laws, zeros, the smallest double and given numbers, in the declared precision, each distinct law once."""
    subject = recording(folder, facts={"dtype": dtype}, given={"u": "uniforms (B, K)", "e": "exponentials (B, V)"})
    B, K, V = 5, 2, 4
    generator = torch.Generator().manual_seed(1)
    q = torch.rand(B, K, V, generator=generator, dtype=torch.float64)
    p = torch.rand(B, K + 1, V, generator=generator, dtype=torch.float64)
    q[3], p[3] = q[1], p[1]
    q[4] = q[1]  # one law alike is not both
    p[0, 0, :3] = torch.tensor([0.0, 5e-324, 1 / 3])
    kind = subject.facts.torch_dtype
    numbers = [torch.rand(B, K, generator=generator).to(kind), torch.rand(B, V, generator=generator).to(kind)]
    tokens = torch.randint(V, (B, K), generator=generator)
    emitted = subject(tokens, q, p, numbers)
    assert emitted.rows() == [(0,)] * B
    assert emitted.accepted is not None
    assert emitted.accepted.tolist() == [0] * B
    (line,) = (folder / "asked.jsonl").read_text().splitlines()
    asked = json.loads(line)
    assert line == json.dumps(asked, separators=(",", ":"))  # one line, in this order, without blanks
    assert list(asked) == [
        *("id", "call", "rows", "k", "vocab_size", "laws", "law", "draft_tokens", "draft_probs", "target_probs", "given")
    ]
    assert asked["law"] == [0, 1, 2, 1, 3]
    assert (asked["rows"], asked["k"], asked["vocab_size"], asked["laws"]) == (B, K, V, 4)
    assert asked["draft_tokens"] == tokens.tolist()
    for name, whole in (("draft_probs", q), ("target_probs", p)):
        back = torch.tensor([asked[name][law] for law in asked["law"]], dtype=torch.float64)
        assert torch.equal(back, whole.to(kind).double())
    for name, whole in zip("ue", numbers, strict=True):
        assert torch.equal(torch.tensor(asked["given"][name], dtype=torch.float64), whole.double())


def test_an_exact_law_is_not_walked_through_a_pipe(folder: Path) -> None:
    """A verifier that draws in another process says so; one that is given its numbers, only where these are not known."""
    own, given = recording(folder), recording(folder, given="uniforms")
    q, p = torch.full((1, 1, 2), 0.5, dtype=torch.float64), torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    tokens = torch.tensor([[0]])
    assert not walking()
    with intercepting(Batch([Item(0, (), 1.0)])):
        assert walking()
        with pytest.raises(OpaqueRandomness, match="draws its random numbers in another process"):
            own(tokens, q, p)
        with pytest.raises(OpaqueRandomness, match="several rounds"):
            given(tokens, q, p)
        given(tokens, q, p, [torch.full((1, 2), 0.5, dtype=torch.float64)])
    own(tokens, q, p)


def decoding(wrong: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """The decoder with every call, with what it does wrong."""
    return process_subject([*PYTHON, str(HERE / "decoding_engine.py"), json.dumps(wrong or {})], **options)


def test_a_decoder_with_every_call_is_judged_in_mixed_batches() -> None:
    """Declared in the greeting: it serves, tells its laws at any temperature, and brings prompts; null is -inf."""
    subject = decoding()
    assert isinstance(subject, Decoder)
    assert subject.serves
    assert subject.open is not None
    decoder: Any = subject.open()
    ids = torch.tensor([[0, 3], [1, 2]])
    laws = decoder.target_log_probs(ids).exp()
    assert laws[0, 1].tolist() == pytest.approx([0.4, 0.35, 0.25, 0.0])
    assert laws[0, 1, 3] == 0
    assert torch.equal(decoder.target_log_probs(ids), decoder.draft_log_probs(ids))
    assert decoder.target_log_probs_at(ids, 0.0).exp()[0, 0].tolist() == [1, 0, 0, 0]
    served = decoder.serve([Request((0,), 3, None, 0.0), Request((0, 1), 2, 5)])
    assert served[0] == [0, 0, 0]
    assert served[1] == decoder.serve([Request((0, 1), 2, 5)])[0]
    assert set(verdicts(subject, "rows/").values()) == {"certified"}
    assert "refuted" in verdicts(decoding({"serve": "temperature"}), "rows/").values()


def test_large_laws_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row where an answer would hold too many numbers; the laws are the same and in their order."""
    decoder = decoding().open()
    ids = torch.arange(12).reshape(6, 2) % 4
    whole, asked = decoder.target_log_probs(ids), decoder._asked.number
    monkeypatch.setattr("specverify.adapters.process.MOST_NUMBERS", 17)
    assert torch.equal(decoder.target_log_probs(ids), whole)
    assert decoder._asked.number - asked == 3


def test_a_decoder_without_a_law_is_judged_on_against_off() -> None:
    """With a baseline and no log-probabilities; one mode that follows another law is refuted. With neither it is refused."""
    calls: dict[str, Any] = {"hello": {"calls": ["baseline"]}}
    assert isinstance(decoding(calls), OnOff)
    assert "refuted" in verdicts(decoding({**calls, "generate": "flat"}), "on_off/").values()
    with pytest.raises(SubjectError, match="neither target_log_probs nor baseline"):
        decoding({"hello": {"calls": []}})


def test_the_law_may_be_computed_here() -> None:
    """target_log_probs= stands for a call that the engine lacks, and is refused for a verifier."""
    laws = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.2, 0.5, 0.3, 0.0], [0.3, 0.2, 0.5, 0.0], [0.4, 0.35, 0.25, 0.0]]).double()
    silent = {"hello": {"calls": []}}
    assert set(verdicts(decoding(silent, target_log_probs=lambda ids: laws[ids].log()), "sequence/own models$").values()) == {
        "certified"
    }
    flat = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0]).double().log()
    wrong = decoding(silent, target_log_probs=lambda ids: flat.expand(*ids.shape, 4))
    assert set(verdicts(wrong, "sequence/own models$").values()) == {"refuted"}
    with pytest.raises(SubjectError, match="leave target_log_probs out"):
        process_subject([*PYTHON, str(HERE / "hostile_engine.py"), "right"], target_log_probs=lambda ids: ids)


TABLES: list[tuple[Any, str]] = [
    ([[[0.0, 0.0, 0.0]]], "not a table of shape"),
    ([[0.0, 0.0], [0.0]], "not a table of shape"),
    (7, "not a table of shape"),
    ([[["a", "b", "c", "d"]]], "something else than numbers"),
    ([[["0.1", None, None, None]]], "something else than numbers"),
    ([[[True, False, False, False]]], "something else than numbers"),
    ([[[True, None, None, None]]], "something else than numbers"),
    ([[[{}, None, None, None]]], "something else than numbers"),
    ([[[float("nan"), None, None, None]]], "NaN is no number of JSON"),
    ([[[0.0, float("-inf"), None, None]]], "-Infinity is no number of JSON; write null"),
]


@pytest.mark.parametrize(("table", "message"), TABLES, ids=str)
def test_log_probabilities_that_are_none_are_refused(table: Any, message: str) -> None:
    """Wrong shapes, texts, booleans, and numbers that JSON does not have."""
    decoder = decoding({"target_log_probs": table}).open()
    with pytest.raises(SubjectError, match=message):
        decoder.target_log_probs(torch.tensor([[0]]))


def test_doubles_beyond_all_bounds_are_no_laws(folder: Path) -> None:
    """1e999 is infinite to a reader of JSON: refused above, -inf below."""
    engine = (
        "import json, sys\n"
        "line = json.loads(sys.stdin.readline())\n"
        'hello = {"protocol": 1, "kind": "decoder", "vocab_size": 2, "calls": ["target_log_probs"]}\n'
        'print(json.dumps({"id": line["id"], **hello}), flush=True)\n'
        "for line, law in zip(sys.stdin, (b'[0.0,1e999]', b'[0.0,-1e999]')):\n"
        '    print(\'{"id":%d,"log_probs":[[%s]]}\' % (json.loads(line)["id"], law.decode()), flush=True)\n'
    )
    (folder / "engine.py").write_text(engine)
    subject: Any = process_subject([*PYTHON, "engine.py"])
    decoder = subject.open()
    with pytest.raises(SubjectError, match="something else than numbers"):
        decoder.target_log_probs(torch.tensor([[0]]))
    assert decoder.target_log_probs(torch.tensor([[0]])).exp().tolist() == [[[1.0, 0.0]]]


ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"id": True}, "with the id True"),
    ({"protocol": 2}, "speaks protocol 2; this version of specverify speaks 1"),
    ({"protocol": True}, "speaks protocol True"),
    ({"kind": "step"}, "its kind is 'step'; say verifier or decoder"),
    ({"kind": ["verifier"]}, "say verifier or decoder"),
    ({"name": 7}, "name that is no string"),
    ({"fact": {}}, "says fact of itself, which is not known; known are calls, eos_id, facts"),
    ({"error": "no GPU"}, "answered hello with an error: no GPU"),
    ({"facts": 7}, "facts = 7; give an object"),
    ({"facts": {"max_batch": 0}}, "max_batch = 0 of itself"),
    ({"facts": {"max_k": "3"}}, "max_k = '3' of itself"),
    ({"facts": {"dtype": "int8"}}, "dtype = 'int8' of itself"),
    ({"facts": {"seeded": 1}}, "seeded = 1 of itself"),
    ({"facts": {"rule": 1}}, "rule = 1 of itself"),
    ({"facts": {"logit_tolerance": "a"}}, "logit_tolerance = 'a'"),
    ({"facts": {"logit_tolerance": 2}}, "logit_tolerance=2 is not known"),
    ({"facts": {"speed": 1}}, "unknown fact about the subject"),
    ({"vocab_size": 1}, "vocab_size = 1"),
    ({"vocab_size": 2.0}, "vocab_size = 2.0"),
    ({"eos_id": 4}, "eos_id = 4; give null, or an id of 0..3"),
    ({"eos_id": True}, "eos_id = True"),
    ({"calls": ["fly"]}, "offers calls ['fly']; known are target_log_probs"),
    ({"calls": "serve"}, "offers calls 'serve'"),
    ({"kind": "verifier", "given": "coins"}, "given='coins' is not known"),
    ({"kind": "verifier", "given": 7}, "given = 7; write"),
    ({"kind": "verifier", "given": {"u": 7}}, "write"),
]


@pytest.mark.parametrize(("hello", "message"), ANSWERS, ids=str)
def test_greetings_that_cannot_be_say_what_is_wrong(hello: dict[str, Any], message: str) -> None:
    """An engine that says something unknown or impossible of itself is no subject."""
    with pytest.raises(SubjectError) as raised:
        decoding({"hello": hello})
    assert message in str(raised.value)


def test_what_the_engine_says_of_itself_is_what_is_judged() -> None:
    """Facts and calls of the greeting; a name given here goes before its own."""
    facts = {"rule": "greedy", "max_k": 3, "max_batch": 2, "dtype": "float32", "seeded": False, "logit_tolerance": 0.01}
    subject = decoding({"hello": {"facts": facts, "eos_id": 3}}, name="mine")
    assert subject.name == "mine"
    assert subject.facts == Facts(**facts)
    decoder = subject.open()
    assert (decoder.vocab_size, decoder.eos_id, decoder.prompts) == (4, 3, [[0, 1], [2, 3]])
    assert decoding().name == "tables"
    assert not hasattr(decoding({"hello": {"calls": ["target_log_probs"]}}).open(), "serve")
    assert all(hasattr(ProcessDecoder, f"_{call}") for call in CALLS)


def test_another_greeting_after_a_restart_is_an_error(folder: Path) -> None:
    """A process that greets otherwise than the one before it may follow another law."""
    (folder / "fickle.py").write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        '    if asked["call"] != "hello":\n'
        "        sys.exit(1)\n"
        '    name = str(os.path.exists("second"))\n'
        '    open("second", "w").close()\n'
        '    print(json.dumps({"id": asked["id"], "protocol": 1, "kind": "verifier", "name": name}), flush=True)\n'
    )
    subject: Any = process_subject([*PYTHON, "fickle.py"])
    laws = torch.full((1, 1, 2), 0.5), torch.full((1, 2, 2), 0.5)
    for message in ("exited with code 1", "something else of itself than before"):
        with pytest.raises(SubjectError, match=message):
            subject(torch.tensor([[0]]), *laws)


def test_the_digest_covers_the_files_that_the_command_names(folder: Path) -> None:
    """Another line in the engine is another subject; evidence of the first is not taken up for it."""
    first = source_digest(recording(folder))
    assert source_digest(recording(folder)) == first
    (folder / "recording.py").write_text(RECORDING + "\n# another\n")
    subject = process_subject([*PYTHON, "recording.py", "x", "{}"])
    assert source_digest(subject) != first
    decoder = decoding()
    assert source_digest(decoder) not in ("unknown", source_digest(Decoder("x", open=lambda: None)))  # type: ignore[arg-type, return-value]


def test_the_command_line_takes_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that does not start is exit code 3 with a line that says why; the way to reproduce an error is quoted."""
    assert main(["certify", "process:./absent --flag"]) == 3
    assert "cannot start './absent --flag'" in capsys.readouterr().err.replace("./absent --flag:", "'./absent --flag'")
    hostile = shlex.join([*PYTHON, str(HERE / "hostile_engine.py"), "exit"])
    spec = f"process:{hostile}"
    assert main(["certify", spec, "--budget", "smoke", "--only", "sequence/hostile/table models V3-K2"]) == 3
    assert f"specverify certify {shlex.quote(spec)} --only" in capsys.readouterr().out
