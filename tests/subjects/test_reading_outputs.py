"""What a subject returns is read as it was meant; everything else is an error that says what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from specverify.errors import OpaqueRandomness, SubjectError
from specverify.laws import TableModel
from specverify.subjects import (
    Emitted,
    Facts,
    Generated,
    Verifier,
    checked_log_probs,
    decoder,
    naming_inputs,
    normalise_emitted,
    normalise_generated,
    step,
    verifier,
)
from specverify.tables import TorchTable

T = torch.tensor

TWO_ROWS = [(1, 2, 0), (2,)]
CONVENTIONS: dict[str, Any] = {
    "padded": T([[1, 2, 0], [2, -1, -1]]),
    "int32": T([[1, 2, 0], [2, -1, -1]], dtype=torch.int32),
    "garbage past a count": (T([[1, 2, 0], [2, 99, 7]]), T([3, 1])),
    "garbage past -1": T([[1, 2, 0], [2, -1, 99]]),
    "emitted": Emitted(T([[1, 2, 0], [2, 5, 5]]), T([3, 1])),
    "counts as a list": (T([[1, 2, 0], [2, -1, -1]]), [3, 1]),
    "counts as a column": (T([[1, 2, 0], [2, -1, -1]]), T([[3], [1]], dtype=torch.int32)),
    "ragged lists": [[1, 2, 0], [2]],
    "ragged tuples": [(1, 2, 0), (2,)],
    "padded lists": [[1, 2, 0], [2, -1, -1]],
    "ragged tensors": [T([1, 2, 0]), T([2])],
    "ragged with counts": ([[1, 2, 0], [2, 7, 7]], [3, 1]),
    "wider than K + 1": (T([[1, 2, 0, 9], [2, 9, 9, 9]]), T([3, 1])),
    "wide padded": T([[1, 2, 0, -1], [2, -1, -1, -1]]),
    "no counts": (T([[1, 2, 0], [2, -1, -1]]), None),
    "uint8": (T([[1, 2, 0], [2, 255, 255]], dtype=torch.uint8), T([3, 1])),
}
ONE_ROW: dict[str, Any] = {
    "flat": T([1, 2]),
    "flat list": [1, 2],
    "one row": T([[1, 2, -1]]),
    "flat and a number": (T([1, 2]), 2),
    "narrow": T([[1, 2]]),
    "list of a list": [[1, 2]],
    "flat list and count": ([1, 2, 7], 2),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_of_batches_are_read(name: str) -> None:
    """Padding, garbage, ragged lists and counts of any shape mean the same tokens."""
    found = normalise_emitted(CONVENTIONS[name], 2, 2, 3)
    assert found.rows() == TWO_ROWS
    assert found.tokens.dtype == found.counts.dtype == torch.int64
    assert found.tokens.tolist() == [[1, 2, 0], [2, -1, -1]]


@pytest.mark.parametrize("name", ONE_ROW)
def test_conventions_of_one_row_are_read(name: str) -> None:
    """A batch of one may drop its first dimension."""
    assert normalise_emitted(ONE_ROW[name], 1, 2, 3).tokens.tolist() == [[1, 2, -1]]


MISREAD: dict[str, tuple[Any, int, str]] = {
    "nothing": (None, 2, "returned NoneType; return tokens"),
    "a number": (3, 1, "returned int"),
    "three things": ((T([[1]]), T([1]), 1), 1, "return one list|not lists of integers"),
    "rows missing": (T([[1, 2, 0]]), 2, r"shape \(1, 3\) for 2 rows; expected \(2, up to 3\)"),
    "flat for two": (T([1, 2]), 2, r"shape \(2,\) for 2 rows"),
    "three dimensions": (T([[[1]]]), 1, r"shape \(1, 1, 1\)"),
    "floats": (T([[1.0, 2.0]]), 1, "dtype torch.float32; token ids must be integers"),
    "booleans": (T([[True]]), 1, "dtype torch.bool"),
    "too many": (T([[1, 1, 1, 1]]), 1, r"counts \[4\] with K = 2: a round emits between 1 and 3"),
    "none": (T([[-1, 1, 1]]), 1, r"counts \[0\]"),
    "empty": (torch.zeros(1, 0, dtype=torch.int64), 1, r"counts \[0\]"),
    "empty list": ([[]], 1, r"counts \[0\]"),
    "count beyond width": ((T([[1, 2]]), [3]), 1, r"counts \[3\]"),
    "negative count": ((T([[1, 2]]), [-1]), 1, r"counts \[-1\]"),
    "counts missing": ((T([[1], [2]]), [1]), 2, "returned 1 counts for 2 rows"),
    "outside": (T([[1, 3]]), 1, r"token id 3 in row 0, position 1: outside 0\.\.2"),
    "-1 within a count": ((T([[1, -1, 2]]), [3]), 1, "token id -1 in row 0, position 1"),
    "list of numbers for two": ([1, 2], 2, "a list of 2 rows for a batch of 2; return one list of ids per row"),
    "list too short": ([[1]], 2, "a list of 1 rows for a batch of 2"),
    "words in a list": ([["a"]], 1, "not lists of integers"),
    "floats in a list": ([[1.0, 1.7]], 1, "floats or booleans"),
    "booleans in a list": ([[True]], 1, "floats or booleans"),
    "floats in ragged tensors": ([T([1.5]), T([1.0])], 2, "floats or booleans"),
    "reported": (Emitted(T([[1], [1]]), T([1, 1]), T([1])), 2, "reported 1 accepted counts for 2 rows"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_everything_else_is_an_error_that_says_what_is_wrong(name: str) -> None:
    """Wrong shapes, kinds, counts and ids name the subject and what it should return."""
    raw, rows, message = MISREAD[name]
    with pytest.raises(SubjectError, match=message) as found:
        normalise_emitted(raw, rows, 2, 3, "my.rule")
    assert str(found.value).startswith("my.rule ")


def test_reported_counts_are_kept() -> None:
    """What the subject itself reports as accepted is passed on, right or wrong."""
    assert normalise_emitted(Emitted(T([[1, 2]]), T([2]), T([[7]])), 1, 2, 3).accepted.tolist() == [7]  # type: ignore[union-attr]


def test_verifiers_get_copies_in_their_precision() -> None:
    """Inputs are handed over as copies, as probabilities or logits of the declared dtype."""
    x, q, p = T([[1]]), T([[[0.25, 0.75]]]).double(), T([[[0.5, 0.5], [1.0, 0.0]]]).double()
    seen = []

    @verifier(takes="logits", dtype="float32", rule="token rejection")
    def rule(tokens: torch.Tensor, draft: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((draft.dtype, target.tolist()))
        tokens.fill_(0), draft.fill_(9), target.fill_(9)
        return T([[1, 0]])

    assert rule(x, q, p).rows() == [(1, 0)]
    assert rule(x, q, p).rows() == [(1, 0)]
    assert seen == 2 * [(torch.float32, [[[pytest.approx(math.log(0.5))] * 2, [0.0, -math.inf]]])]
    assert (x.tolist(), q.tolist()) == ([[1]], [[[0.25, 0.75]]])
    assert (rule.name, rule.kind, rule.facts) == ("rule", "verifier", Facts(rule="token rejection", dtype="float32"))


def test_errors_of_a_subject_carry_its_inputs() -> None:
    """Whatever is raised becomes a SubjectError with the arguments; errors of specverify pass through."""
    failing = Verifier("bad", lambda *_: 1 / 0)
    with pytest.raises(SubjectError, match="bad raised ZeroDivisionError: division by zero") as found:
        failing(T([[1]]), torch.ones(1, 1, 2) / 2, torch.ones(1, 2, 2) / 2)
    assert "draft_tokens = [[1]]" in found.value.inputs
    with pytest.raises(SubjectError, match="returned str") as found:
        Verifier("bad", lambda *_: "x")(T([[1]]), torch.ones(1, 1, 2) / 2, torch.ones(1, 2, 2) / 2)
    assert "target_probs" in found.value.inputs
    with pytest.raises(OpaqueRandomness), naming_inputs("x"):
        raise OpaqueRandomness("stop")


def test_steps_are_read_like_verifiers() -> None:
    """A step is called with models and a copy of the prefix, and may emit k + 1 tokens."""

    @step(2, lossy=True)
    def mine(target: Any, draft: Any, prefix: torch.Tensor) -> Any:
        prefix.fill_(0)
        return [[1, 1, 1], [0]]

    prefix = T([[1], [1]])
    model = TorchTable(TableModel.from_weights([[1, 1]]))
    assert mine(model, model, prefix).rows() == [(1, 1, 1), (0,)]
    assert prefix.tolist() == [[1], [1]]
    assert (mine.k, mine.facts.lossy, mine.name, mine.kind) == (2, True, "mine", "step")


def test_unknown_facts_are_named() -> None:
    """A misspelt fact lists the known ones."""
    with pytest.raises(SubjectError, match=r"unknown fact.*known facts are rule, max_k"):
        verifier(lambda *_: None, name="x", looossy=True)
    with pytest.raises(SubjectError, match="unknown fact"):
        step(1, K=3)(lambda *_: None)


class Two:
    """A decoder of nothing."""

    vocab_size = 2

    def generate(self, prompts: torch.Tensor, max_new_tokens: int, seed: int) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64)

    def target_log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the law that is certain of 0."""
        return T([1.0, 0.0]).log().expand(*ids.shape, 2)


