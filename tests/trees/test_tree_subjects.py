"""Tree verifiers as subjects: shapes, how drafts are drawn, and every way in which an output may be written."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import specverify
from specverify.certificate import load, recheck
from specverify.certify import Runner, certify, subject_json
from specverify.checks.base import BUDGETS, Settings
from specverify.errors import SubjectError
from specverify.exact import round_law
from specverify.laws import Pair, TableModel, complete, sequence_law
from specverify.loading import as_subject, source_digest
from specverify.pairs import named_pair
from specverify.plan import plan_for
from specverify.randomness import stream
from specverify.report.command import write_report
from specverify.tree_drafts import all_trees, drawn_from, first_draft_sets, some_trees, tree_count, vocab_sizes
from specverify.trees import Children, Tree, TreeShape, TreeVerifier, tree_verifier

V = 4
UNEVEN = (-1, -1, 0, 0, 2)
"""Two children of the root; the first has two children, the first of which has one."""


def test_branching_numbers_nodes_level_by_level() -> None:
    """(2, 1) is two children of the root with one child each; paths, children, leaves, depth and width follow."""
    shape = TreeShape.branching((2, 1))
    assert shape.parents == (-1, -1, 0, 1)
    assert shape.paths == ((0,), (1,), (0, 2), (1, 3))
    assert [shape.children(n) for n in range(-1, 4)] == [(0, 1), (2,), (3,), (), ()]
    assert shape.leaves == (2, 3)
    assert (shape.depth, shape.width, shape.size) == (2, 2, 4)
    assert TreeShape.branching((1, 1, 1)).parents == (-1, 0, 1)
    assert TreeShape(UNEVEN).earlier_siblings(3) == (2,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TreeShape(()), "at least one node"),
        (lambda: TreeShape((-1, 1)), "node 1 has parent 1"),
        (lambda: TreeShape((-2,)), "node 0 has parent -2"),
        (lambda: TreeShape.branching((2, 0)), r"branching is \(2, 0\)"),
        (lambda: tree_verifier(lambda _tree, _p: None), "say which trees"),
        (lambda: tree_verifier(lambda _tree, _p: None, branching=(2,), parents=(-1,)), "and not both"),
        (lambda: tree_verifier(branching=(2,), children="sampled", name="x")(print), "children is 'sampled'"),
        (lambda: tree_verifier(branching=(2,), returns="ids", name="x")(print), "returns is 'ids'"),
        (lambda: tree_verifier(branching=(2,), colour=1)(print), "unknown fact"),
    ],
)
def test_impossible_declarations_are_answered(make: object, message: str) -> None:
    """A shape that is no tree, a missing shape and unknown words give an error that says what to write."""
    with pytest.raises(SubjectError, match=message):
        make()  # type: ignore[operator]


def weights_by_hand(shape: TreeShape, children: Children, pair: Pair) -> dict[tuple[int, ...], float]:
    """Probability of every tree of tokens, from the definition of how children are drawn, one tree at a time."""
    found = {}
    for tokens in itertools.product(range(pair.vocab_size), repeat=shape.size):
        weight = 1.0
        for node, parent in enumerate(shape.parents):
            q = pair.draft.next_law((*pair.prompt, *(tokens[n] for n in shape.path(parent))))
            gone = [tokens[n] for n in shape.earlier_siblings(node)]
            if children == "top-k":
                order = sorted(range(len(q)), key=lambda t, q=q: (-q[t], t))
                weight *= float(tokens[node] == order[len(gone)])
            elif children == "without replacement":
                left = [0.0 if t in gone else float(x) for t, x in enumerate(q)]
                left = left if sum(left) > 0 else [float(t not in gone) for t in range(len(q))]
                weight *= left[tokens[node]] / sum(left)
            else:
                weight *= float(q[tokens[node]])
        if weight > 0:
            found[tokens] = weight
    return found


ONE_HOT = Pair(TableModel.from_weights([[1, 2, 1], [3, 1, 1]]), TableModel.from_weights([[0, 1, 0], [2, 0, 3]]), 2)


@pytest.mark.parametrize("children", ["with replacement", "without replacement", "top-k"])
@pytest.mark.parametrize("parents", [(-1, -1), (-1, -1, 0, 0), UNEVEN, (-1, 0, 1)])
@pytest.mark.parametrize("pair", [named_pair(3, 2), ONE_HOT], ids=["named", "one-hot laws"])
def test_trees_have_the_declared_probabilities(children: Children, parents: tuple[int, ...], pair: Pair) -> None:
    """Every tree of positive probability is listed once with its probability, and its laws are those of its contexts."""
    shape = TreeShape(parents)
    trees = all_trees(shape, children, pair)
    expected = weights_by_hand(shape, children, pair)
    rows = [tuple(row) for row in trees.tokens.tolist()]
    assert len(set(rows)) == len(rows) == len(expected) <= tree_count(shape, children, pair.vocab_size)
    for row, weight in zip(rows, trees.weights, strict=True):
        assert weight == pytest.approx(expected[row], abs=1e-15)
    for i, row in enumerate(rows):
        for node in range(-1, shape.size):
            context = (*pair.prompt, *(row[n] for n in shape.path(node)))
            np.testing.assert_array_equal(trees.target[i, node + 1], pair.target.next_law(context))
            np.testing.assert_array_equal(trees.drafter[i, node + 1], pair.draft.next_law(context))
    drawn = np.take_along_axis(trees.drawn, trees.tokens[..., None], 2)[..., 0].prod(1)
    np.testing.assert_allclose(drawn, trees.weights, atol=1e-15)


@pytest.mark.parametrize("children", ["with replacement", "without replacement", "top-k"])
def test_sampled_trees_follow_the_enumeration(children: Children) -> None:
    """Twenty thousand trees drawn after prefixes of different lengths agree with the enumeration within five deviations."""
    shape, pair, rows = TreeShape((-1, -1, 0)), named_pair(3, 2), 20_000
    rng = stream(1, "trees")

    def draw(laws: np.ndarray) -> np.ndarray:
        return (laws.cumsum(1) <= rng.random(len(laws))[:, None]).sum(1).clip(max=laws.shape[1] - 1)

    prompts = [(0,), (0, 2, 1)]
    ids, ends = np.zeros((rows, 6), np.int64), np.empty(rows, np.int64)
    for r, prompt in enumerate(prompts):
        ids[r::2, : len(prompt)], ends[r::2] = prompt, len(prompt)
    tokens = some_trees(shape, children, pair, ids, ends, draw).tokens
    for r, prompt in enumerate(prompts):
        seen = Counter(map(tuple, tokens[r::2].tolist()))
        law = weights_by_hand(shape, children, Pair(pair.target, pair.draft, 2, prompt))
        assert set(seen) <= set(law)
        n = rows // 2
        assert all(abs(seen[t] / n - w) <= 5 * np.sqrt(w * (1 - w) / n) + 1e-9 for t, w in law.items())


def test_exhausted_drafts_go_on_uniformly() -> None:
    """Once the drafter's law has nothing left, siblings without replacement are drawn evenly from what was not drawn."""
    law = drawn_from("without replacement", np.array([[0.0, 1.0, 0.0, 0.0]]), np.array([[1, 3]]))
    np.testing.assert_array_equal(law, [[0.5, 0, 0.5, 0]])
    with pytest.raises(ValueError, match="3 distinct siblings cannot be drawn from 2"):
        all_trees(TreeShape((-1,) * 3), "without replacement", named_pair(2, 1))


