"""Verifiers that take their random numbers as arguments, in four conventions, each with wrong twins."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specverify import verifier
from specverify.laws import Array, Ints

COINS_AND_NOISE = {"coins": "uniforms (B, K)", "noise": "exponentials (B, V)", "bonus_noise": "exponentials (B, V)"}
COINS_AND_FINAL = {"coins": "uniforms (B, K)", "final_coin": "uniforms (B,)"}


def numpy_rule(x: Ints, q: Array, p: Array, u: Array, *, fault: str = "") -> tuple[Ints, Ints]:
    """Token rejection on numpy arrays: the last uniform (B, K+1) draws the final token by inverse distribution function."""
    B, K = x.shape
    rows = np.arange(B)
    px = np.take_along_axis(p[:, :K], x[..., None], 2)[..., 0]
    qx = np.take_along_axis(q, x[..., None], 2)[..., 0]
    coins, final = u[:, :K], u[:, K]
    if fault == "one_uniform":
        coins = np.repeat(u[:, :1], K, 1)
    accept = coins * qx < px
    if fault == "inverted_ratio":
        accept = coins * px < qx
    elif fault == "at_most":
        accept = coins * qx <= px
    elif fault == "products":
        accept = coins.cumprod(1) * qx.cumprod(1) < px.cumprod(1)
    accepted = accept.cumprod(1).sum(1)
    if fault == "reused_coin":
        final = coins[rows, np.minimum(accepted, K - 1)]
    gap = p[:, :K] - q
    residual = np.abs(gap) if fault == "absolute_residual" else np.clip(gap, 0, None)
    if fault == "resample_from_target":
        residual = p[:, :K].copy()
    weights = np.concatenate([residual, p[:, K:]], 1)[rows, accepted]
    weights = np.where(weights.sum(1, keepdims=True) > 0, weights, p[rows, accepted])
    cumulative = weights.cumsum(1)
    total = np.ones(B) if fault == "not_normalised" else cumulative[:, -1]
    last = (cumulative <= (final * total)[:, None]).sum(1).clip(max=p.shape[2] - 1)
    out = np.full((B, K + 1), -1)
    out[:, :K] = np.where(np.arange(K) < accepted[:, None], x, -1)
    out[rows, accepted] = last
    return out, accepted + 1


numpy_rejection = verifier(given="uniforms", hands="numpy", name="numpy_rejection")(numpy_rule)


def numpy_twin(fault: str, **facts: object) -> object:
    """The numpy rule with one fault."""

    def twin(x: Ints, q: Array, p: Array, u: Array) -> tuple[Ints, Ints]:
        return numpy_rule(x, q, p, u, fault=fault)

    return verifier(given="uniforms", hands="numpy", name=fault, **facts)(twin)


@verifier(given="uniforms", hands="lists", max_batch=1)
def python_rejection(x: list, q: list, p: list, u: list) -> list[list[int]]:
    """Token rejection in plain Python, one row per call, nothing but lists and loops."""
    return [_python_row(x[0], q[0], p[0], u[0])]


@verifier(given="uniforms", hands="lists", max_batch=1)
def python_final_first(x: list, q: list, p: list, u: list) -> list[list[int]]:
    """The same with the final draw's number standing first."""
    return [_python_row(x[0], q[0], p[0], [*u[0][1:], u[0][0]])]


def _python_row(x: list[int], q: list[list[float]], p: list[list[float]], u: list[float]) -> list[int]:
    out: list[int] = []
    weights = p[-1]
    for j, token in enumerate(x):
        if u[j] * q[j][token] >= p[j][token]:
            weights = [max(a - b, 0.0) for a, b in zip(p[j], q[j], strict=True)]
            break
        out.append(token)
    reach, total = u[-1] * sum(weights), 0.0
    for token, weight in enumerate(weights):
        total += weight
        if reach < total:
            return [*out, token]
    return [*out, max(i for i, w in enumerate(weights) if w > 0)]