def test_decoders_are_wrapped_with_their_class_as_name() -> None:
    """decoder() keeps the object it is given."""
    one = Two()
    wrapped = decoder(one, max_k=3)
    assert wrapped.open is not None
    assert (wrapped.name, wrapped.open() is one, wrapped.facts.max_k, wrapped.kind) == ("Two", True, 3, "decoder")


def generated(raw: Any, rows: int = 2, length: int = 3, eos: int | None = None) -> Generated:
    """Read what was generated for a vocabulary of 3."""
    return normalise_generated(raw, rows, length, 3, eos, "d")


def test_generated_tokens_are_read() -> None:
    """Tensors, lists and reports of acceptances are read; after an eos -1, eos and even other tokens may stand."""
    full = [[1, 2, 0], [0, 0, 1]]
    for raw in (T(full), full, T(full, dtype=torch.int32), Generated(T(full)), [T(r) for r in full]):
        assert generated(raw).tokens.tolist() == full
    assert generated(T([[1, -1, -1], [2, 1, 1]]), eos=1).tokens.tolist() == [[1, -1, -1], [2, 1, 1]]
    assert generated(T([[1, 2, 0], [1, 1, 1]]), eos=1).tokens.tolist() == [[1, 2, 0], [1, 1, 1]]
    assert generated([[1], [2, 1]], length=2, eos=1).tokens.tolist() == [[1, -1], [2, 1]]
    assert generated(Generated(T(full), [[1, 0], [2, -1]])).accepted.tolist() == [[1, 0], [2, -1]]  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (T([[1, 2], [1, 2]]), "too few tokens; return the new tokens only"),
        (T([[1, 2, 0, 0], [1, 2, 0, 0]]), "too many tokens"),
        (T([[1, 2, 0]]), "wrong number of rows"),
        (T([1, 2, 0]), r"returned \(3,\)"),
        ("text", "returned str"),
        (T([[1.0, 2, 0], [1, 2, 0]]), "must be integers"),
        (T([[1, 2, 3], [1, 2, 0]]), "token id 3 in row 0, position 2"),
        (T([[1, 2, 0], [1, -1, 0]]), "token id -1 in row 1, position 1"),
        ([[1, 2, 0]], "a list of 1 rows"),
    ],
)
def test_generated_tokens_that_cannot_be_are_errors(raw: Any, message: str) -> None:
    """Wrong shapes, kinds and ids say what was asked for."""
    with pytest.raises(SubjectError, match=message):
        generated(raw)


