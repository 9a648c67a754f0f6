"""The twin that speed is compared on: the reference's function, with the library's own cache and loop."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from benchmark_modules import benchmark_module
from torch import Tensor

from reference.model import Transformer
from reference.weights import trained

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is an optional extra and is not installed here", allow_module_level=True)

from transformers import DynamicCache

made = benchmark_module("transformers_twin")


@pytest.fixture(params=["main", "aligned", "untrained main", "untrained draft"])
def model(request: pytest.FixtureRequest, main_model: Transformer, draft_model: Transformer) -> Transformer:
    """The models whose speed is compared, and small ones of other shapes."""
    return {"untrained main": main_model, "untrained draft": draft_model}.get(request.param) or trained(request.param)


def ids(model: Transformer, rows: int, length: int, seed: int) -> Tensor:
    """Draw ids (rows, length)."""
    return torch.randint(model.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether logits are equal up to rounding."""
    return torch.allclose(found, expected, rtol=0, atol=1e-4)


def test_the_twin_computes_the_reference(model: Transformer) -> None:
    """Without a cache the logits are the reference's, beyond the reach of the distance bias too."""
    text = ids(model, 2, 80, 0)
    twin = made.twin(model)
    assert same(twin(text).logits, model(text))
    assert same(twin(text, logits_to_keep=3).logits, model(text)[:, -3:])


def test_the_twin_goes_on_from_its_cache(model: Transformer) -> None:
    """A text that is read in pieces gives the logits of reading it at once."""
    text = ids(model, 2, 80, 1)
    twin = made.twin(model)
    cache = DynamicCache(config=twin.config)
    pieces = [twin(piece, cache=cache).logits for piece in text.tensor_split((30, 31, 35, 70), 1)]
    assert cache.get_seq_length() == 80
    assert same(torch.cat(pieces, 1), model(text))


def test_a_crop_leaves_no_trace(model: Transformer) -> None:
    """After the cache was cropped, going on gives the logits of the text that was kept."""
    text, wrong = ids(model, 1, 40, 2), ids(model, 1, 5, 3)
    twin = made.twin(model)
    cache = DynamicCache(config=twin.config)
    twin(torch.cat([text[:, :30], wrong], 1), cache=cache)
    cache.crop(-7)
    assert cache.get_seq_length() == 28
    assert same(twin(text[:, 28:], cache=cache).logits, model(text)[:, 28:])


def test_assisted_generation_drafts_a_constant_number_of_tokens(main_model: Transformer, draft_model: Transformer) -> None:
    """The library's loop proposes k tokens in a round however unsure the draft is, and makes as many tokens as asked."""
    target, draft = made.twin(main_model), made.assist(made.twin(draft_model), 4)
    widths: list[int] = []
    target.register_forward_pre_hook(lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    prompt = ids(main_model, 1, 6, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=made.sampling(40), assistant_model=draft
        )
    assert out.shape == (1, 46)
    assert widths[0] == 6 + 4
    assert set(widths[1:-4]) == {5}


def test_assisted_generation_on_an_equal_draft_accepts_everything(main_model: Transformer) -> None:
    """With the target as its own draft a round makes k + 1 tokens: nothing is lost between the passes."""
    target, draft = made.twin(main_model), made.assist(made.twin(main_model), 4)
    passes: list[int] = []
    target.register_forward_hook(lambda *_: passes.append(1))
    prompt = ids(main_model, 1, 6, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=made.sampling(50), assistant_model=draft
        )
    assert len(passes) <= 11
