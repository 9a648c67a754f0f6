"""The wrong rules for several drafts: refuted, of the stated law, and right again once the fault is taken out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from fault_pairs import CORNERS, corner, random_pairs
from torch import Tensor

from specverify import faults
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.cli import main
from specverify.exact import tree_emission
from specverify.faults import TREE_FAULTS, RoundFault, fault, several_laws, tree_rules
from specverify.laws import Array, Pair, complete, sequence_law, total_variation
from specverify.loading import load_subject
from specverify.pairs import named_pair
from specverify.plan import controls, plan_for, tree_controls
from specverify.trees import Children, Tree, TreeShape, TreeVerifier

TOLERANCE = 1e-12
every_fault = pytest.mark.parametrize("known", TREE_FAULTS.values(), ids=TREE_FAULTS)
PAIRS = [*(corner(n) for n in CORNERS), *random_pairs(24, 1)]


def star(name: str, children: Children, n: int) -> TreeVerifier:
    """A rule on n drafts for one position."""
    return TreeVerifier(name, getattr(tree_rules, name), TreeShape((-1,) * n), children)


def drawable(children: Children, n: int, pairs: list[Pair]) -> list[Pair]:
    """The pairs with tokens enough for n children."""
    return [p for p in pairs if children == "with replacement" or p.vocab_size >= n]


def first_token(verifier: TreeVerifier, pair: Pair) -> Array:
    """Exact law (V,) of the first token that one round emits."""
    law = np.zeros(pair.vocab_size)
    for tokens, mass in tree_emission(verifier, pair).tokens.items():
        law[tokens[0]] += mass
    return law


def round_error(verifier: TreeVerifier, pair: Pair) -> float:
    """Total variation between the completed law of a round and the target's law."""
    length = verifier.k + 1
    law = complete(tree_emission(verifier, pair).tokens, pair.target, length, pair.prompt)
    return total_variation(law, sequence_law(pair.target, length, pair.prompt))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_k_tries_follow_their_closed_form(n: int) -> None:
    """With n tries the law found by walking every path is m (1 - (1 - beta)^n) / beta + (1 - beta)^(n-1) (p - q)+."""
    for pair in PAIRS if n < 4 else [p for p in PAIRS if p.vocab_size < 5]:
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        y = several_laws.k_tries(p, q, n)
        np.testing.assert_allclose(first_token(star("k_tries", "with replacement", n), pair), y, atol=TOLERANCE)
        m, beta = np.minimum(p, q), np.minimum(p, q).sum()
        if beta > 0 and (p != q).any():
            stated = m * (1 - (1 - beta) ** n) / beta + (1 - beta) ** (n - 1) * np.maximum(p - q, 0)
            np.testing.assert_allclose(y, stated, atol=TOLERANCE)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_top_k_taken_for_samples_follows_its_closed_form(n: int) -> None:
    """The likeliest tokens of q judged by q give the law that is stated."""
    for pair in drawable("top-k", n, PAIRS):
        y = several_laws.top_k_sampled(pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt), n)
        np.testing.assert_allclose(first_token(star("top_k_sampled", "top-k", n), pair), y, atol=TOLERANCE)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_stale_parent_at_one_position(n: int) -> None:
    """Traversal of n leaves without its update emits m sum_{i<n} TV^i + TV^n p."""
    for pair in PAIRS:
        p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
        tv = np.maximum(q - p, 0).sum()
        y = np.minimum(p, q) * sum(tv**i for i in range(n)) + tv**n * p
        np.testing.assert_allclose(first_token(star("stale_parent", "with replacement", n), pair), y, atol=TOLERANCE)


Law = list[Fraction]


def left(p: Law, q: Law) -> Law:
    """(p - q)+ normalised, p where nothing is left."""
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return [x / sum(excess) for x in excess] if sum(excess) else p


def without(q: Law, x: int, *, otherwise: str = "rest") -> Law:
    """Take x out of q; where nothing is left, the other tokens evenly ("rest") or q itself."""
    kept = [Fraction(0) if t == x else w for t, w in enumerate(q)]
    if sum(kept):
        return [w / sum(kept) for w in kept]
    return [Fraction(int(t != x), len(q) - 1) for t in range(len(q))] if otherwise == "rest" else q


def ranked(q: Law, rank: int) -> Law:
    """One-hot at the token of q of that rank."""
    order = sorted(range(len(q)), key=lambda t: (-q[t], t))
    return [Fraction(int(t == order[rank])) for t in range(len(q))]


Second = Callable[[Law, int], Law]
TWO: dict[str, tuple[Callable[[Law], Law], Second, Second]] = {
    "k_tries": (lambda q: q, lambda q, _x: q, lambda q, _x: q),
    "stale_q": (lambda q: q, without, lambda q, _x: q),
    "removed_q": (lambda q: q, lambda q, _x: q, partial(without, otherwise="q")),
    "top_k_sampled": (lambda q: ranked(q, 0), lambda q, _x: ranked(q, 1), lambda q, _x: q),
}
"""For two drafts: how the first is drawn, how the second is drawn given the first, and by which law it is judged."""


def two_drafts(name: str, p: Law, q: Law) -> Law:
    """Law of one position with two drafts, in exact fractions, from the definition of the fault."""
    first, second, told = TWO[name]
    y = [Fraction(0)] * len(p)
    for x, z in itertools.product(range(len(p)), repeat=2):
        weight = first(q)[x] * second(q, x)[z]
        if not weight:
            continue
        a = min(Fraction(1), p[x] / q[x]) if q[x] else Fraction(int(p[x] > 0))
        judged_by, middle = told(q, x), p if name == "k_tries" else left(p, q)
        b = min(Fraction(1), middle[z] / judged_by[z]) if judged_by[z] else Fraction(int(middle[z] > 0))
        rest = left(middle, judged_by)
        y[x] += weight * a
        y[z] += weight * (1 - a) * b
        for t, r in enumerate(rest):
            y[t] += weight * (1 - a) * (1 - b) * r
    return y