@pytest.mark.parametrize("kind", ["int64", "int32", "uint16", ">i8"])
def test_generated_arrays_of_numpy_are_read_as_tensors_are(kind: str) -> None:
    """Any integers will do, tokens and reports alike, also in memory that may not be written to; other kinds are refused."""
    full = np.array([[1, 2, 0], [0, 0, 1]], kind)
    full.flags.writeable = False
    read = generated(Generated(full, full))  # type: ignore[arg-type]
    assert read.tokens.tolist() == read.accepted.tolist() == full.tolist()  # type: ignore[union-attr]
    with pytest.raises(SubjectError, match=r"returned dtype torch.float64; token ids must be integers"):
        generated(full.astype(float))
    with pytest.raises(SubjectError, match=r"an array of dtype object; token ids and counts must be integers"):
        generated(full.astype(object))


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        (T([1, 0]), r"shape \(2,\) for 2 rows"),
        (T([[1, 0]]), r"shape \(1, 2\) for 2 rows"),
        (np.zeros((2, 1, 1), int), r"shape \(2, 1, 1\) for 2 rows"),
        ([[1, 0], [1]], "cannot be read as a table: expected sequence of length 2"),
        ([["a"], ["b"]], "cannot be read as a table"),
        ([[None], [None]], "cannot be read as a table"),
        (T([[1.0, 0.0], [2.0, -1.0]]), "dtype torch.float32"),
        (np.array([[1.0], [2.0]]), "dtype torch.float64"),
        (T([[True], [False]]), "dtype torch.bool"),
        (T([[1, 0], [2, -2]]), "-2 in row 1, round 2, which is below -1"),
    ],
)
def test_reported_acceptances_that_cannot_be_are_errors(accepted: Any, message: str) -> None:
    """Each names what was reported, and says what to give."""
    with pytest.raises(SubjectError, match=rf"d.generate returned accepted.*{message}.*; give \(2, R\) int"):
        generated(Generated(T([[1, 2, 0], [0, 0, 1]]), accepted))


