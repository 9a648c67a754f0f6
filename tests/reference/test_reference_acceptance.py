"""Chances of acceptance along generated texts: they are what the laws say, and accepted counts agree with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.acceptance import deviation, exact_acceptance
from reference.decoder import generate
from reference.drafting import Drafter
from reference.drafting.features import FeatureDraft
from reference.drafting.lookup import PromptLookup
from reference.drafting.medusa import MedusaDraft
from reference.drafting.separate import EarlyExit, ExitModel, SeparateDraft
from reference.heads import ExitHead, FeatureLayer, MedusaHeads
from reference.model import Shape, Transformer
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from specverify.subjects import Generated
from specverify.trees import TreeShape

V, E = 11, 24
PROMPTS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1], [5, 5, 6, 7]])


@pytest.fixture(scope="module")
def drafters(main_model: Transformer, draft_model: Transformer) -> dict[str, Drafter]:
    """Every family that drafts chains, with untrained networks."""
    torch.manual_seed(5)
    heads, layer, head = MedusaHeads(E, V, 4), FeatureLayer(Shape(V, 1, E, 3, reach=8)), ExitHead(E, V)
    for net in (heads, layer, head):
        net.eval().requires_grad_(False)
    return {
        "separate": SeparateDraft(draft_model),
        "medusa": MedusaDraft(heads),
        "prompt_lookup": PromptLookup(V),
        "early_exit": EarlyExit(ExitModel(main_model, head, 2)),
        "feature_layer": FeatureDraft(layer),
    }


def made_by(main: Transformer, draft: Any, process: Processors, k: int, tokens: int, prompts: Tensor = PROMPTS) -> Generated:
    """Generate with token rejection from a fixed seed."""
    noise = BatchNoise(torch.Generator().manual_seed(3))
    return generate(main, draft, prompts, tokens, k=k, process=process, rule=rule_named("token_rejection"), noise=noise)


@pytest.mark.parametrize("name", ["separate", "medusa", "prompt_lookup", "early_exit", "feature_layer"])
@pytest.mark.parametrize("process", [Processors(), Processors(0.8, top_k=5, repetition_penalty=1.3)])
def test_accepted_counts_agree_with_their_chances(
    main_model: Transformer, drafters: dict[str, Drafter], name: str, process: Processors
) -> None:
    """Over some hundred tested drafts the sum of accepted minus chance lies within 4.5 standard errors of 0, and every
    round has a chance at each place it tested.
    """
    k, prompts = 4, PROMPTS.repeat(4, 1)
    made = made_by(main_model, drafters[name], process, k, 40, prompts)
    chances = exact_acceptance(main_model, drafters[name], prompts, made, k=k, process=process)
    assert made.accepted is not None
    excess, error = deviation(made.accepted, chances)
    assert error > 3
    assert abs(excess) <= 4.5 * error
    inner = chances[:, :5][made.accepted[:, :5] >= 0]
    assert name == "prompt_lookup" or not inner[:, 0].isnan().any()


def test_chances_of_another_law_would_show(main_model: Transformer, drafters: dict[str, Drafter]) -> None:
    """The control: chances computed at another temperature are off by many standard errors."""
    prompts = PROMPTS.repeat(4, 1)
    made = made_by(main_model, drafters["separate"], Processors(), 4, 40, prompts)
    assert made.accepted is not None
    other = exact_acceptance(main_model, drafters["separate"], prompts, made, k=4, process=Processors(0.4))
    excess, error = deviation(made.accepted, other)
    assert abs(excess) > 8 * error


@pytest.mark.parametrize("name", ["separate", "early_exit"])
def test_chances_are_one_minus_the_distance(main_model: Transformer, drafters: dict[str, Drafter], name: str) -> None:
    """Place by place sum min(p, q) of the laws that both models have after the text, NaN after a rejection."""
    made = made_by(main_model, drafters[name], Processors(), 3, 30)
    chances = exact_acceptance(main_model, drafters[name], PROMPTS, made, k=3, process=Processors())
    drafting = drafters[name].model  # type: ignore[attr-defined]
    assert made.accepted is not None
    for row in range(len(PROMPTS)):
        ids = torch.cat([PROMPTS[row], made.tokens[row]])[None]
        q = drafting.extend(ids, drafting.start(40, 1)).softmax(-1)
        overlap = torch.minimum(main_model(ids).softmax(-1), q).sum(-1)[0]
        done = 0
        for r, accepted in enumerate(made.accepted[row].tolist()):
            if accepted < 0 or 30 - done < 4:
                assert chances[row, r].isnan().all()
                break
            tested = min(accepted + 1, 3)
            start = PROMPTS.shape[1] - 1 + done
            assert torch.allclose(chances[row, r, :tested], overlap[start : start + tested].double(), atol=1e-5)
            assert chances[row, r, tested:].isnan().all()
            done += accepted + 1


def test_what_has_no_chances_is_an_error(main_model: Transformer, drafters: dict[str, Drafter]) -> None:
    """Without accepted counts, and for trees."""
    made = made_by(main_model, drafters["separate"], Processors(), 2, 6)
    settings: dict[str, Any] = {"k": 2, "process": Processors()}
    with pytest.raises(ValueError, match="accepted counts are needed"):
        exact_acceptance(main_model, drafters["separate"], PROMPTS, Generated(made.tokens), **settings)
    heads: Callable[..., Any] = MedusaHeads(E, V, 2).requires_grad_(False)
    tree = MedusaDraft(heads, TreeShape.branching((2, 1)))
    with pytest.raises(ValueError, match="drafts trees"):
        exact_acceptance(main_model, tree, PROMPTS, made, **settings)
