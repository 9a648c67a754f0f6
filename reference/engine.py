"""How the reference decoder is offered: requests in, tokens out, by any drafter and rule, at a fixed or an adaptive K."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from reference import decoder
from reference.adaptive import AdaptiveK, RoundCosts
from reference.drafting import Drafter, Model
from reference.drafting.lookup import PromptLookup
from reference.drafting.separate import EarlyExit, SeparateDraft, as_drafter
from reference.noise import BatchNoise, RacingNoise, RowNoise
from reference.processors import Processors, RowProcessors
from reference.rules import RACES, rule_named
from reference.rules.trees import TREE_RULES, tree_rule_named
from reference.sharing import read_sharing
from specverify import subjects
from specverify.subjects import Generated, Request

AT_ONCE = 2**28
"""Bytes that the caches of rows decoded side by side may take: enough for a processor's products to be at their best."""


def check_fit(drafter: Drafter, rule: str) -> None:
    """Refuse a rule that is not made for what a drafter proposes. Errors: ValueError that says what would fit."""
    shape, children = getattr(drafter, "shape", None), getattr(drafter, "children", "")
    if shape is not None:
        fitting = [name for name, of in TREE_RULES.items() if children in of.CHILDREN]
        if rule not in fitting:
            raise ValueError(f"{rule} is not lossless for a tree with children {children!r}; take {' or '.join(fitting)}")
    elif rule in TREE_RULES:
        raise ValueError(f"{rule} judges trees, and this drafter drafts a chain; take token_rejection, or draft a tree")
    elif rule in RACES and isinstance(drafter, PromptLookup):
        raise ValueError(f"{rule} needs drafts that were drawn, and prompt lookup draws none; take sample_and_match")