def test_sizes_follow_the_number_of_trees() -> None:
    """As many tokens are taken as leave few enough trees; one tree is made by top-k whatever the size."""
    assert tree_count(TreeShape.branching((2, 2)), "with replacement", 3) == 3**6
    assert tree_count(TreeShape.branching((2, 2)), "without replacement", 3) == 6**3
    chain = TreeVerifier("x", print, TreeShape.branching((1, 1)), "with replacement")
    assert vocab_sizes(chain, 16) == [2, 3, 4]
    assert vocab_sizes(TreeVerifier("x", print, TreeShape.branching((3, 3)), "top-k"), 1) == [3, 4, 5]


def test_drafts_of_the_root_as_sets() -> None:
    """Sets of the root's children have the probabilities of the draws that give them."""
    pair = named_pair(3, 1)
    q = pair.draft.next_law(pair.prompt)
    sets = first_draft_sets(TreeShape((-1, -1, 0)), "with replacement", pair)
    for a, b in itertools.combinations_with_replacement(range(3), 2):
        expected = q[a] ** 2 if a == b else 2 * q[a] * q[b]
        assert sets.get(frozenset((a, b)), 0.0) == pytest.approx(expected, abs=1e-15)


# --- one rule in five conventions ------------------------------------------------------------------------------------


