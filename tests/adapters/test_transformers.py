"""Is the adapter for transformers faithful, and does the released step follow the exact law? Tests of both."""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch
from law_by_hand import joint_law
from step_pairs import CORNERS, corner, near_pairs, random_pairs

from specverify.edge_pairs import edge_pairs, zeros_pair
from specverify.errors import SubjectError
from specverify.exact import emission, induced_law
from specverify.exact.probing import probe
from specverify.laws import Pair, complete, sequence_law
from specverify.loading import load_subject
from specverify.subjects import Decoder, Emitted, Generated, Verifier, normalise_generated

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is an optional extra and is not installed here", allow_module_level=True)

from specverify.adapters import transformers as adapter

TOLERANCE = 1e-12
PAIRS = [*(corner(name, k) for name in CORNERS for k in (1, 2, 3)), *random_pairs(75), *near_pairs(16)[:5]]
CONFIGURATIONS = [
    adapter.assisted_generation,
    adapter.assisted_generation_warped,
    adapter.assisted_generation_stopping,
    adapter.assisted_generation_confidence,
]

every_configuration = pytest.mark.parametrize("decoder", CONFIGURATIONS, ids=lambda d: d.name)
as_found = pytest.mark.skipif(adapter.VERSION != "5.24.0", reason="found in 5.24.0; no other version was looked at")


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Tiny models are fastest on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def deviation(verifier: Verifier, pair: Pair) -> float:
    """Largest difference between the completed exact law of one round and the target's law."""
    length = pair.k + 1
    ours = complete(emission(verifier, pair).tokens, pair.target, length, pair.prompt)
    return float(np.abs(ours - sequence_law(pair.target, length, pair.prompt)).max())


def opened(decoder: Decoder) -> adapter.AssistedDecoder:
    """Open a configuration as the class it is."""
    assert decoder.open is not None
    instance = decoder.open()
    assert isinstance(instance, adapter.AssistedDecoder)
    return instance


def test_step_is_exact_on_every_pair() -> None:
    """The released step emits the target's law on over 100 pairs: zeros, one-hots, disjoint supports, p == q."""
    assert len(PAIRS) >= 100
    gaps = {f"{pair.name}, K = {pair.k}": deviation(adapter.step, pair) for pair in PAIRS}
    worst = max(gaps, key=lambda name: gaps[name])
    assert gaps[worst] <= TOLERANCE, f"{worst}: off by {gaps[worst]:.3g}"


def test_step_is_exact_in_float32() -> None:
    """In the precision that generate uses the law is off by rounding alone."""
    for pair in PAIRS[::6]:
        assert deviation(adapter.step_float32, pair) <= 1e-6, pair.to_json()


