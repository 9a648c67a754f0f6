"""The reported mistakes are wrong in the stated way, and their repaired twins are exact."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from fault_pairs import CORNERS, corner, plain_pair, random_pairs, two_token_pair

from specverify.exact import decoder_emission, emission, round_law
from specverify.faults import cases
from specverify.faults.decoders import Loop, Processed
from specverify.laws import Array, Pair, TableModel, all_sequences, complete, first_difference, sequence_law
from specverify.laws import total_variation as tv
from specverify.loading import load_subject
from specverify.subjects import Decoder, DecoderLike, Generated, Step, Verifier, normalise_generated
from specverify.tables import torch_models

TOLERANCE = 1e-12
EXACT_PAIRS = [
    *(plain_pair(2), corner("disjoint", 2), corner("equal", 2)),
    *random_pairs(3, 2, (2, 3)),
    *random_pairs(2, 3, (2,)),
]
DECODER_PAIRS = [two_token_pair(2), two_token_pair(1), *random_pairs(2, 2, (2,)), plain_pair(1), corner("disjoint", 1)]
ROUND_TWINS = {c.repaired.name: c.repaired for c in cases.CASES.values() if isinstance(c.repaired, (Verifier, Step))}
ONE_ROUND = [
    case
    for name, case in cases.CASES.items()
    if case.id in ("C01", "C02", "C03", "C07", "C10") or name in ("C05_distribution_function", "C13_bonus_unwarped")
]
DECODERS = [case for case in cases.CASES.values() if isinstance(case.faulty, Decoder) and case.faulty.build is not None]


def round_error(subject: Verifier | Step, pair: Pair) -> Array:
    """Completed law of one round minus the target's law, an array of shape (V,) * (K+1)."""
    length = pair.k + 1
    law = complete(round_law(subject, pair), pair.target, length, pair.prompt)
    return law - sequence_law(pair.target, length, pair.prompt)


def opened(subject: Decoder, pair: Pair, eos_id: int | None = None) -> DecoderLike:
    """Build the decoder over the table models of a pair."""
    assert subject.build is not None
    return subject.build(*torch_models(pair), pair.k, eos_id)


def generated_law(subject: Decoder, pair: Pair, length: int, eos_id: int | None = None) -> Array:
    """Exact law of the first ``length`` tokens that the decoder generates."""
    like = opened(subject, pair, eos_id)
    law = np.zeros((pair.vocab_size,) * length)
    for tokens, mass in decoder_emission(like, pair, length, name=subject.name, max_batch=None).tokens.items():
        law[tokens] += mass
    return law


def stopped(law: Array, eos_id: int) -> Array:
    """Law of the same sequences with everything after the first eos replaced by eos."""
    length, out = law.ndim, np.zeros_like(law)
    for tokens in all_sequences(law.shape[0], length).tolist():
        end = tokens.index(eos_id) if eos_id in tokens else length
        out[(*tokens[:end], *[eos_id] * (length - end))] += law[tuple(tokens)]
    return out


@pytest.mark.parametrize("name", ROUND_TWINS)
@pytest.mark.parametrize("pair", EXACT_PAIRS, ids=lambda pair: f"{pair.name}, K = {pair.k}")
def test_repaired_round_is_exact(name: str, pair: Pair) -> None:
    """The completed law of a repaired round is the target's law."""
    subject = ROUND_TWINS[name]
    assert np.abs(round_error(_with_k(subject, pair.k), pair)).max() <= TOLERANCE


def _with_k(subject: Verifier | Step, k: int) -> Verifier | Step:
    """Return the subject for k draft tokens."""
    if isinstance(subject, Verifier):
        return subject
    assert isinstance(subject.step, partial)
    return Step(subject.name, partial(subject.step, k=k), k)


@pytest.mark.parametrize("case", ONE_ROUND, ids=lambda case: case.faulty.name)
def test_faulty_round_is_wrong(case: cases.Case) -> None:
    """The completed law of a faulty round is away from the target's law by more than one part in a hundred."""
    assert isinstance(case.faulty, (Verifier, Step))
    assert np.abs(round_error(case.faulty, plain_pair(2))).sum() / 2 > 0.01


