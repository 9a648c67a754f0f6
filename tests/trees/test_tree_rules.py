"""The tree rules of the reference: their law is the target's, exactly, on every way of drawing children they are made for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixed_noise import FixedNoise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch import Tensor

from reference.exposed import subject, tree_verifier, tree_verifiers
from reference.noise import BatchNoise, Noise, RowNoise
from reference.rules.trees import TREE_RULES, k_seq, top_down, top_k, tree_rule_named, with_replacement
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.evidence.measurements import LawMeasurement
from specverify.exact import round_law, tree_emission
from specverify.laws import Pair, TableModel, Tokens, complete, overlap, sequence_law
from specverify.pairs import named_pair, one_ulp_off, pairs
from specverify.plan import plan_for
from specverify.subjects import Emitted, Facts, Verifier
from specverify.theory import several_drafts_bound
from specverify.tree_drafts import DraftedTrees, all_trees, first_draft_sets
from specverify.trees import Children, Tree, TreeShape, TreeVerifier

TOLERANCE = 1e-12
UNEVEN = (-1, -1, 0, 0, 2)
DRAWN = [(name, children) for name, rule in TREE_RULES.items() for children in rule.CHILDREN]
every_drawing = pytest.mark.parametrize(("name", "children"), DRAWN, ids=[f"{n}, {c}" for n, c in DRAWN])
CHAINS = {part.facts.rule: part for part in subject.parts if isinstance(part, Verifier) and part.facts.dtype == "float64"}


def on(name: str, parents: tuple[int, ...], children: Children, facts: Facts | None = None) -> TreeVerifier:
    """A rule on trees of a shape."""
    rule = tree_rule_named(name)
    return TreeVerifier(
        name, lambda t, p: rule.verify(t, p, BatchNoise()), TreeShape(parents), children, facts=facts or Facts()
    )


def error(verifier: TreeVerifier, pair: Pair) -> float:
    """Largest deviation of the completed law of a round from the target's."""
    length = verifier.k + 1
    law = complete(tree_emission(verifier, pair).tokens, pair.target, length, pair.prompt)
    return float(np.abs(law - sequence_law(pair.target, length, pair.prompt)).max())


def accepted(law: dict[Tokens, float]) -> float:
    """E[accepted] of what a round emitted."""
    return sum(mass * (len(tokens) - 1) for tokens, mass in law.items())


@pytest.mark.parametrize("name", TREE_RULES)
def test_a_rule_file_says_what_it_is(name: str) -> None:
    """Every rule is found by its name and cites a source with its number, also in the words at its head."""
    rule = tree_rule_named(name)
    assert name == rule.NAME
    number = rule.SOURCE.split("arXiv ")[1].rstrip(")")
    assert number in (rule.__doc__ or "")


def test_unknown_rules_and_drawings_are_answered() -> None:
    """A rule that is not there, and siblings a rule is not lossless for, give an error with what there is."""
    with pytest.raises(ValueError, match="with_replacement, without_replacement, k_seq, top_k, traversal"):
        tree_rule_named("sequoia")
    with pytest.raises(ValueError, match="k_seq is not lossless for children drawn 'top-k'; take with replacement"):
        tree_verifier("k_seq", (2,), "top-k")


