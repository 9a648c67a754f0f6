"""What a certificate says of what could not happen, or was not tried: trees over all tokens, edge laws alone, other ends."""

import torch
from subjects_for_tests import good

import specverify
from specverify.certificate import Certificate
from specverify.certify import Runner
from specverify.checks.base import BUDGETS, Settings
from specverify.evidence import CellGroup, CellMeasurement
from specverify.exact import decoder_emission
from specverify.faults.decoders import Loop
from specverify.loading import load_subject
from specverify.outputs import Generated
from specverify.pairs import named_pair
from specverify.plan import plan_for
from specverify.record import Evidence
from specverify.sentence import _reservations
from specverify.subjects import Decoder
from specverify.tables import torch_models

SETTINGS = Settings(BUDGETS["smoke"])


def test_no_rejection_is_asked_for_where_the_children_are_all_tokens():
    """A right rule over trees whose nodes have every token as a child never rejects, and is certified."""
    reference = load_subject("reference")
    assert isinstance(reference, Decoder)
    part = next(p for p in reference.parts if p.name == "reference.tree.without_replacement")
    plan = plan_for(part, "x", SETTINGS)
    planned = next(p for p in plan.tests if (p.check, p.variant) == ("single_step", "named pairs"))
    everything = {**planned.params, "sizes": [(part.shape.width, part.k)]}
    evidence = Runner(plan).run(specverify.checks.base.Planned(planned.check, planned.part, planned.variant, False, everything))
    assert evidence.verdict == "certified", [j.reason for j in evidence.judgements()]
    assert "nothing can be rejected" in evidence.notes[0]


class Unnamed:
    """A decoder that stops at an end it was told and pads with -1, and keeps no ``eos_id``."""

    def __init__(self, inner: Loop, eos: int) -> None:
        self.inner, self.eos, self.vocab_size = inner, eos, inner.vocab_size

    def target_log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """Laws of the inner loop."""
        return self.inner.target_log_probs(ids)

    def generate(self, prompts: torch.Tensor, max_new_tokens: int, seed: int) -> Generated:
        """What the inner loop generates, -1 after the end."""
        tokens = self.inner.generate(prompts, max_new_tokens, seed).tokens
        ended = ((tokens == self.eos).long().cumsum(1) - (tokens == self.eos).long()) > 0
        return Generated(torch.where(ended, -1, tokens))


def test_an_end_that_was_told_is_known_though_the_decoder_does_not_keep_it():
    """Padding after it is read by the stopping check and by the exact law."""
    decoder = Decoder("unnamed", build=lambda t, d, k, eos_id=None: Unnamed(Loop(t, d, k, eos_id), eos_id))
    plan = plan_for(decoder, "x", SETTINGS)
    planned = next(p for p in plan.tests if p.check == "stopping" and p.expected == "certified")
    evidence = Runner(plan).run(planned)
    assert evidence.verdict == "certified", [j.reason for j in evidence.judgements()]
    pair = named_pair(2, 1)
    built = Unnamed(Loop(*torch_models(pair), 1, 1), 1)
    found = decoder_emission(built, pair, 2, name="unnamed", max_batch=1, eos_id=1)
    assert any(-1 in tokens for tokens in found.tokens)


def test_laws_of_edge_pairs_alone_do_not_say_that_the_rule_was_read_exactly():
    """The sentence says that it is judged by sampling alone, and what that would have shown."""
    plan = plan_for(good, "x", SETTINGS)
    runner = Runner(plan)
    edges = runner.run(next(p for p in plan.tests if p.variant == "edge laws" and p.expected == "certified"))
    exact = runner.run(next(p for p in plan.tests if p.variant == "named pairs" and p.expected == "certified"))
    cells = CellMeasurement("joint law of 2 tokens", (CellGroup("joint", (500, 500), (0.5, 0.5)),))
    sampled = Evidence("sequence/good/x", "sequence", edges.part, "?", "certified", 1e-9, (cells,))

    def said(*evidence: Evidence) -> str:
        return _reservations(Certificate({}, {}, plan.ledger, evidence, (), {}, ()))

    assert any(m.kind == "law" for m in edges.measurements)
    assert "judged by sampling alone" in said(edges, sampled)
    assert "judged by sampling alone" not in said(edges, sampled, exact)
