"""How logits become the law that is sampled: penalty, temperature, top-k, top-p, the same for main model and draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Process(Protocol):
    """What makes laws of logits, the same for main model and draft."""

    @property
    def reads_history(self) -> bool:
        """Whether the law depends on which tokens the text holds."""
        ...

    def __call__(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return laws (B, ..., V) for logits (B, ..., V); seen (B, ..., V), bool: which tokens the text holds."""
        ...

    def keep_rows(self, kept: Tensor) -> Process:
        """Return what applies to the rows ``kept`` (R,)."""
        ...


COLDEST = 1e-5
"""Logits divided by less than this would overflow; temperature 0 takes the likeliest token without dividing."""


@dataclass(frozen=True)
class Processors:
    """Settings of one request. temperature 0 is greedy; top_k None, top_p 1 and penalty 1 leave the law alone.

    repetition_penalty: positive logits of tokens that the text holds already, prompt included, are divided by it, others
    multiplied (Keskar et al. 2019, arXiv 1909.05858, section 4.1). Errors: ValueError for a temperature below 0, a top_k
    below 1, a top_p outside (0, 1] or a penalty that is not above 0.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            raise ValueError(f"temperature is {self.temperature}; it must be 0, which is greedy, or {COLDEST:g} and more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more, or None to keep every token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie in (0, 1]; 1 keeps every token")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}; it must be above 0; 1 changes nothing")

    @property
    def reads_history(self) -> bool:
        """Whether the law depends on which tokens the text holds."""
        return self.repetition_penalty != 1

    def __call__(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return probabilities (..., V) for logits (..., V), in the logits' precision, float32 at least; a logit -inf
        has law 0. seen (..., V), bool: which tokens the text holds, needed where :attr:`reads_history`.
        """
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self.reads_history:
            if seen is None:
                raise ValueError("a repetition penalty needs to know which tokens the text holds; pass seen (..., V)")
            penalised = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, penalised, logits)
        if self.temperature == 0:
            # zeros + scatter rather than one_hot, which would return integers; a tie goes to the lowest id
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        probabilities = torch.softmax(logits if self.temperature == 1 else logits / self.temperature, -1)
        if self.top_k is None and self.top_p == 1:
            return probabilities
        return self._filtered(probabilities)

    def keep_rows(self, kept: Tensor) -> Processors:  # noqa: ARG002
        """Return the settings of the rows ``kept`` (R,): these."""
        return self

    def _filtered(self, probabilities: Tensor) -> Tensor:
        # A stable sort, so that ties at the border are cut the same way for every row: lower ids are kept.
        likely, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            likely = torch.cat([likely[..., : self.top_k], torch.zeros_like(likely[..., self.top_k :])], -1)
            likely = likely / likely.sum(-1, keepdim=True)
        if self.top_p < 1:
            before = likely.cumsum(-1) - likely  # 0 for the likeliest token, which therefore always stays
            likely = torch.where(before < self.top_p, likely, 0.0)
            likely = likely / likely.sum(-1, keepdim=True)
        return torch.zeros_like(likely).scatter_(-1, ids, likely)


@dataclass(frozen=True)
class RowProcessors:
    """Settings of several requests side by side: those of row b apply to its logits alone."""

    rows: Sequence[Processors]

    @property
    def reads_history(self) -> bool:
        """Whether the law of any row depends on which tokens its text holds."""
        return any(row.reads_history for row in self.rows)

    def __call__(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return probabilities (B, ..., V) for logits (B, ..., V). Errors: ValueError unless there is a row for each."""
        if len(logits) != len(self.rows):
            raise ValueError(f"there are settings for {len(self.rows)} rows and logits for {len(logits)}; give one per row")
        together = {settings: [b for b, own in enumerate(self.rows) if own == settings] for settings in set(self.rows)}
        if len(together) == 1:
            return self.rows[0](logits, seen)
        parts = [(rows, settings(logits[rows], None if seen is None else seen[rows])) for settings, rows in together.items()]
        probabilities = torch.empty_like(logits, dtype=parts[0][1].dtype)
        for rows, part in parts:
            probabilities[rows] = part
        return probabilities

    def keep_rows(self, kept: Tensor) -> RowProcessors:
        """Return the settings of the rows ``kept`` (R,)."""
        return RowProcessors([self.rows[b] for b in kept.tolist()])
