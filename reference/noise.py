"""Where a decoder's randomness comes from: one stream for the whole batch, or one for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class BatchNoise:
    """One stream for all rows: torch's global one, or ``generator``. Dimension 0 of every draw is the row."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def uniforms(self, rows: int, n: int, dtype: torch.dtype) -> Tensor:
        """Draw independent uniforms (rows, n) on [0, 1)."""
        return torch.rand((rows, n), generator=self.generator, dtype=dtype)

    def choose(self, probabilities: Tensor, live: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Draw one token (B,) per row from laws (B, V); tokens of rows that are not ``live`` (B,) mean nothing."""
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0]

    def keep_rows(self, kept: Tensor) -> BatchNoise:  # noqa: ARG002
        """Return the noise of the rows ``kept`` (R,): the same stream."""
        return self


class RowNoise:
    """One stream per row, so that a row's tokens depend on its own seed alone, whatever else is in the batch.

    For this a row must draw as often in company as alone: rows that are not live do not draw. Rows whose seed is None
    share torch's global stream, each drawing numbers of its own.
    """

    def __init__(self, seeds: Sequence[int | None]) -> None:
        self.generators = [None if seed is None else torch.Generator().manual_seed(seed) for seed in seeds]

    def keep_rows(self, kept: Tensor) -> RowNoise:
        """Return the noise of the rows ``kept`` (R,): their own streams, where they are now."""
        noise = RowNoise([])
        noise.generators = [self.generators[b] for b in kept.tolist()]
        return noise

    def uniforms(self, rows: int, n: int, dtype: torch.dtype) -> Tensor:
        """Draw independent uniforms (rows, n) on [0, 1). Errors: ValueError unless there is one seed per row."""
        if rows != len(self.generators):
            raise ValueError(f"there are {len(self.generators)} seeds for {rows} rows; give one per row")
        return torch.stack([torch.rand(n, generator=g, dtype=dtype) for g in self.generators])

    def choose(self, probabilities: Tensor, live: Tensor | None = None) -> Tensor:
        """Draw one token (B,) per row from laws (B, V); rows that are not ``live`` (B,) do not draw and get token 0."""
        draws = [True] * len(self.generators) if live is None else live.tolist()
        return torch.tensor(
            [
                torch.multinomial(law, 1, generator=g).item() if drawn else 0
                for law, g, drawn in zip(probabilities, self.generators, draws, strict=True)
            ]
        )


Noise = BatchNoise | RowNoise
