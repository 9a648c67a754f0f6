"""Engines that misbehave: each ends in the verdict ``error`` with its reason, or is right; none hangs or ends the certifier."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specverify.adapters import running
from specverify.adapters.engine_process import KEPT_STDERR, Engine, plain
from specverify.adapters.process import ProcessVerifier, process_subject
from specverify.adapters.running import MARK
from specverify.certify import Runner, certify
from specverify.checks.base import BUDGETS, Settings
from specverify.errors import SubjectError
from specverify.evidence.measurements import OutcomeMeasurement
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.report.command import main as report
from specverify.subjects import Verifier

HERE = Path(__file__).parent
HOSTILE = [sys.executable, "-S", "-E", str(HERE / "hostile_engine.py")]
TOKENS, LAWS = torch.tensor([[0, 1]]), (torch.full((1, 2, 2), 0.5), torch.full((1, 3, 2), 0.5))


@contextmanager
def engine(behaviour: str, timeout: float = 20, restarts: int = 3) -> Iterator[Verifier]:
    """A verifier that behaves so, stopped at the end."""
    subject = process_subject([*HOSTILE, behaviour], timeout=timeout, restarts=restarts)
    assert isinstance(subject, Verifier)
    try:
        yield subject
    finally:
        process_of(subject).stop()


def process_of(subject: Verifier) -> Engine:
    """What runs the engine of a verifier."""
    assert isinstance(subject.verify, ProcessVerifier)
    return subject.verify.asked.engine


def judged(subject: Verifier, test: str = "table models V3-K2", timeout: float = 300.0) -> Evidence:
    """The evidence of one test at the smallest budget."""
    plan = plan_for(subject, "tests", Settings(BUDGETS["smoke"], timeout=timeout))
    return Runner(plan).run(next(p for p in plan.tests if p.test.endswith(test) and p.expected == "certified"))


TESTED_BY = "SPECVERIFY_TESTED_BY"


def marked() -> set[int]:
    """Processes that run as an engine, or come of one, and were started by the test that runs now in this process."""
    mine = f"{TESTED_BY}={os.environ[TESTED_BY]}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                environment = (entry / "environ").read_bytes()
                if mine in environment and f"{MARK}=".encode() in environment:
                    found.add(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test did, no process of an engine that it started is left."""
    monkeypatch.setenv(TESTED_BY, uuid.uuid4().hex)
    yield
    assert not marked()


REASONS = {
    "error": "answered verify with an error: out of",
    "garbage": "'Loading weights: 100%",  # alone, or with the answer behind it: as the pipe hands it over
    "list": "with a JSON list, not an object",
    "flood": "bytes in answer to verify, request 2, a line that begins 'xxx",
    "flood stderr": "did not answer verify, request 2 within 0.6 s",
    "half a line": "did not answer verify, request 2 within 0.6 s",
    "half a line, exit": """exited with code 0 instead of answering verify, request 2 after half a line, '{"id": 2, "tok'""",
    "wrong id": "with the id 3",
    "old id": "with the id 1",
    "true id": "with the id True",
    "twice": "wrote ",  # more than one line, or a line before it was asked again
    "twice the key": "a key stands twice",
    "exit": "exited with code 7 instead of answering verify, request 2. The end of its stderr: first | CUDA error: out of mem",
    "signal": "died of signal 6",
    "sleep": "did not answer verify, request 2 within 0.6 s, its time limit",
    "orphan": "exited with code 0",
    "daemon": "exited with code 0",
    "no utf-8": "not UTF-8",
    "huge line": "bytes in answer to verify",
    "deep": "no JSON",
    "large number": "ids lie in 0..2",
    "endless number": "no JSON",
    "nan": "NaN is no number of JSON",
    "too few rows": "one of whole numbers for each row",
    "too many rows": "one of whole numbers for each row",
    "no tokens": "with 0 tokens in row 0; with K = 2 a round emits 1 to 3",
    "too many tokens": "with 4 tokens in row 0",
    "outside": "with [3] in row 0: ids lie in 0..2",
    "padding": "with [0, -1] in row 0",
    "float": "lists, one of whole numbers",
    "boolean": "lists, one of whole numbers",
    "text": "lists, one of whole numbers",
    "flat": "lists, one of whole numbers",
    "accepted lie": "whole numbers from 0 to 2",
    "accepted short": "whole numbers from 0 to 2",
    "unknown key": "with counts, which is not known",
    "nothing": "lists, one of whole numbers",
    "null": "with a JSON NoneType",
    "closed stdin": "did not answer verify, request 2 within 0.6 s",
    "closed stdout": "closed its stdin or stdout",
    "crash on zero": "exited with code 1 instead of answering verify, request 2. The end of its stderr: token 0 is not",
}


