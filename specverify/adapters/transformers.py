"""Does Hugging Face transformers sample exactly from its target model? Its released code as subjects.

``step`` is the verification step alone (``transformers.generation.utils._speculative_sampling``),
``assisted_generation`` and its variants are ``model.generate(assistant_model=..., do_sample=True)`` on tiny random
models built on the spot, and ``subject`` is the first decoder with the step as its part. :class:`AssistedDecoder` takes
models of the user's own.

Nothing of transformers is copied or changed. ``docs/transformers.md`` says what came out.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects import Decoder, Emitted, Facts, Generated, Verifier

try:
    VERSION = importlib.metadata.version("transformers")
except importlib.metadata.PackageNotFoundError:
    raise SubjectError("transformers is not installed; run: pip install specverify[transformers]") from None

VOCAB_SIZE = 16
K = 3
STEP_FUNCTION = "_speculative_sampling"


@dataclass(frozen=True)
class Request:
    """What one request asks for; these are the settings of ``generate`` that shape the law.

    temperature 1, top_k 0 and top_p 1 leave the law as the model gives it (``generate`` itself would cut to 50 tokens).
    k: draft tokens per round. eos_id: the token that ends a row. confidence: the probability of a drafted token below
    which drafting stops early (``assistant_confidence_threshold``, 0.4 when transformers is left alone; 0 never stops).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    k: int = K
    eos_id: int | None = None
    confidence: float = 0.0


def verify_step(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Emitted:
    """Run the released verification step on one row: tokens (1, K), draft laws (1, K, V), target laws (1, K+1, V).

    The step takes logits; the logarithms of the laws are handed over, so that its softmax gives them back.
    """
    if draft_tokens.shape[0] != 1:
        raise SubjectError(f"the step of transformers judges one row at a time, not {draft_tokens.shape[0]}")
    released = getattr(_utils(), STEP_FUNCTION)
    tokens, accepted = released(draft_tokens, draft_probs.log(), draft_tokens.shape[1], target_probs.log())
    return Emitted(tokens, torch.tensor([tokens.shape[1]]), torch.as_tensor(accepted).reshape(1))


class AssistedDecoder:
    """``target.generate(assistant_model=draft, do_sample=True)`` as a decoder, one prompt per call of ``generate``.

    Both models are decoder-only causal language models of transformers with one vocabulary. transformers reads how much
    to draft from the draft's own ``generation_config``, so that object is replaced by a copy with the request's ``k``
    and ``confidence``; the target is left as it is. Rows draw from streams of their own, derived from (seed, row).
    """

    def __init__(self, target: Any, draft: Any, request: Request | None = None, prompts: Tensor | None = None) -> None:
        self.request = request or Request()
        self.target, self.draft = target, draft
        self.vocab_size = int(target.config.vocab_size)
        if int(draft.config.vocab_size) != self.vocab_size:
            raise SubjectError(
                f"the target has {self.vocab_size} tokens and the draft {draft.config.vocab_size}; "
                "take models that share one vocabulary"
            )
        self.eos_id = self.request.eos_id
        if prompts is not None:
            self.prompts = prompts
        drafting = copy.deepcopy(draft.generation_config)
        drafting.num_assistant_tokens = self.request.k
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = self.request.confidence
        draft.generation_config = drafting
        self._configs: dict[int, Any] = {}
        self._draft_passes: int | None = None

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Generated:
        """Generate (B, max_new_tokens) ids for prompts (B, T), -1 after an eos, with every round's accepted count.

        Near the end transformers drafts fewer than k tokens, and none for the very last one.
        """
        rows = [self._one(prompt[None], max_new_tokens, seed, row) for row, prompt in enumerate(prompts)]
        tokens = torch.full((len(rows), max_new_tokens), -1, dtype=torch.int64)
        accepted = torch.full((len(rows), max(len(counts) for _, counts in rows)), -1, dtype=torch.int64)
        for row, (new, counts) in enumerate(rows):
            tokens[row, : len(new)] = torch.tensor(new)
            accepted[row, : len(counts)] = torch.tensor(counts)
        return Generated(tokens, accepted)

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) of the target after temperature, top-k and top-p, in float64."""
        return self._log_probs(self.target, ids, 1)

    def draft_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) that the draft tokens are really drawn from, in float64.

        The draft is handed the target's processors and makes its own from the same request as well; how often they
        apply is read off one recorded round, because it decides the draft's law (though not the target's).
        """
        if self._draft_passes is None:
            self._draft_passes = self._measure_draft_passes()
        return self._log_probs(self.draft, ids, self._draft_passes)

    def _one(self, prompt: Tensor, max_new_tokens: int, seed: int, row: int) -> tuple[list[int], list[int]]:
        """Generate one row: its new tokens and how many draft tokens each of its rounds accepted."""
        rounds: list[tuple[Tensor, Tensor, int]] = []
        stream = int(np.random.SeedSequence([seed, row]).generate_state(1, np.uint64)[0])
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), _quiet(), _recording(rounds):
            torch.manual_seed(stream)
            out = self.target.generate(
                prompt.clone(),
                attention_mask=torch.ones_like(prompt),
                generation_config=self._config(max_new_tokens),
                assistant_model=self.draft,
            )
        new: list[int] = out[0, prompt.shape[1] :].tolist()
        return new, _counts([count for *_, count in rounds], len(new))

    def _config(self, max_new_tokens: int) -> Any:
        if max_new_tokens not in self._configs:
            request = self.request
            self._configs[max_new_tokens] = _library().GenerationConfig(
                do_sample=True,
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                max_new_tokens=max_new_tokens,
                eos_token_id=request.eos_id,
                pad_token_id=request.eos_id,
                use_cache=True,
            )
        return self._configs[max_new_tokens]

    def _log_probs(self, model: Any, ids: Tensor, passes: int) -> Tensor:
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.float()
            flat = logits.reshape(-1, logits.shape[-1])
            for _ in range(passes):
                for warp in self._warpers():
                    flat = warp(ids, flat)
        laws: Tensor = flat.reshape(logits.shape).double().log_softmax(-1)
        return laws

    def _warpers(self) -> list[Any]:
        """Make the processors of the request, in the order in which ``generate`` applies them."""
        request, library = self.request, _library()
        found: list[Any] = []
        if request.temperature != 1:
            found.append(library.TemperatureLogitsWarper(request.temperature))
        if request.top_k != 0:
            found.append(library.TopKLogitsWarper(request.top_k))
        if request.top_p < 1:
            found.append(library.TopPLogitsWarper(request.top_p))
        return found

    def _measure_draft_passes(self) -> int:
        if not self._warpers():
            return 1
        prompt = torch.arange(2)[None] % self.vocab_size
        rounds: list[tuple[Tensor, Tensor, int]] = []
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), _quiet(), _recording(rounds):
            torch.manual_seed(0)
            self.target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=self._config(self.request.k + 1),
                assistant_model=self.draft,
            )
        ids, logits, _ = rounds[0]
        drafted = logits[0].double().softmax(-1)
        for passes in (1, 2):
            law = self._log_probs(self.draft, ids[:, :-1], passes)[0, -len(drafted) :].exp()
            if (law - drafted).abs().max() < 1e-3:
                return passes
        raise SubjectError(
            "the draft's law fits its processors neither applied once nor twice; a processor of the draft's own "
            "generation_config may be at work: clear it, or use target_log_probs alone"
        )


