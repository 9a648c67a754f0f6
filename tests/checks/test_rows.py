"""Is every row of a mixed batch judged by its own request? Faulty servers, right ones, ties, and unreadable answers."""

import functools
from dataclasses import replace

import pytest
import torch

from specverify.certify import Runner
from specverify.checks import rows
from specverify.checks.base import BUDGETS, Context, Planned, Settings, Skipped
from specverify.checks.served import Mixer, Served, Server
from specverify.faults import served as faulty
from specverify.faults.cases import C06_repaired
from specverify.plan import plan_for
from specverify.requests import Request
from specverify.subjects import Decoder, Facts, Verifier, decoder

SMOKE = Settings(BUDGETS["smoke"])
ALPHA = 1e-10
"""Per measurement; less than what a test of a whole certificate leaves for each."""
BETS = {kind: f"all bets on rows {kind}" for kind in ("with a seed", "without a seed")}
SUPPORT = "no sampled token of probability 0"
LENGTH = "every row has the tokens it asked for, or ends at eos"
GREEDY = "greedy rows take the likeliest token, up to rounding"
TWINS = {kind: f"equal rows {kind} of one prompt: dependent rows" for kind in BETS}
REPLAY = "a seeded request that is served alone replays"
GREEDY_COMPANY = "a greedy row is the same in other company, up to ties"
SEEDED_COMPANY = "a seeded row is the same in other company"


def found(part, calls, seed=0):
    """The verdict of every measurement by its label, from ``calls`` mixed batches."""
    planned = Planned("rows", part.name, "mixed batch", True, {"calls": calls})
    measured = rows.run(planned, Context(part, "x", SMOKE, seed, ALPHA, part.open())).measurements
    return {m.label: m.judge(ALPHA) for m in measured}


def refuting(part, calls, seed=0):
    """Labels of the measurements that refute; nothing else may come but passes."""
    verdicts = {label: judged.verdict for label, judged in found(part, calls, seed).items()}
    assert set(verdicts.values()) <= {"certified", "refuted"}, verdicts
    return {label for label, verdict in verdicts.items() if verdict == "refuted"}


SEEN_BY = {
    "C06_unfilled_beside_seeds": {BETS["without a seed"]},
    "C19_padding_attended": {*BETS.values(), GREEDY, GREEDY_COMPANY, SEEDED_COMPANY},
    "never_greedy_in_company": {GREEDY, GREEDY_COMPANY},
    "temperature_of_the_neighbour": {*BETS.values(), GREEDY, GREEDY_COMPANY, SEEDED_COMPANY},
    "length_of_the_neighbour": {LENGTH, GREEDY_COMPANY, SEEDED_COMPANY},
    "seed_and_place": {SEEDED_COMPANY},
    "one_stream_without_seeds": {BETS["without a seed"], TWINS["without a seed"]},
}
FAULTS = {s.name: s for s in (faulty.C06_unfilled_beside_seeds, faulty.C19_padding_attended, *faulty.SERVER_FAULTS.values())}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_server_is_refuted_by_what_is_wrong_with_it(name):
    """Half of the smoke budget refutes every fault, by exactly the measurements that it breaks."""
    assert refuting(FAULTS[name], rows.CALLS["smoke"] // 2) == SEEN_BY[name]


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"one_stream_without_seeds"}))
def test_without_company_there_is_nothing_wrong(name):
    """The same servers are certified where every batch holds one request: only mixed batches show these faults."""
    assert refuting(replace(FAULTS[name], facts=Facts(max_batch=1)), 6) == set()


def server(arrange=faulty.each_its_own, opened=faulty.over_tables, name="server", facts=None, **more):
    """A server subject over table models or over far context."""
    return Decoder(name, open=functools.partial(opened, arrange, **more), facts=facts or Facts())


