"""How is a decoder timed that was made for models handed in? Over models supplied here, whose calls cost what calls cost.

A target of stacked matrix products over embeddings, whose law depends on every token before it, and drafts about as cheap
against it as drafts are. All laws are seeded. What the models share makes the drafts differ: "aligned" is the target without
its expensive part, nearly the same law; "mismatched" is a law of its own; "adversarial" turns the aligned law upside down.
The models have no KV cache, so every call reads the whole text, by the target alone as by the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specverify.outputs import normalise_generated
from specverify.subjects import Decoder, Generated
from specverify.timing.phases import Difference
from specverify.timing.reading import accepted_rows

if TYPE_CHECKING:
    from specverify.subjects import Model

VOCAB_SIZE = 64
DRAFTS = ("aligned", "mismatched", "adversarial")
MOST_K = 8
FREE_TOKENS = 25
"""Tokens of a run over models that cost nothing: enough for a few rounds even where all K = 8 drafts are accepted."""
MEMORY = 0.7
"""How much of an embedding is left one token on: laws depend on all of a text, and most on its end."""
SHARPNESS, APART = 2.5, 0.2
"""Scale of the logits, and of what the expensive part of the target adds to them."""


@dataclass(frozen=True)
class Size:
    """Width of the embeddings, and number and width of the layers of the target's expensive part."""

    width: int
    layers: int
    hidden: int


SIZES = {"cpu": Size(192, 4, 768), "cuda": Size(4096, 24, 16384)}
"""On CUDA large enough that a call is bound by the device, not by launching its kernels: 6.4 GB of bfloat16 weights to read."""


class SuppliedModel:
    """A model of seeded, context-dependent laws: ids (B, T) -> logits (B, T, V) on the ids' device, in ``dtype``.

    depth: with the expensive part or without. sign: -1 turns the law upside down. temperature 0 leaves the likeliest token.
    """

    def __init__(
        self,
        seed: int,
        size: Size,
        *,
        depth: bool,
        sign: float = 1.0,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
    ) -> None:
        self.vocab_size = VOCAB_SIZE
        self.sign, self.temperature, self.dtype, self.device = sign, temperature, dtype, torch.device(device)
        self.inner = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        draws = torch.Generator(self.device).manual_seed(seed)

        def weight(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=draws, device=self.device, dtype=self.inner)
            return drawn / math.sqrt(shape[0])

        self.embedding = weight(VOCAB_SIZE, size.width) * math.sqrt(VOCAB_SIZE)
        self.head = weight(size.width, VOCAB_SIZE) * SHARPNESS
        self.further_head = weight(size.width, VOCAB_SIZE) * SHARPNESS * APART
        layers = range(size.layers if depth else 0)
        self.layers = [(weight(size.width, size.hidden), weight(size.hidden, size.width)) for _ in layers]
        self.mixing = torch.zeros(0, 0)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V): row t depends on ``ids[:, : t + 1]`` alone."""
        with torch.inference_mode():
            x = self.embedding[ids.to(self.device)]
            x = self._normal(self._mixing(ids.shape[1]) @ x)
            logits = x @ self.head
            if self.layers:
                for widen, narrow in self.layers:
                    x = x + torch.tanh(x @ widen) @ narrow
                logits = logits + self._normal(x) @ self.further_head
            logits = self.sign * logits.float()
            if self.temperature == 0:
                best = logits.argmax(-1, keepdim=True)
                logits = torch.full_like(logits, -math.inf).scatter_(-1, best, 0.0)
            elif self.temperature != 1:
                logits = logits / self.temperature
        return logits.to(ids.device, self.dtype).clone()

    def at(self, temperature: float) -> SuppliedModel:
        """Return a model of the same weights, held once, at another temperature."""
        other = copy(self)
        other.temperature = temperature
        return other

    def _mixing(self, length: int) -> Tensor:
        """Weights (T, T) of what each position hears of the ones up to itself."""
        if length > len(self.mixing):
            places = torch.arange(2 * length, device=self.device)
            apart = places[:, None] - places
            self.mixing = torch.where(apart >= 0, MEMORY ** apart.clamp(min=0).float(), 0.0).to(self.inner)
        return self.mixing[:length, :length]

    @staticmethod
    def _normal(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:])


class Constant:
    """A model that costs next to nothing: one law, whatever came before."""

    def __init__(self, seed: int, dtype: torch.dtype, temperature: float) -> None:
        self.vocab_size = VOCAB_SIZE
        logits = SHARPNESS * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
        if temperature == 0:
            logits = torch.full_like(logits, -math.inf).scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
        self.logits = logits.to(dtype)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for ids (B, T), in memory of their own, since a decoder may write into them."""
        return self.logits.to(ids.device).expand(*ids.shape, -1).clone()


