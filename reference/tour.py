"""What the guided tour is made of: models to walk with, and rounds that are counted and timed.

Read ``docs/tour.md``; ``python -m reference.build`` and ``python -m reference.break_it`` walk the same way. Nothing here is
needed to decode.

Names of shapes: B rows, T tokens of a prompt, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from reference import weights
from reference.adaptive import AdaptiveK, RoundCosts
from reference.broken_drafts import Negated
from reference.decoder import Pace, acceptance_per_tested_token, autoregressive, generate
from reference.drafting import Drafter, Model
from reference.heads import MedusaHeads
from reference.minimising import Recipe
from reference.model import Shape, Transformer
from reference.noise import BatchNoise
from reference.processors import Process, Processors
from reference.rules import rule_named
from reference.rules.typical_acceptance import typical
from reference.step import speculative_step, start
from reference.text import VOCAB_SIZE, as_stream, codec_source, documentation
from reference.train import distillation_loss, fit, laws_along, next_token_loss
from reference.train_heads import fit_medusa, read_along
from specverify.subjects import Emitted
from specverify.trees import TreeShape

PLAIN = Processors()
TOKEN_REJECTION = rule_named("token_rejection")
EARLY = 1
"""After how many layers the early states are kept when a model is read along a text; the tour does not look at them."""


@dataclass(frozen=True)
class Models:
    """Who takes part: the main model, a draft that learned from it, one that read other texts, and Medusa heads on main."""

    main: Transformer
    aligned: Transformer
    mismatched: Transformer
    heads: MedusaHeads

    @property
    def drafts(self) -> dict[str, Model]:
        """The separate drafts by name, from good to hostile."""
        return {"aligned": self.aligned, "mismatched": self.mismatched, "adversarial": Negated(self.aligned)}


def committed() -> Models:
    """Return the models whose weights come with the package. Errors: WeightsError when there are none."""
    main, aligned, mismatched = map(weights.trained, ("main", "aligned", "mismatched"))
    return Models(main, aligned, mismatched, weights.trained_heads())


TINY_MAIN = Shape(VOCAB_SIZE, layers=12, width=32, heads=4, reach=32)
TINY_DRAFT = Shape(VOCAB_SIZE, layers=1, width=32, heads=4, reach=32)
TINY_HEADS = 8


def short(steps: int, learning_rate: float) -> Recipe:
    """Return a training of seconds: ``steps`` batches of 8 windows of 64 characters."""
    return Recipe(steps, learning_rate, rows=8, length=64, warm_up=8)


@cache
def trained_tiny(seed: int = 0) -> Models:
    """Train tiny models from scratch, in some 15 seconds on one core: they know letters and a few words, no more."""
    docs, codecs = (as_stream(of()[0])[:8000] for of in (documentation, codec_source))
    main = fit(TINY_MAIN, docs, short(80, 6e-3), seed, next_token_loss, "main")
    aligned = fit(TINY_DRAFT, docs, short(150, 1e-2), seed + 1, distillation_loss(laws_along(main, docs)), "aligned")
    mismatched = fit(TINY_DRAFT, codecs, short(100, 1e-2), seed + 2, next_token_loss, "mismatched")
    torch.manual_seed(seed + 3)
    heads = MedusaHeads(TINY_MAIN.width, VOCAB_SIZE, TINY_HEADS)
    along, recipe = read_along(main, docs, EARLY), Recipe(150, 1e-2, rows=256, length=1, warm_up=8)
    return Models(main, aligned, mismatched, fit_medusa(heads, along, recipe, seed + 3))


@dataclass(frozen=True)
class Counted:
    """A run of rounds: the tokens (B, N), and E, tokens emitted per round. acceptance per tested token; nan unless K is a
    number and a chain was drafted.
    """

    tokens: Tensor
    emitted: float
    acceptance: float


def count(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    tokens: int,
    k: int | Pace,
    *,
    rule: Any = TOKEN_REJECTION,
    process: Process = PLAIN,
    seed: int = 0,
) -> Counted:
    """Decode ``tokens`` tokens after prompts (B, T) and count what rounds did. Every round drafts in full, also where the
    text ends in it, so that all of them count alike.
    """
    noise = BatchNoise(torch.Generator().manual_seed(seed))
    found = generate(main, draft, prompts, tokens, k=k, process=process, rule=rule, noise=noise)
    assert found.accepted is not None
    rounds = found.accepted[found.accepted >= 0]
    tree = isinstance(getattr(draft, "shape", None), TreeShape)
    acceptance = acceptance_per_tested_token(found.accepted, k) if isinstance(k, int) and not tree else float("nan")
    return Counted(found.tokens, 1 + float(rounds.double().mean()), acceptance)


@dataclass(frozen=True)
class Way:
    """A way to decode: who drafts, how many tokens (a number, or what makes a new pace), and which rule judges."""

    draft: Drafter | Model
    k: int | Callable[[], Pace]
    rule: Any = TOKEN_REJECTION


def speed_ratios(main: Model, ways: Mapping[str, Way], prompts: Tensor, tokens: int, repeats: int = 3) -> dict[str, float]:
    """Measure tokens per second over those of main alone with its cache: the median over repetitions, in each of which all
    take turns. The clock is the processor time of this process, which other work on the machine disturbs less.
    """

    def alone(seed: int) -> object:
        noise = BatchNoise(torch.Generator().manual_seed(seed))
        return autoregressive(main, prompts, tokens, process=PLAIN, noise=noise)

    def run_of(way: Way) -> Callable[[int], object]:
        def run(seed: int) -> object:
            k = way.k if isinstance(way.k, int) else way.k()
            return count(main, way.draft, prompts, tokens, k, rule=way.rule, seed=seed)

        return run

    runs = [alone, *map(run_of, ways.values())]
    seconds = [[processor_seconds(partial(run, repetition)) for run in runs] for repetition in range(1 + repeats)]
    ratios = ([own[0] / s for s in own[1:]] for own in seconds[1:])  # the first one warms up
    return dict(zip(ways, map(statistics.median, zip(*ratios, strict=True)), strict=True))


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    began = time.process_time()
    call()
    return time.process_time() - began


@dataclass(frozen=True)
class Swept:
    """What K drafts per round came to. cost: of a round, in steps of main. predicted: E / cost. measured: the ratio of
    speeds. Speculation loses where emitted < cost.
    """

    k: int
    acceptance: float
    emitted: float
    cost: float
    measured: float

    @property
    def predicted(self) -> float:
        """Tokens per second over those of main alone, as E and the cost of a round foretell."""
        return self.emitted / self.cost


def sweep(
    main: Model,
    draft: Drafter | Model,
    prompts: Tensor,
    ks: Iterable[int],
    costs: RoundCosts,
    *,
    count_on: Tensor,
    tokens: int = 48,
    repeats: int = 3,
) -> list[Swept]:
    """Time every K on prompts (B, T), ``tokens`` new ones per row, and count acceptances on ``count_on`` (B', T)."""
    chosen = list(ks)
    ratios = speed_ratios(main, {str(k): Way(draft, k) for k in chosen}, prompts, tokens, repeats)
    counted = {k: count(main, draft, count_on, tokens, k) for k in chosen}
    return [Swept(k, n.acceptance, n.emitted, costs.of_round(k), ratios[str(k)]) for k, n in counted.items()]


HEADING = "draft        K  accepted     E   cost  predicted  measured"


def lines_of(name: str, swept: Iterable[Swept]) -> list[str]:
    """Return a line per K to stand under HEADING."""
    return [
        f"{name:12}{s.k:2}  {s.acceptance:8.2f}  {s.emitted:.2f}   {s.cost:.2f}     x {s.predicted:.2f}    x {s.measured:.2f}"
        for s in swept
    ]


class RecordedK(AdaptiveK):
    """An adaptive K that remembers what it chose, ``chosen``, one number per round."""

    def __init__(self, costs: RoundCosts, largest: int) -> None:
        super().__init__(costs, largest)
        self.chosen: list[int] = []

    def choose(self) -> int:
        """Tokens to draft in the next round."""
        self.chosen.append(super().choose())
        return self.chosen[-1]


def one_round(main: Model, draft: Drafter | Model, prompts: Tensor, k: int, rule: Any = TOKEN_REJECTION) -> Emitted:
    """Run one round of K drafts after prompts (B, T), drawing from torch's global stream."""
    state = start(main, draft, prompts, torch.full((len(prompts),), prompts.shape[1]), k + 1)
    return speculative_step(main, state, k, PLAIN, rule, BatchNoise())


def typical_law(p: Tensor, q: Tensor) -> Tensor:
    """Return the law (..., V) of one place under typical acceptance: q on the tokens typical of p, and p for the rest."""
    kept = torch.where(typical(p), q, 0.0)
    return kept + (1 - kept.sum(-1, keepdim=True)) * p


def say(*lines: str) -> None:
    """Write lines to the terminal, at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def conclusion(facts: Iterable[tuple[str, bool]]) -> int:
    """Write down what was seen, and return the exit code: 0 when all of it was as it must be, otherwise 1."""
    seen = list(facts)
    say("", "Seen:", *(f"  {'yes' if holds else 'NO '}  {what}" for what, holds in seen))
    return 0 if all(holds for _, holds in seen) else 1
