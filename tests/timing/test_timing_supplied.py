"""Decoders without a timing: built over supplied models, or timed as they generate."""

from __future__ import annotations

import pytest
import torch
from plainly import PlainDecoder
from scripted import Scripted, ScriptedDecoder, built, untimed

from specverify.errors import SubjectError, UsageError
from specverify.subjects import Decoder, Facts, Generated
from specverify.timing.clocks import WallClock
from specverify.timing.measure import Sweep, measure
from specverify.timing.opening import open_timeable
from specverify.timing.record import timing_json
from specverify.timing.supplied import DRAFTS, Constant, Size, SuppliedModel, SuppliedTiming, plain_loop
from specverify.timing.table import render

SMALL = Size(32, 2, 64)
IDS = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))


def _model(**how) -> SuppliedModel:
    return SuppliedModel(how.pop("seed", 0), SMALL, **{"depth": True, **how})


def test_laws_depend_on_every_token_before_and_on_none_after():
    """Another first token changes every law; another last one changes the last law only."""
    model, other = _model(), IDS.clone()
    other[:, 0] = (other[:, 0] + 1) % 64
    assert ((model(IDS) - model(other)).abs().amax((0, 2)) > 1e-7).all()
    other = IDS.clone()
    other[:, -1] = (other[:, -1] + 1) % 64
    apart = (model(IDS) - model(other)).abs().amax((0, 2))
    assert apart[:-1].max() < 1e-5
    assert apart[-1] > 0.1


def test_the_seed_fixes_the_laws():
    """The same seed makes the same laws in the declared precision, another one other laws."""
    assert torch.equal(_model()(IDS), _model()(IDS))
    assert not torch.allclose(_model()(IDS), _model(seed=1)(IDS))
    assert _model(dtype=torch.float32)(IDS).dtype == torch.float32


def _timing(**how) -> SuppliedTiming:
    return SuppliedTiming(built, size=Size(192, 2, 256), **how)


def test_drafts_differ_in_how_much_is_accepted():
    """Of the aligned draft most is accepted, of the mismatched little, of the adversarial next to nothing."""
    timing = _timing()
    p = timing.model("target")(IDS).softmax(-1)
    shared = [float(torch.minimum(p, timing.model(d)(IDS).softmax(-1)).sum(-1).mean()) for d in DRAFTS]
    assert shared[0] > 0.7
    assert 0.05 < shared[1] < 0.3
    assert shared[2] < 0.05


def test_temperature_shapes_the_laws_of_supplied_models():
    """At 0 one token is left and it was the likeliest; at 2 the logits are halved up to a constant; so are constant ones."""
    cold = _model(temperature=0.0)(IDS).softmax(-1)
    assert torch.equal(cold.argmax(-1), _model()(IDS).argmax(-1))
    assert (cold.max(-1).values == 1).all()
    assert _model(temperature=2.0)(IDS) == pytest.approx(_model()(IDS) / 2, abs=1e-5)
    assert (Constant(0, torch.float64, 0.0)(IDS).softmax(-1).max(-1).values == 1).all()
    timing = _timing()
    assert timing.at(0.0).model("target").temperature == 0.0
    warm = timing.model("target")
    cold = timing.at(0.0).model("target")
    assert (warm.temperature, cold.temperature) == (1.0, 0.0)
    assert cold.layers[0][0] is warm.layers[0][0]  # weights are held once


def test_the_plain_loop_follows_the_target():
    """Greedily the loop takes the likeliest token after all before it; a seed repeats it."""
    model = _model(temperature=0.0)
    text = torch.cat([IDS, plain_loop(model, IDS, 5, seed=0)], 1)
    assert torch.equal(model(text)[:, 19:-1].argmax(-1), text[:, 20:])
    warm = _model()
    assert torch.equal(plain_loop(warm, IDS, 5, seed=3), plain_loop(warm, IDS, 5, seed=3))
    assert not torch.equal(plain_loop(warm, IDS, 9, seed=3), plain_loop(warm, IDS, 9, seed=4))