def test_last_n_needs_two_draft_tokens_to_show() -> None:
    """With one draft token the last n accepted are the first n, so C01 is exact at K = 1 and wrong beyond."""
    assert np.abs(round_error(cases.C01_last_n, plain_pair(1))).max() <= TOLERANCE
    assert np.abs(round_error(cases.C01_last_n, plain_pair(3))).max() > 0.01


def test_negated_count_accepts_everything() -> None:
    """C02 emits K + 1 tokens in every round, the first K of them with the draft's law."""
    pair = plain_pair(2)
    law = complete(round_law(cases.C02_all_accepted, pair), pair.target, 3, pair.prompt)
    np.testing.assert_allclose(law.sum(2), sequence_law(pair.draft, 2, pair.prompt), atol=TOLERANCE)


def test_overwritten_q_is_read_by_the_rule() -> None:
    """C05 judges with the cumulative q where q should be, in the acceptance and in the residual."""
    pair = plain_pair(1)
    p, q = pair.target.next_law(pair.prompt), pair.draft.next_law(pair.prompt)
    told = q.cumsum()
    left = np.maximum(p - told, 0)
    kept = q * np.minimum(1, p / told)
    expected = kept + (1 - kept.sum()) * (left / left.sum() if left.any() else p)
    step = Step("C05", partial(cases.draft_by, k=1, choose=cases.drawn_in_place), 1)
    law = complete(round_law(step, pair), pair.target, 1, pair.prompt)
    np.testing.assert_allclose(law, expected, atol=TOLERANCE)


def processed(table: TableModel, temperature: float, top_p: float) -> TableModel:
    """Apply temperature and top-p to the laws of a table, row by row."""
    laws = []
    for law in table.laws:
        warm = law ** (1 / temperature)
        order = np.argsort(-warm, kind="stable")
        likely = warm[order] / warm.sum()
        kept = np.zeros_like(warm)
        kept[order] = np.where(likely.cumsum() - likely < top_p, likely, 0)
        laws.append(kept / kept.sum())
    return TableModel(np.array(laws))


@pytest.mark.parametrize("request_", [(0.6, 0.72), (1.0, 0.72), (0.6, 1.0), (1.0, 1.0)])
def test_unprocessed_bonus_shows_unless_nothing_is_processed(request_: tuple[float, float]) -> None:
    """C13's decoder follows the processed law but for its bonus tokens; at T = 1 without top-p there is no difference."""
    pair = plain_pair(1)
    target, draft = torch_models(pair)
    right = sequence_law(processed(pair.target, *request_), 3, pair.prompt)
    gaps = []
    for bonus in (None, target):
        loop = Loop(Processed(target, *request_), Processed(draft, *request_), 1, bonus=bonus)
        law = np.zeros_like(right)
        for tokens, mass in decoder_emission(loop, pair, 3, name="C13", max_batch=None).tokens.items():
            law[tokens] += mass
        gaps.append(tv(law, right))
    assert gaps[0] <= TOLERANCE
    assert (gaps[1] > 0.01) == (request_ != (1.0, 1.0))


def test_unwarped_bonus_is_right_in_the_draft_positions() -> None:
    """C13's bonus row alone is wrong: the first two tokens of K = 2 follow the target."""
    gap = round_error(cases.C13_bonus_unwarped, plain_pair(2))
    assert np.abs(gap.sum(2)).max() <= TOLERANCE
    assert np.abs(gap).sum() / 2 > 0.01


def test_residual_never_empty_emits_impossible_tokens() -> None:
    """C20 gives a token with p = 0 a billionth of the rejections, which exact laws with zeros see and samples do not."""
    pair = Pair(TableModel.from_weights([[0, 1, 1, 2]]), TableModel.from_weights([[0, 3, 1, 0]]), 1)
    gap = round_error(cases.C20_residual_never_empty, pair)
    assert 1e-10 < gap[0].sum() < 1e-8
    assert np.abs(gap).max() < 1e-8


