"""How speculative decoding is broken: drafts that cost time, and a draft that costs the law. Steps 8 and 9 of ``docs/tour.md``.

``python -m reference.break_it`` compares an aligned, a mismatched and an adversarial draft by K, with what was predicted
beside what was measured; lets K adapt; and has a draft refuted that lies about its law. With ``--tiny`` the models are
trained from nothing first. Exit code 1 if anything that must hold did not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reference.adaptive import RoundCosts, measured_costs
from reference.broken_drafts import LyingDraft
from reference.build import Facts
from reference.decoder import autoregressive
from reference.drafting import Drafter, Model
from reference.noise import BatchNoise
from reference.tables import CachedTable
from reference.text import prompts
from reference.tour import (
    HEADING,
    PLAIN,
    Models,
    RecordedK,
    Way,
    committed,
    conclusion,
    count,
    lines_of,
    one_round,
    say,
    speed_ratios,
    sweep,
    trained_tiny,
)
from specverify.subjects import Emitted, Step
from specverify.subjects import Model as Table


@dataclass(frozen=True)
class Size:
    """How long it takes: rows and tokens decoded, K swept, times repeated."""

    rows: int
    tokens: int
    ks: tuple[int, ...]
    repeats: int


TINY = Size(rows=8, tokens=32, ks=(1, 3, 8), repeats=3)
WHOLE = Size(rows=16, tokens=96, ks=(1, 2, 4, 8), repeats=5)


def slow_down(models: Models, size: Size, costs: RoundCosts) -> Facts:
    """Sweep K for the three drafts: speculation loses where E < v(K) + K c + o."""
    say("", "8. Break the speed: a round emits E tokens and costs v(K) + K c + o steps of main", HEADING)
    several, facts = prompts(size.rows, 48), []
    for name, model in models.drafts.items():
        swept = sweep(
            models.main,
            model,
            several[:1],
            size.ks,
            costs,
            count_on=several,
            tokens=size.tokens,
            repeats=size.repeats,
        )
        say(*lines_of(name, swept))
        last = swept[-1]
        if name != "aligned":
            what = f"{name}, K = {last.k}: slower than main alone, x {last.measured:.2f} (predicted x {last.predicted:.2f})"
            facts.append((what, last.measured < 1))
    return facts


def adapt(models: Models, size: Size, costs: RoundCosts) -> Facts:
    """Let K follow what is accepted: hopeless drafts are no longer asked."""
    say("", "   Adaptive K: the same formula, with the acceptance seen so far; K of the first rounds")
    prompt, facts = prompts(1, 48), []
    for name, model in models.drafts.items():
        pace = RecordedK(costs, max(size.ks))
        count(models.main, model, prompt, 4 * size.tokens, pace)
        say(f"   {name:12} {' '.join(map(str, pace.chosen[:20]))} ..")
        if name == "adversarial":
            idle = sum(k == 0 for k in pace.chosen) / len(pace.chosen)
            facts.append((f"the adversarial draft is not asked in {idle:.0%} of the rounds", idle > 0.7))
    fixed, hostile = max(size.ks), models.drafts["adversarial"]
    ways = {"fixed": Way(hostile, fixed), "adaptive": Way(hostile, lambda: RecordedK(costs, fixed))}
    ratios = speed_ratios(models.main, ways, prompt, 4 * size.tokens, size.repeats)
    say(f"   adversarial: x {ratios['fixed']:.2f} with K = {fixed}, x {ratios['adaptive']:.2f} with an adaptive K")
    return [
        *facts,
        ("with the adversarial draft an adaptive K is faster than a fixed one", ratios["adaptive"] > ratios["fixed"]),
    ]


def text_stays(models: Models, several: Tensor) -> Facts:
    """Compare the greedy text of every draft with main's own."""
    greedy = replace(PLAIN, temperature=0.0)
    alone = autoregressive(models.main, several, 32, process=greedy, noise=BatchNoise())
    texts = {name: count(models.main, of, several, 32, 4, process=greedy).tokens for name, of in models.drafts.items()}
    return [(f"{name}: greedy text is main's own", torch.equal(text, alone)) for name, text in texts.items()]


def lie() -> Facts:
    """Let specverify judge a round of an honest draft, of a hostile one and of one that lies about its law."""
    # The command shows both sides, the decoder and what judges it; nothing else in reference knows of the engine.
    from reference.broken_drafts import Negated
    from specverify.certify import certify
    from specverify.checks.base import BUDGETS, Settings
    from specverify.exact import round_law
    from specverify.laws import complete, sequence_law
    from specverify.pairs import named_pair

    say("", "9. Break the law: the exact law of one round, V = 3, K = 2, against the target's joint law of 3 tokens")
    pair, off = named_pair(3, 2), {}
    right = sequence_law(pair.target, 3, pair.prompt)
    kinds = {"honest": lambda draft: draft, "adversarial": Negated, "lying": LyingDraft}
    for name, kind in kinds.items():
        emitted = round_law(Step(name, step_of(kind, 2), 2), pair)
        off[name] = float(abs(complete(emitted, pair.target, 3, pair.prompt) - right).sum()) / 2
        say(f"   {name:12} TV {off[name]:.2g}")
    smoke, liar = Settings(BUDGETS["smoke"]), Step("liar", step_of(LyingDraft, 1), 1)
    found = certify("liar", smoke, subject=liar, only="generated pairs").evidence[0].counterexample
    say("   smallest pair found for a draft that draws at temperature 1/2 and declares the law of temperature 1:")
    say(*("   " + line for line in (found or {}).get("lines", ["none"])))
    return [
        ("rounds of the honest draft are exact to 1e-12", off["honest"] < 1e-12),
        ("rounds of the adversarial draft are exact to 1e-12", off["adversarial"] < 1e-12),
        (f"the lying draft is refuted, TV {off['lying']:.2f}", off["lying"] > 0.001 and found is not None),
    ]


def step_of(kind: Callable[[Model], Drafter | Model], k: int) -> Callable[[Table, Table, Tensor], Emitted]:
    """Return one round of k drafts over table models as specverify runs it, by a draft of a kind made from the table."""

    def step(target: Table, draft: Table, prefix: Tensor) -> Emitted:
        main, own = (CachedTable(table, table.vocab_size) for table in (target, draft))
        return one_round(main, kind(own), prefix, k)

    return step


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reference.break_it", description="Break speculative decoding.")
    parser.add_argument("--tiny", action="store_true", help="train tiny models from nothing, and be done in under a minute")
    parser.add_argument("--seed", type=int, default=0, help="of the training with --tiny")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    say("The models: " + ("a main model, two drafts and heads, trained now" if options.tiny else "the committed weights"))
    models, size = (trained_tiny(options.seed), TINY) if options.tiny else (committed(), WHOLE)
    costs = measured_costs(models.main, models.aligned, prompts(1, 48), max(size.ks))
    facts = slow_down(models, size, costs) + adapt(models, size, costs) + text_stays(models, prompts(4, 48))
    return conclusion(facts + lie())


if __name__ == "__main__":
    sys.exit(main())
