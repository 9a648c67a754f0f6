"""Boundary probes: a rule that is wrong at one end of one draw is found out, its right twin is left in peace."""

import itertools
import random

import numpy as np
import pytest
import torch

from specverify.edge_pairs import zeros_pair
from specverify.errors import OpaqueRandomness, SubjectError
from specverify.exact.boundaries import uniform_ends
from specverify.exact.probing import ORDINARY, probe, run_with
from specverify.exact.pushing import Push, Pushing
from specverify.exact.tasks import Effort
from specverify.faults.rounds import assemble, at, draw, finish, residual, token_rejection, uniforms, with_bonus
from specverify.laws import Pair, TableModel, first_impossible
from specverify.subjects import Facts, Step, Verifier

SEED = 5
PAIR = zeros_pair(2)


def events_of(verify, pair=PAIR, **facts):
    """What probing a verification function finds."""
    return probe(Verifier("probed", verify, Facts(**facts)), pair, seed=SEED).events


def summary(events):
    """Kind, boundary, and whether it can happen, of each event."""
    return {(e.kind, e.boundary, e.chance > 0) for e in events}


def accepting(accept):
    """Token rejection with another comparison of u (B, K) and the ratio (B, K)."""

    def verify(tokens, q, p):
        ratio = at(p, tokens) / at(q, tokens)
        return finish(tokens, accept(uniforms(ratio), ratio), with_bonus(residual(q, p), p))

    return verify


@pytest.mark.parametrize(
    ("dtype", "chance"), [("float64", 2.0**-53), ("float32", 2.0**-24), ("float16", 2.0**-12), ("bfloat16", 2.0**-9)]
)
def test_a_uniform_of_exactly_0_is_tried_in_every_precision(dtype, chance):
    """With u <= p/q a token with p = 0 is accepted, and the stated probability is that of the precision; u < p/q does not."""
    events = events_of(accepting(lambda u, ratio: u <= ratio), dtype=dtype)
    zero = next(e for e in events if e.boundary == "exactly 0")
    assert zero.kind == "impossible"
    assert zero.chance == pytest.approx(chance, rel=1e-3)
    assert (zero.source, zero.dtype, zero.draw) == ("rand", dtype, 0)
    assert zero.where.startswith("specverify/faults/rounds.py:")
    assert {e.kind for e in events} == {"impossible"}
    assert events_of(accepting(lambda u, ratio: u < ratio), dtype=dtype) == []


def test_a_crash_at_the_largest_uniform_is_an_error_with_its_probability():
    """An exception that only the largest float32 below 1 raises is found and blamed on that draw."""

    def strict(u, ratio):
        if (u > 1 - 1.5 * 2.0**-24).any():
            raise ValueError("u is too large")
        return u < ratio

    events = events_of(accepting(strict), dtype="float32")
    assert summary(events) == {("error", "the largest value below 1", True)}
    assert events[0].chance == 2.0**-24
    assert "u is too large" in events[0].message
    assert events_of(accepting(lambda u, ratio: u < ratio), dtype="float32") == []


def short_sum(dtype):
    """A law of four tokens without zeros whose cumulative sum in this precision ends no higher than the largest uniform."""
    top = uniform_ends(dtype)[1].value
    tables = itertools.combinations_with_replacement(range(1, 10), 4)
    short = [w for w in tables if float((torch.tensor(w, dtype=torch.float64) / sum(w)).to(dtype).cumsum(0)[-1]) <= top]
    assert short
    model = TableModel.from_weights([short[0]])
    return Pair(model, model, 1, (0,), "short sum")


def by_distribution_function(last):
    """Sample the first token by the distribution function of p in its own precision; ``last(index, V)`` ends it."""

    def verify(tokens, q, p):
        u = torch.rand(len(tokens), 1, dtype=p.dtype)
        index = torch.searchsorted(p[:, 0].cumsum(1).contiguous(), u, right=True)
        return last(index, p.shape[-1])

    return verify


def test_a_distribution_function_that_ends_below_1_gives_an_id_outside_the_vocabulary():
    """At the largest u searchsorted returns V; a clamp repairs it."""
    pair = short_sum(torch.float32)
    events = events_of(by_distribution_function(lambda i, v: i), pair, dtype="float32")
    assert summary(events) == {("error", "the largest value below 1", True)}
    assert f"token id {pair.vocab_size}" in events[0].message
    assert events_of(by_distribution_function(lambda i, v: i.clamp(max=v - 1)), pair, dtype="float32") == []