@pytest.mark.parametrize("behaviour", REASONS)
def test_what_misbehaves_is_an_error_that_says_so(behaviour: str) -> None:
    """The test is an error with the reason, soon, and the reason can be written anywhere."""
    started = time.monotonic()
    with engine(behaviour, 0.6 if "within 0.6 s" in REASONS[behaviour] else 20) as subject:
        evidence = judged(subject)
    assert evidence.verdict == "error"
    (measured,) = evidence.measurements
    assert isinstance(measured, OutcomeMeasurement)
    assert REASONS[behaviour] in measured.message, measured.message
    assert measured.message.isprintable()
    measured.message.encode()
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("behaviour", ["right", "noisy"])
def test_the_control_is_judged_as_it_is(behaviour: str) -> None:
    """The same engine without its vice is exact, and two megabytes on stderr per call change nothing; 8 KiB are kept."""
    with engine(behaviour) as subject:
        evidence = judged(subject, "small batches V3-K2" if behaviour == "right" else "table models V3-K2")
        assert len(process_of(subject)._stderr) <= KEPT_STDERR
    assert {j.verdict for j in evidence.judgements()} <= {"certified", "inconclusive"}  # it never accepts: vacuous
    assert not any(isinstance(m, OutcomeMeasurement) for m in evidence.measurements)


def test_the_group_is_killed_where_no_mark_can_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc a child that stayed in the group of its process ends with it all the same."""
    monkeypatch.setattr(running, "kill_marked", lambda mark: None)
    with engine("orphan") as subject, pytest.raises(SubjectError, match="exited with code 0"):
        subject(TOKENS, *LAWS)
    until = time.monotonic() + 5
    while marked() and time.monotonic() < until:
        time.sleep(0.01)
    assert not marked()


def test_every_behaviour_is_expected_to_do_something() -> None:
    """No behaviour of the hostile engine is left untested."""
    sys.path.append(str(HERE))
    from hostile_engine import BEHAVIOURS

    assert set(BEHAVIOURS) == {*REASONS, "right", "noisy"}


def test_a_lost_process_is_not_asked_again_in_its_test_and_restarted_a_fixed_number_of_times() -> None:
    """One start per test, as many as there are restarts; then every test is an error that says so."""
    with engine("exit", restarts=2) as subject:
        said = [judged(subject).judgements()[0].reason for _ in range(4)]
        assert process_of(subject).starts == 3
    assert ["2 of 2 restarts" in said[0], "1 of 2 restarts" in said[1], "0 of 2 restarts" in said[2]] == [True] * 3
    assert "was started 3 times, and not again" in said[3]
    assert "CUDA error" in said[3]


def test_a_direct_call_gets_a_fresh_process_after_a_failure() -> None:
    """Outside of tests nobody is misled by asking on; the counts are the same."""
    with engine("exit", restarts=1) as subject:
        for message in ("1 of 1 restarts", "0 of 1 restarts", "not again"):
            with pytest.raises(SubjectError, match=message):
                subject(TOKENS, *LAWS)


GIVEN = """
import json, sys
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if asked["call"] == "hello":
        print(json.dumps({"id": asked["id"], "protocol": 1, "kind": "verifier", "given": "uniforms"}), flush=True)
        continue
    if number == int(sys.argv[1]) and sys.argv[2] == "died":
        sys.exit("died")
    if number == int(sys.argv[1]):
        print(json.dumps({"id": asked["id"], "tokens": [[99]] * asked["rows"]}), flush=True)
        continue
    tokens = []
    for law, row in zip(asked["law"], asked["given"]["uniforms"]):
        at, p = row[0], asked["target_probs"][law][0]
        total = sum(p)
        v, below = 0, p[0]
        while below <= at * total:
            v += 1
            below += p[v]
        tokens.append([v])
    print(json.dumps({"id": asked["id"], "tokens": tokens}), flush=True)