@every_drawing
@pytest.mark.parametrize("parents", [(-1, -1), (-1, -1, 0)], ids=["two drafts", "a tree"])
@settings(max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_is_exact_on_generated_pairs(
    name: str, children: Children, parents: tuple[int, ...], data: st.DataObject
) -> None:
    """Zeros, one-hots, disjoint, equal and one-ulp pairs: the completed law of a round is the target's to 1e-12."""
    verifier = on(name, parents, children)
    pair = data.draw(pairs(max_vocab=3, min_k=verifier.k, max_k=verifier.k))
    assert error(verifier, pair) <= TOLERANCE


NAMED = [
    ((-1, -1, -1), 5),
    (TreeShape.branching((2, 1)).parents, 4),
    (TreeShape.branching((1, 1, 1)).parents, 5),
    (TreeShape.branching((2, 2)).parents, 3),
    (UNEVEN, 3),
]


@every_drawing
@pytest.mark.parametrize(("parents", "vocab_size"), NAMED, ids=[f"{p}, V={v}" for p, v in NAMED])
def test_round_is_exact_on_named_pairs(name: str, children: Children, parents: tuple[int, ...], vocab_size: int) -> None:
    """Trees to depth 3 and vocabularies to 5 tokens, zeros among the laws: exact to 1e-12."""
    shape = TreeShape(parents)
    assert error(on(name, parents, children), named_pair(vocab_size, shape.depth)) <= TOLERANCE


def corner(p: list[int], q: list[int]) -> Pair:
    """A pair with these laws at the first position (row 1 of the tables) and others behind it."""
    target = TableModel.from_weights([[2, 1, 1], p, [0, 1, 3]])
    return Pair(target, TableModel.from_weights([[1, 0, 2], q, [1, 1, 1]]), 2)


CORNERS = {
    "equal": corner([1, 2, 3], [1, 2, 3]),
    "disjoint": corner([0, 1, 2], [1, 0, 0]),
    "target one-hot": corner([0, 1, 0], [1, 2, 1]),
    "draft one-hot": corner([1, 2, 1], [0, 0, 1]),
    "both one-hot": corner([0, 1, 0], [1, 0, 0]),
    "one ulp off": Pair(named_pair(3, 2).target, TableModel(one_ulp_off(named_pair(3, 2).target.laws)), 2),
}


@every_drawing
@pytest.mark.parametrize("pair", CORNERS.values(), ids=CORNERS)
def test_round_is_exact_in_the_corners(name: str, children: Children, pair: Pair) -> None:
    """Three drafts over three tokens, the first with a draft of its own below it, where laws are equal, disjoint or certain."""
    assert error(on(name, (-1, -1, -1, 0), children), pair) <= TOLERANCE


@every_drawing
def test_round_is_exact_in_single_precision(name: str, children: Children) -> None:
    """In float32 the law is the target's (rounded likewise) within 32 units of rounding per token of V and of the round."""
    verifier = on(name, UNEVEN, children, Facts(dtype="float32"))
    pair = named_pair(3, verifier.k)
    measurement = LawMeasurement(pair, verifier.k + 1, tree_emission(verifier, pair).tokens, "float32")
    assert measurement.tolerance == 32 * 3 * 4 * 2.0**-23
    judgement = measurement.judge(0)
    assert judgement.verdict == "certified", judgement.reason


@settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(pair=pairs(max_vocab=3))
def test_traversal_of_a_chain_is_block_verification(pair: Pair) -> None:
    """On a tree with one child per node the law of a round is that of block verification, outcome by outcome."""
    law = tree_emission(on("traversal", TreeShape.branching((1,) * pair.k).parents, "with replacement"), pair).tokens
    block = round_law(CHAINS["block_verification"], pair)
    assert all(abs(law.get(t, 0.0) - block.get(t, 0.0)) <= TOLERANCE for t in {*law, *block})


@pytest.mark.parametrize("name", ["with_replacement", "without_replacement", "k_seq"])
def test_top_down_rules_on_a_chain_are_token_rejection(name: str) -> None:
    """With a single child everywhere every rule for sampled drafts is token rejection."""
    pair = named_pair(4, 3)
    children: Children = "without replacement" if name == "without_replacement" else "with replacement"
    law = tree_emission(on(name, TreeShape.branching((1, 1, 1)).parents, children), pair).tokens
    plain = round_law(CHAINS["token_rejection"], pair)
    assert all(abs(law.get(t, 0.0) - plain.get(t, 0.0)) <= TOLERANCE for t in {*law, *plain})


@pytest.mark.parametrize("n", [1, 2, 3])
def test_k_seq_accepts_what_the_theory_says(n: int) -> None:
    """One of n drafts is accepted with A = 1 - (1 - b(c))^n, c found by another method."""
    for seed in range(3):
        pair = named_pair(4, 1, seed=seed)
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)

        def accept(c: float, p: np.ndarray = p, q: np.ndarray = q) -> tuple[float, float]:
            b = float(np.minimum(q, p / c).sum())
            return b, 1 - (1 - b) ** n

        c = 1.0 if n == 1 else brentq(lambda c, accept=accept: accept(c)[1] - c * accept(c)[0], 1, n, xtol=1e-15)
        law = tree_emission(on("k_seq", (-1,) * n, "with replacement"), pair).tokens
        assert accepted(law) == pytest.approx(accept(c)[1], abs=TOLERANCE)


def test_the_bound_for_several_drafts_is_the_optimum() -> None:
    """1 + min over H is what linear programming gives as the best acceptance; for one draft it is 1 - TV."""
    for seed in range(4):
        pair = named_pair(4, 1, seed=seed)
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        one = several_drafts_bound(p, {frozenset((t,)): float(x) for t, x in enumerate(q)})
        assert one == pytest.approx(overlap(p, q), abs=TOLERANCE)
        sets = first_draft_sets(TreeShape((-1, -1)), "with replacement", pair)
        # Transport mass[s, t] from draft sets to tokens; what goes to a drafted token is accepted.
        gain = -np.array([[float(t in s) for t in range(4)] for s in sets]).ravel()
        rows = np.kron(np.eye(len(sets)), np.ones(4)), np.kron(np.ones(len(sets)), np.eye(4))
        best = linprog(gain, A_eq=np.vstack(rows), b_eq=[*sets.values(), *p])
        assert several_drafts_bound(p, sets) == pytest.approx(-best.fun, abs=1e-9)


def test_no_rule_accepts_more_than_the_bound() -> None:
    """Every rule keeps one of the root's children at most as often as the bound says, with replacement strictly less here."""
    pair = named_pair(4, 1)
    for name, children in DRAWN:
        bound = several_drafts_bound(pair.target.next_law(pair.prompt), first_draft_sets(TreeShape((-1, -1)), children, pair))
        found = accepted(tree_emission(on(name, (-1, -1), children), pair).tokens)
        assert found <= bound + TOLERANCE
        if children == "top-k":
            assert found == pytest.approx(bound, abs=TOLERANCE)