@pytest.mark.parametrize("opened", [faulty.over_tables, faulty.over_far_context])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_server_is_certified_whatever_the_seed(opened, seed):
    """No measurement refutes it, and the evidence against it stays far from what refutes."""
    judged = found(server(opened=opened), 12, seed)
    assert {j.verdict for j in judged.values()} == {"certified"}
    assert set(judged) == {*BETS.values(), SUPPORT, LENGTH, GREEDY, *TWINS.values(), REPLAY, GREEDY_COMPANY, SEEDED_COMPANY}
    assert all(judged[label].numbers["log_e"] < 7 for label in BETS.values())


def test_rows_that_end_at_an_eos_are_certified():
    """With an eos some rows end early, and nothing about them is wrong."""
    part = server(eos_id=3)
    opened = part.open()
    assert min(len(row) for row in opened.serve([Request((0,), 9, seed) for seed in range(20)])) < 9
    assert refuting(part, 15) == set()


@pytest.mark.parametrize(("most", "calls"), [(2, 50), (7, 20)])
def test_batches_are_no_larger_than_declared(most, calls):
    """A server that takes few rows is given few, in every call, and is judged all the same."""
    sizes = []

    def counting(requests):
        sizes.append(len(requests))
        return faulty.each_its_own(requests)

    assert refuting(server(counting, facts=Facts(max_batch=most)), 8) == set()
    assert max(sizes) == most
    assert refuting(replace(faulty.C06_unfilled_beside_seeds, facts=Facts(max_batch=most)), calls) == {BETS["without a seed"]}


def test_seeds_that_are_not_used_do_not_replay():
    """Rows that all draw from one stream are independent samples, but a seeded request is then not replayed."""

    def without_seeds(requests):
        return faulty.each_its_own([replace(r, seed=None) for r in requests])

    assert refuting(server(without_seeds), 8) == {REPLAY, SEEDED_COMPANY}
    assert refuting(server(without_seeds, facts=Facts(seeded=False)), 8) == set()


def test_batch_mates_are_asked_about_only_where_they_are_declared_not_to_matter():
    """A seed that counts with the row's place is no fault of a decoder that is declared to depend on its batch."""
    part = replace(faulty.SERVER_FAULTS["seed_and_place"], facts=Facts(batch_invariant=False))
    judged = found(part, 8)
    assert SEEDED_COMPANY not in judged
    assert {j.verdict for j in judged.values()} == {"certified"}


class Scripted:
    """A server of fixed laws after every prefix whose rows are made by ``choose(request)``."""

    def __init__(self, law, choose, dtype=torch.float64, eos_id=None):
        self.law, self.choose, self.dtype, self.eos_id = law, choose, dtype, eos_id
        self.vocab_size = len(law)

    def target_log_probs(self, ids):
        """The law, in the precision asked for."""
        return torch.tensor(self.law, dtype=self.dtype).log().expand(*ids.shape, -1)

    def generate(self, prompts, max_new_tokens, seed):
        """Nothing: only served rows are asked for here."""
        raise NotImplementedError

    def serve(self, requests):
        """One row per request."""
        return self.choose(requests)


def gaps(law, token, tolerance=0.0, **more):
    """Whether a greedy row of one token is held against a server with this law."""
    of = Scripted(law, None, **more)
    row = Served(Request((0,), 1, temperature=0.0), (token,), "", greedy=True)
    return rows.not_the_best(Server(of, of, "scripted"), row, tolerance)


@pytest.mark.parametrize(
    ("law", "dtype", "tolerance", "allowed"),
    [
        ([0.4, 0.4, 0.2], torch.float64, 0.0, {0, 1}),
        ([0.4 + 1e-6, 0.4 - 1e-6, 0.2], torch.float64, 0.0, {0}),
        ([0.4 + 1e-6, 0.4 - 1e-6, 0.2], torch.float32, 0.0, {0, 1}),
        ([0.4 + 1e-3, 0.4 - 1e-3, 0.2], torch.float32, 0.0, {0}),
        ([0.4 + 1e-3, 0.4 - 1e-3, 0.2], torch.float32, 0.01, {0, 1}),
        ([1.0, 0.0, 0.0], torch.float32, 0.5, {0}),
    ],
)
def test_a_greedy_row_may_take_what_rounding_cannot_tell_apart(law, dtype, tolerance, allowed):
    """Exact ties and ties within the precision are no fault; a token clearly below the likeliest is, and any other one-hot."""
    assert {token for token in range(3) if not gaps(law, token, tolerance, dtype=dtype)} == allowed