"""


@pytest.mark.parametrize(
    ("test", "at", "said", "verdict"),
    [
        ("boundary draws", 30, "died", "error"),
        ("boundary draws", 30, "with [99] in row 0", "error"),
        ("boundary draws", -1, "died", "certified"),
        ("generated pairs", 30, "died", "error"),
    ],
)
def test_one_failure_that_a_check_would_forgive_is_an_error(
    tmp_path: Path, test: str, at: int, said: str, verdict: str
) -> None:
    """Checks that probe and shrink go on after an error and may not meet it again; a crash or a lie is never forgotten."""
    (tmp_path / "given.py").write_text(GIVEN)
    subject = process_subject([sys.executable, "-S", "-E", str(tmp_path / "given.py"), str(at), said])
    assert isinstance(subject, Verifier)
    evidence = judged(subject, test)
    assert process_of(subject).starts == 1  # no check that went on got a fresh process to ask
    process_of(subject).stop()
    assert evidence.verdict == verdict
    assert any(said in j.reason for j in evidence.judgements()) == (verdict == "error")


GUESSING = """
import json, os, sys, time
hello = json.dumps({"id": 1, "protocol": 1, "kind": "verifier"}).encode()
guess = json.dumps({"id": 2, "tokens": [[0]] * int(sys.argv[2])}).encode()
sys.stdin.readline()
os.write(1, hello + b"\\n")
if sys.argv[1] == "hasty":
    os.read(0, 1)
else:
    time.sleep(0.3)
os.write(1, guess + b"\\n")
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "rows", "message"),
    [
        ("early", 1, "before it was asked for verify, request 2|more than one line in answer to hello"),
        ("hasty", 30_000, "answered verify, request 2 before it had read it to its end"),
    ],
)
def test_answers_that_cannot_be_answers_are_refused(tmp_path: Path, how: str, rows: int, message: str) -> None:
    """One that was there before its request was sent, and one that came before the request was read."""
    (tmp_path / "guessing.py").write_text(GUESSING)

    def ask() -> None:
        subject = process_subject([sys.executable, "-S", "-E", str(tmp_path / "guessing.py"), how, str(rows)], timeout=20)
        assert isinstance(subject, Verifier)
        running = process_of(subject)._running
        assert running is not None
        if how == "early":
            select.select([running.process.stdout], [], [], 20)
        subject(*(x.expand(rows, *x.shape[1:]) for x in (TOKENS, *LAWS)))

    with pytest.raises(SubjectError, match=message):
        ask()


def test_a_start_has_a_time_limit_of_its_own() -> None:
    """A command that never greets ends after it, and the limit per call does not count meanwhile."""
    with pytest.raises(SubjectError, match=r"did not answer hello, request 1 within 0\.3 s"):
        process_subject(["sleep", "60"], timeout=60, start_timeout=0.3)
    slow = "import time; time.sleep(0.4); import json; print(json.dumps({'id': 1, 'protocol': 1, 'kind': 'verifier'}))"
    subject = process_subject([sys.executable, "-S", "-E", "-c", slow], timeout=0.1)
    assert isinstance(subject, Verifier)
    process_of(subject).stop()


