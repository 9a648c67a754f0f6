"""Do sampled sequences follow the target law? Support, joint cells of several tokens, and each conditional, over rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from specverify.checks import greedy
from specverify.checks.base import Context, Found, Part, Planned, Settings, Skipped
from specverify.checks.going_on import Goal, go_on
from specverify.checks.in_shards import sampled_decoder, sampled_part
from specverify.checks.own_tokens import MOST_PROBABILITIES, OwnTokens, decoder_laws, decoder_prompts
from specverify.checks.pair_tokens import PairTokens, wealth
from specverify.checks.sampling import Sample, coverage
from specverify.evidence.cells import NextLaws, grow, sort_into
from specverify.evidence.measurements import AnyMeasurement, CellMeasurement, rounded
from specverify.evidence.multinomial import CellGroup
from specverify.evidence.wealth import WealthMeasurement
from specverify.laws import Array, Ints, TableModel, Tokens
from specverify.pairs import named_pair, pair_for
from specverify.randomness import derive
from specverify.subjects import Decoder, DecoderLike, Step
from specverify.trees import TreeVerifier

NAME = "sequence"
QUESTION = "Do sampled sequences follow the target law, jointly and conditionally, over several rounds?"

BLOCKS = (3, 3, 5, 11)
"""(V, K, tokens, seed) of a pair chosen because nearly right block rules show on it: the residual of a single token in place of
the block's moves 0.05 of a round's law here, at most 0.006 on the other pairs, and nothing at all with two tokens.
"""
GOING_ON = (6, 3, 8)
"""(V, K, tokens) of the models on which sampling goes on: every known fault differs from the target here, and needs about
12,000 tokens at most at the default budget when it governs them all. Other K take the same models.
"""
WITHOUT_DRAFT = 20_000
"""Tokens at least where the draft's laws are not known, so that most faults are seen by what knows no fault."""
OWN_LENGTH = 24
"""Tokens of a sequence where sampling goes on with models of the decoder's own, for which prompts are dear."""