def test_a_greedy_row_that_breaks_a_tie_otherwise_in_company_is_no_fault():
    """Two tokens of equal probability: which one comes may depend on the batch; a third may not."""

    def choosing(in_company):
        def choose(requests):
            token = in_company if len(requests) > 1 else 0
            return [[token if r.temperature == 0 else 0] * r.max_new_tokens for r in requests]

        return choose

    greedy = {}
    for token in (1, 2):
        part = decoder(Scripted([0.4, 0.4, 0.2], choosing(token)), batch_invariant=False)
        greedy[token] = {label: j.verdict for label, j in found(part, 6).items() if label in (GREEDY, GREEDY_COMPANY)}
    assert greedy == {
        1: {GREEDY: "certified", GREEDY_COMPANY: "certified"},
        2: {GREEDY: "refuted", GREEDY_COMPANY: "refuted"},
    }


def test_an_impossible_token_refutes_at_once():
    """One sampled token of probability 0 is enough, and the row that holds it is shown."""

    def choose(requests):
        return [[0] * (r.max_new_tokens - 1) + [2] for r in requests]

    judged = found(decoder(Scripted([0.5, 0.5, 0.0], choose)), 4)
    assert judged[SUPPORT].verdict == "refuted"
    assert "token 2 at place" in judged[SUPPORT].reason


def test_a_token_at_the_edge_of_a_filter_is_asked_about_alone():
    """A law that loses a token in a batch, and has it when the row is asked about alone, does not refute."""

    class Edge(Scripted):
        def target_log_probs(self, ids):
            law = self.law if len(ids) == 1 else [0.6, 0.4, 0.0]
            return torch.tensor(law).log().expand(*ids.shape, -1)

    def choose(requests):
        return [[int(torch.multinomial(torch.tensor(law), 1)) if r.temperature is None else 0] for r in requests]

    law = [0.5, 0.3, 0.2]
    of = Edge(law, choose)
    rows_ = [Served(Request((0,), 1), (2,), "", greedy=False), Served(Request((1,), 1), (0,), "", greedy=False)]
    judge = Server(of, of, "edge")
    laws = judge.laws(rows_)
    assert laws[0][0, 2] == 0
    assert judge.impossible(rows_[0], laws[0]) is None
    assert Server(Scripted([0.6, 0.4, 0.0], choose), of, "x").impossible(rows_[0], laws[0]) == 0


def test_a_greedy_decoder_is_judged_by_its_choices_alone():
    """With rule="greedy" all rows are greedy: nothing is bet on, no other temperature is asked for, choices are judged."""

    def choosing(wrong):
        def choose(requests):
            assert {r.temperature for r in requests} <= {None, 0.0}
            return [[wrong if len(requests) > 1 and r.seed is None else 0] * r.max_new_tokens for r in requests]

        return choose

    judged = found(decoder(Scripted([0.6, 0.4], choosing(0)), rule="greedy"), 4)
    assert {label: j.verdict for label, j in judged.items()} == dict.fromkeys(
        (LENGTH, GREEDY, REPLAY, GREEDY_COMPANY), "certified"
    )
    assert refuting(decoder(Scripted([0.6, 0.4], choosing(1)), rule="greedy"), 4) == {GREEDY, GREEDY_COMPANY}


