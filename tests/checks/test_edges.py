"""The edges check: verdicts, what a finding carries, and edge pairs that are what they are called."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from specverify.certificate import from_data, recheck
from specverify.certify import Runner, certify
from specverify.checks import CHECKS, edges
from specverify.checks.base import BUDGETS, Settings, Skipped
from specverify.edge_pairs import DIGITS, edge_pairs, moved_one_ulp, zeros_pair
from specverify.errors import CertificateError
from specverify.evidence import worst
from specverify.evidence.measurements import LawMeasurement, OutcomeMeasurement, ProbeMeasurement, from_json, power_of_two
from specverify.faults.cases import C08_up_to_the_ratio, C09_nothing_left, C11_repaired, residual_over_its_sum
from specverify.faults.rounds import at, finish, or_target, token_rejection, uniforms, with_bonus
from specverify.laws import Pair, TableModel
from specverify.plan import plan_for
from specverify.subjects import DTYPES, Decoder, Facts, Verifier
from specverify.trees import tree_verifier

SETTINGS = Settings(BUDGETS["smoke"])
every_dtype = pytest.mark.parametrize("dtype", list(DTYPES))


def evidence_of(subject, variant=None):
    """Evidence of the edges tests of a subject, by variant."""
    plan = plan_for(subject, "tests:subject", SETTINGS)
    runner = Runner(plan)
    found = {p.variant: runner.run(p) for p in plan.tests if p.check == "edges" and p.expected == "certified"}
    return found if variant is None else found[variant]


def probes(evidence):
    """The findings of all probes of a test."""
    return [f for m in evidence.measurements if isinstance(m, ProbeMeasurement) for f in m.findings]


@pytest.mark.parametrize(("dtype", "chance"), [("float64", "2^-53"), ("float32", "2^-24")])
def test_u_of_0_refutes_with_its_probability(dtype, chance):
    """Case C08 is refuted in both tests, and the reason names draw, line, value and probability."""
    for evidence in evidence_of(replace(C08_up_to_the_ratio, facts=Facts(dtype=dtype))).values():
        assert evidence.verdict == "refuted"
        reason = next(j.reason for j in evidence.judgements() if j.verdict == "refuted")
        assert "where the target gives it probability 0" in reason
        assert f"rand in {dtype} at specverify/faults/rounds.py:" in reason
        assert f"gives exactly 0: probability {chance} per draw" in reason


def test_u_of_0_is_common_in_bfloat16():
    """There a uniform is 0 so often that some probes meet it without being pushed; both are recorded."""
    evidence = evidence_of(replace(C08_up_to_the_ratio, facts=Facts(dtype="bfloat16")), "boundary draws")
    assert evidence.verdict == "refuted"
    pushed = [f for f in probes(evidence) if f["boundary"] == "exactly 0"]
    assert pushed
    assert all(2.0**-9 <= f["chance"] <= 2.0**-8 for f in pushed)


def test_a_finding_carries_what_repeats_it(capsys):
    """The snippet of the counterexample emits the impossible token again; the lines name pair, draft and draws."""
    shown = evidence_of(C08_up_to_the_ratio, "boundary draws").counterexample
    assert shown["right"] == 0.0
    assert shown["got"] == 2.0**-53
    assert any("target p [" in line for line in shown["lines"])
    assert any(line.startswith("drafted [") for line in shown["lines"])
    snippet = shown["snippet"].replace("'tests:subject'", "'specverify.faults.cases:C08_up_to_the_ratio'")
    exec(compile(snippet, "snippet", "exec"), {})
    emitted = eval(capsys.readouterr().out)
    context = tuple(shown["context"])
    assert emitted[: len(context) + 1] == (*context, shown["token"])
    pair = Pair.from_json(shown["pair"])
    assert pair.target.next_law((*pair.prompt, *context))[shown["token"]] == 0


@every_dtype
def test_an_empty_residual_is_an_error_that_names_the_pair(dtype):
    """Case C09 divides 0 by 0 where p and q differ by one ulp of the declared precision; everything else goes on."""
    found = evidence_of(replace(C09_nothing_left, facts=Facts(dtype=dtype)))
    assert found["boundary draws"].verdict == "certified"
    evidence = found["edge laws"]
    assert evidence.verdict == "error"
    failed = [m for m, j in zip(evidence.measurements, evidence.judgements(), strict=True) if j.verdict == "error"]
    assert all("one ulp" in m.label and "above" in m.label for m in failed)
    assert all("nan" in f["message"] and f["chance"] > 0 for m in failed for f in m.findings)
    assert "laws" in evidence.counterexample["pair"]["draft"], "hexadecimal floats"
    assert sum(isinstance(m, LawMeasurement) for m in evidence.measurements) > 5


@every_dtype
def test_a_right_rule_passes_in_every_precision(dtype):
    """Token rejection with a strict comparison and a fallback is certified in both tests, with many probes."""
    for evidence in evidence_of(Verifier("right", token_rejection, Facts(dtype=dtype))).values():
        assert evidence.verdict in ("certified", "inconclusive" if dtype in ("bfloat16", "float16") else "certified")
        assert probes(evidence) == []
        assert sum(m.probes for m in evidence.measurements if isinstance(m, ProbeMeasurement)) > 1000


def upto_and_0_over_0(tokens, q, p):
    """U <= p/q with an empty residual that is not caught."""
    target = p[:, :-1]
    left = (target - q).clamp(min=0)
    ratio = at(p, tokens) / at(q, tokens)
    accept = (uniforms(ratio) <= ratio) & (at(p, tokens) > 0)
    return finish(tokens, accept, with_bonus(left / left.sum(-1, keepdim=True), p))


def test_paths_that_no_draw_leads_to_are_a_note():
    """With u <= p/q and p/q = 1 - 2^-53 even the largest u accepts: the exact law has a crash, the sampler has not."""
    target = TableModel.from_weights([[3, 5]])
    near = Pair(target, TableModel(moved_one_ulp(target.laws, [0], "float64")), 1, name="near")
    assert 3 / 8 / near.draft.laws[0, 0] == 1 - 2.0**-53
    measured, note = edges._law(Verifier("upto", upto_and_0_over_0), near)
    assert isinstance(measured, LawMeasurement)
    assert measured.judge(0).verdict == "certified"
    assert "no draw on the sampler's grid" in note


def test_likely_crashes_are_errors_even_without_a_witness():
    """Paths of much probability that crash are an error of the exact law itself."""
    pair = zeros_pair(1)
    measured, _ = edges._law(Verifier("wrong", lambda t, q, p: residual_over_its_sum(t, p[:, :-1] * 1.5, p)), pair)
    assert isinstance(measured, OutcomeMeasurement)
    assert measured.judge(0).verdict == "error"


def test_an_exponential_of_0_is_noted_and_does_not_count():
    """A race in which 0/0 can win only against torch's documentation is certified, with a note that says so."""

    def race(tokens, q, p):
        return (p[:, 0] / torch.empty_like(p[:, 0]).exponential_()).argmax(1, keepdim=True)

    evidence = evidence_of(Verifier("race", race), "boundary draws")
    assert evidence.verdict == "certified"
    assert any("documented not to give" in note for note in evidence.notes)
    assert {f["chance"] for f in probes(evidence)} == {0.0}


