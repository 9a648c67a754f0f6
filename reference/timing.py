"""The decoder as the timing suite sees it: baselines, speculation by K, and the phases of a round to be timed on their own.

An end of a text is ignored, so that every run makes the tokens it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.acceptance import exact_acceptance
from reference.broken_drafts import Negated
from reference.caching import Cache
from reference.decoder import Collected, Round, autoregressive, generate, rounds
from reference.drafting import Chain, Drafter, Model, NothingKept
from reference.drafting.separate import EarlyExit, ExitModel, SeparateDraft
from reference.model import Shape, Transformer
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.step import start
from specverify.subjects import Emitted, Generated

LARGE = Shape(32_000, layers=8, width=6144, heads=48)
"""A main model that is bound by an accelerator rather than by launching its work: 4 billion parameters, 16 GB. Its layers are
few and wide: launching one takes some 0.1 ms whatever its width, reading its 1.8 GB takes 0.4 ms at 5 TB/s.
"""
SHARPNESS = 4.0
"""What untrained logits are multiplied by: their laws are so flat that the same law upside down would hardly differ."""


@dataclass(frozen=True)
class Models:
    """A main model and drafters by name, the best first, on one device."""

    main: Any
    drafters: Mapping[str, Drafter]
    device: str = "cpu"

    def here(self) -> AbstractContextManager[Any]:
        """Make new tensors on the device."""
        return nullcontext() if self.device == "cpu" else torch.device(self.device)


@cache
def trained_models(best: str = "aligned") -> Models:
    """Return the committed models: a family, the mismatched draft, and "adversarial", the aligned draft turned upside down."""
    from reference import weights
    from reference.families import family_named

    drafters = {name: family_named(name).trained(weights.FOLDER) for name in (best, "mismatched")}
    drafters["adversarial"] = SeparateDraft(Negated(weights.trained("aligned")))
    return Models(weights.trained("main"), drafters)


@cache
def large_models(device: str, shape: Shape = LARGE, layers: int = 1) -> Models:
    """Return untrained models of that shape. The drafts are the first ``layers`` of the main model, whose untrained blocks add
    little each, so that the law after a few is close to the law after all: "aligned"; and that law turned upside down.

    Matrices of the blocks are stored as decoding reads them, so that nothing of that size is held twice.
    """
    with torch.device(device):
        torch.manual_seed(0)
        main = Transformer(shape).eval().requires_grad_(False)
        main.head.weight.mul_(SHARPNESS)
        for linear in main.blocks.modules():
            if isinstance(linear, nn.Linear):
                linear.weight.data = linear.weight.t().contiguous().t()
        early: Any = ExitModel(main, main.logits, layers)
        return Models(main, {"aligned": EarlyExit(early), "adversarial": EarlyExit(Negated(early))}, device)


class Timing:
    """A :class:`specverify.subjects.Timeable`. temperature: of the main model and of the drafts alike."""

    max_k = 8

    def __init__(self, models: Models | None = None, temperature: float = 1.0, best: str = "aligned") -> None:
        self.models = models or trained_models(best)
        self.drafts = tuple(self.models.drafters)
        self.process = Processors(temperature)
        self.rule = rule_named("token_rejection")

    def at(self, temperature: float) -> Timing:
        """Return the same decoder at another temperature. Errors: ValueError for a temperature below 0."""
        return Timing(self.models, temperature)

    def on(self, device: str) -> Timing:
        """Return large untrained models on an accelerator, which the trained ones would leave idle; the same on the CPU."""
        return self if device == self.models.device else Timing(large_models(device), self.process.temperature)

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, N) after prompts (B, T) by the main model alone, with or without a KV cache."""
        with self.models.here():
            noise = self._noise(seed)
            return autoregressive(self.models.main, prompts, max_new_tokens, process=self.process, noise=noise, cached=cached)

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Generate (B, N) after prompts (B, T) with K drafts per round, and the accepted counts."""
        of = self.models
        with of.here():
            noise = self._noise(seed)
            return generate(
                of.main, of.drafters[draft], prompts, max_new_tokens, k=k, process=self.process, rule=self.rule, noise=noise
            )

    def exact_acceptance(self, prompts: Tensor, made: Generated, *, draft: str, k: int) -> Tensor:
        """Return the chance (B, R, K) of every draft to be accepted, see :func:`reference.acceptance.exact_acceptance`."""
        of = self.models
        with of.here():
            return exact_acceptance(of.main, of.drafters[draft], prompts, made, k=k, process=self.process)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Return calls to time, each from the same state after prompts (B, T).

        "target" is a step that samples its token. A round's drafts are made by the first of K calls of "draft", since
        families differ in how they share the work; the other calls do nothing. "verify" makes laws only, "cache" takes
        back what the main model read in vain, "loop" is a round over models, drafts and a rule that cost nothing.
        """
        with self.models.here(), torch.inference_mode():
            rows, process, noise = len(prompts), self.process, self._noise(0)
            main: Model = self.models.main
            lengths = torch.full((rows,), prompts.shape[1])
            state = start(main, self.models.drafters[draft], prompts, lengths, 2 * k + 2)
            own: Cache | None = getattr(state.drafting, "cache", None)
            own_held = None if own is None else own.lengths
            drafts = state.drafting.propose(state.text, k, process, noise)
            assert isinstance(drafts, Chain)
            block = torch.cat([state.text.last, drafts.tokens.clamp(max=main.vocab_size - 1)], 1)
            held = state.cache.lengths
            target = process(main.extend(block, state.cache))
            state.cache.lengths = held
            if drafts.laws.shape[-1] > main.vocab_size:  # a place may have no draft
                target = functional.pad(target, (0, 1))
            loop = loop_alone(rows, k, main.vocab_size)
        turn = 0

        def rewind() -> None:
            if own is not None and own_held is not None:
                own.lengths = own_held

        rewind()

        def read(n: int) -> Tensor:
            laws = process(main.extend(block[:, :n], state.cache))
            state.cache.lengths = held
            return laws

        def propose() -> object:
            found = state.drafting.propose(state.text, k, process, noise)
            rewind()
            return found

        drafting = self._placed(propose)

        def draft_in_turn() -> object:
            nonlocal turn
            turn = (turn + 1) % k
            return drafting() if turn == 1 % k else None

        def take_back() -> None:
            state.cache.lengths = held + k
            state.cache.rollback(held + 1)
            state.cache.lengths = held

        return {
            "target": self._placed(lambda: noise.choose(read(1)[:, -1])),
            "draft": draft_in_turn,
            "verify": self._placed(lambda: read(k + 1)),
            "accept": self._placed(lambda: self.rule.verify(drafts.tokens, drafts.laws, target, noise)),
            "cache": self._placed(take_back),
            "loop": self._placed(loop),
        }

    def memory(self, batch: int, length: int) -> dict[str, int]:
        """Bytes of the KV caches of ``batch`` rows of ``length`` tokens: of the main model, and of the best draft beside it."""
        with self.models.here(), torch.inference_mode():
            prompts = torch.zeros(batch, 1, dtype=torch.int64)
            state = start(self.models.main, self.models.drafters[self.drafts[0]], prompts, prompts[:, 0] + 1, length - 1)
            own = getattr(state.drafting, "cache", state.cache)
            sizes = {"main": state.cache.nbytes}
            return sizes if own is state.cache else sizes | {self.drafts[0]: own.nbytes}

    def _noise(self, seed: int) -> BatchNoise:
        return BatchNoise(torch.Generator(self.models.device).manual_seed(seed))

    def _placed(self, call: Callable[[], object]) -> Callable[[], object]:
        def placed() -> object:
            with self.models.here(), torch.inference_mode():
                return call()

        return placed


