"""Where a decoder's randomness comes from: one stream for the whole batch, or one for each row; choices or races."""

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


class RacingNoise:
    """Choices by races of exponential clocks, which are remembered: for the rule that lets the target race with the same
    clocks (:mod:`reference.rules.coupled_races`). One stream for all rows, or with ``seeds`` one for each.
    """

    def __init__(self, generator: torch.Generator | None = None, seeds: Sequence[int | None] | None = None) -> None:
        self.generators = [generator] if seeds is None else RowNoise(seeds).generators
        self.shared = seeds is None
        self.clocks: list[Tensor] = []

    def fresh(self, like: Tensor) -> Tensor:
        """Draw a clock of mean 1 for every entry of laws (B, V); torch never draws 0, so that 0/0 cannot happen."""
        clocks = torch.empty_like(like)
        if self.shared:
            return clocks.exponential_(generator=self.generators[0])
        for row, generator in zip(clocks, self.generators, strict=True):
            row.exponential_(generator=generator)
        return clocks

    def choose(self, probabilities: Tensor, live: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Draw one token (B,) per row from laws (B, V): whose clock, run at the speed of its probability, rings first."""
        self.clocks.append(self.fresh(probabilities))
        return (self.clocks[-1] / probabilities).argmin(1)

    def taken(self) -> list[Tensor]:
        """Return the clocks (B, V) of the choices since the last time, in their order, and forget them."""
        clocks, self.clocks = self.clocks, []
        return clocks

    def keep_rows(self, kept: Tensor) -> RacingNoise:
        """Return the noise of the rows ``kept`` (R,)."""
        if not self.shared:
            noise = RacingNoise()
            noise.shared, noise.generators = False, [self.generators[b] for b in kept.tolist()]
            return noise
        return self


Noise = BatchNoise | RowNoise
