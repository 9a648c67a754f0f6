"""Can a comparison of speculation on against off be judged again? Round trips, controls, what a changed sequence does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specverify.errors import CertificateError
from specverify.evidence.measurements import from_json
from specverify.evidence.on_off import Call, OnOffMeasurement, Path, path_of, replaced, uniforms
from specverify.laws import Ints

LAW = np.array([0.8, 0.1, 0.05, 0.05])


def drawn(rng: np.random.Generator, law: Any = LAW) -> Ints:
    """A batch of 4 rows of 6 tokens."""
    return rng.choice(4, size=(4, 6), p=law)


def compared(calls: int, *, law: Any = LAW, control: bool = True, seed: int = 0) -> OnOffMeasurement:
    """Calls of a decoder with some law on, LAW off."""
    rng = np.random.default_rng(seed)
    which = np.array([0, 0, 1, 1])
    made = tuple(Call(which, drawn(rng, law), drawn(rng), drawn(rng) if control else None) for _ in range(calls))
    return OnOffMeasurement("on against off", 4, made, 9)


def test_a_pass_is_certified_by_its_control() -> None:
    """Equal laws with enough pairs: certified, naming the smallest share that was refuted."""
    measurement = compared(150)
    judgement = measurement.judge(1e-8)
    assert judgement.verdict == "certified"
    share = judgement.numbers["replaced"]
    assert judgement.numbers["replaced_pairs"] == measurement.controls[share].reached(np.log(1e8))
    assert all(path.reached(np.log(1e8)) is None for other, path in measurement.controls.items() if other < share)


def test_a_difference_is_refuted_at_its_highest_moment() -> None:
    """Also when the wealth falls again afterwards: the same calls exchanged follow, and what was reached stays reached."""
    different = compared(60, law=[0.3, 0.3, 0.2, 0.2], control=False)
    swapped = tuple(Call(c.prompts, c.without, c.with_speculation) for c in different.calls)
    later = replace(different, calls=different.calls + swapped)
    assert different.judge(1e-8).verdict == "refuted"
    assert later.judge(1e-8).verdict == "refuted"
    assert later.path.reached(np.log(1e8)) == different.path.reached(np.log(1e8))
    assert "on and off differ" in different.judge(1e-8).reason


def test_the_token_that_is_furthest_apart_is_counted() -> None:
    """Its counts are those of the sequences."""
    measurement = compared(60, law=[0.3, 0.5, 0.1, 0.1], control=False)
    reason = measurement.judge(1e-8).reason
    place = int(reason.split("at place ")[1].split(":")[0]) - 1
    on, off = (np.concatenate([getattr(c, n) for c in measurement.calls]) for n in ("with_speculation", "without"))
    counts = [int((side[:, place] == 1).sum()) for side in (on, off)]
    assert f"token 1 at place {place + 1}: {counts[0]} times on, {counts[1]} times off" in reason


@pytest.mark.parametrize(
    ("measurement", "said"),
    [
        (OnOffMeasurement("x", 4, (), 0), "no pair of sequences came"),
        (compared(150, control=False), "control did not run over all 600 pairs"),
        (compared(5), "20 pairs are too few"),
    ],
)
def test_without_a_refuted_control_nothing_follows(measurement: OnOffMeasurement, said: str) -> None:
    """No pairs, no control, a control that was not refuted: inconclusive."""
    judgement = measurement.judge(1e-8)
    assert judgement.verdict == "inconclusive"
    assert said in judgement.reason


@pytest.mark.parametrize("law", [LAW, np.array([0.3, 0.3, 0.2, 0.2])])
def test_it_is_judged_alike_after_a_round_trip(law: Any) -> None:
    """All wealth is recomputed from the sequences that were written."""
    measurement = compared(60, law=law, control=law is LAW)
    again = from_json(json.loads(json.dumps(measurement.to_json())))
    assert isinstance(again, OnOffMeasurement)
    assert again.judge(1e-8) == measurement.judge(1e-8)
    np.testing.assert_array_equal(again.path.highest, measurement.path.highest)


@pytest.mark.parametrize(
    "change",
    [
        {"with": ["1 2,0 0"]},
        {"with": ["4 2,0 0"], "without": ["1 1,1 1"], "control": [None], "prompts": ["0 0"]},
        {"with": ["1 2,0 0"], "without": ["1 1,1 1"], "control": ["1 1"], "prompts": ["0 0"]},
        {"with": ["1 2,0 0"], "without": ["1 1,1 1"], "control": [None], "prompts": ["0 0 0"]},
        {"with": [None], "without": ["1 1"], "control": [None], "prompts": ["0"]},
    ],
)
def test_sequences_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    """Missing calls, tokens outside the vocabulary, batches of other shapes: the evidence cannot be read."""
    with pytest.raises(CertificateError, match="cannot be read"):
        from_json({**compared(2).to_json(), **change})


def test_tokens_are_replaced_as_often_as_said_and_evenly() -> None:
    """The numbers are uniform, do not repeat between calls, and depend on the seed."""
    u = uniforms(3, 0, 40_000)
    assert np.histogram(u, 20, (0, 1))[0] == pytest.approx(np.full(20, 2_000), abs=5 * np.sqrt(2_000))
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / np.sqrt(40_000)
    assert not np.isin(uniforms(4, 0, 1_000), u).any()
    batch = np.full((200, 100), 7)
    changed = replaced(batch, 0.1, 5, 3, 0)
    assert (changed != 7).mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 20_000))
    assert np.bincount(changed[changed != 7], minlength=5) == pytest.approx(np.full(5, 400), abs=5 * 20)
    assert (replaced(batch, 0.1, 5, 3, 1) != changed).any()
    assert (replaced(batch, 0.3, 5, 3, 0)[changed != 7] != 7).all()


def test_splitmix_gives_its_published_numbers() -> None:
    """The first outputs of seed 1234567, as its authors' code gives them."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert uniforms(1234567, 0, 3).tolist() == [(x >> 11) / 2**53 for x in known]


def test_a_path_tells_when_and_how_much_further() -> None:
    """First moment at a level; growth of the second half carried on; nothing where it does not grow."""
    path = Path(np.array([10, 20, 30, 40]), np.array([0.0, 1.0, 2.0, 3.0]))
    assert (path.reached(1.0), path.reached(2.5), path.reached(4.0)) == (20, 40, None)
    assert path.likely(5.0) == 60
    assert Path(np.array([10, 20]), np.array([1.0, 1.0])).likely(2.0) is None
    assert path_of(3, []).reached(0.0) is None