def where_it_raises(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Emitted:
    """Run the step; where it raises, emit token 0 and report -1 accepted, so that such paths can be weighed."""
    try:
        return adapter.verify_step(tokens, q, p)
    except RuntimeError:
        return Emitted(torch.tensor([[0]]), torch.tensor([1]), torch.tensor([-1]))


@pytest.mark.parametrize("pair", near_pairs(24), ids=lambda pair: f"{pair.name}, K = {pair.k}")
def test_equal_up_to_rounding_is_exact_or_raises_on_a_negligible_path(pair: Pair) -> None:
    """With p == q up to one ulp the step keeps the law, except on paths of a few ulp, where it may raise."""
    weighed = Verifier("step, weighed", where_it_raises, adapter.step.facts)
    reported = emission(weighed, pair).reported
    assert sum(weight for (accepted, _), weight in reported.items() if accepted < 0) < 1e-14
    assert deviation(weighed, pair) <= TOLERANCE


def test_step_reports_what_it_accepted() -> None:
    """The reported count is always one less than what was emitted."""
    reported = emission(adapter.step, corner("draft leaves the support", 3)).reported
    assert reported
    assert all(accepted == emitted for accepted, emitted in reported)


def test_step_takes_one_row() -> None:
    """A batch is refused in words, because the released step would mix its rows."""
    laws = torch.full((2, 2, 3), 1 / 3)
    with pytest.raises(SubjectError, match="one row"):
        adapter.verify_step(torch.zeros(2, 1, dtype=torch.int64), laws[:, :1], laws)


def test_step_shapes() -> None:
    """Tokens come back as (1, K+1) with a count, and the inputs keep their values."""
    tokens = torch.tensor([[0, 1, 2]])
    q, p = torch.full((1, 3, 4), 0.25, dtype=torch.float64), torch.full((1, 4, 4), 0.25, dtype=torch.float64)
    emitted = adapter.step(tokens, q, p)
    assert isinstance(emitted, Emitted)
    assert emitted.tokens.shape == (1, 4)
    assert emitted.rows()[0][:3] == (0, 1, 2)
    assert torch.equal(p, torch.full_like(p, 0.25))


def test_a_wrong_temperature_in_the_declared_draft_is_seen() -> None:
    """Negative control: the step told a draft of another temperature than the real one leaves the law."""

    def mismatched(tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> Emitted:
        return adapter.verify_step(tokens, (q**2) / (q**2).sum(-1, keepdim=True), p)

    broken = Verifier("draft told at half its temperature", mismatched, adapter.step.facts)
    pair = corner("draft misses the support", 2)
    assert deviation(adapter.step, pair) <= TOLERANCE
    assert max(deviation(broken, other) for other in random_pairs(9)) > 1e-2


@as_found
def test_uniform_of_zero_accepts_a_token_without_probability() -> None:
    """Found: u <= p/q lets a drafted token with p = 0 through when the float32 uniform is exactly 0 (chance 2**-24)."""
    torch.manual_seed(5_528_393)  # the first float32 uniform of this stream is 0
    q, p = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    emitted = adapter.step_float32(torch.tensor([[0]]), q, p)
    assert emitted.rows()[0][0] == 0


@as_found
def test_empty_residual_raises() -> None:
    """Found: where p <= q everywhere after rounding, a rejection divides 0 by 0 and multinomial raises."""
    torch.manual_seed(22_771_378)  # the first float32 uniform of this stream is 1 - 2**-24
    p = torch.tensor([-1.0, -1.5])
    q = torch.nextafter(p, torch.tensor([-1.0, 0.0]))
    released = getattr(adapter._utils(), adapter.STEP_FUNCTION)
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        released(torch.tensor([[1]]), q[None, None], 1, torch.stack([p, p])[None])


@as_found
@pytest.mark.parametrize(("step", "chance"), [(adapter.step, 2.0**-53), (adapter.step_float32, 2.0**-24)], ids=["64", "32"])
def test_boundary_probes_find_the_uniform_of_zero(step: Verifier, chance: float) -> None:
    """What the seed above shows is found without knowing of it, with its line and its probability in either precision."""
    events = probe(step, zeros_pair(1), seed=0).events
    assert {(e.kind, e.source, e.boundary, e.chance) for e in events} == {("impossible", "rand_like", "exactly 0", chance)}
    assert events[0].where.startswith("transformers/generation/utils.py:")


@as_found
def test_boundary_probes_find_the_empty_residual() -> None:
    """Where p and q differ by one ulp the largest uniforms make the released step raise, and no other draw does."""
    pairs = [pair for pair in edge_pairs(1, 2) if "one ulp" in pair.name]
    events = [event for pair in pairs for event in probe(adapter.step, pair, seed=0).events]
    assert {(e.kind, e.source) for e in events} == {("error", "rand_like")}
    assert "the largest value below 1" in {e.boundary for e in events}
    assert all("probability tensor contains" in e.message for e in events)


def exact_gap(request: adapter.Request, length: int, ensemble: float | None = None) -> float:
    """Largest difference between the exact law of all that generate draws, models on 3 tokens, and the target's law."""
    V = 3
    decoder = adapter.AssistedDecoder(*adapter.tiny_models(5, vocab_size=V, noise=0.3), request)
    if ensemble is not None:
        decoder._config(length).assistant_ensemble_weight = ensemble
    prompt = torch.tensor([[2, 0, 1]])
    pmf = induced_law(lambda: decoder.generate(prompt, length, seed=0).tokens).pmf
    ours = np.zeros((V,) * length)
    for (row,), weight in pmf.items():
        ours[tuple(decoder.eos_id if token < 0 else token for token in row)] += weight
    return float(np.abs(ours.reshape(-1) - joint_law(decoder, prompt, length)).max())


@pytest.mark.parametrize(
    "request_",
    [
        adapter.Request(k=2),
        adapter.Request(k=2, temperature=0.7, top_k=2),
        adapter.Request(k=2, temperature=0.7, top_p=0.9),
        adapter.Request(k=2, eos_id=1),
        adapter.Request(k=2, confidence=0.5),
    ],
    ids=["plain", "top-k", "top-p", "eos", "confidence"],
)
def test_whole_generate_is_exact(request_: adapter.Request) -> None:
    """Every path of generate over several rounds, walked with the code as it is, gives the target's joint law."""
    assert exact_gap(request_, 3) < 1e-6


@as_found
def test_ensemble_weight_is_seen_as_lossy() -> None:
    """Negative control: the ensemble weight of transformers, lossy by design, leaves the target's law."""
    assert exact_gap(adapter.Request(k=1), 2, ensemble=0.5) > 1e-2


@every_configuration
def test_decoder_returns_what_was_asked(decoder: Decoder) -> None:
    """Every row has exactly max_new_tokens entries, and its rounds add up to its length or are cut at an eos."""
    instance = opened(decoder)
    raw = instance.generate(instance.prompts[:4], 7, seed=1)
    read = normalise_generated(raw, 4, 7, instance.vocab_size, instance.eos_id, decoder.name)
    assert read.accepted is not None
    for row, counts in zip(read.tokens, read.accepted, strict=True):
        rounds = counts[counts >= 0]
        cut = int((rounds + 1).sum()) - int((row >= 0).sum())
        assert cut == 0 or (cut == 1 and int(row[row >= 0][-1]) == instance.eos_id)
        assert int(rounds.max()) <= instance.request.k


@every_configuration
def test_accepts_some_and_rejects_some(decoder: Decoder) -> None:
    """The draft is near the target but not equal: acceptance of the first draft token lies between 0.3 and 0.9."""
    instance = opened(decoder)
    ids = torch.randint(instance.vocab_size, (64, 5), generator=torch.Generator().manual_seed(2))
    p, q = (law(ids)[:, -1].exp() for law in (instance.target_log_probs, instance.draft_log_probs))
    assert 0.3 < float(torch.minimum(p, q).sum(-1).mean()) < 0.9
    assert float((p[0] - p[1:]).abs().sum(-1).mean()) > 0.2, "the law must hang on the context"


def test_one_token_needs_no_draft() -> None:
    """A request for a single token is a round without a draft, and still follows the request."""
    instance = opened(adapter.assisted_generation)
    out = instance.generate(instance.prompts, 1, seed=0)
    assert out.tokens.shape == (len(instance.prompts), 1)
    assert out.accepted is not None
    assert out.accepted.tolist() == [[0]] * len(instance.prompts)


def test_same_seed_same_tokens_other_seed_other_tokens() -> None:
    """A seed replays its tokens, another does not, rows of one prompt differ, the caller's stream is untouched."""
    instance = opened(adapter.assisted_generation)
    prompts = instance.prompts[:1].repeat(6, 1)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = (instance.generate(prompts, 6, seed).tokens for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(row) for row in first.tolist()}) > 1


@every_configuration
def test_target_law_is_the_one_plain_sampling_uses(decoder: Decoder) -> None:
    """target_log_probs equals the processed scores of generate without an assistant."""
    instance = opened(decoder)
    from transformers import GenerationConfig

    request = instance.request
    config = GenerationConfig(
        do_sample=True, num_beams=1, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p,
        max_new_tokens=6, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    torch.manual_seed(3)
    mask = torch.ones_like(instance.prompts)
    out = instance.target.generate(instance.prompts, generation_config=config, attention_mask=mask)
    scores = torch.stack(out.scores, 1).double().softmax(-1)
    ours = instance.target_log_probs(out.sequences[:, :-1])[:, -6:].exp()
    assert torch.equal(ours > 0, scores > 0)
    torch.testing.assert_close(ours, scores, atol=1e-5, rtol=1e-4)


@every_configuration
def test_draft_law_is_the_one_the_rounds_use(decoder: Decoder) -> None:
    """draft_log_probs equals the draft logits that the released step is given, in every round."""
    instance = opened(decoder)
    rounds: list[tuple[torch.Tensor, torch.Tensor, int]] = []
    with adapter._recording(rounds):
        instance.generate(instance.prompts[:3], 9, seed=4)
    assert len(rounds) > 3
    for ids, logits, _ in rounds:
        q = logits[0].double().softmax(-1)
        ours = instance.draft_log_probs(ids[:, :-1])[0, -len(q) :].exp()
        torch.testing.assert_close(ours, q, atol=1e-5, rtol=1e-4)


@as_found
def test_draft_is_warped_twice() -> None:
    """Found: the draft is handed the target's warpers and adds its own, so temperature 0.7 becomes 0.49 for it."""
    instance = opened(adapter.assisted_generation_warped)
    instance.draft_log_probs(instance.prompts)
    assert instance._draft_passes == 2


def test_nothing_but_minus_one_follows_an_eos() -> None:
    """A row stops at its first eos, and some rows of the stopping configuration do stop."""
    instance = opened(adapter.assisted_generation_stopping)
    tokens = torch.cat([instance.generate(instance.prompts, 8, seed).tokens for seed in range(2)])
    ended = (tokens == instance.eos_id).long()
    after = ended.cumsum(1) - ended > 0
    assert after.any()
    assert (tokens[after] == -1).all()
    assert (tokens[~after] >= 0).all()


def test_models_of_the_user_are_taken() -> None:
    """Other models can be handed in; the target's settings stay, and vocabularies must agree."""
    target, draft = adapter.tiny_models(3, vocab_size=12)
    settings = copy.deepcopy(target.generation_config.to_dict())
    made = adapter.AssistedDecoder(target, draft, adapter.Request(k=2, top_k=5))
    out = made.generate(torch.tensor([[1, 2], [3, 4]]), 5, seed=0)
    assert isinstance(out, Generated)
    assert out.tokens.shape == (2, 5)
    assert target.generation_config.to_dict() == settings
    with pytest.raises(SubjectError, match="one vocabulary"):
        adapter.AssistedDecoder(target, adapter.tiny_models(3, vocab_size=13)[1])


def test_the_module_names_a_subject() -> None:
    """The bare module name is a decoder with the step as its part."""
    found = load_subject("specverify.adapters.transformers")
    assert isinstance(found, Decoder)
    assert found.parts == (adapter.step,)
    assert load_subject("specverify.adapters.transformers:step") is adapter.step


def test_importing_the_adapter_does_not_import_transformers() -> None:
    """Loading the subject is light: transformers is imported when the subject is used."""
    code = "import specverify.adapters.transformers, sys; sys.exit('transformers.generation' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_transformers_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers the adapter says what to install."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    spec = importlib.util.find_spec("specverify.adapters.transformers")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(SubjectError, match=r"pip install specverify\[transformers\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
