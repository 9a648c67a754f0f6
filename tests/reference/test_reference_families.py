"""The families of drafters: exact with every rule that fits, over tables by enumeration and with networks by their caches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference import decoder
from reference.adaptive import TYPICAL, AdaptiveK
from reference.caching import Branches
from reference.decoder import generate
from reference.drafting import Drafter
from reference.drafting.features import FeatureDraft
from reference.drafting.lookup import PromptLookup, continuation
from reference.drafting.medusa import MedusaDraft, branched
from reference.drafting.separate import EarlyExit, ExitModel
from reference.engine import ReferenceDecoder
from reference.exposed import build, family_step, family_subject, step_over
from reference.families import FAMILIES
from reference.heads import ExitHead, FeatureLayer, MedusaHead, MedusaHeads
from reference.history import read_prompts
from reference.model import Shape, Transformer
from reference.noise import BatchNoise, RacingNoise, RowNoise
from reference.processors import Processors
from reference.rules import coupled_races, rule_named
from reference.rules.trees import tree_rule_named
from reference.step import accepted_path, branches_of, draft_propose, speculative_step, start
from reference.tables import CachedTable, table_pair
from specverify.exact import induced_law, round_law
from specverify.laws import complete, sequence_law
from specverify.pairs import named_pair
from specverify.requests import Request
from specverify.subjects import Emitted
from specverify.tables import torch_models
from specverify.trees import Tree, TreeShape

CASES = [(name, rule) for name, of in FAMILIES.items() if name != "mismatched" for rule in of.rules]
PROMPTS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1], [5, 5, 6, 7], [0, 9, 8, 10]])
E, V = 24, 11


@pytest.fixture(scope="module")
def networks(main_model: Transformer) -> dict[str, Callable[[], Drafter]]:
    """Untrained networks of every family that drafts from the main model's states."""
    torch.manual_seed(5)
    heads, layer, exit_head = MedusaHeads(E, V, 4), FeatureLayer(Shape(V, 1, E, 3, reach=8)), ExitHead(E, V)
    for head in heads.heads:
        torch.nn.init.normal_(head.mix.weight, std=0.3)
    nets = [net.eval().requires_grad_(False) for net in (heads, layer, exit_head)]
    assert isinstance(nets[2], ExitHead)
    exit_model = ExitModel(main_model, nets[2], 2)
    shape = TreeShape.branching((3, 2, 1))
    return {
        "medusa": lambda: MedusaDraft(nets[0]),
        "medusa_tree": lambda: MedusaDraft(nets[0], shape, "top-k"),
        "medusa_sampled_tree": lambda: MedusaDraft(nets[0], shape, "without replacement"),
        "prompt_lookup": lambda: PromptLookup(V),
        "early_exit": lambda: EarlyExit(exit_model),
        "feature_layer": lambda: FeatureDraft(nets[1]),
    }


def law_of(run: Callable[[], tuple[int, ...]]) -> dict[Any, float]:
    """The exact law of what a run returns, all of it found."""
    law = induced_law(run)
    assert law.mass == pytest.approx(1, abs=1e-12)
    return dict(law.pmf)


@pytest.mark.parametrize(("family", "rule"), CASES)
@pytest.mark.parametrize(("v", "k"), [(2, 2), (3, 2), (2, 3)])
def test_a_round_of_every_family_is_exact(family: str, rule: str, v: int, k: int) -> None:
    """The completed law of one round over tables is the target's to 1e-12, whoever drafts and whichever rule judges."""
    pair = named_pair(v, k)
    law = complete(round_law(family_step(family, k, rule), pair), pair.target, k + 1, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, k + 1, pair.prompt)).max() <= 1e-12


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mismatched"])
def test_rounds_of_every_family_are_exact(family: str) -> None:
    """Three tokens over several rounds of K = 2 of the whole decoder follow the target's joint law to 1e-12."""
    pair = named_pair(2, 2)
    of = build(*torch_models(pair), 2, rule=FAMILIES[family].rules[0], family=family)
    found = law_of(lambda: tuple(of.generate(torch.tensor([pair.prompt]), 3).tokens[0].tolist()))
    expected = sequence_law(pair.target, 3, pair.prompt)
    for index in np.ndindex(expected.shape):
        assert found.get(tuple(map(int, index)), 0.0) == pytest.approx(expected[index], abs=1e-12)


