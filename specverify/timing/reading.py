"""Did a timed run do what it was timed for? Its tokens and accepted counts, read or refused clearly."""

from __future__ import annotations

from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Generated


def accepted_rows(made: Generated, rows: int, tokens: int, k: int) -> list[list[int]]:
    """Return accepted counts of every row, without padding, of a run of ``rows`` rows of ``tokens`` tokens each.

    Errors: SubjectError when the tokens are not exactly those, the counts are not reported, cannot be, or do not add up to
    the tokens (one may come from reading the prompt).
    """
    insist_on_length(made.tokens, rows, tokens)
    if made.accepted is None:
        raise SubjectError("returned no accepted counts; timing needs Generated(tokens, accepted)")
    counts = [[a for a in row if a >= 0] for row in made.accepted.tolist()]
    if len(counts) != rows or any(a > k for row in counts for a in row):
        raise SubjectError(f"reported accepted counts {counts[:2]} for {rows} rows of {k} drafts per round")
    for row in counts:
        if sum(row) + len(row) < tokens - 1:
            raise SubjectError(f"rounds emitted {sum(row) + len(row)} of {tokens} tokens; while timing, ignore an end of text")
    return counts


def insist_on_length(made: Tensor, rows: int, tokens: int) -> None:
    """Refuse anything but (rows, tokens) ids. Errors: SubjectError."""
    if tuple(made.shape) != (rows, tokens) or bool((made < 0).any()):
        raise SubjectError(
            f"returned {tuple(made.shape)} tokens, or padding among them; a timed run must make exactly ({rows}, {tokens})"
        )
