"""The guided tour's commands run, and what they print is true; its own pieces do what their names say."""

from __future__ import annotations

import re
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reference import break_it, build
from reference.broken_drafts import LyingDraft, Negated
from reference.model import Transformer
from reference.rules import token_rejection, typical_acceptance
from reference.tables import CachedTable, table_pair
from reference.tour import PLAIN, Way, conclusion, count, one_round, speed_ratios, trained_tiny, typical_law
from specverify.exact import induced_law, round_law
from specverify.laws import complete, sequence_law
from specverify.pairs import named_pair
from specverify.subjects import Step

PROMPTS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
NUMBER = r"(-?\d+\.\d+)"


def swept_in(text: str) -> list[SimpleNamespace]:
    """The lines of a sweep as numbers."""
    line = re.compile(rf"(\w+) +(\d+) +{NUMBER} +{NUMBER} +{NUMBER} +x {NUMBER} +x {NUMBER}$", re.MULTILINE)
    names = ("k", "acceptance", "emitted", "cost", "predicted", "measured")
    return [SimpleNamespace(name=m[0], **dict(zip(names, map(float, m[1:]), strict=True))) for m in line.findall(text)]


def check_sweep(text: str) -> None:
    """Predictions are E / cost, and E fits the acceptance, in every line; aligned drafts are accepted most."""
    swept = swept_in(text)
    assert {s.name for s in swept} >= {"aligned", "mismatched"}
    for s in swept:
        assert s.predicted == pytest.approx(s.emitted / s.cost, abs=0.02 + 0.02 / s.cost)
        assert s.emitted == pytest.approx(sum(s.acceptance**i for i in range(int(s.k) + 1)), rel=0.15)
        assert 0 < s.measured < s.k + 1.5
    by_name = {name: [s for s in swept if s.name == name] for name in {s.name for s in swept}}
    for own in by_name.values():
        assert 1 < own[0].cost < own[-1].cost
    assert min(s.acceptance for s in by_name["aligned"]) > max(s.acceptance for s in by_name["mismatched"]) + 0.1


def check_by_hand(text: str) -> None:
    """The law printed for the lying draft is the one that token rejection makes of its p and q, drawn at temperature 1/2."""

    def law_after(words: str) -> list[Fraction]:
        found = re.search(re.escape(words) + r" *\[([^]]+)\]", text)
        assert found is not None
        return [Fraction(x) for x in found[1].split(",")]

    p, q, out = map(law_after, ("target p", "draft q", "came out"))
    assert p == law_after("should be") != out
    drawn = [x * x / sum(y * y for y in q) for x in q]
    kept = [d * min(Fraction(1), a / b) if b else Fraction(0) for d, a, b in zip(drawn, p, q, strict=True)]
    owed = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    assert out == [k + (1 - sum(kept)) * o / sum(owed) for k, o in zip(kept, owed, strict=True)]


def build_walks_all_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers fit each other: overlap and acceptance, min(1, p/q), E and the formula, the laws in fractions."""
    assert build.main(["--tiny"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == list("012457")
    overlaps = dict(re.findall(rf"^   (\w+|\d+ steps) +sum min\(p, q\) = {NUMBER}", text, re.MULTILINE))
    assert float(overlaps["untrained"]) < 0.5 < float(overlaps["60 steps"]) < float(overlaps["aligned"])
    kept = re.findall(rf"q = {NUMBER}  p = {NUMBER}  keep with min\(1, p/q\) = {NUMBER}", text)
    assert len(kept) == 5
    for q, p, keep in (map(float, numbers) for numbers in kept):
        assert q < 0.05 or keep == pytest.approx(min(1.0, p / q), abs=0.15)
    assert "token rejection  1/2, 3/10, 1/5" in text
    assert "naive acceptance 1, 0, 0        TV from p 0.5" in text
    check_sweep(text)
    # two ways to the same number: overlap along a text, and drafts accepted while decoding
    (first, *_) = (s for s in swept_in(text) if s.name == "aligned")
    assert first.acceptance == pytest.approx(float(overlaps["aligned"]), abs=0.1)
    heads = re.search(r"top-1 of the heads:((?: \d\.\d+)+)", text)
    assert heads is not None
    assert len(heads[1].split()) == 8
    emitted = dict(re.findall(rf"^   ([a-z][a-z, K=4]+?) +E = {NUMBER}", text, re.MULTILINE))
    assert len(emitted) == 5
    assert 1 < float(emitted["heads, chain, K = 4"]) < float(emitted["separate draft, K = 4"]) <= 5
    assert text.count("\n  yes  ") == 11
    assert "\n  NO   " not in text


def break_it_shows_the_mismatch(capsys: pytest.CaptureFixture[str]) -> None:
    """Bad drafts are slower as K grows, an adaptive K no longer asks them, and the lying draft's smallest pair is printed."""
    assert break_it.main(["--tiny"]) == 0
    text = capsys.readouterr().out
    check_sweep(text)
    swept = {(s.name, s.k): s for s in swept_in(text)}
    assert swept["adversarial", 8].acceptance < 0.3 < swept["mismatched", 8].acceptance
    assert swept["adversarial", 8].emitted < swept["mismatched", 8].emitted < swept["aligned", 8].emitted
    assert re.search(r"^   adversarial +[1-8] [0-8 ]*\b0 0 [0-8 ]*\.\.$", text, re.MULTILINE)
    shares = dict(re.findall(r"^   (honest|adversarial|lying) +TV (\S+)$", text, re.MULTILINE))
    assert float(shares["honest"]) < 1e-12 > float(shares["adversarial"])
    assert float(shares["lying"]) > 0.01
    check_by_hand(text)
    assert text.count("\n  yes  ") == 10
    assert "\n  NO   " not in text


