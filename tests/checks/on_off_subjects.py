"""Decoders over table models that can be run with speculation and without, right and wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.checks.sampling import seeded
from specverify.faults import rules
from specverify.faults.decoders import Loop, at_prompt_end
from specverify.laws import Pair
from specverify.pairs import named_pair
from specverify.tables import TorchTable, torch_models

Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def plainly(model: TorchTable, prompts: Tensor, length: int, seed: int, eos: int | None = None) -> Tensor:
    """Sample (B, length) tokens from a model alone; all eos after an eos."""
    generator, ids = torch.Generator().manual_seed(seed), prompts
    for _ in range(length):
        ids = torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1, generator=generator)], 1)
    new = ids[:, prompts.shape[1] :]
    return new if eos is None else torch.where((new == eos).long().cumsum(1) > 0, eos, new)


class Modes:
    """A plain loop with speculation, and the target alone."""

    def __init__(self, pair: Pair | None = None, eos_id: int | None = None, **loop: object) -> None:
        pair = pair or named_pair(3, 2)
        self.target, self.draft = torch_models(pair)
        self.k, self.vocab_size = pair.k, pair.vocab_size
        if eos_id is not None:
            self.eos_id = eos_id
        self.loop = Loop(self.target, self.draft, pair.k, eos_id, **loop)

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> object:
        """With speculation."""
        return self.loop.generate(prompts, max_new_tokens, seed)

    def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Without."""
        return plainly(self.target, prompts, max_new_tokens, seed, getattr(self, "eos_id", None))


class WithRule(Modes):
    """Rounds of any verification rule in place of the loop."""

    def __init__(self, rule: Rule, pair: Pair | None = None) -> None:
        super().__init__(pair)
        self.rule = rule

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Rounds for one row after the other, all from one seed."""
        with seeded(seed):
            return torch.stack([self._row(prompt, max_new_tokens) for prompt in prompts])

    def _row(self, prompt: Tensor, length: int) -> Tensor:
        ids, start = prompt[None], len(prompt)
        while ids.shape[1] < start + length:
            at = ids.shape[1]
            for _ in range(self.k):
                ids = torch.cat([ids, torch.multinomial(self.draft(ids)[:, -1].softmax(-1), 1)], 1)
            p, q = self.target(ids)[:, at - 1 :].softmax(-1), self.draft(ids)[:, at - 1 : -1].softmax(-1)
            tokens, counts = self.rule(ids[:, at:], q, p)
            ids = torch.cat([ids[:, :at], tokens[:, : int(counts[0])]], 1)
        return ids[0, start : start + length]


class SharedRows(Modes):
    """All rows of a call draw the same numbers; each row's own law is right."""

    def __init__(self, modes: tuple[str, ...]) -> None:
        super().__init__()
        self.shared = modes

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """Plain sampling, of which speculation would be a right way."""
        return self._rows(prompts, max_new_tokens, seed, "generate")

    def baseline(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """The same."""
        return self._rows(prompts, max_new_tokens, seed, "baseline")

    def _rows(self, prompts: Tensor, length: int, seed: int, mode: str) -> Tensor:
        if mode not in self.shared:
            return plainly(self.target, prompts, length, seed)
        return torch.cat([plainly(self.target, prompt[None], length, seed) for prompt in prompts])


FAULTY: dict[str, Callable[[], Modes]] = {
    "accepts everything": lambda: WithRule(rules.accept_always),
    "recovers from p": lambda: WithRule(rules.resample_from_target, named_pair(5, 2)),
    "verifies at the prompt's end": lambda: Modes(read_at=at_prompt_end),
    "default seed": lambda: Modes(stream=lambda _seed: torch.Generator().manual_seed(7)),
    "one stream for all rows": lambda: SharedRows(("generate",)),
}