def plan(part: Part, settings: Settings) -> list[Planned] | Skipped:
    """A statistical test per pair of table models, and one on the decoder's own models."""
    budget = settings.budget
    draws = budget.single if part.facts.max_batch == 1 else budget.sequences
    tests: list[Planned] = []
    if not isinstance(part, Decoder) or part.build is not None:
        sizes = [(3, 2, 5), (4, 3, 5)]
        if isinstance(part, (Step, TreeVerifier)):
            smallest = 3 if isinstance(part, Step) else max(3, part.shape.width + 1)
            sizes = [(smallest, part.k, part.k + 2)]
        elif part.facts.max_k is not None:
            sizes = [s for s in sizes if s[1] <= part.facts.max_k] or [(3, part.facts.max_k, part.facts.max_k + 2)]
        tests += [
            Planned(NAME, part.name, f"table models V{v}-K{k}", True, {"v": v, "k": k, "length": n, "draws": draws})
            for v, k, n in sizes
        ]
        v, k, n, seed = BLOCKS
        if not isinstance(part, (Step, TreeVerifier)) and k <= (part.facts.max_k or k):
            params = {"v": v, "k": k, "length": n, "draws": draws, "seed": seed}
            tests.append(Planned(NAME, part.name, f"table models V{v}-K{k}, block rules", True, params))
        tests.append(Planned(NAME, part.name, "every known fault", True, _going_on(part, settings)))
    if tests and part.facts.max_batch != 1 and not isinstance(part, Step):
        v, k, n = sizes[0]
        params = {"v": v, "k": k, "length": n, "draws": 3_000, "small": True}
        tests.append(Planned(NAME, part.name, f"small batches V{v}-K{k}", True, params))
    if isinstance(part, Decoder) and part.open is not None and part.facts.rule == "greedy":
        tests.append(
            Planned(NAME, part.name, greedy.VARIANT, False, {"length": OWN_LENGTH, "prompts": greedy.PROMPTS[budget.name]})
        )
    elif isinstance(part, Decoder) and part.open is not None:
        tests.append(
            Planned(
                NAME,
                part.name,
                "own models",
                True,
                {"length": 5, "draws": max(draws // 8, 500 if part.facts.max_batch == 1 else 2_000)},
            )
        )
        goal: dict[str, Any] = {"length": OWN_LENGTH, "share": budget.single_share, "tokens": settings.tokens}
        tests.append(Planned(NAME, part.name, "own models, every known fault", True, goal))
    return tests or Skipped(NAME, part.name, "there is neither open nor build to sample from")


def _going_on(part: Part, settings: Settings) -> dict[str, Any]:
    """Models and goal of the test that goes on until every known fault would have been seen."""
    v, k, length = GOING_ON
    if isinstance(part, Step):
        k = part.k
    elif isinstance(part, TreeVerifier):
        v, k = max(v, part.shape.width + 1), part.k
    budget, alone = settings.budget, part.facts.max_batch == 1
    share = budget.single_share if alone else budget.share
    return {"v": v, "k": min(k, part.facts.max_k or k), "length": length, "share": share, "tokens": settings.tokens}


def run(planned: Planned, context: Context) -> Found:
    """Sample, check the support, and test joint and conditional cells with half of the share each."""
    if planned.variant == "own models":
        assert context.opened is not None
        return _own_models(planned, context, context.opened)
    if planned.variant == greedy.VARIANT:
        assert context.opened is not None
        return greedy.greedy_choices(planned, context, context.opened)
    if planned.variant == "own models, every known fault":
        assert context.opened is not None
        return _own_models_go_on(planned, context, context.opened)
    if planned.variant == "every known fault":
        return _go_on(planned, context)
    part, params = context.part, planned.params
    pair = pair_for(part.facts.rule, named_pair(params["v"], params["k"], seed=params.get("seed", 0)))
    target = rounded(pair.target, part.facts.dtype)
    sample = sampled_part(context, pair, params["draws"], params["length"], context.seed, small="small" in params)
    d = part.facts.logit_tolerance
    measurements = judge_sample(sample, table_laws(target, pair.prompt), params["length"], tolerance=d)
    return Found((*with_bets(wealth(sample, pair, target, context.seed, d), measurements), coverage(sample)))


def _go_on(planned: Planned, context: Context) -> Found:
    """Table models, until every known fault would have been refuted."""
    part, params = context.part, planned.params
    pair = pair_for(part.facts.rule, replace(named_pair(params["v"], GOING_ON[1]), k=params["k"]))
    tokens = PairTokens(pair, rounded(pair.target, part.facts.dtype), context.seed, part.facts.logit_tolerance)
    everything = Sample()

    def add(sequences: int, call: int) -> None:
        sample = sampled_part(context, pair, sequences, params["length"], derive(context.seed, "sample", call))
        tokens.see(sample)
        everything.count_all(sample)

    goal = Goal(context.alpha, params["share"], params["tokens"])
    return Found((go_on(tokens.watch, add, params["length"], goal), coverage(everything)))


def _own_models_go_on(planned: Planned, context: Context, decoder: DecoderLike) -> Found:
    """The same with a decoder's own models, over enough tokens of each sequence for several rounds."""
    params, part = planned.params, context.part
    prompts = decoder_prompts(decoder, context.seed)
    own = OwnTokens(decoder, prompts, part.name, context.seed, part.facts.logit_tolerance, level=params["share"])

    everything = Sample(counts_known=False)

    def add(sequences: int, call: int) -> None:
        samples = sampled_decoder(context, decoder, prompts, sequences, params["length"], derive(context.seed, "sample", call))
        own.see(samples)
        for sample in samples:
            if sample.sequences:
                everything.count_all(sample)

    def spent() -> str:
        most = context.settings.probabilities
        return f"{most:,.0f} probabilities of the models were asked for" if own.probabilities >= most else ""

    goal = Goal(context.alpha, params["share"], params["tokens"], 0 if own.with_q else WITHOUT_DRAFT)
    found = go_on(own.watch, add, params["length"], goal, own.growths, spent, lambda: len(own.impossible))
    notes = () if own.with_q else ("the decoder has no draft_log_probs: faults whose law depends on the draft are not bet on",)
    return Found((found, coverage(everything)), None, notes)


def with_bets(bets: WealthMeasurement, cells: list[AnyMeasurement]) -> tuple[AnyMeasurement, ...]:
    """Put the bets first, whose words name the fault; but where a token cannot come at all the cells tell which."""
    return (*cells, bets) if bets.impossible else (bets, *cells)


def table_laws(model: TableModel, prompt: Tokens) -> NextLaws:
    """Next-token laws of a table model after a prompt, for the cell tree."""

    def laws(prefixes: Ints) -> Array:
        start = np.tile(np.asarray(prompt, np.int64), (len(prefixes), 1))
        along: Array = model.laws[model.contexts_along(np.concatenate([start, prefixes], axis=1))[:, -1]]
        return along

    return laws


def judge_sample(
    sample: Sample,
    laws: NextLaws,
    length: int,
    *,
    eos_id: int | None = None,
    confirm: Callable[[Tokens, int], bool] | None = None,
    label: str = "",
    tolerance: float = 0.0,
) -> list[AnyMeasurement]:
    """Joint and conditional cells of a sample, with the support check on both.

    Logits may be off by ``tolerance``, so any probability by a factor of exp(2 tolerance).
    ``confirm`` is asked about every token found to have probability 0, and may excuse it (see :func:`_own_models`).
    Which measurements come back depends on the law and the sample size, not on the sample.
    """
    tree = grow(laws, length, len(sample.sequences), eos_id=eos_id)
    cells = sort_into(tree, sample.sequences)
    forbidden = [f for f in cells.forbidden if confirm is None or confirm(*f)]
    example = ""
    if forbidden:
        tokens, position = forbidden[0]
        example = f"token {tokens[position]} after {list(tokens[:position])}"
    prefix = f"{label}, " if label else ""
    out: list[AnyMeasurement] = [
        CellMeasurement(
            f"{prefix}joint law of {length} tokens", (cells.joint,), len(forbidden), example, 2 * tolerance * length
        )
    ]
    out += [
        CellMeasurement(f"{prefix}conditional law of token {depth + 1}", groups, widened=2 * tolerance)
        for depth, groups in enumerate(cells.conditionals)
        if any(len(followed) == depth for followed in tree.laws)
    ]
    return out


def _own_models(planned: Planned, context: Context, decoder: DecoderLike) -> Found:
    """A decoder on its own models, several prompts side by side in each call; conditionals and ranks over all prompts."""
    name, length, d = context.part.name, planned.params["length"], context.part.facts.logit_tolerance
    prompts = decoder_prompts(decoder, context.seed)
    eos = getattr(decoder, "eos_id", None)
    samples = sampled_decoder(context, decoder, prompts, planned.params["draws"], length)
    joint: list[AnyMeasurement] = []
    by_depth: list[list[CellGroup]] = [[] for _ in range(length)]
    for number, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        laws = decoder_laws(decoder, prompt, name)

        def confirm(tokens: Tokens, position: int, laws: NextLaws = laws) -> bool:
            # A token at the edge of top-k or top-p may enter or leave with the last bit of a batched product: ask alone.
            alone = laws(np.asarray([tokens[:position]], np.int64).reshape(1, position))
            return bool(alone[0, tokens[position]] <= 0)

        first, *conditionals = judge_sample(
            sample, laws, length, eos_id=eos, confirm=confirm, label=f"prompt {number + 1}", tolerance=d
        )
        joint.append(first)
        for depth, measurement in enumerate(conditionals):
            assert isinstance(measurement, CellMeasurement)
            by_depth[depth] += [replace(g, label=f"prompt {number + 1}, {g.label}") for g in measurement.groups]
    pooled = [
        CellMeasurement(f"conditional law of token {depth + 1}", tuple(groups), widened=2 * d)
        for depth, groups in enumerate(by_depth)
    ]
    own = OwnTokens(decoder, prompts, name, context.seed, d)
    own.see(samples, MOST_PROBABILITIES)
    ranks, bets = own.rank_cells(), own.wealth()
    return Found(with_bets(bets, [*joint, *pooled, *ranks]))
