"""What a reviewer broke once: rules on drafts they are not made for, stale matrices, pauses in drafting, damaged files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import weights
from reference.adaptive import TYPICAL, RoundCosts
from reference.engine import ReferenceDecoder
from reference.exposed import build, step_over
from reference.families import FAMILIES
from reference.model import Shape, Transformer
from reference.processors import Processors
from reference.tables import CachedTable, table_pair
from specverify.pairs import named_pair
from specverify.requests import Request
from specverify.tables import torch_models

SHAPE = Shape(11, 2, 24, 3, reach=8)
IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])
NEVER = RoundCosts(5.0, (1.0, 5.0, 5.0, 5.0), 5.0)


@pytest.mark.parametrize(
    ("family", "rule", "message"),
    [
        ("medusa_tree", "without_replacement", "not lossless for a tree with children 'top-k'"),
        ("medusa_tree", "k_seq", "not lossless for a tree with children 'top-k'"),
        ("medusa_sampled_tree", "k_seq", "'without replacement'"),
        ("medusa_tree", "token_rejection", "not lossless for a tree"),
        ("medusa", "top_k", "drafts a chain"),
        ("prompt_lookup", "coupled_races", "draws none"),
    ],
)
def test_a_rule_that_does_not_fit_the_drafts_is_refused(family: str, rule: str, message: str) -> None:
    """Over tables too, for a decoder and for a step: such a rule would have another law, without a word."""
    models = torch_models(named_pair(3, 2))
    with pytest.raises(ValueError, match=message):
        build(*models, 2, rule=rule, family=family)
    with pytest.raises(ValueError, match=message):
        step_over(*models, torch.tensor([[0]]), 2, rule, family)


def exchanged(model: Transformer) -> None:
    """Exchange two blocks."""
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def other() -> Transformer:
    """Make a model of the same shape with other weights."""
    torch.manual_seed(9)
    return Transformer(SHAPE)


CHANGES: dict[str, Callable[[Transformer], object]] = {
    "written in place": lambda m: m.blocks[0].mix.weight.mul_(2.0),  # type: ignore[operator, union-attr]
    "loaded": lambda m: m.load_state_dict(other().state_dict()),
    "assigned": lambda m: m.load_state_dict(other().state_dict(), assign=True),
    "another block": lambda m: m.blocks.__setitem__(0, other().blocks[0]),
    "exchanged": exchanged,
    "from a vector": lambda m: torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(other().parameters()), m.parameters()
    ),
    "through data, and said so": lambda m: (m.blocks[0].mix.weight.data.mul_(2.0), m.prepared.forget()),  # type: ignore[operator, union-attr]
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inference", [False, True])
def test_changed_weights_are_noticed(change: str, inference: bool) -> None:
    """After every way of changing weights the cached pass computes what the uncached one does."""
    with torch.inference_mode() if inference else torch.no_grad():
        torch.manual_seed(3)
        model = Transformer(SHAPE)
        before = model.extend(IDS, model.start(6, 1))
        CHANGES[change](model)
        after = model.extend(IDS, model.start(6, 1))
        assert torch.allclose(after, model(IDS), atol=1e-5)
        assert not torch.allclose(after, before, atol=1e-3)


def test_other_precisions_are_kept() -> None:
    """A model in float64 reads into a cache of float64."""
    with torch.no_grad():
        model = copy.deepcopy(other()).double()
        found = model.extend(IDS, model.start(6, 1))
        assert found.dtype == torch.float64
        assert torch.allclose(found, model(IDS), atol=1e-10)


@pytest.mark.parametrize("family", [name for name, of in FAMILIES.items() if of.drafts == 1 and name != "mismatched"])
def test_rows_may_leave_before_anything_was_drafted(family: str) -> None:
    """With costs that never pay all families and rules go on, whoever leaves first."""
    target, draft = (CachedTable(table, 4) for table in table_pair(4, 3))
    for rule in FAMILIES[family].rules:
        of = ReferenceDecoder(target, FAMILIES[family].over_tables(draft.table, 4, 3), NEVER, rule=rule)
        rows = of.serve([Request((0,), 2, seed=1), Request((1, 2), 60, seed=2)])
        assert [len(row) for row in rows] == [2, 60]


@pytest.mark.parametrize("family", ["medusa", "feature_layer", "aligned"])
def test_races_go_on_after_a_pause(family: str) -> None:
    """A K that adapts down to 0 and up again leaves no clocks behind."""
    of = build(*torch_models(named_pair(3, 3)), 3, rule="coupled_races", family=family, adaptive=True)
    made = of.generate(torch.tensor([[0], [1], [2]]), 200, seed=0)
    assert made.accepted is not None
    assert made.tokens.shape == (3, 200)


@pytest.mark.parametrize("temperature", [float("nan"), 1e-40, float("inf"), -1.0])
def test_impossible_temperatures_are_refused(temperature: float) -> None:
    """Not a number, and what would overflow logits: 0 is the way to be greedy."""
    with pytest.raises(ValueError, match="it must be 0, which is greedy, or"):
        Processors(temperature)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_damaged_weights_say_so(tmp_path: Path, content: bytes) -> None:
    """A file that cannot be read is named with what to do, for models, heads and numbers."""
    for name in ("main", "medusa"):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    looks: list[Callable[[], object]] = [
        lambda: weights.load("main", tmp_path),
        lambda: weights.load_head("medusa", tmp_path),
        lambda: weights.training_numbers("main", tmp_path),
    ]
    for look in looks:
        with pytest.raises(weights.WeightsError, match=r"cannot be read.*python -m reference\.train"):
            look()
    with pytest.raises(weights.WeightsError, match="no network 'foo'; there are medusa"):
        weights.load_head("foo", tmp_path)
    with pytest.raises(weights.WeightsError, match="no model 'foo'; there are main"):
        weights.load("foo", tmp_path)


def test_requests_that_cannot_be_are_named() -> None:
    """No rows, other numbers of seeds or lengths than rows, and a K that is none."""
    target, draft = (CachedTable(table, 4) for table in table_pair(4, 3))
    of = ReferenceDecoder(target, draft, 2)
    prompts = torch.tensor([[1, 2], [3, 0]])
    calls: list[tuple[dict[str, Any], Tensor, str]] = [
        ({}, prompts[:0], "no prompts"),
        ({"seeds": [1]}, prompts, "1 seeds for 2 rows"),
        ({"seeds": [1, 2, 3]}, prompts, "3 seeds for 2 rows"),
        ({"lengths": torch.tensor([1])}, prompts, "1 lengths for 2 rows"),
    ]
    for settings, given, message in calls:
        with pytest.raises(ValueError, match=message):
            of.generate(given, 3, **settings)
    with pytest.raises(ValueError, match="k is 'adaptve'"):
        ReferenceDecoder(target, draft, "adaptve")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="goes up to 8"):
        build(*torch_models(named_pair(3, 2)), 12, adaptive=True)
    assert len(TYPICAL.verify) == 9