@pytest.mark.parametrize("children", ["with replacement", "without replacement"])
def test_traversal_accepts_more_than_top_down(children: Children) -> None:
    """On a tree of depth 2 traversal keeps more tokens on average than recursive rejection from the root down."""
    for seed in range(3):
        pair = named_pair(3, 2, seed=seed)
        parents = TreeShape.branching((2, 1)).parents
        up, down = (accepted(tree_emission(on(n, parents, children), pair).tokens) for n in ("traversal", "with_replacement"))
        assert up > down + 1e-4


def test_different_rules_may_judge_different_nodes() -> None:
    """Recursive rejection at the root, K-SEQ below one child and certain children below the other: still lossless."""
    shape = TreeShape((-1, -1, 0, 0, 1))
    calls = []

    def verify(tree: Tree, target: Tensor) -> Emitted:
        judges = iter((with_replacement.judge, k_seq.judge, top_k.judge))

        def judge(*args: object) -> tuple[Tensor, Tensor]:
            chosen = by_node[args[1].shape[1], bool((args[0] == target[:, 0]).all())]  # type: ignore[attr-defined]
            calls.append(chosen)
            return chosen(*args)

        root, first, second = judges
        by_node = {(2, True): root, (2, False): first, (1, False): second}
        return top_down.descend(tree, target, judge, BatchNoise())

    pair = named_pair(3, 2)
    assert error(TreeVerifier("mixed", verify, shape, "with replacement"), pair) <= TOLERANCE
    assert set(calls) == {with_replacement.judge, k_seq.judge, top_k.judge}


# --- edges -----------------------------------------------------------------------------------------------------------


def judged(name: str, trees: DraftedTrees, noise: Noise, dtype: torch.dtype = torch.float64) -> list[tuple[int, ...]]:
    """What a rule emits for every tree."""
    tree, target = trees.tensors()
    return tree_rule_named(name).verify(tree.copied(dtype), target.to(dtype), noise).rows()


@every_drawing
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("u", [0.0, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("pair", [named_pair(3, 2), *CORNERS.values()], ids=["named", *CORNERS])
def test_extreme_uniforms_never_emit_the_impossible(
    name: str, children: Children, dtype: torch.dtype, u: float, pair: Pair
) -> None:
    """At u = 0, at the largest u and even with every coin lost, no tree leads to a token with p = 0, nor to 0/0."""
    trees = all_trees(TreeShape((-1, -1, -1, 0)), children, pair)
    for row in judged(name, trees, FixedNoise(u), dtype):
        for n, token in enumerate(row):
            assert pair.target.next_law((*pair.prompt, *row[:n]))[token] > 0


@every_drawing
def test_a_rows_tokens_do_not_depend_on_its_mates(name: str, children: Children) -> None:
    """With one seed per row, each row of a batch is what it is alone."""
    trees = all_trees(TreeShape(UNEVEN), children, named_pair(3, 3))
    rows = range(min(8, len(trees.tokens)))
    tree, target = trees.tensors()

    def emitted(chosen: list[int]) -> list[tuple[int, ...]]:
        drawn = None if tree.draft_probs is None else tree.draft_probs[chosen]
        part = Tree(tree.shape, tree.tokens[chosen], drawn, tree.drafter_probs[chosen])
        return tree_rule_named(name).verify(part, target[chosen], RowNoise(chosen)).rows()

    assert emitted(list(rows)) == [emitted([r])[0] for r in rows]


def test_walking_alone_and_in_batches_agree() -> None:
    """A rule that takes one row per call has the same exact law as one that takes many, in more calls."""
    pair = named_pair(3, 2)
    parents = TreeShape.branching((2, 1)).parents
    together = tree_emission(on("traversal", parents, "without replacement"), pair)
    single = tree_emission(on("traversal", parents, "without replacement", Facts(max_batch=1)), pair)
    assert single.calls > 10 * together.calls
    assert all(single.tokens[t] == pytest.approx(m, abs=1e-13) for t, m in together.tokens.items())


@pytest.mark.parametrize("verifier", tree_verifiers, ids=lambda v: v.name)
def test_the_parts_of_the_reference_are_certified(verifier: TreeVerifier) -> None:
    """Every check that applies to a tree rule of the reference passes at the smallest budget."""
    assert verifier in subject.parts
    plan = plan_for(verifier, "x", Settings(BUDGETS["smoke"]))
    runner = Runner(plan)
    own = [p for p in plan.tests if p.expected == "certified"]
    assert {"single_step", "acceptance", "sequence"} <= {p.check for p in own}
    for planned in own:
        evidence = runner.run(planned)
        assert evidence.verdict == "certified", (planned.test, [j.reason for j in evidence.judgements()])
