"""Verifiers may ask for their random numbers: how that is declared, what they are handed, and where the numbers come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact.batch import Batch, Item
from specverify.exact.draws import intercepting
from specverify.given import GRID_BITS, Numbers, handed, read_given
from specverify.subjects import Facts, Verifier, normalise_emitted, verifier

X = torch.tensor([[0, 1], [2, 2]])
Q, P = torch.full((2, 2, 3), 1 / 3), torch.full((2, 3, 3), 1 / 3)


def seen_by(**options: Any) -> tuple[Verifier, list[Any]]:
    """A verifier that emits one token and keeps what it was handed."""
    calls: list[Any] = []

    @verifier(name="seen", **options)
    def keeps(*args: Any) -> list[list[int]]:
        calls.append(args)
        return [[0] for _ in args[0]]

    return keeps, calls


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        (None, []),
        ("uniforms", [(2, 3)]),
        ("exponentials", [(2, 3, 3)]),
        ("uniforms and exponentials", [(2, 3), (2, 3, 3)]),
        ({"noise": "exponentials (B, V)", "coins": "uniforms (B, K)", "last": "uniforms (B,)"}, [(2, 3), (2, 2), (2,)]),
        ({"coins": "uniforms (B,K)", "one": "uniforms (B)"}, [(2, 2), (2,)]),
    ],
    ids=str,
)
def test_numbers_are_handed_in_the_declared_shapes_and_order(given: Any, shapes: list[tuple[int, ...]]) -> None:
    """Behind the three usual arguments stand the numbers asked for, in the declared precision."""
    subject, calls = seen_by(given=given, dtype="float32")
    subject(X, Q, P)
    assert [tuple(x.shape) for x in calls[0][3:]] == shapes
    assert all(x.dtype == torch.float32 for x in calls[0][1:])


@pytest.mark.parametrize(
    "given",
    ["coins", "uniforms (B, K)", {"u": "uniform (B, K)"}, {"u": "uniforms (K, B)"}, {"e": "exponentials (B, K)"}, {"e": ""}],
    ids=str,
)
def test_declarations_that_cannot_be_read_say_how_to_write_them(given: Any) -> None:
    """The message holds an example in the right form."""
    with pytest.raises(SubjectError, match=r"uniforms|last dimension"):
        read_given(given)


def test_options_that_do_not_go_together_are_refused() -> None:
    """Unknown ways to hand arguments, and numpy arrays in a precision that numpy has not."""
    with pytest.raises(SubjectError, match="torch, numpy or lists"):
        verifier(given="uniforms", hands="jax")
    with pytest.raises(SubjectError, match="bfloat16"):
        verifier(given="uniforms", hands="numpy", dtype="bfloat16")


@pytest.mark.parametrize(("hands", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray), ("lists", list)])
def test_arguments_come_in_the_form_asked_for(hands: str, kind: type) -> None:
    """All arguments alike, log-probabilities included."""
    subject, calls = seen_by(given="uniforms", hands=hands, takes="logits")
    subject(X, Q, P)
    assert all(isinstance(x, kind) for x in calls[0])
    assert np.asarray(calls[0][1]) == pytest.approx(Q.log().numpy())
    assert np.asarray(calls[0][0]).tolist() == X.tolist()


def test_numbers_of_the_caller_are_used_as_copies() -> None:
    """Numbers handed in reach the code, and what it does to them does not reach the caller."""
    kept = torch.rand(2, 3, dtype=torch.float64)
    before = kept.clone()

    @verifier(given="uniforms")
    def spoils(x: Any, q: Any, p: Any, u: Any) -> Any:
        out = (u[:, :1] * 3).long()
        u.fill_(2)
        return out

    assert spoils(X, Q, P, [kept]).tokens[:, 0].tolist() == (before[:, 0] * 3).long().tolist()
    assert torch.equal(kept, before)
    with pytest.raises(SubjectError, match="takes 1 tensors of random numbers, got 2"):
        spoils(X, Q, P, [kept, kept])


def test_numbers_follow_the_generator_or_the_global_stream() -> None:
    """The same generator gives the same numbers; without one, torch's stream decides, and only then is it moved."""
    subject, calls = seen_by(given="uniforms and exponentials")
    for _ in range(2):
        subject(X, Q, P, generator=torch.Generator().manual_seed(3))
    state = torch.get_rng_state()
    subject(X, Q, P, generator=torch.Generator().manual_seed(4))
    assert torch.equal(torch.get_rng_state(), state)
    subject(X, Q, P)
    assert not torch.equal(torch.get_rng_state(), state)
    first, second, third, fourth = (args[3] for args in calls)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert not torch.equal(third, fourth)