def test_typical_acceptance_is_not_exact() -> None:
    """The control of the two tests above: with the lossy rule the law of a round is another one."""
    pair = named_pair(3, 2)
    law = complete(round_law(family_step("medusa", 2, "typical_acceptance"), pair), pair.target, 3, pair.prompt)
    assert np.abs(law - sequence_law(pair.target, 3, pair.prompt)).max() > 0.01
    lossy = family_subject("medusa", "typical_acceptance")
    assert lossy.facts.lossy
    assert all(part.facts.lossy for part in lossy.parts)


def test_rules_that_do_not_fit_are_refused() -> None:
    """A rule for chains does not judge a tree, and the error names those that do."""
    with pytest.raises(ValueError, match="'top_k' or 'traversal'"):
        family_subject("medusa_tree", "token_rejection")
    with pytest.raises(ValueError, match="there is no family 'nobody'"):
        family_subject("nobody")


@pytest.mark.parametrize(
    "family", [name for name, of in FAMILIES.items() if of.drafts == 1 and name not in ("aligned", "mismatched")]
)
@pytest.mark.parametrize("rule", ["token_rejection", "block_verification", "greedy"])
def test_greedy_text_of_networks(main_model: Transformer, networks: dict[str, Any], family: str, rule: str) -> None:
    """At temperature 0 rows of unequal prompts get the main model's own text from every family, over many rounds."""
    greedy, lengths = Processors(temperature=0), torch.tensor([4, 1, 3, 2])
    settings: dict[str, Any] = {"process": greedy, "noise": BatchNoise(), "lengths": lengths}
    expected = decoder.autoregressive(main_model, PROMPTS, 30, **settings)
    found = generate(main_model, networks[family](), PROMPTS, 30, k=4, rule=rule_named(rule), **settings)
    assert torch.equal(found.tokens, expected)


@pytest.mark.parametrize("family", ["medusa_tree", "medusa_sampled_tree"])
@pytest.mark.parametrize("rule", ["without_replacement", "traversal"])
def test_greedy_text_of_trees(main_model: Transformer, networks: dict[str, Any], family: str, rule: str) -> None:
    """The same for trees: what is kept of the cache after a tree pass is the accepted path."""
    greedy, lengths = Processors(temperature=0), torch.tensor([4, 1, 3, 2])
    settings: dict[str, Any] = {"process": greedy, "noise": BatchNoise(), "lengths": lengths}
    expected = decoder.autoregressive(main_model, PROMPTS, 30, **settings)
    found = generate(main_model, networks[family](), PROMPTS, 30, k=3, rule=tree_rule_named(rule), **settings)
    assert torch.equal(found.tokens, expected)


def test_a_tree_is_accepted_deeply_somewhere(main_model: Transformer) -> None:
    """Trees of the main model's own likeliest tokens are accepted to the end: the paths above were really moved."""

    class Oracle(MedusaDraft):
        """Heads that know: the main model itself, asked for the greedy text to come, given as the second child."""

        def begin(self, main: Any, cache: Any, text: Any) -> Any:
            inner = super().begin(main, cache, text)

            def propose(text: Any, k: int, process: Any, noise: Any) -> Any:
                tree = branched(torch.zeros(len(text.ids), 3, V), TreeShape.branching((2, 2, 1)), "top-k", text, process, noise)
                for row, n in enumerate(text.lengths.tolist()):
                    coming = decoder.autoregressive(
                        main, text.ids[row : row + 1, :n], 3, process=Processors(0), noise=BatchNoise()
                    )[0]
                    for depth, nodes in enumerate([(1,), (3, 5), (7, 9)]):
                        tree.tokens[row, list(nodes)] = coming[depth]
                    tree.tokens[row, [0, 2, 4]] = (coming[0] + 1) % V
                return tree

            inner.propose = propose
            return inner

    of = Oracle(lambda hidden, k: None, TreeShape.branching((2, 2, 1)))
    settings: dict[str, Any] = {"process": Processors(0), "noise": BatchNoise()}
    found = generate(main_model, of, PROMPTS, 24, k=3, rule=tree_rule_named("top_k"), **settings)
    assert torch.equal(found.tokens, decoder.autoregressive(main_model, PROMPTS, 24, **settings))
    assert found.accepted is not None
    assert (found.accepted == 3).all()


