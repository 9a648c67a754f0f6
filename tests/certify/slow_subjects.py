"""Subjects that take their time, so that a run of them can be stopped in the middle of a test."""

import time

import numpy as np
import torch
from subjects_for_tests import TinyDecoder
from torch import Tensor

import specverify


class Slow(TinyDecoder):
    """The tiny decoder with a pause in every call, and a few rows per call."""

    prompts = torch.tensor([[0], [1], [2]])
    pause = 0.004

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """The same after a pause."""
        time.sleep(self.pause)
        return super().generate(prompts, max_new_tokens, seed)


class Quick(Slow):
    """Without the pause."""

    pause = 0.0


class OwnNoise(Quick):
    """Exact, but with a generator of its own that every process begins anew, whatever seed it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = np.random.default_rng(7)

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """The same with seeds of its own."""
        return super().generate(prompts, max_new_tokens, int(self.noise.integers(2**31)))


slow = specverify.decoder(Slow(), name="slow", max_batch=8)
quick = specverify.decoder(Quick(), name="quick", max_batch=8)
own_noise = specverify.Decoder("own_noise", OwnNoise, facts=specverify.Facts(max_batch=8, seeded=False))
