"""Does an engine in a process of its own, in whatever language, sample exactly? Lines of JSON over stdin and stdout.

:func:`process_subject` starts a command, greets it, and makes the subject that it says it is: a verifier that draws its own
random numbers, a verifier that is given them, or a decoder. ``docs/processes.md`` is the protocol. The command line takes
the same as ``process:COMMAND``. What becomes of crashes and hangs stands in :mod:`specverify.adapters.engine_process`.

Numbers are exact: a float is written with the fewest digits that give it back, at most 17, which every reader of doubles
reads as the same double; declared lower precisions are doubles too, of the same value. JSON has no infinities: a
log-probability of -inf is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specverify.adapters.engine_process import Engine, plain
from specverify.adapters.engine_protocol import Asked, declared_facts, declared_given, in_range, is_table, listed
from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact.interception import walking
from specverify.given import Numbers
from specverify.opening import check_vocab_size
from specverify.requests import Request
from specverify.subjects import Decoder, Emitted, Generated, Verifier
from specverify.unknown_law import OnOff

TIMEOUT, START_TIMEOUT, RESTARTS = 60.0, 300.0, 3
MOST_NUMBERS = 1 << 20
"""Numbers in one answer of log-probabilities."""
CALLS = ("target_log_probs", "draft_log_probs", "target_log_probs_at", "serve", "baseline")
"""What a decoder may offer beside generate."""


def process_subject(
    command: str | Sequence[str],
    *,
    name: str | None = None,
    timeout: float = TIMEOUT,
    start_timeout: float = START_TIMEOUT,
    restarts: int = RESTARTS,
    target_log_probs: Callable[[Tensor], Tensor] | None = None,
) -> Verifier | Decoder | OnOff:
    """Start ``command``, greet it, and return the subject that it says it is.

    command: one string, split into words as a shell does, or the words; no shell takes part. timeout: seconds per call.
    start_timeout: seconds from a start to the greeting, in which models may be loaded. restarts: how often a process that
    crashed, hung or broke the protocol is started again, for later tests. target_log_probs: the law of a decoder that does
    not tell its own, ids (B, T) -> (B, T, V), computed here.
    Errors: SubjectError when it cannot be started or does not say what it is.
    """
    if not 0 < start_timeout <= 1e6:
        raise SubjectError(f"start_timeout={start_timeout} is not known; give the seconds from a start to the greeting")
    engine = Engine(command if isinstance(command, str) else list(command), timeout=timeout, restarts=restarts)
    asked = Asked(engine, start_timeout)
    try:
        return _subject(asked, name, target_log_probs)
    except BaseException:
        asked.engine.stop()
        raise


def _subject(asked: Asked, name: str | None, target_log_probs: Callable[[Tensor], Tensor] | None) -> Verifier | Decoder | OnOff:
    hello = asked.hello()
    called = name or plain(hello.get("name") or asked.engine.title, 80)
    facts = declared_facts(hello)
    if hello["kind"] == "verifier":
        if target_log_probs is not None:
            raise SubjectError(f"{called} is a verifier, which has no law of its own; leave target_log_probs out")
        given = declared_given(hello)
        return Verifier(called, ProcessVerifier(asked, given), facts, given)
    decoder = ProcessDecoder(asked, hello)
    if target_log_probs is not None:
        decoder.target_log_probs = target_log_probs
    if hasattr(decoder, "target_log_probs"):
        return Decoder(called, lambda: decoder, facts=facts, serves=hasattr(decoder, "serve"))
    if hasattr(decoder, "baseline"):
        return OnOff(called, lambda: decoder, facts)
    raise SubjectError(
        f"{called} offers neither target_log_probs nor baseline in its calls, so there is nothing to judge it by; offer one, "
        "or give process_subject(..., target_log_probs=f)"
    )


@dataclass(eq=False)
class ProcessVerifier:
    """``verify`` of a verifier in another process: laws that several rows share are sent once."""

    asked: Asked
    given: tuple[Numbers, ...] = ()

    @property
    def source_files(self) -> tuple[str, ...]:
        """Files that the command names."""
        return self.asked.engine.source_files

    def __call__(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, *numbers: Tensor) -> Emitted:
        """Tokens for draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K+1, V) and the numbers (B, ...) it asks for.

        Errors: OpaqueRandomness while an exact law is walked, which cannot look into another process; SubjectError.
        """
        if any(type(x) is not Tensor for x in (draft_tokens, draft_probs, target_probs, *numbers)):
            raise OpaqueRandomness(
                "the verifier runs in another process, so that several rounds of it cannot be walked; a single round is judged "
                "exactly all the same where its random numbers are given"
            )
        if walking() and not self.given:
            raise OpaqueRandomness(
                "the verifier draws its random numbers in another process; to be analysable, let it ask for them with given"
            )
        (B, K), V = draft_tokens.shape, target_probs.shape[-1]
        law, first = _distinct(torch.cat([draft_probs.reshape(B, -1), target_probs.reshape(B, -1)], 1))
        said = self.asked(
            "verify",
            {
                "rows": B,
                "k": K,
                "vocab_size": V,
                "laws": len(first),
                "law": law,
                "draft_tokens": draft_tokens.tolist(),
                "draft_probs": draft_probs[first].tolist(),
                "target_probs": target_probs[first].tolist(),
                "given": {one.name: x.tolist() for one, x in zip(self.given, numbers, strict=True)},
            },
            B * (K + 2),
        )
        return self._read(said, B, K, V)

    def _read(self, said: Mapping[str, Any], rows: int, k: int, vocab_size: int) -> Emitted:
        if unknown := set(said) - {"tokens", "accepted"}:
            self.asked.refuse("verify", f"{plain(listed(unknown))}, which is not known; known are tokens and accepted")
        tokens = said.get("tokens")
        if not is_table(tokens, rows):
            self.asked.refuse("verify", f"tokens that are not a list of {rows} lists, one of whole numbers for each row")
        assert tokens is not None
        padded = np.full((rows, k + 1), -1, np.int64)
        for number, row in enumerate(tokens):
            if not 1 <= len(row) <= k + 1:
                self.asked.refuse("verify", f"{len(row)} tokens in row {number}; with K = {k} a round emits 1 to {k + 1}")
            if not 0 <= min(row) <= max(row) < vocab_size:
                self.asked.refuse("verify", f"{plain(str(row), 80)} in row {number}: ids lie in 0..{vocab_size - 1}")
            padded[number, : len(row)] = row
        accepted = said.get("accepted")
        if accepted is not None and not (is_table([accepted], 1) and len(accepted) == rows and in_range(accepted, 0, k)):
            self.asked.refuse("verify", f"accepted that is not a list of {rows} whole numbers from 0 to {k}")
        return Emitted(
            torch.from_numpy(padded),
            torch.tensor([len(row) for row in tokens], dtype=torch.int64),
            None if accepted is None else torch.tensor(accepted, dtype=torch.int64),
        )


def _distinct(rows: Tensor) -> tuple[list[int], list[int]]:
    """For rows (B, n): the number of each among the distinct ones, and where each of these stands first. Equal: bit by bit."""
    found: dict[bytes, int] = {}
    first: list[int] = []
    law = []
    for number, row in enumerate(rows.double().contiguous().numpy()):
        at = found.setdefault(row.tobytes(), len(found))
        if at == len(first):
            first.append(number)
        law.append(at)
    return law, first


class ProcessDecoder:
    """A decoder in another process, as :class:`~specverify.subjects.DecoderLike`; it has those calls that were offered.

    A seeded one is taken to be a function of (prompts, max_new_tokens, seed), whichever process answers.
    """

    def __init__(self, asked: Asked, hello: Mapping[str, Any]) -> None:
        self._asked = asked
        self.vocab_size = check_vocab_size(hello.get("vocab_size"), asked.engine.title, least=2)
        self.eos_id = hello.get("eos_id")
        if self.eos_id is not None and (type(self.eos_id) is not int or not 0 <= self.eos_id < self.vocab_size):
            raise SubjectError(
                f"{asked.engine.title} has eos_id = {plain(repr(self.eos_id), 40)}; give null, or an id of "
                f"0..{self.vocab_size - 1}"
            )
        if "prompts" in hello:
            self.prompts = hello["prompts"]
        calls = hello.get("calls", [])
        if not isinstance(calls, list) or not all(isinstance(call, str) and call in CALLS for call in calls):
            raise SubjectError(f"{asked.engine.title} offers calls {plain(repr(calls), 80)}; known are {', '.join(CALLS)}")
        for call in calls:
            setattr(self, call, getattr(self, f"_{call}"))

    target_log_probs: Callable[[Tensor], Tensor]
    baseline: Callable[..., Generated]

    @property
    def source_files(self) -> tuple[str, ...]:
        """Files that the command names."""
        return self._asked.engine.source_files

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T), with the accepted counts where it tells them."""
        return self._generated("generate", prompts, max_new_tokens, seed)

    def _baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        return self._generated("baseline", prompts, max_new_tokens, seed)

    def _generated(self, call: str, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        _known(prompts)
        rows = len(prompts)
        asked = {"prompts": prompts.tolist(), "max_new_tokens": max_new_tokens, "seed": int(seed)}
        said = self._asked(call, asked, 2 * rows * (max_new_tokens + 1))
        if unknown := set(said) - {"tokens", "accepted"}:
            self._asked.refuse(call, f"{plain(listed(unknown))}, which is not known; known are tokens and accepted")
        tokens = self._table(call, "tokens", said.get("tokens"), rows)
        accepted = said.get("accepted")
        return Generated(tokens, None if accepted is None else self._table(call, "accepted", accepted, rows))

    def _table(self, call: str, what: str, value: object, rows: int) -> Tensor:
        """Rows of whole numbers, filled up with -1, as a tensor; whether they are right is looked at where they are judged."""
        if not is_table(value, rows):
            self._asked.refuse(call, f"{what} that are not a list of {rows} lists of whole numbers, one for each row")
        assert isinstance(value, list)
        if not all(in_range(row, -1, 1 << 40) for row in value):
            self._asked.refuse(call, f"{what} below -1 or beyond all reason")
        width = max(map(len, value), default=0)
        return torch.tensor([[*row, *[-1] * (width - len(row))] for row in value], dtype=torch.int64).reshape(rows, width)

    def _serve(self, requests: Sequence[Request]) -> list[list[int]]:
        asked = [
            {"prompt": list(r.prompt), "max_new_tokens": r.max_new_tokens, "seed": r.seed, "temperature": r.temperature}
            for r in requests
        ]
        said = self._asked("serve", {"requests": asked}, sum(r.max_new_tokens + 1 for r in requests))
        rows = said.get("tokens")
        if set(said) != {"tokens"} or not is_table(rows, len(requests)):
            self._asked.refuse("serve", f"something else than tokens, a list of {len(requests)} lists of whole numbers")
        assert isinstance(rows, list)
        return rows

    def _target_log_probs(self, ids: Tensor) -> Tensor:
        return self._log_probs("target_log_probs", ids, {})

    def _draft_log_probs(self, ids: Tensor) -> Tensor:
        return self._log_probs("draft_log_probs", ids, {})

    def _target_log_probs_at(self, ids: Tensor, temperature: float) -> Tensor:
        return self._log_probs("target_log_probs_at", ids, {"temperature": float(temperature)})

    def _log_probs(self, call: str, ids: Tensor, more: dict[str, Any]) -> Tensor:
        """Log-laws (B, T, V), asked for so many rows at a time that an answer holds about a million numbers at most."""
        _known(ids)
        rows = max(1, MOST_NUMBERS // (ids.shape[1] * self.vocab_size))
        return torch.cat([self._some_log_probs(call, ids[at : at + rows], more) for at in range(0, len(ids), rows)])

    def _some_log_probs(self, call: str, ids: Tensor, more: dict[str, Any]) -> Tensor:
        shape = (*ids.shape, self.vocab_size)
        said = self._asked(call, {"ids": ids.tolist(), **more}, math.prod(shape))
        if set(said) != {"log_probs"}:
            self._asked.refuse(call, f"{plain(listed(set(said))) or 'nothing'} where log_probs alone are asked for")
        try:
            table = np.array(said["log_probs"])
        except ValueError:
            table = np.array(None)
        if table.shape != shape:
            self._asked.refuse(call, f"log_probs that are not a table of shape {shape}")
        if table.dtype == object and all(x is None or type(x) in (int, float) for x in table.flat):
            table = np.where(table == None, -np.inf, table).astype(np.float64)  # noqa: E711 - element by element
        if table.dtype.kind not in "if" or np.isnan(table).any() or (table == np.inf).any():
            self._asked.refuse(call, "log_probs that hold something else than numbers, or null for -inf")
        return torch.from_numpy(table.astype(np.float64))


def _known(ids: Tensor) -> None:
    if type(ids) is not Tensor:
        raise OpaqueRandomness("the decoder runs in another process, where random ids that are not known yet cannot be sent")
