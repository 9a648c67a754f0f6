"""How many pairs does speculation on against off need? Wrong decoders over table models, until the bets refute each.

    python benchmarks/on_off.py --runs 3

Every row is a fault, every column a pair of table models; a cell holds the pairs of sequences until refutation, the median of
the runs, and how many runs stayed without one. Pairs are made as the check makes them. Needs no subject.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.checks.on_off import LENGTH, ROWS, Asked, prompt_groups
from specverify.evidence.ledger import DEFAULT_ALPHA
from specverify.evidence.on_off import REPLACED, replaced
from specverify.evidence.two_sample import PairedBets
from specverify.faults.decoders import Loop, at_prompt_end
from specverify.faults.rounds import assemble, at, draw
from specverify.laws import Pair
from specverify.pairs import named_pair, random_model
from specverify.randomness import derive, stream
from specverify.tables import torch_models
from specverify.unknown_law import OnOff

PAIRS = {
    "V3-K2": named_pair(3, 2),
    "V5-K2": named_pair(5, 2),
    "V4-K3": named_pair(4, 3),
    "V100-K3": Pair(random_model(stream(1, "target"), 100), random_model(stream(1, "draft"), 100), 3),
}


@dataclass(eq=False)
class FromTarget(Loop):
    """Token rejection that accepts everything, or rejects rightly, and draws the last token from p in either case."""

    everything: bool = False

    def _round(self, ids: Tensor, lengths: Tensor, start: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        del start  # only a wrong position would look at it
        drafted, rows, laws = ids.clone(), torch.arange(len(ids)), []
        for j in range(self.k):
            laws.append(self.draft(drafted)[rows, lengths + j - 1].softmax(-1))
            drafted[rows, lengths + j] = draw(laws[-1], generator)
        tokens = drafted[rows[:, None], lengths[:, None] + torch.arange(self.k)]
        q = torch.stack(laws, dim=1)
        p = self.target(drafted)[rows[:, None], lengths[:, None] - 1 + torch.arange(self.k + 1)].softmax(-1)
        u = torch.rand(tokens.shape, generator=generator, dtype=p.dtype)
        accept = (u * at(q, tokens) < at(p, tokens)) | self.everything
        accepted = accept.long().cumprod(1).sum(1)
        return *assemble(tokens, accepted, draw(p[rows, accepted], generator)), accepted


class Modes:
    """A loop with speculation, and the target alone, which is the loop with the target as its own draft."""

    def __init__(self, loop: Loop) -> None:
        self.vocab_size, self.generate = loop.vocab_size, loop.generate
        self.baseline = Loop(loop.target, loop.target, 1).generate


def needed(pair: Pair, fault: str, seed: int, most: int) -> int | None:
    """Pairs until refutation, or None within ``most``."""
    target, draft = torch_models(pair)
    loops = {
        "every draft accepted": FromTarget(target, draft, pair.k, everything=True),
        "recovered from p": FromTarget(target, draft, pair.k),
        "verified at the prompt's end": Loop(target, draft, pair.k, read_at=at_prompt_end),
    }
    modes = Modes(loops.get(fault) or Loop(target, draft, pair.k))
    asked = Asked(OnOff(fault, lambda: modes), modes, LENGTH, seed)
    bets, groups = PairedBets(pair.vocab_size), prompt_groups(modes, fault, seed, ROWS)
    for number in range(most // ROWS):
        prompts, which = groups[number % len(groups)]
        on = asked.ask("generate", prompts, asked.fresh("on", number))
        if fault.endswith("replaced"):
            on = replaced(on, float(fault.split("%", maxsplit=1)[0]) / 100, pair.vocab_size, derive(seed, "replaced"), number)
        bets.add(on, asked.ask("baseline", prompts, asked.fresh("off", number)), which)
        if bets.refutes(DEFAULT_ALPHA):
            return bets.pairs
    return None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--most", type=int, default=10_000, help="pairs after which a run ends")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faults = ["every draft accepted", "recovered from p", "verified at the prompt's end"]
    faults += [f"{share:.0%} replaced" for share in REPLACED]
    print(f"| pairs until refuted at {DEFAULT_ALPHA:g} | {' | '.join(PAIRS)} |\n|{'---|' * (len(PAIRS) + 1)}", flush=True)
    started = time.perf_counter()
    for fault in [*faults, "none"]:
        cells = []
        for pair in PAIRS.values():
            found = [needed(pair, fault, seed, options.most) for seed in range(options.runs)]
            hits = [n for n in found if n is not None]
            cells.append(f"{statistics.median(hits):.0f}" if hits else "-")
            if 0 < len(hits) < len(found):
                cells[-1] += f" ({len(found) - len(hits)} of {len(found)} not)"
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