class Ticking:
    """A model whose every call moves a clock."""

    now = 0.0

    def __init__(self, model: SuppliedModel, cost: float) -> None:
        self.model, self.cost, self.vocab_size = model, cost, model.vocab_size

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the model."""
        Ticking.now += self.cost
        return self.model(ids)


CLOCK = WallClock(lambda: Ticking.now)


def _ticking() -> SuppliedTiming:
    timing = _timing()
    timing.models = {name: Ticking(timing.model(name), 1.0 if name == "target" else 0.25) for name in ("target", *DRAFTS)}
    return timing


def test_a_decoder_with_build_is_timed_over_supplied_models():
    """It has costs, a prediction, both rates and no KV cache; the record says whose models these are."""
    opened = open_timeable(built)
    assert opened.models == "supplied"
    sweep = Sweep(("aligned", "adversarial"), (2,), tokens=12, repetitions=1)
    samples = measure(_ticking(), opened.prompts, sweep, clock=CLOCK)
    record = timing_json(samples, subject="built", models=opened.models, notes=opened.say())
    assert record["base"] == "uncached"
    aligned, adversarial = record["runs"]
    assert aligned["costs"] == {"c": 0.25, "v": 1.0, "o": 0.0, "parts": {"accept": 0.0}}
    assert aligned["off"] == pytest.approx(0, abs=1e-5)
    assert aligned["accepted_per_tested"] > adversarial["accepted_per_tested"]
    text = render(record)
    assert "built, supplied models" in text
    assert "note: the decoder has no 'timing': it was built over models that specverify supplies" in text


def test_a_round_over_free_models_is_the_decoders_own_work():
    """The phase accept runs one round of the decoder and no supplied model; the others call their model once."""
    timing = _timing()
    for name in ("target", *DRAFTS):
        timing.model(name)
    calls: list[str] = []

    class Watched:
        def __init__(self, name: str, model: SuppliedModel) -> None:
            self.name, self.model, self.vocab_size = name, model, model.vocab_size

        def __call__(self, ids: torch.Tensor) -> torch.Tensor:
            calls.append(f"{self.name} {ids.shape[1]}")
            return self.model(ids)

    timing.models = {name: Watched(name, model) for name, model in timing.models.items()}
    for phase, call in timing.phases(IDS, draft="aligned", k=3).items():
        calls.clear()
        call()
        assert calls == {"target": ["target 20"], "draft": ["aligned 20"], "verify": ["target 23"], "accept": []}[phase]


def test_declared_limits_hold_for_supplied_models():
    """max_k and the precision of a subject's facts are kept."""
    subject = Decoder("limited", build=built.build, facts=Facts(max_k=3, dtype="float32"))
    timing = SuppliedTiming(subject, size=SMALL)
    assert timing.max_k == 3
    assert timing.model("target")(IDS).dtype == torch.float32
    assert open_timeable(subject).ks == (1, 2, 3)


class _Counting(PlainDecoder):
    def __init__(self, k: int = 3, eos_id: int | None = None) -> None:
        super().__init__(Ticking(_model(), 1.0), Ticking(_model(depth=False), 0.25), k)
        if eos_id is not None:
            self.eos_id = eos_id


class _Silent(_Counting):
    def generate(self, prompts, max_new_tokens, seed):
        return super().generate(prompts, max_new_tokens, seed).tokens


class _Stopping(_Counting):
    def generate(self, prompts, max_new_tokens, seed):
        made = super().generate(prompts, max_new_tokens, seed)
        tokens = made.tokens.clone()
        tokens[:, 3:] = 0
        return Generated(tokens, made.accepted)


def _record(decoder: object, facts: Facts | None = None) -> dict:
    opened = open_timeable(Decoder("own", open=lambda: decoder, facts=facts or Facts()))
    sweep = Sweep(opened.timing.drafts, opened.ks, tokens=12, repetitions=1)
    samples = measure(opened.timing, opened.prompts, sweep, clock=CLOCK)
    return timing_json(samples, subject="own", models=opened.models, notes=opened.say())


def test_a_decoder_that_only_generates_is_timed_at_its_own_k():
    """Its speed-up over the plain loop and its acceptance are measured, nothing is predicted, and it is said why."""
    record = _record(_Counting())
    (run,) = record["runs"]
    assert (run["draft"], run["k"], run["predicted_speedup"], run["costs"]) == ("own", 3, None, None)
    assert run["speedup"] == run["whole_speedup"]
    assert 0 < run["accepted_per_tested"] <= 1
    assert len(record["notes"]) == 1
    assert "build(target, draft, k, eos_id=None) or a 'timing'" in record["notes"][0]
    assert "note: the decoder has no 'timing'" in render(record)