def verdict_of(part):
    """Evidence of the rows test of a subject."""
    plan = plan_for(part, "tests", SMOKE)
    (planned,) = (p for p in plan.tests if p.check == "rows" and p.expected == "certified")
    return Runner(plan).run(planned)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda requests: [[0]], "1 rows for 10 requests"),
        (lambda requests: None, "NoneType"),
        (lambda requests: [[0.5] * r.max_new_tokens for r in requests], "must be integers"),
        (lambda requests: [[7] * r.max_new_tokens for r in requests], "token id 7"),
        (lambda requests: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_with_its_requests(answer, said):
    """What was wrong is said, with the requests of the call and the command that repeats it."""
    evidence = verdict_of(decoder(Scripted([0.5, 0.5], answer), name="bad"))
    assert evidence.verdict == "error"
    assert said in evidence.judgements()[0].reason
    assert "Request(prompt=" in evidence.measurements[0].reproduce


def test_a_decoder_that_does_not_serve_is_not_asked_and_the_certificate_says_so():
    """The test is left out with the reason, at no cost to the others; parts without models of their own have no such test."""
    for part, said in ((C06_repaired, "has no serve(requests)"), (Verifier("v", lambda a, b, c: None), "of their own")):
        skipped = rows.plan(part, SMOKE)
        assert isinstance(skipped, Skipped)
        assert said in skipped.reason
    assert not [p for p in plan_for(C06_repaired, "x", SMOKE).tests if p.check == "rows"]


def test_a_server_that_is_declared_and_is_none_is_an_error():
    """Whoever declares serves=True must open something that serves; an object that is wrapped is looked at."""
    evidence = verdict_of(replace(C06_repaired, serves=True))
    assert evidence.verdict == "error"
    assert "no serve(requests)" in evidence.judgements()[0].reason
    assert decoder(Scripted([0.5, 0.5], None)).serves
    assert not decoder(C06_repaired.open()).serves


def mixer(of):
    """What makes the batches for a decoder."""
    return Mixer.of(Server(of, of, "x"))


def test_a_mixed_batch_is_mixed():
    """Ten rows: prompts of one token and of many, with and without seeds, greedy and not, and two pairs side by side."""
    import numpy as np

    made, rng = mixer(faulty.over_tables()), np.random.default_rng(0)
    temperatures = set()
    for call in range(20):
        batch = made.batch(call, rng)
        requests = [r for unit in batch for r in unit]
        assert len(requests) == 10
        assert sorted(len(unit) for unit in batch) == [1] * 6 + [2, 2]
        single = [unit[0] for unit in batch]
        assert len({len(r.prompt) for r in single}) == 8
        assert min(len(r.prompt) for r in single) == 1
        assert max(len(r.prompt) for r in single) == 12
        assert sum(r.seed is None for r in requests) == 5
        assert sum(r.temperature == 0 for r in requests) == 2
        assert len({r.max_new_tokens for r in requests}) == 7
        assert len({r.seed for r in requests}) == 6
        temperatures |= {r.temperature for r in requests}
    assert temperatures == {None, 0.0, 0.7, 1.3}


def test_prompts_begin_as_the_decoders_own_and_only_known_laws_are_asked_for():
    """Prompts are beginnings of the decoder's own, and without laws at other temperatures rows sample at its own or not."""
    import numpy as np

    of = Scripted([0.2] * 5, None, eos_id=4)
    of.prompts = torch.tensor([[1, 2, 3] * 7, [3, 2, 1] * 7])
    requests = [r for unit in mixer(of).batch(0, np.random.default_rng(0)) for r in unit]
    assert max(len(r.prompt) for r in requests) == 21
    assert all(r.prompt in [((1, 2, 3) * 7)[: len(r.prompt)], ((3, 2, 1) * 7)[: len(r.prompt)]] for r in requests)
    assert {r.temperature for r in requests} == {None, 0.0}
    del of.prompts
    assert all(4 not in r.prompt for unit in mixer(of).batch(0, np.random.default_rng(0)) for r in unit for r in unit)


def test_a_large_vocabulary_takes_fewer_calls():
    """The number of probabilities is bounded, but a few batches are always served."""

    class Large:
        vocab_size = 5

    assert rows._calls(300, Large()) == 300
    Large.vocab_size = 50_000
    assert rows.FEWEST < rows._calls(300, Large()) < 30
    Large.vocab_size = 10_000_000
    assert rows._calls(300, Large()) == rows.FEWEST