def test_what_needs_no_push_is_put_down_to_ordinary_draws():
    """A distribution function added up in bfloat16 ends so far below 1 that it fails every few draws."""

    def verify(tokens, q, p):
        u, total, index = torch.rand(len(tokens), dtype=p.dtype), torch.zeros(len(tokens), dtype=p.dtype), 0
        for law in p[:, 0].unbind(1):
            total = total + law
            index = index + (total <= u).long()
        return index[:, None]

    model = TableModel.from_weights([[1] * 40])
    assert sum(torch.full((40,), 1 / 40, dtype=torch.bfloat16)) < 0.99
    events = events_of(verify, Pair(model, model, 1), dtype="bfloat16")
    assert ("error", ORDINARY, True) in summary(events)


def test_searchsorted_from_the_wrong_side_gives_a_first_token_without_probability():
    """With p(0) = 0 and u = 0 the left side gives token 0; the right side does not."""

    def from_side(right):
        def verify(tokens, q, p):
            u = torch.rand(len(tokens), 1, dtype=p.dtype)
            return torch.searchsorted(p[:, 0].cumsum(1).contiguous(), u, right=right).clamp(max=2)

        return verify

    model = TableModel.from_weights([[0, 1, 3]])
    assert summary(events_of(from_side(False), Pair(model, model, 1))) == {("impossible", "exactly 0", True)}
    assert events_of(from_side(True), Pair(model, model, 1)) == []


@pytest.mark.parametrize(("dtype", "threshold"), [("float32", 0.3), ("float64", 0.3), ("bfloat16", 0.375)])
def test_a_tie_on_the_grid_is_found(dtype, threshold):
    """Code that is prepared for u < t and u > t only fails at u = t, which is found by bisection when t is on the grid."""
    on_grid = float(torch.round(torch.tensor(threshold, dtype=torch.float64) * 2**24) / 2**24)

    def verify(at_tie):
        def run(tokens, q, p):
            u = torch.rand(len(tokens), 1, dtype=p.dtype)
            return torch.where(u < on_grid, 1, torch.where(u > on_grid, 2, at_tie))

        return run

    model = TableModel.from_weights([[0, 1, 1]])
    events = events_of(verify(0), Pair(model, model, 1), dtype=dtype)
    assert [(e.kind, e.boundary) for e in events] == [("impossible", f"exactly {on_grid!r}")]
    assert 0 < events[0].chance < 0.01
    assert events_of(verify(1), Pair(model, model, 1), dtype=dtype) == []


def test_a_tie_off_the_grid_is_no_finding():
    """A threshold between two values of the sampler cannot be met, and is not."""
    off_grid = 0.3 + 2.0**-30

    def verify(tokens, q, p):
        u = torch.rand(len(tokens), 1, dtype=torch.float32).double()
        return torch.where(u < off_grid, 1, torch.where(u > off_grid, 2, 0))

    model = TableModel.from_weights([[0, 1, 1]])
    assert events_of(verify, Pair(model, model, 1)) == []


def race(smallest):
    """Sample the first token by an exponential race p / E whose clocks are at least ``smallest``."""

    def verify(tokens, q, p):
        clocks = torch.empty_like(p[:, 0]).exponential_().clamp(min=smallest)
        return (p[:, 0] / clocks).argmax(1, keepdim=True)

    return verify


@pytest.mark.parametrize(("dtype", "counts"), [("float64", False), ("float32", False), ("float16", True)])
def test_an_exponential_of_0_counts_only_where_the_sampler_may_give_it(dtype, counts):
    """0/0 wins the race for a token with p = 0: possible in float16, excluded by torch's documentation elsewhere."""
    assert summary(events_of(race(0.0), dtype=dtype)) == {("impossible", "exactly 0", counts)}
    tiny = float(torch.finfo(getattr(torch, dtype)).tiny)
    assert events_of(race(tiny), dtype=dtype) == []


def test_the_largest_exponential_is_tried():
    """Code that overflows only at 53 ln 2 is found."""

    def verify(most):
        def run(tokens, q, p):
            clocks = torch.empty_like(p[:, 0]).exponential_()
            if (clocks > most).any():
                raise OverflowError("a clock ran over")
            return p[:, 0].argmax(1, keepdim=True)

        return run

    assert summary(events_of(verify(36.7))) == {("error", "the largest exponential", True)}
    assert events_of(verify(36.8)) == []


def test_a_choice_is_pushed_to_its_first_and_last_token_and_never_to_weight_0():
    """A residual with 1e-12 everywhere emits impossible tokens, with that probability; the plain residual does not."""

    def lifted(by):
        def verify(tokens, q, p):
            ratio = at(p, tokens) / at(q, tokens)
            return finish(tokens, uniforms(ratio) < ratio, with_bonus(residual(q, p) + by, p))

        return verify

    events = events_of(lifted(1e-12))
    assert {e.kind for e in events} == {"impossible"}
    assert all("token of positive weight" in e.boundary and 0 < e.chance < 1e-10 for e in events)
    assert events_of(lifted(0.0)) == []


