"""Ten verification steps for speculative sampling, each written in the style of a different engine.

Eight are verifiers ``verify(draft_tokens (B, K), draft_probs (B, K, V), target_probs (B, K + 1, V))``, one of which takes its
uniforms as a fourth argument. Two, ``style_gumbel`` and ``style_numpy``, are rounds ``step(target, draft, prefix (B, T))`` that
draft inside, ``DRAFT_LENGTH`` tokens at most; their models take ids (B, T) and return logits (B, T, V).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Model = Callable[[Tensor], Tensor]

DRAFT_LENGTH = 2
CONFIDENCE = 0.2  # drafts below this probability end a draft
PEAKED = 0.5  # draft laws with a mode above this are handled as deterministic


# ------------------------------------------------------------------------------------------------- plain loop


def style_loop(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """One sequence, token by token; returns ids (1, n)."""
    k = draft_tokens.shape[1]
    emitted: list[int] = []
    for j in range(k):
        token = int(draft_tokens[0, j].item())
        q_token = draft_probs[0, j, token].item()
        p_token = target_probs[0, j, token].item()
        coin = torch.rand((), dtype=torch.float64).item()
        if coin * q_token < p_token:
            emitted.append(token)
            continue
        residual = (target_probs[0, j] - draft_probs[0, j]).clamp(min=0)
        emitted.append(int(torch.multinomial(residual, 1).item()))
        break
    if len(emitted) == k:
        emitted.append(int(torch.multinomial(target_probs[0, k], 1).item()))
    return torch.tensor([emitted], dtype=torch.int64)


# ------------------------------------------------------------------------------------------------- vectorised batch


def style_vectorised(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """The whole batch at once; the verified window of a row ends with its first draft below ``CONFIDENCE``."""
    batch, k = draft_tokens.shape
    rows = torch.arange(batch)
    drafted = draft_tokens.unsqueeze(-1)
    p_drafted = target_probs[:, :k].gather(-1, drafted).squeeze(-1)
    q_drafted = draft_probs.gather(-1, drafted).squeeze(-1)

    unsure = q_drafted < CONFIDENCE
    window = torch.where(unsure.any(1), unsure.int().argmax(1) + 1, k)

    accepted = torch.rand_like(q_drafted) * q_drafted < p_drafted
    run = accepted.int().cumprod(1).sum(1)
    count = torch.minimum(run, window)

    q_padded = torch.cat([draft_probs, torch.zeros_like(target_probs[:, :1])], 1)
    p_next = target_probs[rows, count]
    q_next = q_padded[rows, count] * (count < window).unsqueeze(-1)
    law = (p_next - q_next).clamp_min(0)
    law = torch.where(law.sum(-1, keepdim=True) > 0, law, p_next)
    last = torch.multinomial(law, 1)

    tokens = torch.cat([draft_tokens, torch.full_like(last, -1)], 1)
    place = torch.arange(k + 1).unsqueeze(0)
    tokens = tokens.masked_fill(place >= count.unsqueeze(1), -1)
    return tokens.scatter(1, count.unsqueeze(1), last)


# ------------------------------------------------------------------------------------------------- Gumbel-max


def _gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from uniforms."""
    return -torch.log(-torch.log(uniform.clamp_min(torch.finfo(uniform.dtype).tiny)))


