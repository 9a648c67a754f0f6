"""What a decoder served is read row by row, whatever form it has, or refused with words that say what was wrong."""

import numpy as np
import pytest
import torch

import specverify
from specverify import subjects
from specverify.errors import SubjectError
from specverify.requests import Request, Serving, read_served, until_end, wrong_length

ASKED = (Request((0, 1), 3), Request((2,), 1, seed=4))


def read(raw, eos_id):
    """Rows up to their ends, and what is wrong with the length of the first that is wrong."""
    rows = read_served(raw, ASKED, 3, "mine")
    wrong = [f"row {i}: {said}" for i, row in enumerate(rows) if (said := wrong_length(row, ASKED[i], eos_id))]
    return [until_end(row, eos_id) for row in rows], "".join(wrong[:1])


@pytest.mark.parametrize(
    "raw",
    [
        [[1, 2, 0], [2]],
        ((1, 2, 0), (2,)),
        [torch.tensor([1, 2, 0]), torch.tensor([2])],
        [np.array([1, 2, 0]), [np.int64(2)]],
        torch.tensor([[1, 2, 0], [2, -1, -1]]),
        np.array([[1, 2, 0], [2, -1, -1]]),
    ],
)
def test_rows_in_every_form_are_read(raw):
    """Lists, tuples, tensors, arrays, ragged or padded with -1."""
    assert read(raw, None) == ([(1, 2, 0), (2,)], "")


@pytest.mark.parametrize("row", [[1, 2], [1, 2, 2], [1, 2, -1], [1, 2, 2, 2, 2]])
def test_a_row_may_end_at_an_eos(row):
    """What repeats the eos, or -1 after it, is padding, also past the tokens asked for."""
    assert read([row, [0]], 2) == ([(1, 2), (0,)], "")


@pytest.mark.parametrize(
    ("raw", "eos_id", "said"),
    [
        ([[1, 2, 0], [0, 0]], None, "row 1: too many tokens: 2, asked for 1"),
        ([[1, 2], [0]], None, "row 0: too few tokens: 2 without an eos, asked for 3"),
        ([[1, 0], [0]], 2, "row 0: too few tokens: 2 without an eos, asked for 3"),
        ([[1, 2, 0], [0]], 2, "row 0: tokens [0] stand after the eos"),
        ([[1, -1, 0], [0]], None, "row 0: padding stands between tokens"),
    ],
)
def test_a_wrong_length_is_put_in_words(raw, eos_id, said):
    """It refutes, so it is no error of reading."""
    assert read(raw, eos_id)[1] == said


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([[1, 2, 0]], "1 rows for 2 requests"),
        ({"rows": 1}, "returned dict"),
        ([[1, 2, 0], 2], "returned int for row 1"),
        ([[1, 2, 3], [0]], "token id 3 in row 0, position 2: outside 0..2"),
        ([[1, 2, 0], [-2]], "token id -2 in row 1"),
        ([[1.0, 2, 0], [0]], "1.0 in row 0; token ids must be integers"),
        ([[1, 2, 0], [True]], "True in row 1"),
        ([torch.rand(3), [0]], "must be integers"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(raw, said):
    """The message names the row and what is wrong with it."""
    with pytest.raises(SubjectError, match=said):
        read_served(raw, ASKED, 3, "mine")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt": ()}, "at least one token"),
        ({"max_new_tokens": 0}, "at least one new token"),
        ({"temperature": -0.5}, "not -0.5"),
        ({"temperature": float("nan")}, "not nan"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong, said):
    """An empty prompt, no tokens, or a temperature that is none."""
    with pytest.raises(SubjectError, match=said):
        Request(**{"prompt": (0,), "max_new_tokens": 1, **wrong})


def test_names_are_found_where_a_user_looks():
    """Requests stand with the subjects, and an object with ``serve`` is a server."""
    assert specverify.Request is Request
    assert subjects.Request is Request

    class Served:
        def serve(self, requests):
            """One row each."""

    assert isinstance(Served(), Serving)
    assert not isinstance(object(), Serving)
    assert until_end((1, 2, 2), 2) == (1, 2)
    assert wrong_length((1, 2), ASKED[0], 2) == ""