def test_a_coin_is_pushed_to_both_sides_but_never_to_an_impossible_one():
    """bernoulli(p/q) never accepts p = 0; a ratio kept above 1e-6 does, with that probability."""

    def tossed(least):
        def verify(tokens, q, p):
            ratio = (at(p, tokens) / at(q, tokens)).clamp(min=least, max=1)
            return finish(tokens, torch.bernoulli(ratio).bool(), with_bonus(residual(q, p), p))

        return verify

    assert {(e.boundary, e.chance) for e in events_of(tossed(1e-6))} == {("heads", 1e-6)}
    assert events_of(tossed(0.0)) == []


def loop(uniform, accept):
    """Token rejection in a Python loop over rows, with a uniform from elsewhere."""

    def verify(tokens, q, p):
        rows = []
        for b in range(len(tokens)):
            row = []
            for j, x in enumerate(tokens[b].tolist()):
                if not accept(uniform(), float(p[b, j, x] / q[b, j, x])):
                    left = (p[b, j] - q[b, j]).clamp(min=0)
                    row.append(int(draw((left if left.sum() > 0 else p[b, j])[None])))
                    break
                row.append(x)
            else:
                row.append(int(draw(p[b, -1][None])))
            rows.append(row)
        return rows

    return verify


@pytest.mark.parametrize(
    ("source", "uniform"),
    [
        ("random.random", lambda: random.random()),
        ("numpy.random.random", lambda: np.random.random()),
        ("numpy.random.rand", lambda: np.random.rand(1)[0]),
        ("rand", lambda: float(torch.rand(()))),
        ("uniform_", lambda: float(torch.empty(1).uniform_(0, 2)) / 2),
        ("rand", lambda: float(torch.distributions.Uniform(0.0, 1.0).sample())),
    ],
)
def test_uniforms_of_other_libraries_are_pushed_too(source, uniform):
    """Loops that draw from Python, from numpy or one number at a time are probed one row at a time."""
    events = events_of(loop(uniform, lambda u, ratio: u <= ratio))
    assert summary(events) == {("impossible", "exactly 0", True)}
    assert events[0].source == source
    assert events_of(loop(uniform, lambda u, ratio: u < ratio)) == []


def test_randomness_that_cannot_be_seen_is_refused():
    """A generator made before cannot be pushed: that is said, and nothing is certified."""
    hidden = np.random.default_rng(0)

    def verify(tokens, q, p):
        return torch.tensor([[int(hidden.choice(p.shape[-1], p=row[0].numpy()))] for row in p])

    with pytest.raises(OpaqueRandomness, match="cannot be followed"):
        events_of(verify)


def test_code_that_draws_nothing_is_run_and_left_alone():
    """Without randomness there is nothing to push; ordinary runs are still judged."""
    found = probe(Verifier("fixed", lambda t, q, p: p[:, :1].argmax(2)), PAIR, seed=SEED)
    assert (found.probes, found.events) == (0, [])
    assert found.runs > 0
    wrong = probe(Verifier("fixed", lambda t, q, p: p[:, :1].argmin(2)), PAIR, seed=SEED)
    assert summary(wrong.events) == {("impossible", ORDINARY, True)}


def test_not_a_number_is_an_error():
    """Weights of 0/0 on ordinary draws are an error that carries torch's message."""
    events = events_of(lambda tokens, q, p: torch.multinomial(p[:, 0] * float("nan"), 1))
    assert {e.kind for e in events} == {"error"}
    assert "nan" in events[0].message


@pytest.mark.parametrize("comparison", [lambda u, r: u <= r, lambda u, r: (u < r) | (u > 1 - 2e-16)])
def test_what_was_found_is_repeated_from_the_recorded_draws(comparison):
    """The draws of an event, handed in again, emit the same impossible token."""
    part = Verifier("repeated", accepting(comparison))
    events = probe(part, PAIR, seed=SEED).events
    assert events
    for event in events:
        assert event.repeated
        tokens = run_with(part, PAIR, [d.tolist() for d in event.draws], event.drafted)
        assert tokens == event.tokens
        assert first_impossible(PAIR.target, tokens, PAIR.prompt) is not None


