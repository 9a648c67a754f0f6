"""What the decoder offers the timing suite: its own texts, phases that can be called again and again, any family."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from placed_tensors import Placed, Watched, is_placed, place

from reference import adaptive
from reference.adaptive import TYPICAL, measured_costs
from reference.broken_drafts import Negated
from reference.decoder import autoregressive, generate
from reference.exposed import family_subject, open_trained
from reference.families import FAMILIES
from reference.model import Shape
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.text import prompts
from reference.timing import Free, Models, Timing, large_models, loop_alone, trained_models
from reference.weights import trained
from specverify.subjects import Timeable
from specverify.timing.clocks import clock_for
from specverify.timing.measure import Sweep, measure
from specverify.timing.memory import memory_json
from specverify.timing.record import timing_json

CHAINS = [name for name, of in FAMILIES.items() if of.drafts == 1 and name != "mismatched"]


@pytest.mark.parametrize("family", CHAINS)
def test_every_family_that_drafts_chains_can_be_timed(family: str) -> None:
    """Baselines and speculation make the tokens asked for; the text is the decoder's own; phases repeat without growing."""
    timing = Timing(best=family)
    assert isinstance(timing, Timeable)
    assert timing.drafts == (family, "mismatched", "adversarial")
    prompt = prompts(2, 16)
    texts = [timing.baseline(prompt, 6, cached=cached, seed=0) for cached in (True, False)]
    assert torch.equal(*texts)
    found = timing.speculative(prompt, 6, draft=family, k=3, seed=0)
    noise = BatchNoise(torch.Generator().manual_seed(0))
    settings = {"k": 3, "process": Processors(), "rule": rule_named("token_rejection"), "noise": noise}
    assert torch.equal(found.tokens, generate(trained("main"), timing.models.drafters[family], prompt, 6, **settings).tokens)
    chances = timing.exact_acceptance(prompt, found, draft=family, k=3)
    assert found.accepted is not None
    assert chances.shape == (*found.accepted.shape, 3)
    phases = timing.phases(prompt, draft=family, k=3)
    assert list(phases) == ["target", "draft", "verify", "accept", "cache", "loop"]
    for phase in phases.values():
        for _ in range(15):
            phase()


