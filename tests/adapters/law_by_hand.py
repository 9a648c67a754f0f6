"""Is the law of assisted generation the target's law? A G-test against every sequence, run by hand.

    python tests/adapters/law_by_hand.py [sequences] [configuration ...]

One prompt, new seeds every time. The first one, two and three tokens are compared with their exact joint law (cells
with an expected count below 5 are pooled), later tokens through their randomised probability integral transforms.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from scipy.stats import chi2

from specverify.adapters import transformers as adapter
from specverify.laws import all_sequences

LENGTH = 6
NAMES = ("assisted_generation", *(f"assisted_generation_{n}" for n in ("warped", "stopping", "confidence")))


def say(text: str) -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def g_test(counts: np.ndarray, expected: np.ndarray) -> str:
    """G statistic of counts against expected counts, the cells expected below 5 pooled into one."""
    if counts[expected == 0].any():
        return f"REFUTED: {int(counts[expected == 0].sum())} outcomes of probability 0"
    rare = expected < 5
    n = np.append(counts[~rare], counts[rare].sum())
    e = np.append(expected[~rare], expected[rare].sum())
    n, e = n[e > 0], e[e > 0]
    used = n > 0
    statistic = 2 * float(np.sum(n[used] * np.log(n[used] / e[used])))
    return f"G = {statistic:.1f}, df = {len(e) - 1}, p = {chi2.sf(statistic, len(e) - 1):.3f}"


def joint_law(decoder: adapter.AssistedDecoder, prompt: torch.Tensor, length: int) -> np.ndarray:
    """Exact law (V**length,) of the first tokens; a row that has met its eos goes on with eos."""
    V, eos = decoder.vocab_size, decoder.eos_id
    new = torch.from_numpy(all_sequences(V, length))
    ids = torch.cat([prompt.repeat(len(new), 1), new], 1)
    laws = decoder.target_log_probs(ids)[:, prompt.shape[1] - 1 : -1].exp()
    each = laws.gather(2, new[..., None])[..., 0]
    if eos is not None:
        ended = ((new == eos).cumsum(1) - (new == eos).long()) > 0
        each = torch.where(ended, (new == eos).double(), each)
    return each.prod(1).numpy()


def main(sequences: int, names: list[str]) -> None:
    """Sample every configuration and print what came out."""
    torch.set_num_threads(1)
    for name in names:
        decoder = getattr(adapter, name).open()
        prompt, V, eos = decoder.prompts[:1], decoder.vocab_size, decoder.eos_id
        start, cpu = time.perf_counter(), time.process_time()
        drawn = [decoder.generate(prompt.repeat(250, 1), LENGTH, seed) for seed in range(sequences // 250)]
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        tokens = torch.cat([g.tokens for g in drawn])
        full = torch.cat([g.accepted[:, 0] for g in drawn])
        rounds = sum(int((g.accepted >= 0).sum()) for g in drawn)
        number = len(tokens)
        say(f"{name}: {number} sequences of {LENGTH}, {number / wall:.0f}/s ({number / cpu:.0f}/s of CPU time)")
        say(
            f"  first round: {full.double().mean():.3f} of {decoder.request.k} accepted, first draft token accepted "
            f"{(full > 0).double().mean():.3f}; rounds per sequence {rounds / number:.2f}; "
            f"first round by accepted count {torch.bincount(full, minlength=4).tolist()}"
        )
        overlap = torch.minimum(*(f(prompt)[0, -1].exp() for f in (decoder.target_log_probs, decoder.draft_log_probs)))
        say(f"  exact acceptance of the first draft token {float(overlap.sum()):.4f}")
        filled = tokens if eos is None else torch.where(tokens < 0, eos, tokens)
        for length in (1, 2, 3):
            index = (filled[:, :length] * V ** torch.arange(length - 1, -1, -1)).sum(1).numpy()
            law = joint_law(decoder, prompt, length)
            say(f"  first {length}: {g_test(np.bincount(index, minlength=len(law)), law * len(tokens))}")
        ids = torch.cat([prompt.repeat(len(tokens), 1), filled], 1)
        laws = decoder.target_log_probs(ids)[:, prompt.shape[1] - 1 : -1].exp()
        below = laws.cumsum(2).gather(2, filled[..., None])[..., 0]
        own = laws.gather(2, filled[..., None])[..., 0]
        within = torch.rand(own.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        transform = (below - within * own).numpy()
        for position in range(3, LENGTH):
            live = (tokens[:, position] >= 0).numpy()
            bins = np.bincount((transform[live, position] * 20).astype(int).clip(0, 19), minlength=20)
            say(f"  token {position + 1}: {g_test(bins, np.full(20, live.sum() / 20))} over {live.sum()} tokens")


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["6000"])[0]), sys.argv[2:] or list(NAMES))