def test_an_error_is_repeated_from_the_recorded_draws():
    """So does a crash."""

    def strict(u, ratio):
        assert (u > 0).all(), "u is 0"
        return u < ratio

    part = Verifier("repeated", accepting(strict))
    (event,) = probe(part, PAIR, seed=SEED).events
    with pytest.raises(SubjectError, match="u is 0"):
        run_with(part, PAIR, [d.tolist() for d in event.draws], event.drafted)


def test_a_step_is_probed_with_its_own_drafting():
    """A step that verifies with u <= p/q is found, and the draws of its drafting are pushed as well."""

    def step(accept):
        def run(target, draft, prefix):
            ids = prefix
            for _ in range(2):
                ids = torch.cat([ids, torch.multinomial(draft(ids)[:, -1].softmax(-1), 1)], 1)
            n = prefix.shape[1]
            return accepting(accept)(ids[:, n:], draft(ids)[:, n - 1 : -1].softmax(-1), target(ids)[:, n - 1 :].softmax(-1))

        return Step("step", run, 2)

    found = probe(step(lambda u, r: u <= r), PAIR, seed=SEED)
    assert summary(found.events) == {("impossible", "exactly 0", True)}
    assert [d.split()[0] for d in found.draws] == ["multinomial", "multinomial", "rand", "multinomial"]
    assert probe(step(lambda u, r: u < r), PAIR, seed=SEED).events == []


def test_rows_that_influence_each_other_are_run_alone():
    """A rule whose rows share a coin is not blamed for what a push in another row did."""

    def shared(tokens, q, p):
        ratio = at(p, tokens) / at(q, tokens)
        coins = uniforms(ratio)
        return finish(tokens, coins.roll(1, 0) < ratio, with_bonus(residual(q, p), p))

    assert events_of(shared) == []


def test_the_streams_are_left_as_they_were():
    """Probing seeds the global streams of torch, Python and numpy, and puts them back."""

    def states():
        return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())

    before, real = states(), random.random
    events_of(loop(lambda: random.random(), lambda u, r: u < r))
    assert states() == before
    assert random.random is real


def test_a_push_moves_one_element_and_nothing_else():
    """With the same seed, a pushed call differs from the plain one in the pushed element alone."""

    def draws(pushes):
        torch.manual_seed(0)
        with Pushing(3, pushes) as mode:
            values = torch.rand(3, 4), torch.empty(3, 2).exponential_(), torch.multinomial(torch.ones(3, 5), 1)
        assert [d.kind for d in mode.draws] == ["uniform", "exponential", "choice"]
        return values

    plain = draws([])
    moved = draws([Push(1, 0, 2, "highest"), Push(2, 1, 0, "lowest"), Push(0, 2, 0, "highest")])
    changed = [torch.nonzero(a != b).tolist() for a, b in zip(plain, moved, strict=True)]
    assert changed == [[[1, 2]], [[2, 0]], [[0, 0]]]
    assert float(moved[0][1, 2]) == 1 - 2.0**-24
    assert int(moved[2][0]) == 4


def test_a_turn_makes_a_round_accept_and_reject_where_it_should():
    """Turn j brings the first j uniforms of a row below 1/4 and the next above 3/4, across draws, on the grid."""
    torch.manual_seed(0)
    with Pushing(3, turns=[-1, 0, 3]):
        u = torch.cat([torch.rand(3, 2), torch.rand(3, 2)], 1)
    assert (u[2, :3] < 0.25).all()
    assert u[2, 3] > 0.75
    assert u[1, 0] > 0.75
    assert ((u * 2**24) == (u * 2**24).round()).all()


def test_no_effort_means_no_probes():
    """With nothing to spend only ordinary runs are made."""
    found = probe(Verifier("good", token_rejection), PAIR, seed=SEED, effort=Effort(0, 0, 0, 0))
    assert found.probes == 0
    assert found.runs > 0


def test_assembled_rounds_are_read_as_emitted():
    """The padding of a round is no token: a right rule that always rejects has no impossible tokens."""

    def verify(tokens, q, p):
        return assemble(tokens, torch.zeros(len(tokens), dtype=torch.int64), draw(p[:, 0]))

    assert events_of(verify) == []


def test_a_step_of_a_uniform_is_not_set_on_another_kind_of_draw():
    """Another path may draw exponentials where a uniform was pushed to a step; the draw is left as it was made."""
    with Pushing(1, [Push(0, 0, 0, 12345), Push(0, 1, 0, 12345)]) as mode:
        clocks = torch.empty(1, 3).exponential_()
        coins = torch.rand(1, 3)
    assert clocks.min() > 0
    assert not mode.draws[0].moved
    assert mode.draws[1].moved[0].value == float(coins[0, 0]) == 12345 / 2**24
