"""The floor that a run's time is compared with: the record of its matrix products is complete."""

from __future__ import annotations

import pytest
import torch
from benchmark_modules import benchmark_module

from reference.model import Transformer

products = benchmark_module("matrix_products")


def test_every_multiplication_is_recorded_and_made_again(main_model: Transformer) -> None:
    """The record of a pass has the multiplications that its shapes ask for, and can be made again."""
    B, n, S, E, V, layers = 3, 2, 7, 24, 11, 3

    def run() -> None:
        with torch.inference_mode():
            cache = main_model.start(S, B)
            main_model.extend(torch.zeros(B, S - n, dtype=torch.int64), cache)
            main_model.extend(torch.zeros(B, n, dtype=torch.int64), cache)

    found = products.recorded(run)
    count = sum(p.size * p.left.shape[-1] for p in found)
    attention = sum(p.size * p.left.shape[-1] for p in found if p.attention)
    assert attention == layers * 2 * B * E * ((S - n) * (S - n) + n * S)
    assert count - attention == B * S * (layers * 12 * E * E + E * V)
    replay = products.Replay(found)
    replay.run()
    replay.run(attention=False)


def test_an_unknown_product_is_refused() -> None:
    """A product that the record has no operands for is an error, rather than missing from the floor."""
    with torch.inference_mode(), pytest.raises(RuntimeError, match="teach it"):
        products.recorded(lambda: torch.mv(torch.ones(2, 2), torch.ones(2)))