def test_without_counts_the_rates_are_missing_and_it_is_said():
    """A plain tensor has no acceptance; the note says what to return."""
    record = _record(_Silent())
    (run,) = record["runs"]
    assert (run["accepted_per_tested"], run["tokens_per_round"], run["exact"]) == (None, None, None)
    assert run["speedup"]["median"] > 0
    assert any("return Generated(tokens, accepted)" in note for note in record["notes"])


def test_where_k_is_not_known_the_most_accepted_stands_in():
    """Without a declared K the most it accepted is taken, and the note says so; max_k is believed."""

    class Hiding:
        def __init__(self) -> None:
            self.inner = _Counting()
            self.vocab_size, self.prompts = 64, IDS
            self.generate, self.target_log_probs = self.inner.generate, self.inner.target_log_probs

    record = _record(Hiding())
    assert any("the most it accepted in a round; declare max_k" in note for note in record["notes"])
    assert _record(Hiding(), Facts(max_k=5))["runs"][0]["k"] == 5
    with pytest.raises(SubjectError, match="drafts in a round and says that it drafts 1"):
        _record(Hiding(), Facts(max_k=1))


def test_tokens_after_an_end_of_text_do_not_count():
    """Rows that stop after four tokens made four, and the note says that speeds compare roughly."""
    record = _record(_Stopping(eos_id=0))
    assert any("an end of text stopped some rows early" in note for note in record["notes"])
    assert not any("end of text" in note for note in _record(_Counting())["notes"])


def test_a_decoder_is_looked_at_as_certify_looks_at_it():
    """Prompts and vocab_size that cannot be are named as such before anything is timed."""

    class Odd(ScriptedDecoder):
        prompts = torch.full((2, 3), 9)

    with pytest.raises(SubjectError, match=r"prompts holds ids outside 0\.\.3"):
        open_timeable(Decoder("odd", open=lambda: Odd(None)))
    odd = ScriptedDecoder(None)
    odd.vocab_size = 2.5
    with pytest.raises(SubjectError, match=r"vocab_size = 2\.5"):
        open_timeable(Decoder("odd", open=lambda: odd))


def test_another_device_is_asked_of_the_timing():
    """on() moves timing and prompts; without it the message says what to add; without CUDA it is a wrong call."""
    supplied, own = open_timeable(built), open_timeable(untimed)
    assert supplied.on("cpu").timing.device == "cpu"
    assert own.on("cpu") is own
    with pytest.raises(SubjectError, match=r"give it on\(device\)"):
        own.on("meta")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="there is no CUDA device"):
            supplied.on("cuda")


def test_a_device_that_is_not_there_or_too_small_is_named(monkeypatch):
    """A number beyond the last device is a wrong call; whatever on() raises says why nothing is timed there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"there is no cuda:2; the last CUDA device here is cuda:1"):
        open_timeable(built).on("cuda:2")

    class Large(Scripted):
        def on(self, device):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SubjectError, match=r"large\.timing\.on\('cuda:1'\) failed: OutOfMemoryError: CUDA out of memory"):
        open_timeable(Decoder("large", open=lambda: ScriptedDecoder(Large()))).on("cuda:1")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_supplied_models_run_on_a_device():
    """The large models answer ids on the host with finite laws, and the decoder runs over them."""
    moved = open_timeable(built).on("cuda")
    laws = moved.timing.model("target")(moved.prompts)
    assert laws.device.type == "cpu"
    assert torch.isfinite(laws).all()
    made = moved.timing.speculative(moved.prompts[:1], 8, draft="aligned", k=2, seed=0)
    assert made.tokens.shape == (1, 8)


def test_a_decoder_that_fails_at_once_cannot_be_timed():
    """An error in generate is one of the subject, named as such, and no regression."""

    class Failing:
        vocab_size = 5

        def generate(self, prompts, max_new_tokens, seed):
            raise ValueError("boom")

        def target_log_probs(self, ids):
            return torch.zeros(*ids.shape, 5).log_softmax(-1)

    with pytest.raises(SubjectError, match=r"generate failed when tried: ValueError: boom"):
        open_timeable(Decoder("failing", open=Failing))