def test_ordinary_faults_are_put_down_to_ordinary_draws():
    """A rule that accepts everything needs no boundary to emit impossible tokens, and is not said to."""
    evidence = evidence_of(Verifier("all", lambda t, q, p: finish(t, t >= 0, p)), "boundary draws")
    assert evidence.verdict == "refuted"
    assert {f["boundary"] for f in probes(evidence)} == {"ordinary draws"}


def test_an_exact_law_that_cannot_be_followed_is_said_to_be_left_out():
    """Probes run whatever the code does with its numbers; the exact laws may not."""

    def odd(tokens, q, p):
        ratio = at(p, tokens) / at(q, tokens)
        u = (torch.rand(ratio.shape, dtype=ratio.dtype) * 1e6).round().fmod(1e3) / 1e3
        return finish(tokens, u < ratio, with_bonus(or_target((p[:, :-1] - q).clamp(min=0), p[:, :-1]), p))

    evidence = evidence_of(Verifier("odd", odd), "edge laws")
    skipped = [j.reason for j in evidence.judgements() if j.verdict == "skipped"]
    assert len(skipped) == 1
    assert "left out" in skipped[0]
    assert evidence.verdict == "certified"


def test_decoders_need_a_build():
    """A decoder with models of its own only is skipped with the reason; one that can be built is probed."""
    assert isinstance(edges.plan(Decoder("own", open=lambda: None), SETTINGS), Skipped)
    found = evidence_of(C11_repaired)
    assert {e.verdict for e in found.values()} == {"certified"}
    assert sum(m.probes for m in found["boundary draws"].measurements) > 50


def test_it_is_asked_after_acceptance():
    """The order of the checks is part of the registry."""
    names = list(CHECKS)
    assert names.index("edges") == names.index("acceptance") + 1


