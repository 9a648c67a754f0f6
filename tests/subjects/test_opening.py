"""What a decoder brings along when it is opened: its number of token ids and its prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from subjects_for_opening import Chain

import specverify
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.errors import SubjectError
from specverify.opening import check_opened, check_vocab_size, read_prompts
from specverify.plan import plan_for
from specverify.record import Evidence


def judged(decoder: Any) -> list[Evidence]:
    """Evidence of the tests on the decoder's own models."""
    plan = plan_for(specverify.decoder(decoder, name="it"), "it", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    return [runner.run(p) for p in plan.tests if p.part == "it" and p.variant.startswith("own models")]


PROMPTS: list[tuple[Any, str]] = [
    ([[0, 1], [2]], "cannot be read as ids"),
    (["a", "b"], "cannot be read as ids"),
    ([None], "cannot be read as ids"),
    (torch.zeros(2, 2), "dtype torch.float32"),
    ([0, 1], r"shape \(2,\)"),
    (torch.zeros(0, 3, dtype=torch.int64), r"shape \(0, 3\)"),
    (torch.zeros(2, 0, dtype=torch.int64), r"shape \(2, 0\)"),
    ([[0, 3]], r"outside 0\.\.2"),
    ([[0, -1]], r"outside 0\.\.2"),
]


@pytest.mark.parametrize(("prompts", "said"), PROMPTS)
def test_prompts_that_are_no_ids_are_refused(prompts: Any, said: str) -> None:
    """Each says what is wrong, by the attribute's name."""
    with pytest.raises(SubjectError, match=rf"it\.prompts .*{said}"):
        read_prompts(prompts, 3, "it")


@pytest.mark.parametrize("prompts", [[[0, 2]], np.array([[0, 2]], np.int32), torch.tensor([[0, 2]])])
def test_ids_of_any_kind_are_read(prompts: Any) -> None:
    """Lists, arrays and tensors."""
    assert read_prompts(prompts, 3, "it").tolist() == [[0, 2]]


@pytest.mark.parametrize("size", ["3", 3.0, True, None, 0, -3, torch.tensor(3), np.array([3])])
def test_a_number_of_token_ids_that_is_none_is_refused(size: Any) -> None:
    """Only whole numbers of at least one, and the message says so."""
    with pytest.raises(SubjectError, match=r"it has vocab_size = .*; give the number of token ids, an int of at least 1"):
        check_vocab_size(size, "it")


def test_whole_numbers_of_numpy_are_numbers_of_token_ids() -> None:
    """They are read as plain integers."""
    assert type(check_vocab_size(np.int64(3), "it")) is int
    check_opened(Chain(), "it")


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("prompts", [[0], [1, 2]], "it.prompts cannot be read as ids"),
        ("prompts", torch.zeros(0, 3, dtype=torch.int64), "it.prompts has shape (0, 3)"),
        ("prompts", [[0, 9]], "it.prompts holds ids outside 0..2"),
        ("vocab_size", "3", "it has vocab_size = '3'"),
    ],
)
def test_every_test_on_own_models_names_what_is_wrong(attribute: str, value: Any, said: str) -> None:
    """The decoder is looked at as it is opened, so no test fails later, and less clearly, inside the decoder."""
    decoder = Chain()
    setattr(decoder, attribute, value)
    found = judged(decoder)
    assert len(found) >= 4
    for evidence in found:
        (judgement,) = evidence.judgements()
        assert judgement.verdict == "error"
        assert judgement.reason.startswith(said)


def test_laws_of_a_draft_that_are_not_numbers_name_the_draft() -> None:
    """The message speaks of draft_log_probs, not of the target."""
    decoder = Chain()
    decoder.draft_log_probs = lambda ids: decoder.target_log_probs(ids) * torch.nan  # type: ignore[attr-defined]
    errors = [j.reason for e in judged(decoder) for j in e.judgements() if j.verdict == "error"]
    assert errors
    assert all(reason.startswith("it.draft_log_probs returned NaN") for reason in errors)