class ReferenceDecoder:
    """Speculative decoding with a main model and a draft; satisfies :class:`specverify.subjects.DecoderLike`.

    draft: a drafter of :mod:`reference.drafting`, or a model that drafts by itself. k drafts per round; or the costs of a
    round, and K follows what is accepted (:class:`reference.adaptive.AdaptiveK`). processors apply to both models alike; rule
    is a name in :data:`reference.rules.RULES`, or for trees in :data:`reference.rules.trees.TREE_RULES`. ``stop`` tokens end
    a row as ``eos_id`` does. Errors: ValueError for an unknown rule, k < 1, or the greedy rule at a temperature that is not 0.
    """

    def __init__(
        self,
        main: Model,
        draft: Drafter | Model,
        k: int | RoundCosts,
        *,
        eos_id: int | None = None,
        stop: Sequence[int] = (),
        rule: str = "token_rejection",
        processors: Processors | None = None,
        prompts: Tensor | None = None,
        timing: subjects.Timeable | None = None,
    ) -> None:
        self.main, self.k, self.eos_id, self.stop = main, k, eos_id, tuple(stop)
        self.drafter = as_drafter(draft)
        self.processors = processors or Processors()
        self.rule: Any = tree_rule_named(rule) if rule in TREE_RULES else rule_named(rule)
        self.vocab_size = main.vocab_size
        if not isinstance(k, (int, RoundCosts)):
            raise ValueError(f"k is {k!r}; give a whole number, or the RoundCosts of rounds for a K that follows acceptance")
        if isinstance(k, int) and k < 1:
            raise ValueError(f"k is {k}; a round drafts at least one token")
        check_fit(self.drafter, rule)
        self.greedy_only = rule == "greedy"
        self._processors_at(self.processors.temperature)
        if prompts is not None:
            self.prompts = prompts
        if timing is not None:
            self.timing = timing
        if isinstance(self.drafter, (SeparateDraft, EarlyExit)):  # the law of other drafts is none of the text alone
            drafting = self.drafter.model
            self.draft_log_probs = lambda ids: self._log_probs(drafting, ids, self.processors)

    def generate(
        self,
        prompts: Tensor,
        max_new_tokens: int,
        seed: int | None = None,
        *,
        seeds: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Generated:
        """Generate new tokens (B, N) for prompts (B, T), of which row b has ``lengths[b]`` tokens (default: all T).

        ``seed`` starts one generator for the whole batch, whose draws (B, K) are made at once: fast, and a row then
        depends on how many rows there are. ``seeds``, one per row, give each row a generator of its own: a row's tokens
        depend on its prompt and seed alone, unless K follows what the whole batch accepts. With neither, torch's global
        stream is used. Of thousands of rows as many are decoded side by side as their caches fit into AT_ONCE bytes.
        """
        for name, given in (("seeds", seeds), ("lengths", lengths)):
            if given is not None and len(given) != len(prompts):
                raise ValueError(f"there are {len(given)} {name} for {len(prompts)} rows; give one per row")
        if len(prompts) == 0:
            raise ValueError("there are no prompts; give at least one row")
        noise = self._noise(_seeded(seed))
        made: list[Generated] = []
        for rows in torch.split(torch.arange(len(prompts)), self._at_once(prompts.shape[1] + max_new_tokens)):
            if seeds is not None:
                noise = self._row_noise([seeds[b] for b in rows.tolist()])
            settings = self._settings(noise, None if lengths is None else lengths[rows])
            made.append(decoder.generate(self.main, self.drafter, prompts[rows], max_new_tokens, **settings))
        if len(made) == 1:
            return made[0]
        most = max(part.accepted.shape[1] for part in made if part.accepted is not None)
        counts = [
            functional.pad(part.accepted, (0, most - part.accepted.shape[1]), value=-1)
            for part in made
            if part.accepted is not None
        ]
        return Generated(torch.cat([part.tokens for part in made]), torch.cat(counts))

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve requests side by side, of any prompt lengths, numbers of tokens, seeds and temperatures.

        Prompts are padded on the right, where no token sees the padding. Rows without a seed draw from torch's global
        stream. A row leaves the batch when it is done. Errors: ValueError for no requests, or a temperature that the rule is
        not lossless at.
        """
        rows: list[list[int]] = [[] for _ in requests]
        for news in self.stream(requests):
            for row, tokens in news:
                rows[row] += tokens
        return rows

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[int, list[int]]]]:
        """Serve requests as :meth:`serve` does, yielding (row, its new tokens) after every round, as they are accepted."""
        if not requests:
            raise ValueError("there are no requests to serve; give at least one")
        own = self.processors.temperature
        rows = RowProcessors([self._processors_at(own if r.temperature is None else r.temperature) for r in requests])
        settings = self._settings(self._row_noise([r.seed for r in requests]), torch.tensor([len(r.prompt) for r in requests]))
        stop = [*self.stop, *([] if self.eos_id is None else [self.eos_id])]
        del settings["eos_id"]
        return decoder.stream(
            self.main,
            self.drafter,
            pad_sequence([torch.tensor(r.prompt) for r in requests], batch_first=True),
            torch.tensor([r.max_new_tokens for r in requests]),
            **settings | {"process": rows, "stop": stop},
        )

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Return log-laws (B, T, V) of the main model after the processors: row t follows ``ids[:, : t + 1]``."""
        return self._log_probs(self.main, ids, self.processors)

    def target_log_probs_at(self, ids: Tensor, temperature: float) -> Tensor:
        """Return the same log-laws (B, T, V) with another temperature in place of the decoder's own."""
        return self._log_probs(self.main, ids, replace(self.processors, temperature=temperature))

    def _at_once(self, length: int) -> int:
        """How many rows of ``length`` tokens are decoded side by side."""
        with torch.inference_mode():
            per_token: int = self.main.start(64, 1).nbytes // 64
        return max(AT_ONCE // (per_token * length), 1)

    def _noise(self, generator: torch.Generator | None) -> Any:
        return RacingNoise(generator) if self.rule.NAME in RACES else BatchNoise(generator)

    def _row_noise(self, seeds: Sequence[int | None]) -> Any:
        return RacingNoise(seeds=seeds) if self.rule.NAME in RACES else RowNoise(seeds)

    def _settings(self, noise: Any, lengths: Tensor | None) -> dict[str, Any]:
        return {
            "k": self.k if isinstance(self.k, int) else AdaptiveK(self.k, len(self.k.verify) - 1),
            "process": self.processors,
            "rule": self.rule,
            "noise": noise,
            "lengths": lengths,
            "eos_id": self.eos_id,
            "stop": self.stop,
        }

    def _processors_at(self, temperature: float) -> Processors:
        if self.greedy_only and temperature != 0:
            raise ValueError("the greedy rule is lossless at temperature 0 only; set temperature=0 or take token_rejection")
        return replace(self.processors, temperature=temperature)

    def _log_probs(self, model: Model, ids: Tensor, processors: Processors) -> Tensor:
        with torch.inference_mode():
            seen = None
            if processors.reads_history:
                seen = functional.one_hot(ids, model.vocab_size).cumsum(1) > 0
            _, logits = read_sharing(model.start, model.extend, ids, None, ids.shape[1])
            laws = processors(logits, seen).log()
        return laws.clone()


def _seeded(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)
