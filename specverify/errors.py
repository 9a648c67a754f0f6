"""What can go wrong, as one hierarchy; every message says what was wrong and what to try."""

from __future__ import annotations


class SpecverifyError(Exception):
    """Base of every error raised on purpose by specverify."""


class UsageError(SpecverifyError):
    """The call itself is wrong: an unknown option, a budget that does not exist, a file that is not there."""


class SubjectError(SpecverifyError):
    """The subject could not be used: not importable, wrong shape, ids outside the vocabulary, NaN, too many tokens.

    ``inputs`` describes the arguments of the call that failed, so that it can be repeated.
    """

    def __init__(self, message: str, inputs: str = "") -> None:
        super().__init__(message)
        self.inputs = inputs


class SubjectTimeout(SubjectError):  # noqa: N818 - named after what happened, as TimeoutError is
    """The subject did not come back within the time allowed for one test."""


class OpaqueRandomness(SpecverifyError):  # noqa: N818 - the name the documentation explains
    """A random number met an operation whose effect on the law cannot be followed exactly.

    The message names the operation and the source line. Checks that catch it fall back to statistics.
    """


class PathBudgetExceeded(SpecverifyError):  # noqa: N818 - named after the limit
    """A search met more regions than it was allowed to, or its time was up before it could be trusted."""


class RowsCoupled(SpecverifyError):  # noqa: N818 - named after what was found
    """Rows of a batch influence each other, so one path per row is not a sound way to walk them."""


class CertificateError(SpecverifyError):
    """A certificate is not what it claims to be: wrong schema, changed bytes, or a verdict that does not follow."""


class FolderError(SpecverifyError):
    """The folder of a run takes no more while the run goes on: the disk is full, or it may not be written."""


class DrawsDiffer(SpecverifyError):  # noqa: N818 - named after what was found
    """In a resumed run a subject draws otherwise than before the kill, so what it drew then cannot be gone on with."""