def walk(tree: Tree, target: Tensor, row: int) -> tuple[list[int], Tensor]:
    """Accept certain children one after the other with P(x): accepted nodes of one row, and the law that is left."""
    node, accepted, law = -1, [], target[row, 0]
    while True:
        for child in tree.shape.children(node):
            x = tree.tokens[row, child]
            if torch.rand((), dtype=law.dtype) * law.sum() < law[x]:
                node, law = child, target[row, child + 1]
                accepted.append(child)
                break
            law = law.clone()
            law[x] = 0
        else:
            return accepted, law


def rule(returns: str) -> TreeVerifier:
    """The same lossless rule on an uneven top-k tree, answering in one of the conventions."""

    @tree_verifier(parents=UNEVEN, children="top-k", returns=returns, name=f"walk, {returns}")
    def verify(tree: Tree, target: Tensor) -> object:
        assert tree.draft_probs is None
        assert tree.parents.tolist() == list(UNEVEN)
        B, N, D = len(target), tree.shape.size, tree.shape.depth
        paths, laws = zip(*(walk(tree, target, row) for row in range(B)), strict=True)
        law = torch.stack(laws)
        if returns == "distribution":
            leaf = torch.tensor([leaf_under(tree.shape, path) for path in paths])
            return leaf, torch.tensor([len(p) for p in paths]), law
        last = torch.multinomial(law, 1)[:, 0]
        if returns == "best path":
            leaf = torch.tensor([leaf_under(tree.shape, path) for path in paths])
            return leaf, torch.tensor([len(p) for p in paths]), last
        if returns == "nodes":
            return torch.tensor([[*p, *[-1] * (D - len(p))] for p in paths]), last
        if returns == "flat":
            predictions = torch.full((B * (N + 1),), 99)
            accepted = torch.full((B, D + 1), -1)
            for b, path in enumerate(paths):
                places = [b * (N + 1), *(b * (N + 1) + n + 1 for n in path)]
                accepted[b, : len(places)] = torch.tensor(places)
                predictions[places] = torch.tensor([*tree.tokens[b, list(path)].tolist(), last[b].item()])
            return predictions, accepted, torch.tensor([len(p) for p in paths])
        return [[*tree.tokens[b, p].tolist(), last[b].item()] for b, p in enumerate(paths)]

    found: TreeVerifier = verify
    return found


def leaf_under(shape: TreeShape, path: list[int]) -> int:
    """Number of a path of ``Tree.candidates`` that begins with these nodes."""
    return next(i for i, leaf in enumerate(shape.leaves) if shape.path(leaf)[: len(path)] == tuple(path))


CONVENTIONS = ["tokens", "nodes", "flat", "best path", "distribution"]


@pytest.mark.parametrize("returns", CONVENTIONS)
def test_every_convention_gives_the_same_exact_law(returns: str) -> None:
    """A top-k tree whose children carry q = 1 is lossless; all five conventions of its output have one law."""
    for pair in (named_pair(V, 3), named_pair(3, 3), ONE_HOT):
        law = round_law(rule(returns), pair)
        ours = complete(law, pair.target, 4, pair.prompt)
        assert np.abs(ours - sequence_law(pair.target, 4, pair.prompt)).max() <= 1e-12
        plain = round_law(rule("tokens"), pair)
        assert law.keys() == plain.keys()
        assert all(law[t] == pytest.approx(plain[t], abs=1e-13) for t in law)