@every_dtype
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_one_ulp_is_one_ulp_of_the_precision(dtype, up):
    """After rounding, exactly the named entry differs, and it is the neighbour of the original."""
    laws = np.array([[3, 3, 2], [2, 3, 3]]) / 8
    moved = moved_one_ulp(laws, [0, 2], dtype, up)
    assert np.allclose(moved.sum(1), 1, atol=1e-6)
    old, new = (torch.from_numpy(x).to(DTYPES[dtype]) for x in (laws, moved))
    toward = torch.full_like(old, 2.0 if up else 0.0)
    changed = torch.zeros(2, 3, dtype=torch.bool)
    changed[[0, 1], [0, 2]] = True
    step = 2.0 ** -(DIGITS[dtype] + 1)
    wanted = torch.where(changed, old.double() + (step if up else -step), old.double())
    assert torch.equal(new.double(), wanted)
    if dtype in ("float32", "float64"):
        assert torch.equal(new, torch.where(changed, torch.nextafter(old, toward), old))


def test_an_ulp_that_cannot_be_made_up_for_is_refused():
    """In half precision the other entries must be able to hide the difference."""
    with pytest.raises(ValueError, match="too small"):
        moved_one_ulp(np.array([[0.99, 0.01]]), [0], "bfloat16")


@every_dtype
@pytest.mark.parametrize("vocab_size", [2, 3])
def test_edge_pairs_are_what_they_are_called(dtype, vocab_size):
    """Names are unique; pairs one ulp above leave no residual but a ratio below 1; the others have their zeros."""
    pairs = {p.name: p for p in edge_pairs(2, vocab_size, dtype)}
    assert len(pairs) == len(edge_pairs(2, vocab_size, dtype)) >= 10
    for name, pair in pairs.items():
        p, q = (torch.from_numpy(m.laws).to(DTYPES[dtype]) for m in (pair.target, pair.draft))
        if p.shape != q.shape:
            continue
        if "above" in name:
            assert (p <= q).all()
            assert ((p / q) < 1).any(1).all(), name
        elif "below" in name:
            assert ((p - q).clamp(min=0) > 0).sum(1).tolist() == [1] * len(p)
        elif name.startswith("disjoint"):
            assert ((p > 0) & (q > 0)).sum() == 0
        elif name.startswith("p = q"):
            assert torch.equal(p, q)


def test_the_zeros_pair_has_zeros_where_they_matter():
    """The target has zeros at both ends of the vocabulary and under tokens that the draft proposes."""
    pair = zeros_pair(2)
    p, q = pair.target.laws, pair.draft.laws
    assert (p[:, 0] == 0).any()
    assert (p[:, -1] == 0).any()
    assert ((p == 0) & (q > 0)).any(1).all()
    assert ((p > 0) & (q == 0)).any()


FINDING = {
    "kind": "impossible",
    "message": "",
    "boundary": "exactly 0",
    "chance": 2.0**-24,
    "draw": 0,
    "element": 0,
    "source": "rand",
    "dtype": "float32",
    "where": "mine.py:7",
    "drafted": [1],
    "tokens": [1, 2],
    "draws": [[0.0], [2.0]],
    "repeated": True,
}


def measurement(*findings, probes=10):
    """A probe of a pair that gives token 1 probability 0 after the prompt."""
    pair = Pair(TableModel.from_weights([[1, 0, 1]]), TableModel.from_weights([[1, 1, 1]]), 1, (0,))
    return ProbeMeasurement("toy", pair, probes, 0, findings)


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        (
            {},
            "refuted",
            "emits token 1 first, where the target gives it probability 0, when draw 0 (rand in float32 at mine.py:7)",
        ),
        ({"chance": 0.0}, "certified", "all came out well"),
        ({"tokens": [0, 2]}, "error", "nothing follows"),
        ({"kind": "error", "message": "raised"}, "error", "raised, when draw 0"),
        ({"kind": "error", "message": "raised", "chance": 0.0}, "certified", "came out well"),
        ({"draw": -1, "chance": 1.0, "boundary": "ordinary draws"}, "refuted", "with ordinary draws"),
    ],
)
def test_a_probe_is_judged_from_its_numbers(change, verdict, said):
    """Verdicts follow from pair, tokens and probability, and the same after a round trip through JSON."""
    made = measurement({**FINDING, **change})
    for one in (made, from_json(made.to_json())):
        judged = one.judge(0)
        assert judged.verdict == verdict
        assert said in judged.reason


def test_an_impossible_token_outweighs_a_crash():
    """A refutation is a proof, whatever else happened."""
    assert measurement({**FINDING, "kind": "error", "message": "raised"}, FINDING).judge(0).verdict == "refuted"
    assert measurement(probes=0).judge(0).verdict == "inconclusive"


def test_probabilities_are_written_as_powers_of_two_where_they_are():
    """2^-24 is shown as such, other numbers in digits."""
    assert power_of_two(2.0**-24) == "2^-24"
    assert power_of_two(0.3) == "0.3"
    assert power_of_two(1.0) == "1"