def _library() -> Any:
    """Import transformers, late and untyped: its types change from version to version."""
    return importlib.import_module("transformers")


def _utils() -> Any:
    utils = importlib.import_module("transformers.generation.utils")
    if not hasattr(utils, STEP_FUNCTION):
        raise SubjectError(f"transformers {VERSION} has no {STEP_FUNCTION}; install transformers>=4.57")
    return utils


@contextmanager
def _recording(rounds: list[tuple[Tensor, Tensor, int]]) -> Iterator[None]:
    """Keep what the released step was given and how many tokens it accepted; the step itself runs unchanged."""
    utils = _utils()
    released = getattr(utils, STEP_FUNCTION)

    def recorded(ids: Tensor, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        tokens, accepted = released(ids, logits, *args, **kwargs)
        rounds.append((ids, logits, int(accepted)))
        return tokens, accepted

    with mock.patch.object(utils, STEP_FUNCTION, recorded):
        yield


def _counts(accepted: list[int], new_tokens: int) -> list[int]:
    """Count accepted draft tokens as they enter the text: cut after an eos, and 0 for a last token without a draft."""
    counts: list[int] = []
    left = new_tokens
    for count in accepted:
        counts.append(min(count, left))
        left -= min(count + 1, left)
    return [*counts, *[0] * left]


class _OwnCall(logging.Filter):
    """Drops the one warning that transformers gives about how its own candidate generator calls ``generate``."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Passing `generation_config` together with generation-related")


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers.generation.utils")
    own = _OwnCall()
    logger.addFilter(own)
    try:
        yield
    finally:
        logger.removeFilter(own)


def tiny_models(seed: int = 0, *, vocab_size: int = VOCAB_SIZE, spread: float = 0.4, noise: float = 0.12) -> tuple[Any, Any]:
    """Build a random Llama target of one layer and a draft that is the target with noise on every weight; no download.

    ``spread`` is the standard deviation of the initial weights: large enough for sharp laws that hang on the context.
    ``noise`` is the relative size of what is added to the weights of the draft.
    """
    library = _library()
    config = library.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target = library.LlamaForCausalLM(config).eval()
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(noise * spread * torch.randn(weight.shape, generator=generator))
    return target, draft


def open_tiny(request: Request, seed: int = 0) -> AssistedDecoder:
    """Open an :class:`AssistedDecoder` over :func:`tiny_models`, with prompts that differ in every position."""
    target, draft = tiny_models(seed)
    prompts = torch.randint(VOCAB_SIZE, (8, 4), generator=torch.Generator().manual_seed(seed))
    return AssistedDecoder(target, draft, request, prompts)


_STEP = Facts(rule="token rejection", max_batch=1)
step = Verifier(f"transformers {VERSION}: step", verify_step, _STEP)
step_float32 = Verifier(f"transformers {VERSION}: step in float32", verify_step, replace(_STEP, dtype="float32"))


def _decoder(name: str, request: Request) -> Decoder:
    facts = Facts(rule="token rejection", max_k=request.k, max_batch=1, dtype="float32")
    return Decoder(f"transformers {VERSION}: {name}", open=partial(open_tiny, request), facts=facts, parts=(step,))


assisted_generation = _decoder("assisted generation", Request())
assisted_generation_warped = _decoder("assisted generation, warped", Request(temperature=0.7, top_k=8, top_p=0.95))
assisted_generation_stopping = _decoder("assisted generation, stopping", Request(eos_id=3))
assisted_generation_confidence = _decoder("assisted generation, confidence threshold", Request(confidence=0.4))
subject = assisted_generation