@pytest.mark.parametrize("kind", ["transformer", "table"])
def test_a_pass_over_a_tree_reads_every_path(main_model: Transformer, kind: str) -> None:
    """Logits of all nodes are those of reading each path alone; what is kept goes on as if nothing else had been read."""
    model: Any = main_model if kind == "transformer" else CachedTable(table_pair(8, 1)[0], 8)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.vocab_size, (3, 6), generator=generator)
    lengths = torch.tensor([6, 3, 5])
    shape = TreeShape((-1, -1, 0, 0, 1, 2))
    nodes = torch.randint(model.vocab_size, (3, 6), generator=generator)
    cache = model.start(20, 3)
    model.extend(ids[:, :-1], cache, lengths - 1)
    last = ids.gather(1, lengths[:, None] - 1)
    found = model.extend(torch.cat([last, nodes], 1), cache, branches=branches_of(shape)[0])

    def alone(text: Tensor) -> Tensor:
        return model.extend(text[None], model.start(20, 1))[0]  # type: ignore[no-any-return]

    for row, n in enumerate(lengths.tolist()):
        for node in range(-1, shape.size):
            text = torch.cat([ids[row, :n], nodes[row, list(shape.path(node))]])
            assert torch.allclose(found[row, node + 1], alone(text)[-1], rtol=1e-4, atol=1e-5)
    kept = torch.tensor([[0, 1, 3, 6], [0, 2, 5, 0], [0, 0, 0, 0]])  # paths as tokens of the pass
    counts = torch.tensor([4, 3, 1])
    cache.keep_path(lengths - 1, kept, counts)
    more = torch.randint(model.vocab_size, (3, 2), generator=generator)
    going_on = model.extend(more, cache)
    for row, n in enumerate(lengths.tolist()):
        path = kept[row, 1 : counts[row]] - 1
        text = torch.cat([ids[row, :n], nodes[row, path], more[row]])
        assert torch.allclose(going_on[row], alone(text)[-2:], rtol=1e-4, atol=1e-5)


def test_a_tree_may_be_read_level_by_level(main_model: Transformer) -> None:
    """Reading the second level after the first gives what reading both at once gives."""
    whole, _ = branches_of(TreeShape.branching((2, 2)))
    tokens = torch.tensor([[1, 5, 6, 7, 8, 9, 10]])
    once, twice = main_model.start(20, 1), main_model.start(20, 1)
    for cache in (once, twice):
        main_model.extend(torch.tensor([[3, 4]]), cache)
    expected = main_model.extend(tokens, once, branches=whole)
    main_model.extend(tokens[:, :3], twice, branches=Branches(whole.depths[:3], whole.visible[:3, :3]))
    found = main_model.extend(tokens[:, 3:], twice, branches=Branches(whole.depths, whole.visible[3:]))
    assert torch.allclose(found, expected[:, 3:], atol=1e-5)


