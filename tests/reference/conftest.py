"""Models small enough to test a decoder on in milliseconds."""

from __future__ import annotations

import pytest
import torch

from reference.model import Shape, Transformer

torch.set_num_threads(1)

MAIN_SHAPE = Shape(vocab_size=11, layers=3, width=24, heads=3, reach=8)
DRAFT_SHAPE = Shape(vocab_size=11, layers=1, width=16, heads=2, reach=8)


def untrained(shape: Shape, seed: int) -> Transformer:
    """Make a transformer with random weights and laws far from uniform."""
    torch.manual_seed(seed)
    model = Transformer(shape).eval().requires_grad_(False)
    model.head.weight.mul_(4.0)
    return model


@pytest.fixture(scope="session")
def main_model() -> Transformer:
    """Make an untrained main model over 11 tokens."""
    return untrained(MAIN_SHAPE, 1)


@pytest.fixture(scope="session")
def draft_model() -> Transformer:
    """Make an untrained draft over the same tokens."""
    return untrained(DRAFT_SHAPE, 2)
