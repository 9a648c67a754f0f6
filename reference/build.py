"""How speculative decoding is built, from training a draft to Medusa: the steps of ``docs/tour.md`` in one command.

``python -m reference.build --tiny`` trains tiny models from nothing and walks all steps with them, in under a minute on one
core; without ``--tiny`` the walk is longer and uses the committed weights. It ends with what was seen, and with exit code 1
if anything that must hold did not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reference.adaptive import measured_costs
from reference.decoder import autoregressive
from reference.drafting import Chain
from reference.drafting.medusa import MedusaDraft
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.rules.trees import tree_rule_named
from reference.step import draft_propose, main_verify, start
from reference.text import as_stream, decode, documentation, encode, prompts
from reference.tour import (
    EARLY,
    HEADING,
    PLAIN,
    TOKEN_REJECTION,
    Models,
    Way,
    committed,
    conclusion,
    count,
    lines_of,
    say,
    short,
    sweep,
    trained_tiny,
    typical_law,
)
from reference.train import distillation_loss, fit, laws_along
from reference.train_heads import mean_overlap, read_along, top1_of_heads
from specverify.trees import TreeShape

Facts = list[tuple[str, bool]]
"""What was seen, and whether it is as it must be."""


@dataclass(frozen=True)
class Size:
    """How long the walk is: characters and steps of the training shown, rows and tokens decoded, K swept, times repeated."""

    characters: int
    steps: int
    rows: int
    tokens: int
    ks: tuple[int, ...]
    repeats: int


TINY = Size(4000, 60, rows=8, tokens=32, ks=(1, 2, 4, 8), repeats=3)
WHOLE = Size(40_000, 600, rows=16, tokens=128, ks=(1, 2, 3, 4, 6, 8), repeats=5)


def train(models: Models, size: Size, seed: int) -> Facts:
    """Distil a draft of the shape of ``aligned`` from main, and compare its overlap with main before and after."""
    say("", "1. Train a draft: its law should lie under that of the main model")
    training, held_out = (as_stream(documents) for documents in documentation())
    known, unseen = training[: size.characters], held_out[None, :1000]
    loss, p = distillation_loss(laws_along(models.main, known)), PLAIN(models.main(unseen))
    recipes = {"untrained": short(1, 1e-6), f"{size.steps} steps": short(size.steps, 1e-2)}
    overlaps = {
        name: mean_overlap(fit(models.aligned.shape, known, recipe, seed, loss)(unseen), p) for name, recipe in recipes.items()
    }
    overlaps["aligned"] = mean_overlap(models.aligned(unseen), p)
    say(*(f"   {name:12} sum min(p, q) = {overlap:.2f} on unseen text" for name, overlap in overlaps.items()))
    before, after, _ = overlaps.values()
    return [(f"training raised the overlap from {before:.2f} to {after:.2f}", after > before)]


def one_round(models: Models, seed: int) -> Facts:
    """Propose and verify once, and show what the rule compared."""
    say("", "2. Propose 5 tokens, and 3. verify them in one pass")
    prompt, noise = encode('The "for" statement is used to')[None], BatchNoise(torch.Generator().manual_seed(seed))
    state = start(models.main, models.aligned, prompt, torch.tensor([prompt.shape[1]]), room=32)
    proposal = draft_propose(state, 5, PLAIN, noise)
    assert isinstance(proposal, Chain)
    p = PLAIN(models.main(torch.cat([prompt, proposal.tokens], 1)))[0, prompt.shape[1] - 1 :]
    for j, x in enumerate(proposal.tokens[0].tolist()):
        drafted, wanted = float(proposal.laws[0, j, x]), float(p[j, x])
        keep = min(1.0, wanted / drafted)
        say(f"   {_shown([x])}  q = {drafted:.2f}  p = {wanted:.2f}  keep with min(1, p/q) = {keep:.2f}")
    emitted = main_verify(models.main, state, proposal, PLAIN, TOKEN_REJECTION, noise)
    accepted, out = int(emitted.counts[0]) - 1, emitted.rows()[0]
    say(f"   accepted {accepted} of 5, emitted {_shown(out)}")
    kept = list(out[:accepted]) == proposal.tokens[0, :accepted].tolist() and len(out) == accepted + 1
    return [("a round emits the drafts it accepts and one token more", kept)]


def _shown(tokens: list[int] | tuple[int, ...]) -> str:
    return repr("".join(decode(torch.tensor([t])) or "<end>" for t in tokens))


def exact_laws() -> Facts:
    """Compare the exact law of the rule, and of naive acceptance, with p = (5, 3, 2)/10 for q = (2, 2, 6)/10."""
    # The command shows both sides, the decoder and what judges it; nothing else in reference knows of the engine.
    from reference.exposed import subject
    from specverify.exact import round_law
    from specverify.faults.catalogue import fault
    from specverify.laws import Pair, TableModel, as_fractions, complete, total_variation
    from specverify.subjects import Verifier

    say("", "4. The rule: min(p, q) + (1 - sum min(p, q)) (p - q)+ / TV = p. Its exact law for p = (5, 3, 2)/10:")
    pair = Pair(TableModel.from_weights([[5, 3, 2]]), TableModel.from_weights([[2, 2, 6]]), 1)
    (right,) = (part for part in subject.parts if part.name == "reference.token_rejection")
    assert isinstance(right, Verifier)
    off = {}
    for name, rule in {"token rejection": right, "naive acceptance": fault("naive_accept").make(1)}.items():
        law = complete(round_law(rule, pair), pair.target, 1, pair.prompt)
        off[name] = total_variation(law, pair.target.laws[0])
        say(f"   {name:16} {', '.join(map(str, as_fractions(law))):14} TV from p {off[name]:.2g}")
    return [
        ("the law of token rejection is p to 1e-12", off["token rejection"] < 1e-12),
        (f"naive acceptance is off by TV {off['naive acceptance']:.2f}", off["naive acceptance"] > 0.01),
    ]


def measure(models: Models, size: Size, seed: int) -> Facts:
    """Count acceptances, and sweep K against the costs of a round."""
    say("", "5. Measure, and 6. sweep K (costs in steps of main; ratios to main alone, medians of this run)")
    several = prompts(size.rows, 48)
    found = count(models.main, models.aligned, several, size.tokens, 4, seed=seed)
    formula = sum(found.acceptance**i for i in range(5))
    say(f"   acceptance {found.acceptance:.2f}, E = {found.emitted:.2f} tokens per round, by the formula {formula:.2f}")
    costs = measured_costs(models.main, models.aligned, several[:1], max(size.ks))
    settings = {"count_on": several, "tokens": size.tokens, "repeats": size.repeats}
    say("   " + HEADING)
    best, last = {}, {}
    for name, model in list(models.drafts.items())[:2]:
        ks = size.ks if name == "aligned" else size.ks[1::2]
        swept = sweep(models.main, model, several[:1], ks, costs, **settings)  # type: ignore[arg-type]
        say(*("   " + line for line in lines_of(name, swept)))
        best[name], last[name] = max(swept, key=lambda s: s.predicted), swept[-1]
    say(f"   best K of the aligned draft, as predicted: {best['aligned'].k}")
    k, ratio = last["mismatched"].k, last["mismatched"].measured
    return [
        ("the mismatched draft is accepted less often", last["mismatched"].acceptance < last["aligned"].acceptance),
        (f"with it and K = {k} the text is made more slowly than by main alone: x {ratio:.2f}", ratio < 1),
    ]


def medusa(models: Models, size: Size, seed: int) -> Facts:
    """Draft by heads, in a chain and in a tree, and say what typical acceptance gives up."""
    say("", "7. Medusa: heads on the main model's last state")
    held_out = as_stream(documentation()[1])[:4000]
    along, several = read_along(models.main, held_out, EARLY), prompts(size.rows, 48)
    say("   top-1 of the heads: " + " ".join(f"{share:.2f}" for share in top1_of_heads(models.heads, along)))
    chain = MedusaDraft(models.heads)
    likeliest = MedusaDraft(models.heads, TreeShape.branching((4, 2, 1)), "top-k")
    drawn = MedusaDraft(models.heads, TreeShape.branching((3, 2, 1)), "without replacement")
    ways: dict[str, Way] = {
        "separate draft, K = 4": Way(models.aligned, 4),
        "heads, chain, K = 4": Way(chain, 4),
        "heads, tree, likeliest": Way(likeliest, 3, tree_rule_named("top_k")),
        "heads, tree, drawn": Way(drawn, 3, tree_rule_named("without_replacement")),
    }
    greedy = replace(PLAIN, temperature=0.0)
    alone = _alone(models, several[:4], greedy)
    facts: Facts = []
    for name, way in ways.items():
        assert isinstance(way.k, int)
        emitted = count(models.main, way.draft, several, size.tokens, way.k, rule=way.rule, seed=seed).emitted
        text = count(models.main, way.draft, several[:4], 32, way.k, rule=way.rule, process=greedy).tokens
        say(f"   {name:22} E = {emitted:.2f}")
        facts.append((f"{name}: greedy text is main's own", torch.equal(text, alone)))
    p, q = along.laws[1:-1].float(), PLAIN(models.heads(along.hidden[:-2].float(), 1)[:, 0])
    off = float((typical_law(p, q) - p).abs().sum(1).mean()) / 2
    lossy = count(models.main, chain, several, size.tokens, 4, rule=rule_named("typical_acceptance"), seed=seed).emitted
    say(f"   typical acceptance     E = {lossy:.2f}, at a law that is off by TV {off:.2f} on average")
    return [*facts, (f"typical acceptance is not exact: TV {off:.2f}", off > 0.001)]


def _alone(models: Models, several: Tensor, process: Processors) -> Tensor:
    return autoregressive(models.main, several, 32, process=process, noise=BatchNoise())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reference.build", description="Walk through speculative decoding.")
    parser.add_argument("--tiny", action="store_true", help="train tiny models from nothing, and be done in under a minute")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    say("0. The models: " + ("a main model, two drafts and heads, trained now" if options.tiny else "the committed weights"))
    models, size = (trained_tiny(options.seed), TINY) if options.tiny else (committed(), WHOLE)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (models.main, models.aligned)]
    say(f"   main has {sizes[0]} parameters, a draft {sizes[1]}")
    facts = train(models, size, options.seed) + one_round(models, options.seed) + exact_laws()
    return conclusion(facts + measure(models, size, options.seed) + medusa(models, size, options.seed))


if __name__ == "__main__":
    sys.exit(main())
