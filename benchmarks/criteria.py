"""What would the tests of other projects say? Their published criteria, from description: true where a decoder passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from defects import Defect, K, positive
from scipy import stats

from specverify.checks.sampling import sample_verifier
from specverify.evidence.two_sample import hamming_mmd, permutation_p
from specverify.laws import Array, Ints, sequence_law
from specverify.pairs import named_pair
from specverify.randomness import stream
from specverify.subjects import Verifier

V, LENGTH = 8, 8
"""Vocabulary and tokens of the sequences of the last criterion."""


def first_tokens(rule: Callable[..., Any], v: int, n: int, seed: int) -> tuple[Ints, Array]:
    """First tokens of n rounds on one fixed (p, q) at every position, as those tests take them; and p."""
    rng = stream(seed, "baseline", v)
    p, q = rng.dirichlet(np.ones(v)), rng.dirichlet(np.ones(v))
    out = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for start in range(0, n, 50_000):
            rows = min(50_000, n - start)
            drafted = torch.multinomial(torch.from_numpy(q), rows * K, replacement=True).reshape(rows, K)
            tokens, _ = rule(drafted, torch.from_numpy(q).expand(rows, K, v), torch.from_numpy(p).expand(rows, K + 1, v))
            out.append(tokens[:, 0].numpy())
    return np.concatenate(out), p


def chi_square_passes(rule: Any, seed: int) -> bool:
    """V = 16, N = 200,000: chi-square below df + 10 sqrt(2 df)."""
    tokens, p = first_tokens(rule, 16, 200_000, seed)
    counts = np.bincount(tokens, minlength=16)
    return bool(((counts - 200_000 * p) ** 2 / (200_000 * p)).sum() < 15 + 10 * math.sqrt(30))


def l2_passes(rule: Any, seed: int) -> bool:
    """V = 10: from 10 to 100,000 samples the L2 distance to p falls 20 times as much as that to a random law."""
    tokens, p = first_tokens(rule, 10, 100_000, seed)
    other = stream(seed, "reference law").dirichlet(np.ones(10))
    few, many = (np.bincount(tokens[:n], minlength=10) / n for n in (10, 100_000))
    to_p, to_other = (np.linalg.norm(few - law) / np.linalg.norm(many - law) for law in (p, other))
    return bool(to_p > 20 * to_other)


def kl_passes(rule: Any, seed: int) -> bool:
    """V = 500, N = 50,000: KL(empirical || p) within 0.01 of that of tokens drawn from p."""
    tokens, p = first_tokens(rule, 500, 50_000, seed)
    plain = stream(seed, "plain").choice(500, size=50_000, p=p)

    def divergence(of: Ints) -> float:
        share = np.bincount(of, minlength=500) / len(of)
        seen = share > 0
        return float((share[seen] * np.log(share[seen] / p[seen])).sum())

    return abs(divergence(tokens) - divergence(plain)) < 0.01


def tv_passes(rule: Any, seed: int) -> bool:
    """V = 8, N = 20,000: total variation below 0.02."""
    tokens, p = first_tokens(rule, 8, 20_000, seed)
    return bool(0.5 * np.abs(np.bincount(tokens, minlength=8) / 20_000 - p).sum() < 0.02)


def joint_passes(rule: Any, seed: int) -> bool:
    """Three tokens over V = 3, 1,000 sequences: chi-square on 27 cells, p >= 1e-7."""
    pair = positive(named_pair(3, K))
    sample = sample_verifier(Verifier("x", rule), pair, 1_000, 3, seed)
    law = sequence_law(pair.target, 3, pair.prompt).ravel()
    counts = np.bincount([9 * a + 3 * b + c for a, b, c in sample.sequences], minlength=27)
    return bool(stats.chi2.sf(((counts - 1_000 * law) ** 2 / (1_000 * law)).sum(), 26) >= 1e-7)


def mmd_passes(rule: Any, seed: int, permutations: int = 200) -> bool:
    """Sequences of 8 tokens with and without speculation, 200 each: MMD with the Hamming kernel, permutation p >= 0.01."""
    pair, rng = positive(named_pair(V, K)), stream(seed, "mmd")
    ours = np.array(sample_verifier(Verifier("x", rule), pair, 200, LENGTH, seed).sequences)
    plain = np.array(sample_verifier(Verifier("y", Defect("token rejection")), pair, 200, LENGTH, seed + 10**6).sequences)
    labels = np.repeat([1, 0], 200)
    return permutation_p(hamming_mmd(np.concatenate([ours, plain])), labels, permutations, rng) >= 0.01


BASELINES: dict[str, Callable[[Any, int], bool]] = {
    "chi-square < df + 10 sqrt(2 df)": chi_square_passes,
    "20-fold L2 ratio": l2_passes,
    "KL within 0.01": kl_passes,
    "TV < 0.02": tv_passes,
    "joint chi-square on 27 cells": joint_passes,
    "MMD, Hamming kernel": mmd_passes,
}
