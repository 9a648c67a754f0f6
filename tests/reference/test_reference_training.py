"""The weights: how they are made, that they load, and that the card says what they are."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import reference
from reference import weights
from reference.card import CHAINS, measured_acceptance, read_card
from reference.exposed import open_trained
from reference.families import FAMILIES
from reference.heads import ExitHead, FeatureLayer, MedusaHeads
from reference.minimising import Recipe
from reference.model import Shape, Transformer
from reference.text import EOS_ID, VOCAB_SIZE, as_stream, codec_source, decode, documentation, encode, prompts
from reference.train import distillation_loss, fit, grown, laws_along, mean_loss, next_token_loss
from reference.train_heads import Along, overlaps_of, read_along, train_head

TINY = Shape(VOCAB_SIZE, layers=2, width=16, heads=2, reach=8)
SHORT = Recipe(steps=12, learning_rate=1e-2, rows=4, length=32, warm_up=2)


@pytest.fixture(scope="module")
def stream() -> Tensor:
    """Take the beginning of the training documentation."""
    return as_stream(documentation()[0])[:5000]


def test_training_reproduces_itself(stream: Tensor) -> None:
    """The same seed gives the same bits, another seed gives others."""
    one, again, other = (fit(TINY, stream, SHORT, seed, next_token_loss).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


def test_training_learns(stream: Tensor) -> None:
    """A dozen steps lower the loss, and a dozen of distillation bring a student nearer to its teacher."""
    barely = Recipe(steps=1, learning_rate=1e-6)
    teacher, untaught = (fit(TINY, stream, recipe, 0, next_token_loss) for recipe in (SHORT, barely))
    assert mean_loss(teacher, stream, 128, 4) < mean_loss(untaught, stream, 128, 4) - 0.2
    loss = distillation_loss(laws_along(teacher, stream))
    student = fit(TINY, stream, SHORT, 1, loss)
    window, start = stream[None, :128], torch.tensor([0])
    assert loss(student, window, start, 1.0) < loss(untaught, window, start, 1.0)


def test_a_grown_model_is_the_same_function(stream: Tensor) -> None:
    """More layers compute the same until they are trained, and then learn; fewer are refused."""
    small = fit(TINY, stream, SHORT, 0, next_token_loss)
    deep = grown(small, 5)
    assert deep.shape.layers == 5
    assert torch.allclose(deep(stream[None, :50]), small(stream[None, :50]), atol=1e-6)
    before = mean_loss(small, stream, 128, 4)
    trained_on = fit(deep.shape, stream, SHORT, 1, next_token_loss, start=deep)
    assert mean_loss(trained_on, stream, 128, 4) < before - 0.05
    assert all(block.gather.weight.abs().max() > 0 for block in trained_on.blocks)
    with pytest.raises(ValueError, match="has 2 layers and cannot be grown to 1"):
        grown(small, 1)


def test_teachers_laws_lie_where_they_belong(stream: Tensor) -> None:
    """The law kept for a place of the stream is the one the model gives there with the text before it."""
    model = fit(TINY, stream, SHORT, 0, next_token_loss)
    laws = laws_along(model, stream[:300], window=64)
    for place in (0, 31, 32, 100, 299):
        begin = max(place // 32 * 32 - 32, 0)
        expected = model(stream[None, begin : place + 1])[0, -1].softmax(-1)
        assert torch.allclose(laws[place].float(), expected, atol=1e-3)


@pytest.fixture(scope="module")
def along(stream: Tensor) -> tuple[Transformer, Along]:
    """A tiny main model and what it computes along the text."""
    main = fit(TINY, stream, SHORT, 0, next_token_loss)
    return main, read_along(main, stream[:1500], 1, window=64)


def test_states_lie_where_they_belong(along: tuple[Transformer, Along]) -> None:
    """States kept for a place, early and last, give the laws that the model has there."""
    main, found = along
    ids = found.ids[None, 64:128]
    early, last = main.states(ids, (1, 2))
    assert torch.allclose(found.early[96:128].float(), early[0, 32:], atol=5e-3)
    assert torch.allclose(found.hidden[96:128].float(), last[0, 32:], atol=5e-3)
    assert torch.allclose(main.logits(found.hidden[:50].float()).softmax(-1), found.laws[:50].float(), atol=2e-3)


@pytest.mark.parametrize("name", weights.HEADS)
def test_networks_on_states_learn_and_repeat(along: tuple[Transformer, Along], name: str) -> None:
    """A few dozen steps bring each nearer to the main model's laws, and the same seed gives the same bits."""
    main, found = along
    brief = Recipe(60, 1e-2, rows=8, length=32, warm_up=5)
    made = {"medusa": MedusaHeads(16, VOCAB_SIZE, 2), "early_exit": ExitHead(16, VOCAB_SIZE)}
    before = made.get(name) or FeatureLayer(Shape(VOCAB_SIZE, 1, 16, 2, reach=8))
    nets = [train_head(name, main, copy.deepcopy(before), found, 0, brief) for _ in range(2)]
    one, again = (net.state_dict() for net in nets)
    assert all(torch.equal(one[key], again[key]) for key in one)
    untrained = train_head(name, main, copy.deepcopy(before), found, 0, Recipe(1, 1e-9, rows=8, length=32))
    pairs = zip(overlaps_of(nets[0], found, 2), overlaps_of(untrained, found, 2), strict=True)
    assert all(after > before_ + 0.01 for after, before_ in pairs)