class SuppliedTiming:
    """A decoder's ``build`` over supplied models as a :class:`specverify.subjects.Timeable`.

    There is no KV cache: "target" and "draft" are calls over the text, "verify" one over K more tokens, and "accept" is a
    whole round of the decoder over models that cost nothing, so it holds all that the decoder itself does in a round. A
    decoder is seen from outside: a round is what several take beyond one.
    """

    drafts: tuple[str, ...] = DRAFTS
    has_cache = False

    def __init__(self, subject: Decoder, *, temperature: float = 1.0, device: str = "cpu", size: Size | None = None) -> None:
        assert subject.build is not None
        self.subject, self.temperature, self.device = subject, temperature, device
        self.size = size or SIZES[torch.device(device).type]
        self.max_k = min(subject.facts.max_k or MOST_K, MOST_K)
        self.models: dict[str, SuppliedModel] = {}

    def at(self, temperature: float) -> SuppliedTiming:
        """Return the same decoder over the same models at another temperature."""
        other = SuppliedTiming(self.subject, temperature=temperature, device=self.device, size=self.size)
        other.models = {name: model.at(temperature) for name, model in self.models.items()}
        return other

    def on(self, device: str) -> SuppliedTiming:
        """Return the same decoder over models on another device, large ones on CUDA."""
        return SuppliedTiming(self.subject, temperature=self.temperature, device=device)

    def model(self, name: str) -> SuppliedModel:
        """Return the target or the draft of a name, made on first use."""
        if name not in self.models:
            self.models[name] = SuppliedModel(
                1 if name == "mismatched" else 0,
                self.size,
                depth=name == "target",
                sign=-1.0 if name == "adversarial" else 1.0,
                temperature=self.temperature,
                dtype=self.subject.facts.torch_dtype,
                device=self.device,
            )
        return self.models[name]

    def baseline(self, prompts: Tensor, max_new_tokens: int, *, cached: bool, seed: int) -> Tensor:
        """Generate (B, N) by the plain loop over the target: a call over the whole text for every token."""
        assert not cached
        return plain_loop(self.model("target"), prompts, max_new_tokens, seed)

    def speculative(self, prompts: Tensor, max_new_tokens: int, *, draft: str, k: int, seed: int) -> Generated:
        """Generate (B, N) by the decoder built over the target and a draft."""
        return self._generated(self.model("target"), self.model(draft), prompts, max_new_tokens, k, seed)

    def _generated(self, target: Model, draft: Model, prompts: Tensor, n: int, k: int, seed: int) -> Generated:
        assert self.subject.build is not None
        built: Any = self.subject.build(target, draft, k)
        raw = built.generate(prompts.clone(), n, seed % 2**31)
        return normalise_generated(raw, len(prompts), n, VOCAB_SIZE, None, self.subject.name)

    def phases(self, prompts: Tensor, *, draft: str, k: int) -> dict[str, Callable[[], object]]:
        """Return calls to time after prompts (B, T)."""
        target, drafting = self.model("target"), self.model(draft)
        draws = torch.Generator(prompts.device).manual_seed(0)
        dtype = self.subject.facts.torch_dtype
        free = Constant(0, dtype, self.temperature), Constant(1, dtype, self.temperature)
        longer = torch.cat([prompts, prompts[:, :1].expand(-1, k)], 1)

        def alone(tokens: int) -> Generated:
            return self._generated(*free, prompts, tokens, k, 0)

        rounds = [max(map(len, accepted_rows(alone(n), len(prompts), n, k))) for n in (1, FREE_TOKENS)]
        return {
            "target": lambda: _choose(target(prompts)[:, -1], draws),
            "draft": lambda: drafting(prompts),
            "verify": lambda: target(longer),
            "accept": Difference(lambda: alone(FREE_TOKENS), lambda: alone(1), max(rounds[1] - rounds[0], 1)),
        }


def plain_loop(logits: Callable[[Tensor], Tensor], prompts: Tensor, n: int, seed: int) -> Tensor:
    """Generate (B, n) after prompts (B, T), one call over the whole text (B, T) -> (B, T, V) per token."""
    draws = torch.Generator(prompts.device).manual_seed(seed)
    text = prompts
    for _ in range(n):
        text = torch.cat([text, _choose(logits(text)[:, -1], draws)], 1)
    return text[:, prompts.shape[1] :]


def _choose(logits: Tensor, draws: torch.Generator) -> Tensor:
    """Draw a token (B, 1) of each row's law."""
    return torch.multinomial(torch.softmax(logits.to(draws.device), -1), 1, generator=draws)