def test_candidates_list_the_paths() -> None:
    """Candidates hold the tokens of each path to a leaf, padded with -1; certain children have one-hot laws."""
    tokens = torch.tensor([[3, 1, 2, 0, 1]])
    tree = Tree(TreeShape(UNEVEN), tokens, None, torch.full((1, 6, V), 1 / V))
    assert tree.candidates.tolist() == [[[1, -1, -1], [3, 0, -1], [3, 2, 1]]]
    assert tree.laws[0].argmax(1).tolist() == tokens[0].tolist()
    assert tree.laws.sum(2).tolist() == [[1.0] * 5]


WRONG = [
    ("nodes", lambda: (torch.tensor([[0, 1, -1]]), torch.tensor([0])), "no path of the tree"),
    ("nodes", lambda: (torch.tensor([[2, -1, -1]]), torch.tensor([0])), "no path of the tree"),
    ("nodes", lambda: (torch.tensor([[0, 2, 7]]), torch.tensor([0])), "no path of the tree"),
    ("nodes", lambda: (torch.tensor([[0, -1, 2]]), torch.tensor([0])), "no path of the tree"),
    ("nodes", lambda: (torch.tensor([[0, -1]]), torch.tensor([0])), r"shape \(1, 2\); expected \(1, 3\)"),
    ("nodes", lambda: (torch.tensor([[0.0, -1, -1]]), torch.tensor([0])), "must be integers"),
    ("nodes", lambda: torch.tensor([0]), r"must return \(accepted nodes, last token\)"),
    ("nodes", lambda: (torch.tensor([[0, -1, -1]]), torch.tensor([V])), f"token id {V} .*outside 0..{V - 1}"),
    ("flat", lambda: (torch.zeros(6).long(), torch.tensor([[1, -1, -1, -1]]), torch.tensor([0])), "the root's place is 0"),
    ("flat", lambda: (torch.zeros(6).long(), torch.tensor([[0, 6, -1, -1]]), torch.tensor([1])), "owns 0 for the root"),
    ("flat", lambda: (torch.zeros(6).long(), torch.tensor([[0, 0, -1, -1]]), torch.tensor([1])), "owns 0 for the root"),
    ("flat", lambda: (torch.zeros(6).long(), torch.tensor([[0, 3, -1, -1]]), torch.tensor([1])), "no path of the tree"),
    ("flat", lambda: (torch.zeros(6).long(), torch.tensor([[0, 1, -1, -1]]), torch.tensor([2])), "the root is not counted"),
    ("flat", lambda: (torch.zeros(5).long(), torch.tensor([[0, 1, -1, -1]]), torch.tensor([1])), "predictions of shape"),
    ("best path", lambda: (3, 1, 0), "the tree has paths 0..2"),
    ("best path", lambda: (0, 2, 0), "accepted 2 tokens of path 0 in row 0, which has 1"),
    ("best path", lambda: (0, -1, 0), "accepted -1 tokens"),
    ("distribution", lambda: (0, 1, torch.full((V + 1,), 0.2)), "expected probabilities"),
    ("distribution", lambda: (0, 1, [0.2] * V), "return a tensor"),
    ("distribution", lambda: (0, 1, torch.tensor([0.5, -0.1, 0.3, 0.3])), "that is none"),
    ("distribution", lambda: (0, 1, torch.zeros(V)), "that is none"),
    ("distribution", lambda: (0, 1, torch.full((V,), float("nan"))), "that is none"),
    ("tokens", lambda: torch.tensor([[1, 2, 0, 1, 1]]), "between 1 and 4 tokens"),
    ("tokens", lambda: torch.tensor([[1, V]]), "outside 0..3"),
]


@pytest.mark.parametrize(("returns", "answer", "message"), WRONG, ids=[f"{w[0]}: {w[2]}" for w in WRONG])
def test_outputs_that_cannot_be_read_are_errors(returns: str, answer: object, message: str) -> None:
    """Wrong shapes, ids outside the vocabulary and paths that are not in the tree are named, with the inputs."""
    verifier = TreeVerifier("wrong", lambda _tree, _p: answer(), TreeShape(UNEVEN), "top-k", returns)  # type: ignore[arg-type,operator]
    tree = Tree(TreeShape(UNEVEN), torch.zeros(1, 5).long(), None, torch.full((1, 6, V), 1 / V))
    with pytest.raises(SubjectError, match=message) as caught:
        verifier(tree, torch.full((1, 6, V), 1 / V))
    assert "tokens = [[0, 0, 0, 0, 0]]" in caught.value.inputs
    assert "parents = [-1, -1, 0, 0, 2]" in caught.value.inputs