def test_text_survives_coding() -> None:
    """Encoding and decoding give the text back, up to characters that have no id, and stop at the end of a document."""
    text = "def f(x):\n    return x ~ 'a'\n"
    assert decode(encode(text)) == text
    assert decode(encode("caf\u00e9")) == "caf?"
    assert decode(torch.tensor([2, EOS_ID, 3])) == decode(torch.tensor([2]))
    with pytest.raises(ValueError, match="ids run from 0"):
        decode(torch.tensor([VOCAB_SIZE]))


def test_held_out_text_is_apart() -> None:
    """No held-out document is among the training ones, and source code has lost its comments and docstrings."""
    for training, held_out in (documentation(), codec_source()):
        assert not set(training) & set(held_out)
        assert 200_000 < sum(map(len, training)) < 700_000
    assert "\n# " not in "".join(codec_source()[0])


def test_prompts_are_held_out_text() -> None:
    """Prompts have the shape asked for and come from held-out documents; too many are refused."""
    found = prompts(12, 40)
    assert found.shape == (12, 40)
    held_out = "\0".join(decode(encode(d)) for d in documentation()[1])
    assert all(decode(row) in held_out for row in found)
    with pytest.raises(ValueError, match="held-out passages"):
        prompts(3, 10**6)


@pytest.mark.parametrize("name", weights.HEADS)
def test_networks_load(name: str) -> None:
    """The committed networks fit the shapes in the code."""
    assert weights.load_head(name).state_dict().keys() == weights.new_head(name).state_dict().keys()


@pytest.mark.parametrize("name", weights.SHAPES)
def test_weights_load(name: str) -> None:
    """The committed weights fit the shapes in the code."""
    assert weights.trained(name).vocab_size == VOCAB_SIZE


def test_weights_are_small() -> None:
    """All weights together take less than 16 MB."""
    assert sum(file.stat().st_size for file in weights.FOLDER.glob("*.safetensors")) < 16e6


def test_missing_weights_say_how_to_make_them(tmp_path: Path) -> None:
    """Without a file the error names the file and the command."""
    for look in (weights.load, weights.training_numbers):
        with pytest.raises(weights.WeightsError, match=r"no weights for 'main'.*python -m reference\.train"):
            look("main", tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path, stream: Tensor) -> None:
    """A tensor of another shape is named with both shapes; the right shape loads and computes the same."""
    model = fit(TINY, stream, Recipe(steps=1, learning_rate=1e-3), 0, next_token_loss)
    weights.save(model, "tiny", {"seed": "0"}, tmp_path)
    with pytest.raises(weights.WeightsError, match=r"gather\.weight is \(16, 16\) in the file and \(24, 24\) in"):
        weights.load("tiny", tmp_path, Shape(VOCAB_SIZE, layers=2, width=24, heads=2, reach=8))
    again = weights.load("tiny", tmp_path, TINY)
    assert torch.equal(again(stream[None, :9]), model(stream[None, :9]))
    assert weights.training_numbers("tiny", tmp_path) == {"seed": "0"}


def test_the_card_has_its_numbers() -> None:
    """The model card's numbers parse, and are what is claimed of the drafts."""
    numbers = read_card()
    assert numbers["aligned"] >= 0.7
    assert numbers["mismatched"] <= 0.35
    assert numbers["feature_layer"] >= 0.8
    assert numbers["early_exit"] >= 0.7
    top1 = [numbers[f"medusa top-1 of head {j}"] for j in range(1, 9)]
    assert top1 == sorted(top1, reverse=True)
    assert top1[0] > 0.4
    for name in weights.SHAPES:
        assert numbers[f"{name} parameters"] == sum(p.numel() for p in weights.trained(name).parameters())
        assert 0.1 < numbers[f"{name} held out"] < 2
    assert numbers["aligned parameters"] < 0.15 * numbers["main parameters"]


def test_the_card_is_true() -> None:
    """A short measurement agrees with the acceptances on the card.

    Some 600 tested tokens with a spread of about 0.5 / sqrt(600) = 0.02, more as they are correlated: 0.1 is far out. What
    prompt lookup finds depends on how long the text is, so it is not measured in short.
    """
    numbers = read_card()
    for draft in (name for name in CHAINS if not FAMILIES[name].needs_text):
        assert abs(measured_acceptance(draft, rows=16, new_tokens=48) - numbers[draft]) < 0.1


def test_a_card_without_numbers_is_refused(tmp_path: Path) -> None:
    """A card that lacks its numbers is an error that says how to write it again."""
    (tmp_path / "MODEL_CARD.md").write_text("# Models\n", encoding="utf-8")
    with pytest.raises(ValueError, match="--measure"):
        read_card(tmp_path)


def test_a_row_of_trained_text_does_not_depend_on_its_mates() -> None:
    """With seeds per row, the trained decoder gives each row of a batch the text it gives it alone."""
    decoder = open_trained(top_p=0.9, temperature=0.8)
    together = decoder.generate(decoder.prompts[:3], 24, seeds=[5, 6, 7]).tokens
    for row in range(3):
        alone = decoder.generate(decoder.prompts[row : row + 1], 24, seeds=[5 + row]).tokens
        assert torch.equal(alone[0], together[row])


def test_importing_is_light() -> None:
    """Importing the package loads neither torch nor any model, and its names are listed."""
    code = "import sys, reference; assert 'torch' not in sys.modules; assert 'subject' in dir(reference)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(getattr(reference, name) is not None for name in dir(reference))
    with pytest.raises(AttributeError, match="it has"):
        _ = reference.nothing