def test_padding_before_an_eos_is_an_error() -> None:
    """-1 may follow an eos only."""
    with pytest.raises(SubjectError, match="token id -1 in row 0, position 0"):
        generated(T([[-1, 1, 1], [1, 1, 1]]), eos=1)


def test_log_laws_are_checked_and_normalised() -> None:
    """NaN, wrong shapes and logits are errors; rounding of low precision is normalised away."""
    ids = T([[0, 1], [1, 1]])
    law = T([0.25, 0.75]).log().expand(2, 2, 2)
    assert checked_log_probs(law.bfloat16(), ids, 2, "d").exp().sum(-1).tolist() == [[pytest.approx(1, abs=1e-12)] * 2] * 2
    for raw, message in (
        (law[:, :1], r"shape \(2, 2, 2\)"),
        (None, "returned NoneType"),
        (
            torch.where(torch.arange(4).reshape(2, 2, 1) == 3, math.nan, law),
            r"NaN in row 1, position 1, for ids \[1, 1\]",
        ),
        (law + 1, r"sums to 2.718, not 1 \(row 0, position 0\): return log-probabilities, not logits"),
        (law.exp(), "not logits"),
        (torch.full((2, 2, 2), -math.inf), "sums to 0, not 1"),
        (torch.full((2, 2, 2), math.inf), "not 1"),
    ):
        with pytest.raises(SubjectError, match=message):
            checked_log_probs(raw, ids, 2, "d")
