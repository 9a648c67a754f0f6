"""A decode loop over models handed in. Certify it with ``specverify certify THIS_FILE``, then put in your own loop."""

import torch
from torch import Tensor

import specverify
from specverify.subjects import Model


class MyLoop:
    """The decode loop, over any two models that take ids (B, T) and return logits (B, T, V).

    The models keep no state. A loop with a cache wraps them: its cache is the ids read so far, and extending it by n ids is
    ``model(all_ids)[:, -n:]``. Every outcome of the loop's randomness is walked, so a stale entry or a wrong position shows.
    """

    # --- yours from here
    def __init__(self, target: Model, draft: Model, k: int, eos_id: int | None = None) -> None:
        self.target, self.draft, self.k = target, draft, k
        self.vocab_size, self.eos_id = target.vocab_size, -1 if eos_id is None else eos_id

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) of the main model: row t is the law of the token after ids[:, : t + 1]."""
        return self.target(ids).log_softmax(-1)

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """New tokens (B, max_new_tokens) for prompts (B, T), -1 behind a row's end.

        Return specverify.Generated(tokens, accepted), with the accepted counts (B, rounds), and those are judged too.
        """
        rows = []
        for prompt in prompts:
            ids, end = prompt[None], len(prompt) + max_new_tokens
            while ids.shape[1] < end and not bool((ids[0, len(prompt) :] == self.eos_id).any()):
                ids = torch.cat([ids, self._round(ids)], 1)
            new = ids[0, len(prompt) : end].tolist()
            if self.eos_id in new:
                new = new[: new.index(self.eos_id) + 1]
            rows.append(new + [-1] * (max_new_tokens - len(new)))
        return torch.tensor(rows)

    def _round(self, prefix: Tensor) -> Tensor:
        """Tokens (1, n) that one round emits after the prefix (1, T)."""
        ids, place = prefix, prefix.shape[1] - 1
        for _ in range(self.k):
            ids = torch.cat([ids, torch.multinomial(self.draft(ids)[:, -1].softmax(-1), 1)], 1)
        p, q = self.target(ids)[0, place:].softmax(-1), self.draft(ids)[0, place:-1].softmax(-1)
        law, kept = p[self.k], self.k
        for j, x in enumerate(ids[0, place + 1 :].tolist()):
            if torch.rand((), dtype=p.dtype) * q[j, x] >= p[j, x]:
                residual = (p[j] - q[j]).clamp(min=0)
                law, kept = (residual if residual.sum() > 0 else p[j]), j  # p = q up to rounding leaves nothing
                break
        return torch.cat([ids[:, place + 1 : place + 1 + kept], torch.multinomial(law, 1)[None]], 1)

    # --- to here


# open=MyEngine adds the decoder with its own models (specverify init decoder); parts=(a verifier, a step) are judged apart.
subject = specverify.Decoder("my loop", build=MyLoop)