def test_a_certificate_with_probes_is_rechecked(monkeypatch):
    """Verdicts with findings are recomputed from the certificate, and a changed token no longer refutes."""
    monkeypatch.setattr("specverify.plan.controls", lambda _settings: [])
    certificate = certify("tests:subject", SETTINGS, subject=C08_up_to_the_ratio, only="edges/")
    assert certificate.verdict == "refuted"
    assert "does not sample from its target law" in certificate.sentence()
    data = certificate.to_json()
    assert recheck(data).verdict == "refuted"
    changed = next(m for e in data["evidence"] for m in e["measurements"] if m["verdict"] == "refuted")
    changed["findings"] = []
    with pytest.raises(CertificateError, match="its numbers say certified"):
        recheck(data)
    assert from_data(data).verdict == "refuted"


def tried_in_turn(tree, target_probs, *, strict: bool):
    """Recursive rejection over the children of the root; a coin of exactly 0 decides about tokens of probability 0."""
    law, rows = target_probs[:, 0].clone(), torch.arange(len(tree.tokens))
    chosen = torch.full((len(tree.tokens),), -1)
    for child in tree.shape.children(-1):
        x, q = tree.tokens[:, child], tree.draft_probs[:, child]
        coin = torch.rand(len(x), dtype=law.dtype) * q[rows, x]
        accept = (coin < law[rows, x] if strict else coin <= law[rows, x]) & (chosen == -1)
        chosen = torch.where(accept, child, chosen)
        rest = (law - q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        law = torch.where((chosen == -1)[:, None] & (mass > 0), rest / mass.clamp(min=1e-300), law)
    taken = chosen >= 0
    law = torch.where(taken[:, None], target_probs[rows, chosen + 1], law)
    last = torch.multinomial(law, 1)[:, 0]
    first = torch.where(taken, tree.tokens[rows, chosen.clamp(min=0)], last)
    return torch.stack([first, torch.where(taken, last, -1)], 1)


@pytest.mark.parametrize(("strict", "verdict"), [(True, "certified"), (False, "refuted")])
def test_the_draws_of_a_tree_verifier_are_pushed_too(strict: bool, verdict: str) -> None:
    """A coin of 0 that accepts a child of probability 0 refutes the rule for trees; its strict twin passes."""
    rule = tree_verifier(partial(tried_in_turn, strict=strict), name="tried", branching=(2,), children="with replacement")
    assert worst([e.verdict for e in evidence_of(rule).values()]) == verdict


def matched_at_once(draft_tokens, draft_probs, target_probs, *, categorical: bool):
    """Sample-and-match that draws the tokens of all places in one call."""
    B, places, V = target_probs.shape
    if categorical:
        drawn = torch.distributions.Categorical(probs=target_probs).sample()
    else:
        drawn = torch.multinomial(target_probs.reshape(B * places, V), 1).reshape(B, places)
    accepted = (drawn[:, :-1] == draft_tokens).long().cumprod(1).sum(1)
    return drawn, accepted + 1


@pytest.mark.parametrize("categorical", [True, False])
@pytest.mark.parametrize("max_batch", [None, 1])
def test_several_laws_in_one_draw_are_pushed_one_by_one(categorical, max_batch):
    """A right rule that draws all its tokens in one call is pushed within the support of each law, and passes."""
    rule = Verifier("matched", partial(matched_at_once, categorical=categorical), Facts(max_batch=max_batch))
    assert worst([e.verdict for e in evidence_of(rule).values()]) == "certified"


def test_an_impossible_token_in_one_draw_of_several_is_found():
    """A coin of 0 that decides before such a draw is still found, wherever the draw is pushed."""

    def late(draft_tokens, draft_probs, target_probs):
        drawn, counts = matched_at_once(draft_tokens, draft_probs, target_probs, categorical=False)
        lucky = torch.rand(len(drawn)) == 0
        drawn[:, 0] = torch.where(lucky, target_probs[:, 0].argmin(1), drawn[:, 0])
        return drawn, torch.where(lucky, 1, counts)

    assert worst([e.verdict for e in evidence_of(Verifier("late", late)).values()]) == "refuted"


def test_nothing_pushed_is_nothing_certified():
    """A pair on which no draw has a boundary says nothing; one that never ran is inconclusive."""
    assert ProbeMeasurement("x", zeros_pair(1), 0, 7).judge(0).verdict == "skipped"
    assert ProbeMeasurement("x", zeros_pair(1), 0, 0).judge(0).verdict == "inconclusive"
    assert ProbeMeasurement("x", zeros_pair(1), 3, 7).judge(0).verdict == "certified"
