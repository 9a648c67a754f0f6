"""Small subjects of every kind of behaviour, good and bad, used by the tests of certify and of the plugin."""

import time

import numpy as np
import torch
from torch import Tensor

import specverify
from specverify.subjects import Emitted


def token_rejection(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """The textbook rule, vectorised over rows."""
    rows, k = draft_tokens.shape
    index = draft_tokens[..., None]
    p, q = target_probs[:, :k].gather(2, index)[..., 0], draft_probs.gather(2, index)[..., 0]
    kept = (torch.rand(rows, k, dtype=p.dtype) * q < p).long().cumprod(1).sum(1)
    residual = torch.cat([(target_probs[:, :k] - draft_probs).clamp(min=0), target_probs[:, k:]], 1)
    row = residual[torch.arange(rows), kept]
    row = torch.where(row.sum(1, keepdim=True) > 0, row, target_probs[torch.arange(rows), kept])
    last = torch.multinomial(row, 1)
    out = torch.where(torch.arange(k + 1) < kept[:, None], torch.nn.functional.pad(draft_tokens, (0, 1)), -1)
    return out.scatter(1, kept[:, None], last)


good = specverify.Verifier("good", token_rejection)
one_row = specverify.Verifier("one_row", token_rejection, specverify.Facts(max_batch=1))


@specverify.verifier
def from_target_after_rejection(draft_tokens, draft_probs, target_probs):
    """Draws the recovered token from p: wrong."""
    return token_rejection(draft_tokens, draft_probs * 0, target_probs)


@specverify.verifier
def never_accepts(draft_tokens, draft_probs, target_probs):
    """Always one token of p: exact, but its acceptance branch is never used."""
    return torch.multinomial(target_probs[:, 0], 1)


@specverify.verifier
def outside(draft_tokens, draft_probs, target_probs):
    """Returns an id outside the vocabulary."""
    return torch.full((draft_tokens.shape[0], 1), target_probs.shape[-1])


@specverify.verifier
def wrong_shape(draft_tokens, draft_probs, target_probs):
    """Returns a tensor of three dimensions."""
    return torch.zeros(2, 2, 2)


@specverify.verifier
def too_many(draft_tokens, draft_probs, target_probs):
    """Returns more than K + 1 tokens."""
    return torch.zeros(draft_tokens.shape[0], draft_tokens.shape[1] + 4, dtype=torch.int64)


@specverify.verifier
def not_a_number(draft_tokens, draft_probs, target_probs):
    """Draws from NaN."""
    return torch.multinomial(target_probs[:, 0] / torch.zeros(()) * 0, 1)


@specverify.verifier
def raises(draft_tokens, draft_probs, target_probs):
    """Raises with a message of two lines."""
    raise ValueError("first line\nsecond line")


@specverify.verifier(max_batch=1)
def slow(draft_tokens, draft_probs, target_probs):
    """Right, and takes its time over every row."""
    time.sleep(0.02)
    return token_rejection(draft_tokens, draft_probs, target_probs)


@specverify.verifier
def hangs(draft_tokens, draft_probs, target_probs):
    """Never comes back, and catches what it can."""
    while True:
        try:
            while True:
                time.sleep(0.01)
        except Exception:
            pass


kept = [np.random.default_rng(7)]


@specverify.verifier(max_batch=1)
def with_numpy(draft_tokens, draft_probs, target_probs):
    """Right, but with a numpy generator that is kept in a list: cannot be followed exactly."""
    out = []
    for j, token in enumerate(draft_tokens[0].tolist()):
        p, q = target_probs[0, j].numpy(), draft_probs[0, j].numpy()
        if kept[0].random() * q[token] < p[token]:
            out.append(token)
        else:
            residual = np.clip(p - q, 0, None)
            return [[*out, int(kept[0].choice(len(p), p=residual / residual.sum()))]]
    p = target_probs[0, -1].numpy()
    return [[*out, int(kept[0].choice(len(p), p=p / p.sum()))]]


@specverify.verifier
def says_too_much(draft_tokens, draft_probs, target_probs):
    """Right tokens, wrong report."""
    tokens = token_rejection(draft_tokens, draft_probs, target_probs)
    counts = (tokens >= 0).sum(1)
    return Emitted(tokens, counts, counts)


def wrong_when(condition, name, **facts):
    """A loop over rows that accepts every draft where ``condition(rows, k, vocab_size)`` holds, and is right elsewhere."""

    def verify(draft_tokens, draft_probs, target_probs):
        rows, k = draft_tokens.shape
        out = []
        for b in range(rows):
            row = []
            for j, x in enumerate(draft_tokens[b].tolist()):
                u = torch.rand((), dtype=torch.float64)
                if condition(rows, k, target_probs.shape[2]) or u * draft_probs[b, j, x] < target_probs[b, j, x]:
                    row.append(x)
                else:
                    residual = (target_probs[b, j] - draft_probs[b, j]).clamp(min=0)
                    row.append(int(torch.multinomial(residual if residual.sum() > 0 else target_probs[b, j], 1)))
                    break
            else:
                row.append(int(torch.multinomial(target_probs[b, k], 1)))
            out.append(row)
        return out

    return specverify.Verifier(name, verify, specverify.Facts(**facts))


wrong_in_small_batches = wrong_when(lambda rows, k, v: 2 <= rows <= 64, "wrong_in_small_batches")
wrong_in_bfloat16 = wrong_when(lambda rows, k, v: k == 1, "wrong_in_bfloat16", dtype="bfloat16")
wrong_on_one_size = wrong_when(lambda rows, k, v: (k, v) == (3, 2), "wrong_on_one_size")
right_loop = wrong_when(lambda rows, k, v: False, "right_loop")


@specverify.verifier
def leaves(draft_tokens, draft_probs, target_probs):
    """Ends the interpreter, as far as it can."""
    raise SystemExit(0)


class TinyDecoder:
    """Samples from a fixed Markov law without any speculation: the simplest decoder that is exact."""

    vocab_size = 4
    eos_id = 3
    table = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1], [0.25, 0.25, 0.4, 0.1], [0.0, 0.0, 0.0, 1.0]])

    def __init__(self, mode: str = "right") -> None:
        self.mode = mode

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Laws of the next token."""
        if self.mode == "nan":
            return self.table.log()[ids] * float("nan")
        return self.table.log()[ids]

    def generate(self, prompts: Tensor, max_new_tokens: int, seed: int) -> Tensor:
        """One token after the other."""
        if self.mode == "short":
            max_new_tokens -= 1
        if self.mode == "long":
            max_new_tokens += 1
        generator = torch.Generator().manual_seed(0 if self.mode == "one seed" else seed)
        ids = prompts
        for _ in range(max_new_tokens):
            laws = self.table[ids[:, -1]]
            if self.mode == "wrong":
                laws = laws.sqrt() / laws.sqrt().sum(1, keepdim=True)
            if self.mode == "coarse":  # every logit is off by 0.2, one way or the other
                laws = laws * torch.tensor([0.2, -0.2, 0.2, -0.2]).exp()
                laws = laws / laws.sum(1, keepdim=True)
            if self.mode == "same rows":
                nxt = torch.multinomial(laws[:1], 1, generator=generator).expand(len(ids), 1)
            elif self.mode == "next row":
                nxt = torch.multinomial(laws.roll(1, 0), 1, generator=generator)
            else:
                nxt = torch.multinomial(laws, 1, generator=generator)
            ids = torch.cat([ids, nxt], 1)
        return ids[:, prompts.shape[1] :]


def tiny(mode: str = "right", **facts):
    """A decoder subject in one of its modes."""
    decoder = TinyDecoder(mode)
    if mode != "one prompt":
        decoder.prompts = torch.tensor([[0], [1], [2]])
    return specverify.decoder(decoder, name=f"tiny {mode}".strip(), **facts)


decoder_right = tiny()
decoder_wrong = tiny("wrong")
