"""Is this subject exact? Asked in one line from a notebook or a test: :func:`check_exact`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np
import torch

from specverify.certificate import Certificate
from specverify.certify import Runner, assemble
from specverify.checks.base import Settings, budget_named
from specverify.errors import SpecverifyError, UsageError
from specverify.evidence.ledger import DEFAULT_ALPHA
from specverify.naming import named_subject
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.showing import counterexample_lines, error_lines


class OutcomeError(SpecverifyError):
    """A verdict raised as an error, with the certificate or the evidence of the one test that it follows from."""

    def __init__(self, message: str, *, certificate: Certificate | None = None, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate
        self.evidence = evidence


class NotExact(OutcomeError, AssertionError):  # noqa: N818 - named after what was found
    """The subject was asserted to be exact and is refuted. ``certificate`` or ``evidence`` holds what shows it."""


class NotJudged(OutcomeError):  # noqa: N818 - named after what was found
    """Nothing is shown about the subject, for or against: something was inconclusive, crashed, hung or was not tried."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Work on one thread, and give back the streams of torch, numpy and Python, and the threads, as they were."""
    threads, drawn, drawn_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()  # noqa: NPY002
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)  # noqa: NPY002
        torch.set_num_threads(threads)


def settings_for(budget: str, alpha: float, seed: int, timeout: float, max_tokens: int | None, subjects: int = 1) -> Settings:
    """Settings of each of several subjects that share ``alpha`` evenly. Errors: UsageError saying what cannot be."""
    if not 0 < alpha < 1:
        raise UsageError(f"alpha, the false-alarm probability of the whole run, must lie between 0 and 1, got {alpha}")
    return Settings(budget_named(budget), alpha / subjects, seed, timeout, max_tokens)


def check_exact(
    subject: Any,
    *,
    budget: str = "smoke",
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
    timeout: float = 300.0,
    max_tokens: int | None = None,
) -> Certificate:
    """Return the certificate of a subject that is certified, and raise otherwise.

    subject: whatever can be plugged in, or the name to load it by. What runs is the whole plan of ``specverify certify`` with
    this budget: every test of every check that applies, exact ones first, and after them the known-bad rules that the same run
    must refute, since less than that certifies nothing. Where a test refutes the subject, the tests of its check are finished,
    so that the smallest counterexample is there, and nothing after them runs: a refutation needs no more. At "smoke" a
    vectorised verifier takes about ten seconds; ``specverify certify`` does the same with a file to keep. timeout: seconds per
    test. Random streams of torch, numpy and Python and the number of torch's threads are as before afterwards.

    Guarantee: if the subject is exact, NotExact is raised with probability at most ``alpha``.
    Errors: NotExact (an AssertionError) when it is refuted, with the counterexample and code that shows it; NotJudged when a
    test was inconclusive, crashed or hung; both hold the ``certificate``. SubjectError when it is no subject; UsageError.
    """
    __tracebackhide__ = True
    settings = settings_for(budget, alpha, seed, timeout, max_tokens)
    judged, spec = named_subject(subject)
    plan = plan_for(judged, spec, settings)
    runner, done = Runner(plan), list[Evidence]()
    with undisturbed():
        for _, tests in groupby(plan.tests, key=lambda planned: (planned.expected, planned.check)):
            done += [runner.run(planned) for planned in tests]
            if any(e.expected == "certified" and e.verdict == "refuted" for e in done):
                break
    certificate = assemble(plan, done)
    if certificate.verdict != "certified":
        raise _error(certificate)
    return certificate


def _error(certificate: Certificate) -> NotExact | NotJudged:
    own = [e for e in certificate.evidence if e.expected == "certified"]
    lines = [certificate.sentence(), *counterexample_lines(own), *error_lines(own)]
    kind = NotExact if certificate.verdict == "refuted" else NotJudged
    head = "" if kind is NotExact else f"{certificate.verdict}: "
    return kind(head + "\n".join(lines), certificate=certificate)