def chain_kernel(
    predicts: Tensor,
    accept_index: Tensor,
    accept_count: Tensor,
    candidates: Tensor,
    coins: Tensor,
    final_coin: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    *,
    coin_kept: bool = False,
) -> None:
    """Verify in the manner of serving kernels: outputs are flat, written in place, and draft_probs serve as scratch.

    candidates (B, K+1) hold the last verified token and then the drafts; predicts (B (K+1),) receives at place j the token that
    follows place j; accept_index (B, K+1) the places that were accepted, filled with -1 by the caller; accept_count (B,).
    """
    B, width = candidates.shape
    for b in range(B):
        place = 0
        accept_index[b, 0] = b * width
        for j in range(1, width):
            token = candidates[b, j]
            if coins[b, j - 1] * draft_probs[b, j - 1, token] >= target_probs[b, j - 1, token]:
                break
            predicts[b * width + place] = token.to(predicts.dtype)
            place = j
            accept_index[b, j] = b * width + j
            accept_count[b] += 1
        if place < width - 1:
            weights = draft_probs[b, place].neg_().add_(target_probs[b, place]).clamp_(min=0)
        else:
            weights = target_probs[b, place]
        coin = coins[b, min(place, width - 2)] if coin_kept else final_coin[b]
        cumulative = weights.cumsum(0)
        last = (cumulative <= coin * cumulative[-1]).sum()
        predicts[b * width + place] = last.to(predicts.dtype)


def through_kernel(x: Tensor, q: Tensor, p: Tensor, coins: Tensor, final_coin: Tensor, **options: bool) -> list[list[int]]:
    """What an adapter does: allocate the buffers, call the kernel, read the flat outputs."""
    B, K = x.shape
    predicts = torch.zeros(B * (K + 1), dtype=torch.int32)
    accept_index = torch.full((B, K + 1), -1, dtype=torch.int32)
    accept_count = torch.zeros(B, dtype=torch.int32)
    candidates = torch.cat([torch.zeros_like(x[:, :1]), x], 1)
    chain_kernel(predicts, accept_index, accept_count, candidates, coins, final_coin, p, q, **options)
    rows = accept_index.tolist()
    return [[int(predicts[i]) for i in row[: n + 1]] for row, n in zip(rows, accept_count.tolist(), strict=True)]


kernel = verifier(given=COINS_AND_FINAL, name="kernel")(through_kernel)
kernel_coin_kept = verifier(given=COINS_AND_FINAL, name="kernel_coin_kept")(
    lambda x, q, p, coins, final: through_kernel(x, q, p, coins, final, coin_kept=True)
)


def race_rule(x: Tensor, q: Tensor, p: Tensor, u: Tensor, noise: Tensor, bonus: Tensor, *, fault: str = "") -> Tensor:
    """Token rejection with the recovered tokens of all positions raced beforehand on one noise (B, V), as engines do."""
    K = x.shape[1]
    px, qx = p[:, :K].gather(2, x[..., None])[..., 0], q.gather(2, x[..., None])[..., 0]
    accepted = (u * qx < px).long().cumprod(1).sum(1)
    gap = p[:, :K] - q
    residual = gap.abs() if fault == "absolute_residual" else gap.clamp(min=0)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p[:, :K])
    if fault == "resample_from_target":
        residual = p[:, :K]
    if fault == "softmax_residual":
        residual = (residual / residual.sum(-1, keepdim=True)).softmax(-1)
    clocks = noise if fault == "shared_noise" else bonus
    recovered = (residual / noise[:, None]).argmax(-1)
    last = torch.cat([recovered, (p[:, K] / clocks).argmax(-1, keepdim=True)], 1).gather(1, accepted[:, None])
    out = torch.where(torch.arange(K + 1) < accepted[:, None], torch.nn.functional.pad(x, (0, 1)), -1)
    return out.scatter(1, accepted[:, None], last)


races = verifier(given=COINS_AND_NOISE, name="races")(race_rule)


def race_twin(fault: str, **facts: object) -> object:
    """The racing rule with one fault ("shared_noise" is none: only one race decides on each path)."""

    def twin(*args: Tensor) -> Tensor:
        return race_rule(*args, fault=fault)

    return verifier(given=COINS_AND_NOISE, name=fault, **facts)(twin)


def match_rule(x: Tensor, p: Tensor, noise: Tensor) -> Tensor:
    """Sample-and-match with one race argmin E / p per place: noise (B, K+1, V), or (B, 1, V) for the same one everywhere."""
    wanted = (noise / p).argmin(-1)
    hits = (wanted[:, :-1] == x).long().cumprod(1).sum(1)
    return torch.where(torch.arange(p.shape[1]) <= hits[:, None], wanted, -1)


@verifier(given="exponentials")
def sample_and_match(x: Tensor, _q: Tensor, p: Tensor, noise: Tensor) -> Tensor:
    """Lossless: fresh noise at every place."""
    return match_rule(x, p, noise)


@verifier(given={"noise": "exponentials (B, V)"})
def match_on_one_noise(x: Tensor, _q: Tensor, p: Tensor, noise: Tensor) -> Tensor:
    """Wrong: one noise decides the races of several places on one path."""
    return match_rule(x, p, noise[:, None])