def test_a_rule_cannot_change_what_it_was_handed() -> None:
    """Inputs are copies: a rule that writes into the laws leaves those of the caller alone."""

    @tree_verifier(branching=(2,))
    def scratch(tree: Tree, target: Tensor) -> Tensor:
        for tensor in (tree.tokens, tree.draft_probs, tree.drafter_probs, target):
            assert tensor is not None
            tensor.zero_()
        return tree.tokens[:, :1]

    drafted = all_trees(scratch.shape, scratch.children, named_pair(3, 1))
    before = drafted.tokens.copy(), drafted.drawn.copy(), drafted.drafter.copy(), drafted.target.copy()
    scratch(*drafted.tensors())
    for kept, now in zip(before, (drafted.tokens, drafted.drawn, drafted.drafter, drafted.target), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_logits_accepted_counts_and_precision_are_understood() -> None:
    """takes="logits" hands log-laws in the declared precision; counts="accepted" adds the token after the accepted ones."""

    @tree_verifier(branching=(1,), takes="logits", counts="accepted", dtype="float32")
    def verify(tree: Tree, target: Tensor) -> tuple[Tensor, Tensor]:
        assert tree.draft_probs is not None
        assert target.dtype == tree.draft_probs.dtype == tree.drafter_probs.dtype == torch.float32
        for logs in (target, tree.draft_probs, tree.drafter_probs):
            torch.testing.assert_close(logs.exp().sum(-1), torch.ones(logs.shape[:-1]))
        return torch.multinomial(target[:, 0].exp(), 1), torch.zeros(len(target))[:, None].long()

    emitted = verify(*all_trees(verify.shape, verify.children, named_pair(3, 1)).tensors())
    assert set(emitted.counts.tolist()) == {1}


def test_the_kind_is_known_wherever_subjects_are() -> None:
    """A tree verifier is a subject with a source digest and a place in the certificate; the package exports its names."""
    subject = rule("tokens")
    assert as_subject(subject, "x") is subject
    assert source_digest(subject) != "unknown"
    said = subject_json(subject, "x")
    assert said["kind"] == said["parts"][0]["kind"] == "tree verifier"
    assert specverify.TreeVerifier is TreeVerifier
    assert specverify.tree_verifier is tree_verifier


@pytest.mark.parametrize("returns", ["tokens", "distribution"])
def test_checks_that_apply_certify_it(returns: str) -> None:
    """single_step, rounds, acceptance and sequence certify a lossless tree rule; the others say why they do not apply. The
    first test of every check is run; all of them run on the rules of the reference.
    """
    plan = plan_for(rule(returns), "x", Settings(BUDGETS["smoke"]))
    own = [p for p in plan.tests if p.expected == "certified"]
    assert {p.check for p in own} == {"single_step", "rounds", "acceptance", "edges", "sequence"}
    assert {s.check for s in plan.skipped} == {"stopping", "rows", "seeds"}
    runner = Runner(plan)
    for planned in {p.check: p for p in reversed(own)}.values():
        evidence = runner.run(planned)
        assert evidence.verdict == "certified", (planned.test, [j.reason for j in evidence.judgements()])


def test_its_certificate_can_be_checked_again_and_shown(tmp_path: Path) -> None:
    """A run on a tree fault is refuted; its certificate fits the schema, follows from its numbers and makes a report."""
    certificate = certify(
        "specverify.faults:k_tries", Settings(BUDGETS["smoke"]), out=tmp_path, only="single_step/k_tries/named pairs"
    )
    assert certificate.verdict == "refuted"
    again = recheck(load(tmp_path / "certificate.json"))
    assert again.subject["kind"] == "tree verifier"
    assert again.verdict == "refuted"
    page, summary = write_report(tmp_path / "certificate.json", tmp_path)
    assert "tree verifier" in page.read_text()
    assert "REFUTED" in summary.read_text().upper()
