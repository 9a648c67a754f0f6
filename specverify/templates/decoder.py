"""A decoder with models of its own. Certify it with ``specverify certify THIS_FILE``, then put your own code in its methods."""

import torch
from torch import Tensor

import specverify


class MyDecoder:
    """Two toy models whose next token depends on the last one, and speculation with K drafts a round."""

    # --- yours from here
    vocab_size = 4
    # eos_id = 3  # if a row ends early: behind it only eos_id or -1 may stand
    # prompts = torch.tensor([[0, 1], [2, 3]])  # (N, T) ids that suit your models; three random rows otherwise
    K = 3

    def __init__(self) -> None:
        self.target = torch.tensor([[4, 3, 2, 1], [1, 6, 1, 2], [2, 2, 5, 1], [3, 1, 3, 3]]).double() / 10
        self.draft = torch.tensor([[3, 3, 3, 1], [2, 5, 1, 2], [1, 3, 5, 1], [2, 2, 3, 3]]).double() / 10

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Log-laws (B, T, V) of the main model, after temperature and filters: row t is the law after ids[:, : t + 1]."""
        return self.target[ids].log()

    def draft_log_probs(self, ids: Tensor) -> Tensor:
        """The same of the draft. Leave it out where it is not known: fewer known faults are then looked for."""
        return self.draft[ids].log()

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> specverify.Generated:
        """New tokens (B, max_new_tokens) for prompts (B, T), and how many drafts every round accepted.

        The tokens alone may be returned as well; nothing is then known of acceptances and rejections.
        """
        generator = torch.Generator().manual_seed(seed)
        made = [self._row(prompt, max_new_tokens, generator) for prompt in prompts.tolist()]
        rounds = max(len(accepted) for _, accepted in made)
        counts = [accepted + [-1] * (rounds - len(accepted)) for _, accepted in made]  # (B, rounds), -1 behind a row's end
        return specverify.Generated(torch.tensor([tokens for tokens, _ in made]), torch.tensor(counts))

    def _row(self, prompt: list[int], wanted: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        ids, accepted = list(prompt), []
        while len(ids) < len(prompt) + wanted:
            path = ids[-1:]
            for _ in range(min(self.K, len(prompt) + wanted - len(ids) - 1)):
                path.append(int(torch.multinomial(self.draft[path[-1]], 1, generator=generator)))
            kept, law = len(path) - 1, self.target[path[-1]]
            coins = torch.rand(len(path), generator=generator, dtype=torch.float64)
            for j, x in enumerate(path[1:]):
                p, q = self.target[path[j]], self.draft[path[j]]
                if coins[j] * q[x] >= p[x]:
                    kept, law = j, (p - q).clamp(min=0)
                    break
            ids += [*path[1 : kept + 1], int(torch.multinomial(law, 1, generator=generator))]
            accepted.append(kept)
        return ids[len(prompt) :], accepted

    # --- to here


# Facts that you may declare: batch_invariant=False where a request's tokens may change with its batch by rounding,
# seeded=False where one seed does not replay, logit_tolerance=1e-3 where the engine rounds otherwise than target_log_probs,
# dtype="bfloat16", rule="greedy" for temperature 0. A large model is better opened only when a test asks for it:
#     subject = specverify.Decoder("my decoder", open=MyDecoder)
subject = specverify.decoder(MyDecoder(), name="my decoder")