def test_miscounted_acceptances_leave_the_tokens_right() -> None:
    """C16 emits the target's law but reports more accepted tokens than there are; its twin reports the right number."""
    pair = plain_pair(3)
    assert np.abs(round_error(cases.C16_counts_all, pair)).max() <= TOLERANCE
    faulty = emission(cases.C16_counts_all, pair).reported
    assert sum(mass for (reported, emitted), mass in faulty.items() if reported > emitted) > 0.05
    assert sum(mass for (reported, emitted), mass in faulty.items() if reported < emitted) == 0
    repaired = emission(cases.C16_repaired, pair).reported
    assert all(reported == emitted for reported, emitted in repaired)


@pytest.mark.parametrize("pair", DECODER_PAIRS, ids=lambda pair: f"{pair.name}, K = {pair.k}")
def test_repaired_decoder_is_exact(pair: Pair) -> None:
    """The joint law of the first tokens over several rounds is the target's law."""
    gap = generated_law(cases.C11_repaired, pair, 3) - sequence_law(pair.target, 3, pair.prompt)
    assert np.abs(gap).max() <= TOLERANCE


@pytest.mark.parametrize("eos_id", [0, 1])
def test_repaired_decoder_stops_at_eos(eos_id: int) -> None:
    """With an eos the law is the target's law stopped at the first eos."""
    pair = two_token_pair(2)
    right = stopped(sequence_law(pair.target, 3, pair.prompt), eos_id)
    assert np.abs(generated_law(cases.C15_repaired, pair, 3, eos_id) - right).max() <= TOLERANCE


def test_rejected_drafts_that_stay_give_the_draft_law() -> None:
    """C11 emits the draft whatever the target says: its first token follows q."""
    pair = two_token_pair(2)
    law = generated_law(cases.C11_rejected_stay, pair, 3)
    np.testing.assert_allclose(law.sum((1, 2)), pair.draft.next_law(pair.prompt), atol=TOLERANCE)
    assert tv(law, sequence_law(pair.target, 3, pair.prompt)) > 0.1


def test_length_not_rolled_back_passes_first_token_tests() -> None:
    """The second form of C11 has the right first token and wrong ones behind it."""
    pair = two_token_pair(2)
    law, right = generated_law(cases.C11_not_rolled_back, pair, 3), sequence_law(pair.target, 3, pair.prompt)
    difference = first_difference(law, right, TOLERANCE)
    assert difference is not None
    assert len(difference[0]) == 1
    assert tv(law, right) > 0.05


def test_prompt_position_is_right_in_the_first_round_only() -> None:
    """C12 emits a right first round; the first token that a later round may emit is wrong."""
    pair = two_token_pair(2)
    law, right = generated_law(cases.C12_prompt_position, pair, 3), sequence_law(pair.target, 3, pair.prompt)
    difference = first_difference(law, right, TOLERANCE)
    assert difference is not None
    assert len(difference[0]) == 1
    assert tv(law, right) > 0.05


def test_tokens_past_eos_are_returned() -> None:
    """C15 is right up to the eos and returns other tokens after it; its twin never does."""
    pair, eos_id = two_token_pair(2), 1

    def past_eos(law: Array) -> float:
        return sum(float(law[tuple(t)]) for t in all_sequences(2, 3).tolist() if not _clean(t))

    def _clean(tokens: list[int]) -> bool:
        return eos_id not in tokens or set(tokens[tokens.index(eos_id) :]) == {eos_id}

    faulty = generated_law(cases.C15_past_eos, pair, 3, eos_id)
    assert past_eos(faulty) > 0.05
    right = stopped(sequence_law(pair.target, 3, pair.prompt), eos_id)
    assert np.abs(stopped(faulty, eos_id) - right).max() <= TOLERANCE
    assert past_eos(generated_law(cases.C15_repaired, pair, 3, eos_id)) == pytest.approx(0, abs=TOLERANCE)


def test_without_eos_the_stopping_fault_is_none() -> None:
    """C15 cannot show when nothing ends the text."""
    pair = two_token_pair(2)
    gap = generated_law(cases.C15_past_eos, pair, 3) - sequence_law(pair.target, 3, pair.prompt)
    assert np.abs(gap).max() <= TOLERANCE