def test_the_draft_phase_drafts_once_in_k_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of K calls the first makes a round's drafts, so that K calls take what a round's drafting takes."""
    timing = Timing()
    model = timing.models.drafters["aligned"].model  # type: ignore[attr-defined]
    read: list[int] = []
    extend = model.extend
    monkeypatch.setattr(model, "extend", lambda tokens, *rest: read.append(tokens.shape[1]) or extend(tokens, *rest))
    draft = timing.phases(prompts(1, 16), draft="aligned", k=3)["draft"]
    read.clear()
    made = [draft() is not None for _ in range(6)]
    assert made == [True, False, False] * 2
    assert len(read) == 6


def test_the_adversarial_draft_is_turned_upside_down() -> None:
    """Its law is that of negated logits, and next to nothing of it is accepted."""
    timing, prompt = Timing(), prompts(2, 16)
    aligned = trained("aligned")
    found = Negated(aligned).extend(prompt, aligned.start(16, 2))
    assert torch.equal(found, -aligned.extend(prompt, aligned.start(16, 2)))
    accepted = timing.speculative(prompt, 20, draft="adversarial", k=3, seed=0).accepted
    assert accepted is not None
    assert float(accepted.clamp(min=0).sum() / (accepted >= 0).sum()) < 0.1


def test_temperature_and_device_are_those_asked_for() -> None:
    """``at`` changes the law of both, ``on`` the models where the device is another."""
    timing, prompt = Timing(), prompts(1, 16)
    greedy = timing.at(0.0)
    expected = autoregressive(trained("main"), prompt, 8, process=Processors(0), noise=BatchNoise())
    assert torch.equal(greedy.baseline(prompt, 8, cached=True, seed=3), expected)
    assert torch.equal(greedy.speculative(prompt, 8, draft="aligned", k=2, seed=4).tokens, expected)
    assert timing.on("cpu") is timing
    assert open_trained(temperature=0.7).timing.process.temperature == 0.7


def test_large_models_draft_with_their_first_layers() -> None:
    """Untrained models of any shape: the early exit is accepted often, upside down hardly ever, and all phases run."""
    models = large_models("cpu", Shape(50, layers=6, width=32, heads=4, reach=16), 2)
    timing, prompt = Timing(models), torch.arange(20).view(2, 10)
    rates = {}
    for draft in ("aligned", "adversarial"):
        accepted = timing.speculative(prompt, 40, draft=draft, k=3, seed=0).accepted
        assert accepted is not None
        rates[draft] = float(accepted.clamp(min=0).sum() / (accepted >= 0).sum())
        for phase in timing.phases(prompt, draft=draft, k=3).values():
            phase()
    assert rates["aligned"] > 1.5
    assert rates["adversarial"] < 0.3


def test_large_models_hold_their_matrices_once() -> None:
    """What decoding reads is the memory of the weights themselves."""
    main = large_models("cpu", Shape(50, layers=2, width=32, heads=4, reach=16)).main
    for block, read in zip(main.blocks, main.prepared.of(main.blocks), strict=True):
        for name in ("mix", "gather", "widen", "narrow"):
            weight = getattr(block, name).weight
            assert getattr(read, name).data_ptr() == weight.data_ptr()
            assert torch.equal(getattr(read, name), weight.t())


class Elsewhere(Models):
    """Models on a device that is none: their tensors carry a mark, and no other tensor may meet them."""

    def here(self) -> Placed:
        """Mark new tensors."""
        return Placed()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_whatever_is_timed_stays_on_the_device(rows: int, temperature: float) -> None:
    """Tensors of the device meet no tensors of the host: not in texts, chances, phases or the sizes of caches."""
    models = large_models("cpu", Shape(50, layers=6, width=32, heads=4, reach=15), 2)
    place(*models.main.parameters())
    timing = Timing(Elsewhere(models.main, models.drafters), temperature)
    apart, alike = torch.arange(30).view(3, 10)[:rows], torch.arange(10).expand(rows, -1)
    place(apart, alike)
    with Watched():
        for prompt in (apart, alike):
            for cached in (True, False):
                assert is_placed(timing.baseline(prompt, 6, cached=cached, seed=0))
            for draft in timing.drafts:
                made = timing.speculative(prompt, 14, draft=draft, k=3, seed=0)
                assert is_placed(made.tokens)
                assert is_placed(timing.exact_acceptance(prompt, made, draft=draft, k=3))
                for phase in timing.phases(prompt, draft=draft, k=3).values():
                    for _ in range(4):
                        phase()
        timing.memory(rows, 20)


def test_a_tensor_of_the_host_is_noticed() -> None:
    """What no default device reaches may not meet what is on the device; a number may."""
    there = torch.arange(3)
    place(there)
    with Watched(), Placed():
        assert is_placed(torch.arange(3) + there + torch.tensor(1))
        with pytest.raises(AssertionError, match="of the host"):
            there + torch.arange(3, device="cpu")


class Ticked(Timing):
    """Phases that do nothing; remembers the device that they would do it on."""

    device = ""

    def phases(self, *_: object, **__: object) -> dict[str, Callable[[], object]]:
        """Return what costs nothing."""
        Ticked.device = self.models.device
        return dict.fromkeys(("target", "draft", "verify", "accept", "cache", "loop"), lambda: None)


def test_costs_are_measured_where_the_prompts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors are made on their device, by whatever clock is handed over."""
    monkeypatch.setattr(adaptive, "Timing", Ticked)
    models = trained_models()
    for device in ("cpu", "meta"):
        prompt = prompts(1, 8).to(device)
        costs = measured_costs(models.main, models.drafters["aligned"], prompt, 1, clock=count().__next__)
        assert (costs.draft, costs.verify, costs.rest) == (1.0, (1.0, 1.0), 3.0)
        assert Ticked.device == device


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_is_timed_by_its_events_and_named() -> None:
    """A whole measurement of small models: device, prediction and the peaks of torch's allocator are in the record."""
    timing = Timing(large_models("cuda", Shape(50, layers=6, width=64, heads=4, reach=16), 2))
    prompt, sweep = torch.arange(40, device="cuda").view(4, 10), Sweep(timing.drafts, (2,), tokens=24, repetitions=2, batch=2)
    samples = measure(timing, prompt, sweep, clock=clock_for("cuda"))
    memory = memory_json(timing, prompt, sweep, samples.device)
    record = timing_json(samples, subject="small", further={"memory": memory})
    assert (record["machine"]["device"], record["machine"]["clock"]) == ("cuda", "CUDA events")
    assert record["machine"]["cuda"] == f"run on {torch.cuda.get_device_name()}"
    assert record["machine"]["share"] is None
    assert all(run["predicted_speedup"] > 0 and run["exact"]["possible"] for run in record["runs"])
    assert memory["how"].startswith("torch.cuda")
    assert min(memory["bytes"].values()) > 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_everything_runs_on_a_device() -> None:
    """Baseline, speculation, chances and phases with all tensors on the device."""
    timing = Timing(large_models("cuda", Shape(50, layers=6, width=64, heads=4, reach=16), 2))
    prompt = torch.arange(20, device="cuda").view(2, 10)
    assert timing.baseline(prompt, 12, cached=True, seed=0).device.type == "cuda"
    made = timing.speculative(prompt, 12, draft="aligned", k=3, seed=0)
    assert timing.exact_acceptance(prompt, made, draft="aligned", k=3).device.type == "cuda"
    for phase in timing.phases(prompt, draft="aligned", k=3).values():
        phase()


def test_the_memory_of_caches_is_counted() -> None:
    """Keys and values in float32 of both models; a draft that shares the main model's cache adds nothing."""
    sizes = Timing().memory(4, 100)
    shape = trained("main").shape
    capacity = sizes["main"] / (2 * shape.layers * 4 * shape.width * 4)
    assert 99 <= capacity <= 101
    assert set(sizes) == {"main", "aligned"}
    assert set(Timing(best="early_exit").memory(4, 100)) == {"main"}


def test_the_loop_alone_goes_on_for_ever() -> None:
    """Turns over free models emit one token each, past the end of a request too."""
    turn = loop_alone(2, 3, 5, tokens=7)
    for _ in range(20):
        one = turn()
        assert one.counts.tolist() == [1, 1]  # type: ignore[attr-defined]
    free = Free(2, 3, 5)
    assert free.propose().tokens.shape == (2, 3)


def test_subjects_of_families_are_timed_with_their_own_drafts() -> None:
    """Opening a family offers its own draft first; what is no chain, no token rejection or no fixed K is not timed as if."""
    assert family_subject("feature_layer").open().timing.drafts[0] == "feature_layer"  # type: ignore[misc]
    assert not hasattr(family_subject("medusa_tree").open(), "timing")  # type: ignore[misc]
    assert not hasattr(family_subject("medusa", "typical_acceptance").open(), "timing")  # type: ignore[misc]
    assert not hasattr(open_trained("adaptive", costs=TYPICAL), "timing")
    assert trained_models().drafters.keys() == {"aligned", "mismatched", "adversarial"}