@pytest.mark.parametrize("name", TWO)
def test_two_drafts_follow_the_definition_in_fractions(name: str) -> None:
    """The rule that runs has the law that its definition gives in exact fractions, for every pair tried."""
    known = fault(name)
    verifier = known.make(1)
    assert isinstance(verifier, TreeVerifier)
    for pair in drawable(verifier.children, 2, PAIRS):
        y = two_drafts(name, list(pair.target.fractions(pair.prompt)), list(pair.draft.fractions(pair.prompt)))
        np.testing.assert_allclose(first_token(verifier, pair), [float(x) for x in y], atol=TOLERANCE)


@every_fault
def test_fault_shows_at_every_depth(known: RoundFault) -> None:
    """At depth 1 and at depth 2 a pair of four or three tokens shows the fault."""
    for k, pair in ((1, named_pair(4, 1)), (2, named_pair(3, 2, seed=1))):
        verifier = known.make(k)
        assert isinstance(verifier, TreeVerifier)
        assert verifier.k == k
        assert round_error(verifier, pair) > 0.005


def judged_by(told: tree_rules.Told) -> Callable[[Tree, Tensor], tuple[Tensor, Tensor]]:
    """Recursive rejection by a law."""
    return lambda tree, target: tree_rules.recursive(tree, target, told)


REPAIRED = {
    "k_tries": ("with replacement", judged_by(tree_rules.own_law)),
    "stale_q": ("without replacement", judged_by(tree_rules.without_siblings)),
    "removed_q": ("with replacement", judged_by(tree_rules.drafter_law)),
    "top_k_sampled": ("top-k", judged_by(tree_rules.own_law)),
    "stale_parent": ("with replacement", tree_rules.traverse),
}


@every_fault
def test_repaired_twin_is_exact(known: RoundFault) -> None:
    """The same code with the fault taken out emits the target's law, on the same trees."""
    children, verify = REPAIRED[known.name]
    assert known.make(1).children == children  # type: ignore[union-attr]
    for pair in (named_pair(3, 2, seed=1), named_pair(3, 2), Pair(named_pair(3, 2).target, named_pair(3, 2).target, 2)):
        repaired = TreeVerifier("repaired", verify, TreeShape.branching((2, 2)), children)  # type: ignore[arg-type]
        assert round_error(repaired, pair) <= TOLERANCE


@every_fault
def test_rule_can_be_loaded_by_name(known: RoundFault) -> None:
    """``specverify.faults:<name>`` is a tree verifier; its entry says in sentences what it does and what helps."""
    found = load_subject(f"specverify.faults:{known.name}")
    assert found is getattr(faults, known.name)
    assert isinstance(found, TreeVerifier)
    assert found.name == known.name == found.facts.rule
    assert known.summary.endswith(".")
    assert known.advice.endswith(".")
    assert known.source


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """``specverify faults`` names every fault of trees and of noise."""
    assert main(["faults"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {*TREE_FAULTS, *faults.NOISE_FAULTS} <= listed


def test_a_tree_among_the_parts_brings_its_controls() -> None:
    """A run that judges a tree verifier refutes the faults of trees beside the others, exactly and by sampling."""
    settings = Settings(BUDGETS["smoke"])
    tree = fault("k_tries").make(1)
    plan = plan_for(tree, "x", settings)
    extra = {p.test for p in tree_controls(settings)}
    assert len(extra) == 2 * len(TREE_FAULTS)
    assert {p.test for p in plan.tests if p.expected == "refuted"} == {p.test for p in controls(settings)} | extra
    runner = Runner(plan)
    for planned in plan.tests:
        if planned.test in extra:
            evidence = runner.run(planned)
            assert evidence.verdict == "refuted", (planned.test, [j.reason for j in evidence.judgements()])


@every_fault
def test_checks_refute_it(known: RoundFault) -> None:
    """A tree fault judged as a subject is refuted exactly, with a counterexample."""
    plan = plan_for(known.make(1), f"specverify.faults:{known.name}", Settings(BUDGETS["smoke"]))
    evidence = Runner(plan).run(plan.find(f"single_step/{known.name}/named pairs"))
    assert evidence.verdict == "refuted"
    assert evidence.counterexample is not None


def test_counterexample_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The code printed beside a refutation of a tree rule runs and prints the laws that differ."""
    plan = plan_for(load_subject("specverify.faults:k_tries"), "specverify.faults:k_tries", Settings(BUDGETS["smoke"]))
    evidence = Runner(plan).run(plan.find("single_step/k_tries/named pairs"))
    assert evidence.counterexample is not None
    exec(compile(evidence.counterexample["snippet"], "snippet", "exec"), {})
    ours, right = capsys.readouterr().out.strip().splitlines()
    assert ours != right


def test_lie_detector_refutes_a_rule_that_accepts_too_much() -> None:
    """A rule that always keeps a draft is caught by the acceptance bound for several drafts alone."""

    def keep_first(tree: Tree, target_probs: Tensor) -> tuple[Tensor, Tensor]:
        return tree_rules.end(tree, torch.zeros_like(tree.tokens[:, 0]), target_probs[:, 1])

    subject = TreeVerifier("keep_first", keep_first, TreeShape((-1, -1)), "with replacement")
    plan = plan_for(subject, "x", Settings(BUDGETS["smoke"]))
    evidence = Runner(plan).run(plan.find("acceptance/keep_first/exact"))
    assert evidence.verdict == "refuted"