def test_the_time_of_a_test_ends_a_call_and_its_process() -> None:
    """An alarm in the middle of an answer: an error, the process killed, a fresh one for the next test."""
    with engine("sleep", timeout=60) as subject:
        before = process_of(subject).pid
        assert before in marked()
        started = time.monotonic()
        evidence = judged(subject, timeout=0.5)
        assert time.monotonic() - started < 15
        assert evidence.verdict == "error"
        assert "did not come back within 0.5 s" in evidence.judgements()[0].reason
        assert process_of(subject).pid is None
        judged(subject, timeout=0.3)
        assert before not in marked()


ENDING = """
import os, signal, sys
from specverify.adapters.engine_process import Engine
how, command = sys.argv[1], sys.argv[2:]
engine = Engine(command, timeout=20, restarts=0)

def ask():
    engine.ready()
    engine.ask(b'{"id":1}\\n', 1000, "hello")
    print(engine.pid, flush=True)

ask()
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "fork":
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    ask()
"""
STUBBORN = """
import json, sys, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"]}), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["end", "kill", "fork"])
def test_nothing_is_left_when_the_certifier_ends(tmp_path: Path, how: str) -> None:
    """At its end, killed without a word, and forked: each fork has its own process, and all of them end."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    command = [sys.executable, "-S", "-E", str(tmp_path / "stubborn.py")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", ENDING, how, *command],
        capture_output=True,
        check=False,
        text=True,
        env=environment,
        timeout=60,
    )
    pids = [int(line) for line in done.stdout.split()]
    assert done.returncode == (-9 if how == "kill" else 0), done.stderr
    # Parent, its fork with a process of its own, and the parent again, whose process the fork left alone.
    assert [pids.index(pid) for pid in pids] == ([0, 1, 0] if how == "fork" else [0])
    until = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


NAMED = """
import json, sys
asked = json.loads(sys.stdin.readline())
name = "<script>alert(1)</script> \\ud800 \\x1b[31m"
facts = {"rule": "<img src=x>"}
print(json.dumps({"id": asked["id"], "protocol": 1, "kind": "verifier", "name": name, "facts": facts}), flush=True)
asked = json.loads(sys.stdin.readline())
print(json.dumps({"id": asked["id"], "error": "<script>alert(2)</script> \\ud800"}), flush=True)
sys.stdin.read()
"""


def test_a_hostile_name_and_a_hostile_error_are_text_in_the_report(tmp_path: Path) -> None:
    """Markup of the engine is escaped in the page, and lone surrogates and escape codes are in no file."""
    (tmp_path / "named.py").write_text(NAMED)
    subject = process_subject([sys.executable, "-S", "-E", str(tmp_path / "named.py")])
    assert isinstance(subject, Verifier)
    assert subject.name == "<script>alert(1)</script> \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}[31m"
    certificate = certify(
        "process:x", Settings(BUDGETS["smoke"]), subject=subject, out=tmp_path / "run", only="table models V3-K2"
    )
    process_of(subject).stop()
    assert certificate.verdict == "error"
    report([str(tmp_path / "run")])
    page = (tmp_path / "run" / "index.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(" not in page
    assert "<img" not in page


def test_text_of_an_engine_is_one_printable_line() -> None:
    """Line breaks become blanks, what cannot be printed is replaced, and long texts are cut."""
    assert plain("a\nb\t c") == "a b c"
    assert plain("\ud800\x1b\x00") == "\N{REPLACEMENT CHARACTER}" * 3
    assert plain("x" * 400) == "x" * 300 + " ..."


def test_commands_that_cannot_be_run_say_why() -> None:
    """No command, none of that name, quotes that do not close, limits that are none."""
    for command, options, message in (
        ("", {}, "is empty"),
        ("./no-such-engine", {}, "No such file or directory; a Python module named process is named process.py:attribute"),
        ("'a", {}, "No closing quotation"),
        (shlex.join(HOSTILE), {"timeout": 0}, "seconds"),
        (shlex.join(HOSTILE), {"restarts": -1}, "0 or more"),
        (shlex.join(HOSTILE), {"start_timeout": 0}, "from a start to the greeting"),
        (str(HERE), {}, "Permission denied"),
    ):
        with pytest.raises(SubjectError, match=message):
            process_subject(command, **options)