def a_broken_rule_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The control: with a lossy rule in the place of token rejection a command says NO and ends with 1."""
    monkeypatch.setattr(token_rejection, "verify", typical_acceptance.verify)
    facts = build.exact_laws() + break_it.lie()
    assert [what for what, holds in facts if not holds] == [
        "the law of token rejection is p to 1e-12",
        "rounds of the honest draft are exact to 1e-12",
        "rounds of the adversarial draft are exact to 1e-12",
    ]
    assert conclusion(facts) == 1
    assert "  NO   the law of token rejection is p to 1e-12" in capsys.readouterr().out


def test_the_commands_on_one_training(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands walk their steps and end well; a broken rule is seen. The same seed gives the models trained before, so
    what takes longest is done once.
    """
    build_walks_all_steps(capsys)
    trained = trained_tiny(0)
    break_it_shows_the_mismatch(capsys)
    a_broken_rule_is_seen(monkeypatch, capsys)
    assert trained_tiny(0) is trained
    assert trained.drafts["aligned"] is trained.aligned


def test_counts_of_a_perfect_and_of_a_hostile_draft(main_model: Transformer) -> None:
    """A draft that is the main model has all K drafts accepted; the same with its signs changed has hardly any."""
    perfect = count(main_model, main_model, PROMPTS, 24, 3)
    assert perfect.acceptance == pytest.approx(1, abs=0.02)
    assert perfect.emitted == pytest.approx(4, abs=0.1)
    hostile = count(main_model, Negated(main_model), PROMPTS, 24, 3)
    assert hostile.acceptance < 0.2
    assert 1 <= hostile.emitted < 1.3
    greedy: Any = PLAIN.__class__(temperature=0)
    texts = [count(main_model, of, PROMPTS, 24, 3, process=greedy).tokens for of in (main_model, Negated(main_model))]
    assert torch.equal(*texts)


def test_a_ratio_of_speeds_is_one_of_times(monkeypatch: pytest.MonkeyPatch, main_model: Transformer) -> None:
    """With a clock that is scripted, ratios are the median over repetitions of main's time over the way's, warm-up apart."""
    from reference import tour

    times = iter([9.0, 9.0, 2.0, 1.0, 6.0, 2.0, 1.0, 10.0])  # alone, way; the first pair warms up
    monkeypatch.setattr(tour, "processor_seconds", lambda call: next(times))
    assert speed_ratios(main_model, {"way": Way(main_model, 2)}, PROMPTS, 4) == {"way": 2.0}


def test_a_lying_draft_draws_another_law_than_it_declares() -> None:
    """What it declares is the honest draft's law; the round's law is off, and exact again where it does not sharpen."""
    pair = named_pair(3, 1)
    right = sequence_law(pair.target, 2, pair.prompt)
    for drawn_at, exact in ((1.0, True), (0.5, False), (2.0, False)):
        step = Step("step", break_it.step_of(lambda draft, at=drawn_at: LyingDraft(draft, at), 1), 1)  # type: ignore[misc]
        off = abs(complete(round_law(step, pair), pair.target, 2, pair.prompt) - right).max()
        assert (off < 1e-12) == exact


def test_the_law_of_typical_acceptance_is_the_rules_own() -> None:
    """The closed form of one place agrees with the rule replayed, on laws of which some tokens are typical."""
    target, draft = table_pair(4, 3)
    main, prompt = CachedTable(target, 4), torch.tensor([[1]])
    p, q = target(prompt)[0, 0].exp(), draft(prompt)[0, 0].exp()
    law = induced_law(lambda: one_round(main, CachedTable(draft, 4), prompt, 1, typical_acceptance).tokens[0, 0])
    assert [law.pmf.get(t, 0.0) for t in range(4)] == pytest.approx(typical_law(p, q).tolist(), abs=1e-12)
    assert not torch.allclose(typical_law(p, q), p)
