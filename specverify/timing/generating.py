"""How is a decoder timed that only generates? Its ``generate`` against a plain loop over its ``target_log_probs``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.outputs import normalise_generated
from specverify.subjects import DecoderLike, Generated
from specverify.timing.supplied import plain_loop

TRIAL_TOKENS = 16
NOTE = (
    "the decoder has no 'timing' and no 'build': its generate was timed at its own K and draft against a plain loop over "
    "target_log_probs, which has no KV cache. A sweep over K and drafts, costs and a prediction need either "
    "build(target, draft, k, eos_id=None) or a 'timing' (specverify.subjects.Timeable)"
)


class GeneratingTiming:
    """A decoder without ``timing`` as far as it can be timed: one draft, its own, at the K it was made with.

    There are no phases, so nothing is predicted. Prompts are read by both sides. An end of text may stop a row; only tokens up
    to it count.
    """

    drafts: tuple[str, ...] = ("own",)
    has_cache = False
    whole_only = True

    def __init__(self, name: str, decoder: DecoderLike, prompts: Tensor, declared_k: int | None) -> None:
        self.name, self.decoder = name, decoder
        self.eos_id = getattr(decoder, "eos_id", None)
        self.stopped = False
        try:
            trial = self.speculative(prompts[:1], TRIAL_TOKENS, draft="own", k=1, seed=0)
        except SubjectError:
            raise
        except Exception as error:
            raise SubjectError(f"{name}.generate failed when tried: {type(error).__name__}: {error}") from error
        own = declared_k or getattr(decoder, "k", None)
        self.counted = trial.accepted is not None
        most = 1 if trial.accepted is None else max(1, int(trial.accepted.max()))
        self.k_known = isinstance(own, int)
        self.max_k = own if isinstance(own, int) else most
        if trial.accepted is not None and most > self.max_k:
            raise SubjectError(f"{name} accepted {most} drafts in a round and says that it drafts {self.max_k}")
        self.ks = (self.max_k,)

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, N) by a call of ``target_log_probs`` over the whole text for every token."""
        assert not cached
        return plain_loop(self.decoder.target_log_probs, prompts, max_new_tokens, seed)

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:  # noqa: ARG002
        """Generate (B, N) by the decoder; what follows an end of text is -1."""
        raw = self.decoder.generate(prompts.clone(), max_new_tokens, seed % 2**31)
        made = normalise_generated(raw, len(prompts), max_new_tokens, self.decoder.vocab_size, self.eos_id, self.name)
        if self.eos_id is None:
            return made
        ends = (made.tokens == self.eos_id).long()
        after = ends.cumsum(1) - ends > 0
        self.stopped = self.stopped or bool(after.any())
        return Generated(torch.where(after, -1, made.tokens), made.accepted)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:  # noqa: ARG002
        """Return nothing: there is no way to tell its phases apart."""
        return {}

    def notes(self) -> list[str]:
        """Say what could not be measured, and what to add for it."""
        found = [NOTE]
        if not self.counted:
            found.append("it reports no accepted counts; return Generated(tokens, accepted) for rates and tokens per round")
        if not self.k_known:
            source = "the most it accepted in a round" if self.counted else "assumed"
            found.append(f"K = {self.max_k} is {source}; declare max_k, or give the decoder an attribute k")
        if self.stopped:
            found.append("an end of text stopped some rows early, while the plain loop ran on: speeds compare roughly only")
        return found