def style_gumbel(target: Model, draft: Model, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """A round that drafts and recovers with Gumbel-max; returns (tokens, counts)."""
    batch, start = prefix.shape
    rows = torch.arange(batch)

    ids = prefix
    q_rows: list[Tensor] = []
    for _ in range(DRAFT_LENGTH):
        log_q = draft(ids)[:, -1].double().log_softmax(-1)
        choice = (log_q + _gumbel(torch.rand_like(log_q))).argmax(-1, keepdim=True)
        q_rows.append(log_q)
        ids = torch.cat([ids, choice], 1)
    drafted = ids[:, start:]
    q = torch.stack(q_rows, 1).exp()
    p = target(ids)[:, start - 1 :].double().softmax(-1)

    # One field of uniforms serves the round: its entry at the drafted token is that position's coin.
    field = torch.rand_like(p)
    index = drafted.unsqueeze(-1)
    coins = field[:, :-1].gather(-1, index)
    accepted = (coins * q.gather(-1, index) < p[:, :-1].gather(-1, index)).squeeze(-1)
    count = accepted.long().cumprod(1).sum(1)

    recovered = p.clone()
    recovered[:, :-1] -= q
    scores = recovered.clamp_min(0).log() + _gumbel(field)
    last = scores.argmax(-1)[rows, count]

    tokens = torch.cat([drafted, torch.zeros_like(drafted[:, :1])], 1)
    tokens[rows, count] = last
    return tokens, count + 1


# ------------------------------------------------------------------------------------------------- inverse CDF


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index drawn from rows of weights (B, V) by one uniform a row."""
    edges = weights.cumsum(-1)
    index = torch.searchsorted(edges, (uniform * edges[:, -1]).unsqueeze(-1), right=True)
    return index.squeeze(-1).clamp(max=weights.shape[-1] - 1)


def style_inverse_cdf(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """A single uniform a row, stretched again after every decision; returns (tokens, counts)."""
    batch, k = draft_tokens.shape
    rows = torch.arange(batch)
    uniform = torch.rand(batch, dtype=torch.float64)
    running = torch.ones(batch, dtype=torch.bool)
    count = torch.zeros(batch, dtype=torch.int64)
    for j in range(k):
        token = draft_tokens[:, j]
        chance = (target_probs[rows, j, token] / draft_probs[rows, j, token]).clamp(max=1)
        taken = uniform < chance
        stretched = torch.where(taken, uniform / chance, (uniform - chance) / (1 - chance))
        uniform = torch.where(running, stretched, uniform)
        running &= taken
        count += running
    weights = target_probs[rows, count].clone()
    weights[~running] -= draft_probs[rows, count.clamp(max=k - 1)][~running]
    last = _invert(weights.clamp(min=0), uniform)
    tokens = torch.cat([draft_tokens, last.unsqueeze(1)], 1)
    tokens[rows, count] = last
    return tokens, count + 1


# ------------------------------------------------------------------------------------------------- numpy only


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _pick(weights: np.ndarray) -> int:
    """One draw from a vector of weights."""
    edges = np.cumsum(weights)
    return int(min(np.searchsorted(edges, np.random.random() * edges[-1], side="right"), len(weights) - 1))


def _logits(model: Model, ids: Sequence[int]) -> np.ndarray:
    """The model's logits (T, V) of one sequence, in double precision."""
    return model(torch.tensor([list(ids)], dtype=torch.int64))[0].detach().double().numpy()


def style_numpy(target: Model, draft: Model, prefix: Tensor) -> list[list[int]]:
    """A round in numpy, sequence by sequence; a draft ends early where the drafter becomes unsure. Returns ragged rows."""
    out: list[list[int]] = []
    for history in prefix.tolist():
        drafted: list[int] = []
        laws: list[np.ndarray] = []
        while len(drafted) < DRAFT_LENGTH:
            law = _softmax(_logits(draft, history + drafted)[-1])
            token = _pick(law)
            if law[token] < CONFIDENCE:
                break
            drafted.append(token)
            laws.append(law)

        p = _softmax(_logits(target, history + drafted)[len(history) - 1 :])
        emitted: list[int] = []
        for j, (token, q) in enumerate(zip(drafted, laws, strict=True)):
            if np.random.random() * q[token] < p[j, token]:
                emitted.append(token)
            else:
                emitted.append(_pick(np.maximum(p[j] - q, 0.0)))
                break
        else:
            emitted.append(_pick(p[len(drafted)]))
        out.append(emitted)
    return out


# ------------------------------------------------------------------------------------------------- uniforms given


def _walk(weights: list[float], uniform: float) -> int:
    """Index at which the running sum of the weights passes ``uniform`` of its total."""
    level = uniform * sum(weights)
    passed = 0.0
    last = 0
    for index, weight in enumerate(weights):
        if weight <= 0.0:
            continue
        passed += weight
        last = index
        if level < passed:
            return index
    return last


def style_uniforms(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Deterministic given ``uniforms`` (B, K + 1): K coins, then one for the final draw; returns (tokens, counts)."""
    drafted = np.asarray(draft_tokens).tolist()
    q_all = np.asarray(draft_probs, dtype=np.float64).tolist()
    p_all = np.asarray(target_probs, dtype=np.float64).tolist()
    u_all = np.asarray(uniforms, dtype=np.float64).tolist()
    k = len(drafted[0])
    tokens = np.zeros((len(drafted), k + 1), dtype=np.int64)
    counts = np.zeros(len(drafted), dtype=np.int64)
    for b, row in enumerate(drafted):
        n = 0
        law = p_all[b][k]
        for j, token in enumerate(row):
            p, q = p_all[b][j], q_all[b][j]
            if max(q) > PEAKED:
                taken = u_all[b][j] < p[token]
                rest = [0.0 if v == token else p[v] for v in range(len(p))]
            else:
                taken = u_all[b][j] * q[token] < p[token]
                rest = [max(p[v] - q[v], 0.0) for v in range(len(p))]
            if not taken:
                law = rest
                break
            tokens[b, j] = token
            n += 1
        tokens[b, n] = _walk(law, u_all[b][k])
        counts[b] = n + 1
    return torch.from_numpy(tokens), torch.from_numpy(counts)


# ------------------------------------------------------------------------------------------------- seeded streams


def _stream(seed: int, position: int) -> torch.Generator:
    """The random stream of a position of a request."""
    return torch.Generator().manual_seed((seed + 0x9E3779B1 * position) % 2**32)


def _draw(weights: Tensor, stream: torch.Generator) -> int:
    """One draw from a vector of weights, by the stream's next uniform."""
    edges = weights.cumsum(0)
    level = torch.rand(1, generator=stream, dtype=torch.float64) * edges[-1]
    return min(int(torch.searchsorted(edges.double(), level, right=True)), len(weights) - 1)


def style_reseed(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """A seed for every row, a stream for every position; returns ids (B, K + 1) padded with -1."""
    batch, k = draft_tokens.shape
    seeds = torch.randint(2**32, (batch,)).tolist()
    out = torch.full((batch, k + 1), -1, dtype=torch.int64)
    for b, seed in enumerate(seeds):
        position, emitted = 0, []
        for position, token in enumerate(draft_tokens[b].tolist()):
            stream = _stream(seed, position)
            p, q = target_probs[b, position], draft_probs[b, position]
            coin = torch.rand((), generator=stream, dtype=torch.float64)
            if bool(coin * q[token] >= p[token]):
                emitted.append(_draw((p - q).clamp(min=0), stream))
                break
            emitted.append(token)
        else:
            emitted.append(_draw(target_probs[b, k], _stream(seed, position)))
        out[b, : len(emitted)] = torch.tensor(emitted)
    return out


# ------------------------------------------------------------------------------------------------- in-place noise


def style_inplace(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """In float32 with as few buffers as it takes, a generator for every request; returns ids padded with -1."""
    batch, k = draft_tokens.shape
    rows = torch.arange(batch)
    p = target_probs.to(torch.float32, copy=True)
    q = draft_probs.to(torch.float32, copy=True)
    generators = {b: torch.Generator().manual_seed(s) for b, s in enumerate(torch.randint(2**32, (batch,)).tolist())}

    # One row of noise a request is enough: whatever comes last is drawn once.
    noise = torch.empty_like(p[:, 0])
    coins = torch.empty_like(q[..., 0])
    for b, generator in generators.items():
        coins[b].uniform_(generator=generator)
        noise[b].exponential_(generator=generator)

    index = draft_tokens.unsqueeze(-1)
    coins.mul_(q.gather(-1, index).squeeze(-1))
    count = coins.lt(p[:, :k].gather(-1, index).squeeze(-1)).long().cumprod(1).sum(1)

    stop = count.clamp(max=k - 1)
    race = p[rows, count]
    race.sub_(q[rows, stop].mul_(count.lt(k).unsqueeze(-1))).clamp_(min=0)
    race[rows, draft_tokens[rows, stop]] = 0  # rounding must not bring the refused token back
    last = race.div_(noise).argmax(-1)

    out = torch.cat([draft_tokens, last.unsqueeze(1)], 1)
    out[rows, count] = last
    return out.masked_fill_(torch.arange(k + 1) > count.unsqueeze(1), -1)


# ------------------------------------------------------------------------------------------------- log space


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x <= 0."""
    return torch.where(x > -0.6931471805599453, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def _log_excess(a: Tensor, b: Tensor) -> Tensor:
    """Log (exp(a) - exp(b))+ element by element."""
    above = a > b
    gap = torch.where(above, b - a, torch.full_like(a, -1.0))
    return torch.where(above, a + _log1mexp(gap), torch.full_like(a, -torch.inf))


def style_logspace(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Judges the draft as one block, in log space throughout; returns ids padded with -1."""
    batch, k = draft_tokens.shape
    rows = torch.arange(batch)
    log_p, log_q = target_probs.log(), draft_probs.log()
    index = draft_tokens.unsqueeze(-1)
    log_ratio = (log_p[:, :k].gather(-1, index) - log_q.gather(-1, index)).squeeze(-1)

    walk = log_ratio.cumsum(1)
    kept = walk - walk.cummax(1).values.clamp(min=0)
    budget = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)

    excess = _log_excess(budget[:, :k, None] + log_p[:, :k], log_q)
    mass = excess.logsumexp(-1)
    total = torch.logaddexp(mass, _log1mexp(budget[:, :k]))
    inner = torch.where(total == -torch.inf, torch.zeros_like(mass), mass - total)
    chance = torch.cat([inner[:, 1:], budget[:, k:]], 1)

    log_u = torch.log1p(-torch.rand_like(chance))
    reached = (log_u <= chance).long() * torch.arange(1, k + 1)
    count = reached.amax(1)

    laws = torch.cat([excess, log_p[:, k:]], 1)[rows, count]
    norm = laws.logsumexp(-1, keepdim=True)
    laws = torch.where(norm == -torch.inf, log_p[rows, count], laws - norm)
    last = torch.multinomial(laws.exp(), 1)

    tokens = torch.cat([draft_tokens, last], 1).scatter(1, count.unsqueeze(1), last)
    return tokens.masked_fill(torch.arange(k + 1) > count.unsqueeze(1), -1)


# ------------------------------------------------------------------------------------------------- mixed precision


def style_mixed(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> list[list[int]]:
    """Laws in float32, sums in double, noise as narrow as the activations; returns ragged rows."""
    batch, k = draft_tokens.shape
    noise = torch.empty(batch, k + 1, dtype=torch.bfloat16).uniform_().tolist()
    p_all = target_probs.float().tolist()
    q_all = draft_probs.float().tolist()
    out: list[list[int]] = []
    for b, row in enumerate(draft_tokens.tolist()):
        emitted: list[int] = []
        law = p_all[b][k]
        for j, token in enumerate(row):
            p, q = p_all[b][j], q_all[b][j]
            if noise[b][j] * q[token] < p[token]:
                emitted.append(token)
            else:
                law = [max(x - y, 0.0) for x, y in zip(p, q, strict=True)]
                break
        emitted.append(_walk(law, noise[b][k]))
        out.append(emitted)
    return out