@pytest.mark.parametrize("case", DECODERS, ids=lambda case: case.faulty.name)
@pytest.mark.parametrize("eos_id", [None, 1])
def test_decoders_keep_the_protocol(case: cases.Case, eos_id: int | None) -> None:
    """Rows that end at different times give exactly N tokens, counts in range, and the same again for the same seed."""
    pair = plain_pair(3)
    prompts = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]])
    for subject in (case.faulty, case.repaired):
        assert isinstance(subject, Decoder)
        like = opened(subject, pair, eos_id)
        assert isinstance(like, DecoderLike)
        runs = [like.generate(prompts, 17, seed) for seed in (3, 3, 4)]
        read = [normalise_generated(raw, 5, 17, 3, eos_id, subject.name) for raw in runs]
        assert torch.equal(read[0].tokens, read[1].tokens)
        assert not torch.equal(read[0].tokens, read[2].tokens)
        assert isinstance(runs[0], Generated)
        accepted = read[0].accepted
        assert accepted is not None
        assert ((accepted >= -1) & (accepted <= 3)).all()
        over = (accepted == -1).long()
        assert torch.equal(over.cummax(1).values, over)
        assert torch.equal(prompts, torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]]))
        if eos_id is None and subject is case.repaired:
            emitted = torch.where(accepted >= 0, accepted + 1, 0).sum(1)
            assert ((emitted >= 17) & (emitted < 17 + 4)).all()


def test_rows_of_a_batch_do_not_share_draws() -> None:
    """Equal prompts in one batch give different texts, and no tokens at all are asked for without trouble."""
    like = opened(cases.C11_repaired, plain_pair(2))
    raw = like.generate(torch.zeros((6, 1), dtype=torch.int64), 20, 0)
    assert isinstance(raw, Generated)
    assert len({tuple(row) for row in raw.tokens.tolist()}) == 6
    none = like.generate(torch.zeros((2, 1), dtype=torch.int64), 0, 0)
    assert isinstance(none, Generated)
    assert none.tokens.shape == (2, 0)


def test_declared_laws_are_the_models() -> None:
    """Both log-laws that a decoder tells are those of the tables, row t after ids[:, : t + 1]."""
    pair = Pair(plain_pair(2).target, TableModel.from_weights([[1, 0, 2]]), 2)
    like = opened(cases.C12_repaired, pair)
    ids = torch.tensor([[0, 2, 1], [1, 1, 0]])
    told = like.target_log_probs(ids).exp().numpy()
    np.testing.assert_allclose(told, pair.target.laws_along(ids.numpy())[:, 1:], atol=TOLERANCE)
    drafted = like.draft_log_probs(ids).exp().numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(drafted, pair.draft.laws_along(ids.numpy())[:, 1:], atol=TOLERANCE)


@pytest.mark.parametrize("name", [n for n in vars(cases) if n.startswith("C") and n[1:3].isdigit()])
def test_cases_can_be_loaded_by_name(name: str) -> None:
    """``specverify.faults.cases:<name>`` is the subject of that name."""
    found = load_subject(f"specverify.faults.cases:{name}")
    assert found is getattr(cases, name)
    assert found.name == name


def test_every_case_has_a_summary_and_a_twin() -> None:
    """Cases carry what goes wrong and two subjects of the same kind; corners exist for the laws' tests."""
    assert sorted({case.id for case in cases.CASES.values()}) == [f"C{n:02}" for n in range(1, 23)]
    for case in cases.CASES.values():
        assert case.faulty.kind == case.repaired.kind
        assert case.faulty.name.startswith(case.id)
        assert case.repaired.name.startswith(case.id)
        assert case.repaired.name.endswith("_repaired")
    assert CORNERS


@pytest.mark.parametrize("pair", EXACT_PAIRS, ids=lambda pair: f"{pair.name}, K = {pair.k}")
def test_u_up_to_the_ratio_has_the_right_law(pair: Pair) -> None:
    """C08 is exact but for an event of measure zero: nothing but a boundary probe can see it."""
    assert np.abs(round_error(cases.C08_up_to_the_ratio, pair)).max() < TOLERANCE