def test_the_accepted_path_is_found_among_equal_siblings() -> None:
    """Siblings with the same token: the path goes through the one below which the next accepted token hangs."""
    shape = TreeShape((-1, -1, 0, 1))
    tree = branched(
        torch.zeros(1, 2, 4),
        shape,
        "top-k",
        read_prompts(torch.tensor([[1]]), torch.tensor([1]), 4, 4, seen=False),
        Processors(),
        BatchNoise(),
    )
    tree.tokens[0] = torch.tensor([2, 2, 3, 1])
    path = accepted_path(tree, Emitted(torch.tensor([[2, 1, 0]]), torch.tensor([3])))
    assert path[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "family", ["medusa", "medusa_tree", "medusa_sampled_tree", "prompt_lookup", "early_exit", "feature_layer"]
)
def test_rows_of_every_family_keep_to_themselves(main_model: Transformer, networks: dict[str, Any], family: str) -> None:
    """With a seed per row, rows of unequal prompts and ends come out of a batch as they do alone."""
    rule = FAMILIES[family].rules[0]
    of = ReferenceDecoder(main_model, networks[family](), 3, eos_id=4, rule=rule, processors=Processors(1.5))
    lengths = torch.tensor([4, 1, 3, 2])
    together = of.generate(PROMPTS, 25, seeds=range(4), lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        alone = of.generate(PROMPTS[row : row + 1, :n], 25, seeds=[row])
        assert torch.equal(alone.tokens[0], together.tokens[row])


@pytest.mark.parametrize("family", ["medusa", "early_exit", "feature_layer"])
def test_coupled_races_in_the_loop(main_model: Transformer, networks: dict[str, Any], family: str) -> None:
    """With a seed per row races give each row of a batch what they give it alone, and at temperature 0 the greedy text."""
    of = ReferenceDecoder(main_model, networks[family](), 3, rule="coupled_races", processors=Processors(1.5))
    together = of.generate(PROMPTS, 25, seeds=range(4))
    for row in range(4):
        assert torch.equal(of.generate(PROMPTS[row : row + 1], 25, seeds=[row]).tokens[0], together.tokens[row])
    assert together.accepted is not None
    assert int(together.accepted.max()) > 0
    assert not torch.equal(of.generate(PROMPTS, 25, seed=1).tokens, of.generate(PROMPTS, 25, seed=2).tokens)
    greedy = ReferenceDecoder(main_model, networks[family](), 3, rule="coupled_races", processors=Processors(0.0))
    expected = decoder.autoregressive(main_model, PROMPTS, 20, process=Processors(0.0), noise=BatchNoise())
    assert torch.equal(greedy.generate(PROMPTS, 20, seed=0).tokens, expected)


def test_races_need_the_clocks_of_the_drafts() -> None:
    """Drafts that were not chosen by the noise at hand are an error, and each round takes the clocks of its own."""
    noise, law = RacingNoise(), torch.full((2, 3, 4), 0.25)
    noise.choose(law[:, 0])
    with pytest.raises(ValueError, match="2 tokens were drafted and 1 races run"):
        coupled_races.verify(torch.zeros(2, 2, dtype=torch.int64), law[:, :2], law, noise)
    drafted = torch.stack([noise.choose(law[:, j]) for j in range(2)], 1)
    emitted = coupled_races.verify(drafted, law[:, :2], law, noise)
    assert emitted.counts.tolist() == [3, 3]  # equal laws: the same clocks choose the same tokens
    assert torch.equal(emitted.tokens[:, :2], drafted)
    assert noise.clocks == []


def test_medusa_heads_are_what_a_head_is() -> None:
    """All heads at once give what each gives alone; more than there are is an error."""
    torch.manual_seed(0)
    heads = MedusaHeads(6, 5, 3).requires_grad_(False)
    hidden = torch.randn(4, 6)
    for head in heads.heads:
        assert isinstance(head, MedusaHead)
        torch.nn.init.normal_(head.mix.weight)
    assert torch.allclose(heads(hidden, 2), torch.stack([head(hidden) for head in heads.heads[:2]], 1), atol=1e-6)
    with pytest.raises(ValueError, match="there are 3 heads, and 4"):
        heads(hidden, 4)


def test_prompt_lookup_by_hand() -> None:
    """The longest suffix wins, of equals the latest; nothing follows where the text ends, or where nothing agrees."""
    ids = torch.tensor(
        [
            [1, 2, 3, 9, 2, 3, 8, 2, 3, 0],
            [5, 6, 7, 0, 0, 0, 0, 0, 0, 0],
            [1, 2, 3, 4, 9, 3, 2, 3, 0, 0],
            [4, 4, 4, 0, 0, 0, 0, 0, 0, 0],
        ]
    )
    lengths = torch.tensor([9, 3, 8, 3])
    none = 99
    assert continuation(ids, lengths, 3, 2, none).tolist() == [[8, 2, 3], [none] * 3, [4, 9, 3], [4, none, none]]
    assert continuation(ids, lengths, 3, 1, none).tolist()[2] == [2, 3, none]
    with pytest.raises(ValueError, match="at least one token"):
        PromptLookup(5, longest=0)


@pytest.mark.parametrize("rule", ["token_rejection", "block_verification", "sample_and_match", "one_hot_draft"])
def test_a_place_without_a_draft_shortens_the_round(rule: str) -> None:
    """A chain whose second place has no draft emits what the chain of one token emits: same law, to 1e-12."""
    pair = named_pair(3, 1)
    target, _ = torch_models(pair)
    prefix = torch.tensor([pair.prompt])
    p = torch.softmax(target(torch.cat([prefix, torch.tensor([[1]])], 1))[:, -2:], -1)
    q = torch.nn.functional.one_hot(torch.tensor([[1]]), 3).double()
    none = torch.nn.functional.one_hot(torch.tensor([[1, 3]]), 4).double()
    wide = torch.nn.functional.pad(torch.cat([p, p[:, -1:]], 1), (0, 1))
    judge = rule_named(rule)
    short = law_of(lambda: judge.verify(torch.tensor([[1]]), q, p, BatchNoise()).rows()[0])
    long = law_of(lambda: judge.verify(torch.tensor([[1, 3]]), none, wide, BatchNoise()).rows()[0])
    assert short.keys() == long.keys()
    assert all(long[key] == pytest.approx(mass, abs=1e-12) for key, mass in short.items())


class Recorder:
    """Token rejection that keeps the laws it was given."""

    NAME, SOURCE = "recorder", "none"

    def __init__(self) -> None:
        self.given: list[tuple[Tensor, Tensor, Tensor]] = []

    def verify(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, noise: Any) -> Emitted:
        """Keep the laws, and judge."""
        self.given.append((draft_tokens.clone(), draft_probs.clone(), target_probs.clone()))
        return rule_named("token_rejection").verify(draft_tokens, draft_probs, target_probs, noise)


@pytest.mark.parametrize("family", ["aligned", "medusa", "early_exit", "feature_layer"])
def test_a_penalty_counts_accepted_tokens_only(
    main_model: Transformer, draft_model: Transformer, networks: dict[str, Any], family: str
) -> None:
    """In every round the target's laws are those of the text so far and of the drafts before a place, penalised by hand;
    a token that was drafted and rejected leaves no trace in the next round.
    """
    drafter = draft_model if family == "aligned" else networks[family]()
    penalty, k, rule = 3.0, 3, Recorder()
    process = Processors(1.0, repetition_penalty=penalty)
    noise = BatchNoise(torch.Generator().manual_seed(1))
    text = PROMPTS[:1]
    rejected = 0
    for block in decoder.rounds(main_model, drafter, text, 24, k=k, process=process, rule=rule, noise=noise):
        drafted, _, target = rule.given[-1]
        along = torch.cat([text, drafted], 1)
        logits = main_model(along)[0, text.shape[1] - 1 :]
        for place, law in enumerate(target[0]):
            held = along[0, : text.shape[1] + place].unique()
            hit = torch.zeros(V, dtype=torch.bool).index_fill(0, held, True)
            by_hand = torch.where(
                hit, torch.where(logits[place] > 0, logits[place] / penalty, logits[place] * penalty), logits[place]
            )
            assert torch.allclose(law, by_hand.softmax(-1), atol=1e-5)
        accepted = int(block.accepted[0])
        rejected += accepted < k and int(drafted[0, accepted]) not in along[0, : text.shape[1] + accepted].tolist()
        text = torch.cat([text, block.tokens[:, : accepted + 1]], 1)
    assert rejected > 0


def test_the_law_with_a_penalty_is_what_is_reported(main_model: Transformer, draft_model: Transformer) -> None:
    """target_log_probs penalises what the text holds up to each place; greedy text equals the plain loop's with it."""
    settings = Processors(0.0, repetition_penalty=1.7)
    of = ReferenceDecoder(main_model, draft_model, 3, processors=settings)
    found = of.generate(PROMPTS, 20, seed=0).tokens
    assert torch.equal(found, decoder.autoregressive(main_model, PROMPTS, 20, process=settings, noise=BatchNoise()))
    uncached = decoder.autoregressive(main_model, PROMPTS, 20, process=settings, noise=BatchNoise(), cached=False)
    assert torch.equal(found, uncached)
    ids = torch.cat([PROMPTS, found], 1)
    assert torch.equal(of.target_log_probs(ids)[:, 3:-1].argmax(-1), found)
    plain = ReferenceDecoder(main_model, draft_model, 3, processors=Processors(0.0)).generate(PROMPTS, 20, seed=0).tokens
    assert not torch.equal(plain, found)
    with pytest.raises(ValueError, match="repetition_penalty is 0"):
        Processors(repetition_penalty=0.0)
    with pytest.raises(ValueError, match="pass seen"):
        settings(torch.zeros(1, 4))


def test_the_law_over_rounds_with_a_penalty_is_exact() -> None:
    """Over tables three tokens with a penalty follow the law that target_log_probs tells, to 1e-12."""
    pair = named_pair(2, 1)
    of = build(*torch_models(pair), 2)
    of.processors = Processors(0.8, repetition_penalty=2.0)
    prompt = torch.tensor([[0]])
    found = law_of(lambda: tuple(of.generate(prompt, 3).tokens[0].tolist()))
    for index in np.ndindex(2, 2, 2):
        ids = torch.cat([prompt, torch.tensor([index])], 1)
        logs = of.target_log_probs(ids)[0, :-1].gather(1, ids[0, 1:, None]).sum()
        assert found.get(tuple(map(int, index)), 0.0) == pytest.approx(float(logs.exp()), abs=1e-12)


def test_streamed_tokens_are_those_that_are_served() -> None:
    """Rounds stream what was accepted, row by row, cut at ends and lengths; together they are what ``serve`` returns."""
    target, draft = table_pair(4, 3)
    of = ReferenceDecoder(CachedTable(target, 4), CachedTable(draft, 4), 3, eos_id=3, stop=(1,))
    asked = [Request((0, 2), 9, seed=1), Request((2,), 1, seed=2), Request((2, 2, 0), 14, seed=3, temperature=0.5)]
    pieces = list(of.stream(asked))
    assert len(pieces) > 1
    assert all(1 <= len(tokens) <= 4 for news in pieces for _, tokens in news)
    whole = [[t for news in pieces for row, tokens in news if row == b for t in tokens] for b in range(3)]
    assert whole == of.serve(asked)
    for request, row in zip(asked, whole, strict=True):
        assert len(row) == request.max_new_tokens or row[-1] in (1, 3)
        assert not {1, 3} & set(row[:-1])


def test_a_row_that_is_done_leaves_the_batch(main_model: Transformer, draft_model: Transformer) -> None:
    """Passes get shorter as rows finish: none of them reads a row that has its tokens."""
    read: list[int] = []

    class Counting:
        vocab_size, start = main_model.vocab_size, main_model.start

        def extend(self, tokens: Tensor, cache: Any, counts: Tensor | None = None) -> Tensor:
            read.append(len(tokens))
            return main_model.extend(tokens, cache, counts)

    asked = torch.tensor([2, 30, 8, 16])
    made = decoder.rounds(
        Counting(),
        draft_model,
        PROMPTS,
        asked,
        k=2,
        process=Processors(),
        rule=rule_named("token_rejection"),
        noise=RowNoise(range(4)),
    )
    got = torch.zeros(4, dtype=torch.int64)
    for one in made:
        assert read[-1] == len(one.rows)
        got[one.rows] += one.counts
    assert got.tolist() == asked.tolist()
    assert read[0] == 4
    assert read[-1] == 1


def adaptive_over_tables(pair: Any) -> ReferenceDecoder:
    """The decoder over tables with a K that follows acceptance, from 0 to 3."""
    return build(*torch_models(pair), 3, adaptive=True)


def test_an_adaptive_k_is_exact() -> None:
    """Three tokens over rounds whose K depends on what earlier ones accepted follow the joint law to 1e-12."""
    pair = named_pair(2, 2)
    of = adaptive_over_tables(pair)
    prompt = torch.tensor([pair.prompt])
    found = law_of(lambda: tuple(of.generate(prompt, 3).tokens[0].tolist()))
    expected = sequence_law(pair.target, 3, pair.prompt)
    for index in np.ndindex(expected.shape):
        assert found.get(tuple(map(int, index)), 0.0) == pytest.approx(expected[index], abs=1e-12)


def observed(pace: AdaptiveK, accepted: Callable[[int], int], rounds: int) -> list[int]:
    """The K of some rounds whose drafts are accepted as ``accepted(k)`` says."""
    chosen = []
    for _ in range(rounds):
        k = pace.choose()
        chosen.append(k)
        if k:
            pace.observe(k, torch.tensor([accepted(k)]))
    return chosen


def test_an_adaptive_k_follows_acceptance() -> None:
    """It drafts long where all is accepted, stops after a few rounds where nothing is, tries again ever more rarely, and
    comes back when acceptance does.
    """
    assert observed(AdaptiveK(TYPICAL), lambda k: k, 60)[-1] == 8
    pace = AdaptiveK(TYPICAL, patience=8)
    chosen = observed(pace, lambda k: 0, 400)
    drafting = [i for i, k in enumerate(chosen) if k]
    first_stop = chosen.index(0)
    assert 1 <= first_stop <= 4
    gaps = np.diff([i for i in drafting if i > first_stop])
    assert (gaps > 8).all()
    assert (gaps[1:] > 1.9 * gaps[:-1]).all()
    again = AdaptiveK(TYPICAL, patience=2)
    observed(again, lambda k: 0, 10)
    assert max(observed(again, lambda k: k, 400)[-50:]) == 8
    with pytest.raises(ValueError, match="the costs cover K = 1 to 8"):
        AdaptiveK(TYPICAL, 9)


def test_an_adaptive_k_stakes_little_at_first() -> None:
    """Two tokens before anything is known; twice as many after a round of which more than half was accepted."""
    assert observed(AdaptiveK(TYPICAL, hope=0.95, prior=9), lambda k: k, 4) == [2, 4, 8, 8]
    assert observed(AdaptiveK(TYPICAL, hope=0.95, prior=99), lambda k: k // 2, 3) == [2, 2, 2]
    pace = AdaptiveK(TYPICAL, hope=0.95, prior=99)
    pace.observe(2, torch.tensor([2, 0]))  # half of a batch's drafts is not more than half
    assert pace.choose() == 2


def test_acceptance_is_learned_per_tested_token() -> None:
    """A round of K = 4 that accepts 1 tests two tokens; a row that accepts all tests K."""
    pace = AdaptiveK(TYPICAL, prior=1e-9)
    pace.observe(4, torch.tensor([1]))
    assert pace.acceptance == pytest.approx(1 / 2)
    pace = AdaptiveK(TYPICAL, prior=1e-9)
    pace.observe(4, torch.tensor([4, 0]))
    assert pace.acceptance == pytest.approx(4 / 5)


@functools.cache
def expected_emitted(family: str, v: int, k: int) -> float:
    """E of one round of a family over the named pair, by the exact engine."""
    pair = named_pair(v, k)
    law = round_law(family_step(family, k), pair)
    return sum(mass * len(tokens) for tokens, mass in law.items())


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mismatched"])
def test_tokens_per_round_are_those_of_the_exact_law(family: str, k: int) -> None:
    """Emitted tokens per round of 20 000 sampled rounds lie within 5 standard errors of the exact value."""
    pair, rows = named_pair(3, k), 20_000
    torch.manual_seed(k)
    emitted = step_over(*torch_models(pair), torch.tensor([pair.prompt]).expand(rows, -1), k, FAMILIES[family].rules[0], family)
    counts = emitted.counts.double()
    error = float(counts.std()) / rows**0.5
    assert abs(float(counts.mean()) - expected_emitted(family, 3, k)) <= 5 * error + 1e-12


def test_a_law_that_is_not_the_drafts_own_would_show() -> None:
    """The control: the same comparison with another draft's exact value is far off."""
    pair, rows = named_pair(3, 2), 20_000
    torch.manual_seed(2)
    emitted = step_over(*torch_models(pair), torch.tensor([pair.prompt]).expand(rows, -1), 2)
    counts = emitted.counts.double()
    assert abs(float(counts.mean()) - expected_emitted("medusa", 3, 2)) > 5 * float(counts.std()) / rows**0.5


@pytest.mark.parametrize("family", ["aligned", "medusa", "medusa_tree", "early_exit", "feature_layer"])
def test_what_is_carried_on_is_what_a_fresh_reading_gives(
    main_model: Transformer, draft_model: Transformer, networks: dict[str, Any], family: str
) -> None:
    """After rounds that accept and reject, states of the text and the laws of the next drafts are those of a decode that starts
    with that text: nothing of rejected drafts, or of states that a drafter only foresaw, is left.
    """
    drafter = draft_model if family == "aligned" else networks[family]()
    rule: Any = tree_rule_named("top_k") if family == "medusa_tree" else rule_named("token_rejection")
    process, noise = Processors(4.0), BatchNoise(torch.Generator().manual_seed(2))
    with torch.inference_mode():
        state = start(main_model, drafter, PROMPTS[:1], torch.tensor([4]), 160)
        accepted = [int(speculative_step(main_model, state, 3, process, rule, noise).counts) - 1 for _ in range(30)]
        assert len(set(accepted)) > 1
        length = int(state.text.lengths)
        text = state.text.ids[:, :length]
        if state.text.hidden is not None:
            expected = main_model.states(text)[-1]
            assert torch.allclose(state.text.hidden[:, : length - 1], expected[:, :-1], atol=1e-4)
        fresh = start(main_model, drafter, text, state.text.lengths, 20)
        drafts = [draft_propose(s, 3, process, BatchNoise(torch.Generator().manual_seed(7))) for s in (state, fresh)]
        laws = [d.drafter_probs if isinstance(d, Tree) else d.laws for d in drafts]
        assert torch.equal(drafts[0].tokens, drafts[1].tokens)
        assert torch.allclose(laws[0], laws[1], atol=1e-4)


def test_a_penalty_follows_the_paths_of_a_tree(main_model: Transformer, networks: dict[str, Any]) -> None:
    """The target's law after every node is penalised for the text and for the node's own path, not for its siblings."""
    penalty, given = 3.0, []

    class Keeping:
        NAME, SOURCE = "keeping", "none"

        def verify(self, tree: Tree, target_probs: Tensor, noise: Any) -> Emitted:
            given.append((tree, target_probs.clone()))
            return tree_rule_named("top_k").verify(tree, target_probs, noise)

    process = Processors(1.0, repetition_penalty=penalty)
    settings: dict[str, Any] = {"process": process, "noise": BatchNoise(torch.Generator().manual_seed(1)), "rule": Keeping()}
    next(decoder.rounds(main_model, networks["medusa_tree"](), PROMPTS[:1], 5, k=3, **settings))
    (tree, target) = given[0]
    for node in range(-1, tree.shape.size):
        along = torch.cat([PROMPTS[0], tree.tokens[0, list(tree.shape.path(node))]])
        logits = main_model(along[None])[0, -1]
        hit = torch.zeros(V, dtype=torch.bool).index_fill(0, along.unique(), True)
        by_hand = torch.where(hit, torch.where(logits > 0, logits / penalty, logits * penalty), logits).softmax(-1)
        assert torch.allclose(target[0, node + 1], by_hand, atol=1e-5)


def test_siblings_without_replacement_are_drawn_so() -> None:
    """They differ, each was drawn from a law without its elder siblings, and nothing else of the law has changed."""
    logits = torch.randn(200, 2, 4, generator=torch.Generator().manual_seed(0))
    shape = TreeShape.branching((3, 2))
    text = read_prompts(torch.zeros(200, 1, dtype=torch.int64), torch.ones(200, dtype=torch.int64), 4, 4, seen=False)
    noise = BatchNoise(torch.Generator().manual_seed(1))
    tree = branched(logits, shape, "without replacement", text, Processors(), noise)
    assert tree.draft_probs is not None
    for parent in range(-1, shape.size):
        law = logits[:, len(shape.path(parent))].softmax(-1) if shape.children(parent) else None
        for node in shape.children(parent):
            assert law is not None
            expected = law / law.sum(1, keepdim=True)
            assert torch.allclose(tree.draft_probs[:, node], expected, atol=1e-6)
            assert (expected.gather(1, tree.tokens[:, node : node + 1]) > 0).all()
            law = law.scatter(1, tree.tokens[:, node : node + 1], 0.0)