class Free(NothingKept):
    """A model, a drafter, a rule and noise that cost next to nothing: what they return was made before."""

    reads_hidden = False
    room = 0

    def __init__(self, rows: int, k: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.logits = torch.zeros(rows, k + 1, vocab_size)
        self.chain = Chain(torch.zeros(rows, k, dtype=torch.int64), self.logits[:, :k])
        tokens = torch.full((rows, k + 1), -1)
        tokens[:, 0] = 0
        self.emitted = Emitted(tokens, torch.ones(rows, dtype=torch.int64))

    def start(self, capacity: int, rows: int) -> Cache:
        """Return a cache that is taken back for nothing."""
        return FreeCache(capacity, rows)

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:  # noqa: ARG002
        """Return logits (B, K+1, V)."""
        return self.logits

    reads_history = False

    def __call__(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Process nothing."""
        return logits

    def begin(self, *_: object) -> Free:
        """Draft from now on."""
        return self

    def propose(self, *_: object) -> Chain:
        """Return the same drafts every time."""
        return self.chain

    def verify(self, *_: object) -> Emitted:
        """Emit one token."""
        return self.emitted


class FreeCache(Cache):
    """A cache that remembers nothing but lengths; its rollback is timed elsewhere."""

    nbytes = 0

    def rollback(self, lengths: Tensor) -> None:
        """Note the lengths."""
        self.lengths = lengths

    def _copy_rows(self, other: Cache, which: Tensor, span: int) -> None:
        """Nothing is remembered."""

    def _move(self, source: Tensor, target: Tensor) -> None:
        """Nothing is remembered."""

    def _move_rows(self, source: Tensor, target: Tensor) -> None:
        """Nothing is remembered."""


def loop_alone(rows: int, k: int, vocab_size: int, tokens: int = 4096) -> Callable[[], object]:
    """Return a call that does what one turn of the loop in :func:`reference.decoder.generate` does around its models."""
    free: Any = Free(rows, k, vocab_size)
    prompts = torch.zeros(rows, 1, dtype=torch.int64)

    def turns() -> Iterator[Round]:
        while True:
            collected = Collected(rows, tokens)
            made = rounds(free, free, prompts, tokens, k=k, process=free, rule=free, noise=free)
            for one in made:
                collected.add(one)
                yield one

    going_on = turns()
    return lambda: next(going_on)