@pytest.mark.parametrize("dtype", GRID_BITS, ids=str)
def test_uniforms_lie_on_the_stated_grid_and_exponentials_are_positive(dtype: torch.dtype) -> None:
    """A hundred thousand uniforms are multiples of 2**-bits, not all of 2**(1-bits); exponentials have mean 1 and no 0."""
    rows = 100_000
    generator = torch.Generator().manual_seed(0)
    u = Numbers("u", "uniforms", ()).draw(rows, 1, 2, dtype, generator).double()
    steps = u * 2.0 ** GRID_BITS[dtype]
    assert torch.equal(steps, steps.round())
    assert not torch.equal(steps / 2, (steps / 2).round())
    assert u.min() >= 0
    assert u.max() < 1
    e = Numbers("e", "exponentials", ("V",)).draw(rows, 1, 2, dtype, generator).double()
    assert e.min() > 0
    assert float(e.mean()) == pytest.approx(1, abs=6 / (2 * rows) ** 0.5)


def test_unknown_numbers_can_only_be_handed_to_torch_functions() -> None:
    """Under the symbolic engine a function of arrays or lists is refused, one of tensors is not."""
    with intercepting(Batch([Item(0, (), 1.0)])):
        u = torch.rand(1, 2)
        assert handed(u, "torch") is u
        for hands in ("numpy", "lists"):
            with pytest.raises(OpaqueRandomness, match="several rounds"):
                handed(u, hands)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raw",
    [
        np.array([[1, 2, 0], [2, -1, -1]]),
        np.array([[1, 2, 0], [2, -1, -1]], np.int32),
        (np.array([[1, 2, 0], [2, 9, 9]]), np.array([3, 1])),
        [np.array([1, 2, 0]), np.array([2])],
        [[np.int64(1), np.int64(2), np.int64(0)], [np.int64(2)]],
        ([np.int64(1), np.int64(2), np.int64(0)], [np.int64(2)]),
    ],
    ids=["array", "int32", "counts", "ragged", "scalars", "tuple of rows"],
)
def test_numpy_results_are_read_as_tensors_are(raw: Any) -> None:
    """Arrays and numpy integers mean what the same tensors and lists mean."""
    assert normalise_emitted(raw, 2, 2, 3).rows() == [(1, 2, 0), (2,)]


def test_numpy_results_that_are_wrong_are_named() -> None:
    """Floats, ids outside the vocabulary and accepted counts taken for emitted ones are errors as for tensors."""
    for raw, said in (
        (np.zeros((2, 2)), "integers"),
        (np.full((2, 1), 3), "outside"),
        ((np.zeros((2, 3), int), np.zeros(2, int)), "accepted counts"),
    ):
        with pytest.raises(SubjectError, match=said):
            normalise_emitted(raw, 2, 2, 3)


def test_accepted_counts_of_numpy_are_read_when_declared() -> None:
    """counts="accepted" adds one, whatever the counts are made of."""
    subject = verifier(
        lambda x, q, p, u: (np.zeros((2, 3), int), np.array([0, 2])),
        counts="accepted",
        given="uniforms",
        hands="numpy",
        name="a",
    )
    assert subject(X, Q, P).counts.tolist() == [1, 3]
    assert subject.facts == Facts()
