"""How the reference decoder is plugged in: with its own models, over models handed in, and in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reference import decoder
from reference.decoder import Model
from reference.noise import BatchNoise, Noise, RowNoise
from reference.processors import Processors, RowProcessors
from reference.rules import coupled_races, rule_named
from reference.rules.trees import tree_rule_named
from reference.tables import CachedTable
from specverify import subjects
from specverify.subjects import Decoder, Emitted, Facts, Generated, Request, Step, Verifier
from specverify.trees import Children, Tree, TreeShape, TreeVerifier


class ReferenceDecoder:
    """Speculative decoding with a main model and a draft; satisfies :class:`specverify.subjects.DecoderLike`.

    k drafts per round; processors apply to both models alike; rule is a name in :data:`reference.rules.RULES`.
    Errors: ValueError for an unknown rule, k < 1, or the greedy rule at a temperature that is not 0.
    """

    def __init__(
        self,
        main: Model,
        draft: Model,
        k: int,
        *,
        eos_id: int | None = None,
        rule: str = "token_rejection",
        processors: Processors | None = None,
        prompts: Tensor | None = None,
        timing: subjects.Timeable | None = None,
    ) -> None:
        self.main, self.draft, self.k, self.eos_id = main, draft, k, eos_id
        self.processors = processors or Processors()
        self.rule = rule_named(rule)
        self.vocab_size = main.vocab_size
        if k < 1:
            raise ValueError(f"k is {k}; a round drafts at least one token")
        self.greedy_only = rule == "greedy"
        self._processors_at(self.processors.temperature)
        if prompts is not None:
            self.prompts = prompts
        if timing is not None:
            self.timing = timing

    def generate(
        self,
        prompts: Tensor,
        max_new_tokens: int,
        seed: int | None = None,
        *,
        seeds: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Generated:
        """Generate new tokens (B, N) for prompts (B, T), of which row b has ``lengths[b]`` tokens (default: all T).

        ``seed`` starts one generator for the whole batch, whose draws (B, K) are made at once: fast, and a row then
        depends on how many rows there are. ``seeds``, one per row, give each row a generator of its own: a row's tokens
        depend on its prompt and seed alone. With neither, torch's global stream is used.
        """
        noise: Noise = RowNoise(seeds) if seeds is not None else BatchNoise(_seeded(seed))
        return decoder.generate(
            self.main,
            self.draft,
            prompts,
            max_new_tokens,
            k=self.k,
            process=self.processors,
            rule=self.rule,
            noise=noise,
            lengths=lengths,
            eos_id=self.eos_id,
        )

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve requests side by side, of any prompt lengths, numbers of tokens, seeds and temperatures.

        Prompts are padded on the right, where no token sees the padding. Rows without a seed draw from torch's global
        stream. All rows run until the longest is done, and are cut: a row's draws do not depend on how many tokens are
        asked for. Errors: ValueError for no requests, or a temperature that the rule is not lossless at.
        """
        if not requests:
            raise ValueError("there are no requests to serve; give at least one")
        own = self.processors.temperature
        rows = RowProcessors([self._processors_at(own if r.temperature is None else r.temperature) for r in requests])
        longest = max(r.max_new_tokens for r in requests)
        generated = decoder.generate(
            self.main,
            self.draft,
            pad_sequence([torch.tensor(r.prompt) for r in requests], batch_first=True),
            longest,
            k=self.k,
            process=rows,
            rule=self.rule,
            noise=RowNoise([r.seed for r in requests]),
            lengths=torch.tensor([len(r.prompt) for r in requests]),
            eos_id=self.eos_id,
        )
        return [row[: r.max_new_tokens].tolist() for row, r in zip(generated.tokens, requests, strict=True)]

    def target_log_probs(self, ids: Tensor) -> Tensor:
        """Return log-laws (B, T, V) of the main model after the processors: row t follows ``ids[:, : t + 1]``."""
        return self._log_probs(self.main, ids, self.processors)

    def target_log_probs_at(self, ids: Tensor, temperature: float) -> Tensor:
        """Return the same log-laws (B, T, V) with another temperature in place of the decoder's own."""
        return self._log_probs(self.main, ids, replace(self.processors, temperature=temperature))

    def draft_log_probs(self, ids: Tensor) -> Tensor:
        """Return log-laws (B, T, V) of the draft after the processors: row t follows ``ids[:, : t + 1]``."""
        return self._log_probs(self.draft, ids, self.processors)

    def _processors_at(self, temperature: float) -> Processors:
        if self.greedy_only and temperature != 0:
            raise ValueError("the greedy rule is lossless at temperature 0 only; set temperature=0 or take token_rejection")
        return replace(self.processors, temperature=temperature)

    def _log_probs(self, model: Model, ids: Tensor, processors: Processors) -> Tensor:
        with torch.inference_mode():
            laws = processors(model.extend(ids, model.start(ids.shape[1], len(ids)))).log()
        return laws.clone()


def open_trained(
    k: int = 4,
    *,
    draft: str = "aligned",
    rule: str = "token_rejection",
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> ReferenceDecoder:
    """Return the decoder with its trained models, its "aligned" or its "mismatched" draft. Errors: WeightsError without
    weights.
    """
    from reference.speed import Timing
    from reference.text import EOS_ID, prompts
    from reference.weights import trained

    return ReferenceDecoder(
        trained("main"),
        trained(draft),
        k,
        eos_id=EOS_ID,
        rule=rule,
        processors=Processors(temperature, top_k, top_p),
        prompts=prompts(8, 16),
        timing=Timing(),
    )


def build(
    target: subjects.Model, draft: subjects.Model, k: int, eos_id: int | None = None, rule: str = "token_rejection"
) -> ReferenceDecoder:
    """Return the same decoder over table models handed in, which answer ids (B, T) with logits (B, T, V)."""
    V = target.vocab_size
    return ReferenceDecoder(CachedTable(target, V), CachedTable(draft, V), k, eos_id=eos_id, rule=rule)


def step_over(target: subjects.Model, draft: subjects.Model, prefix: Tensor, k: int, rule: str = "token_rejection") -> Emitted:
    """Run one round of K drafts after prefix (B, T), with torch's global stream."""
    main, drafting = CachedTable(target, target.vocab_size), CachedTable(draft, draft.vocab_size)
    state = decoder.start(main, drafting, prefix, torch.full((len(prefix),), prefix.shape[1]), k + 1)
    return decoder.speculative_step(main, drafting, state, k, Processors(), rule_named(rule), BatchNoise())


def _verify_with(rule: str) -> Callable[[Tensor, Tensor, Tensor], Emitted]:
    def verify(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Emitted:
        return rule_named(rule).verify(draft_tokens, draft_probs, target_probs, BatchNoise())

    return verify


def tree_verifier(
    rule: str, branching: Sequence[int], children: Children, *, dtype: Literal["float64", "float32"] = "float64"
) -> TreeVerifier:
    """Return a tree rule of :data:`reference.rules.trees.TREE_RULES` on trees of one shape. Errors: ValueError for an unknown
    rule, or for siblings drawn in a way that the rule is not lossless for.
    """
    judged = tree_rule_named(rule)
    if children not in judged.CHILDREN:
        raise ValueError(f"{rule} is not lossless for children drawn {children!r}; take {' or '.join(judged.CHILDREN)}")

    def verify(tree: Tree, target_probs: Tensor) -> Emitted:
        return judged.verify(tree, target_probs, BatchNoise())

    name = f"reference.tree.{rule}" + ("" if dtype == "float64" else f".{dtype}")
    return TreeVerifier(name, verify, TreeShape.branching(branching), children, facts=Facts(rule=rule, dtype=dtype))


def _races_of(k: int) -> Callable[[subjects.Model, subjects.Model, Tensor], Emitted]:
    def step(target: subjects.Model, draft: subjects.Model, prefix: Tensor) -> Emitted:
        return coupled_races.step(target, draft, prefix, k)

    return step


def _step_of(k: int) -> Callable[[subjects.Model, subjects.Model, Tensor], Emitted]:
    def step(target: subjects.Model, draft: subjects.Model, prefix: Tensor) -> Emitted:
        return step_over(target, draft, prefix, k)

    return step


def _seeded(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


tree_verifiers = (
    tree_verifier("with_replacement", (2, 1), "with replacement"),
    tree_verifier("without_replacement", (2, 2), "without replacement"),
    tree_verifier("k_seq", (3,), "with replacement"),
    tree_verifier("top_k", (3, 2), "top-k"),
    tree_verifier("traversal", (2, 1), "without replacement"),
    tree_verifier("without_replacement", (3,), "without replacement", dtype="float32"),
)
"""The rules for several drafts, on trees small enough to be walked exactly."""

greedy_verifier = Verifier("reference.greedy", _verify_with("greedy"), Facts(rule="greedy"))
"""For laws of temperature 0 only, each with a single token."""

subject = Decoder(
    "reference",
    open=open_trained,
    build=build,
    # Logits of a batch and of a row alone differ by some 1e-5 in float32, so a draw may flip now and then.
    facts=Facts(rule="token_rejection", batch_invariant=False),
    serves=True,
    parts=(
        *(
            Verifier(f"reference.{rule}", _verify_with(rule), Facts(rule=rule))
            for rule in ("token_rejection", "sample_and_match", "block_verification", "one_hot_draft")
        ),
        Verifier(
            "reference.token_rejection.float32",
            _verify_with("token_rejection"),
            Facts(rule="token_rejection", dtype="float32"),
        ),
        *(Step(f"reference.step.k{k}", _step_of(k), k, Facts(rule="token_rejection")) for k in (1, 2, 3, 4)),
        *tree_verifiers,
        Step("reference.coupled_races.k2", _races_of(2), 2, Facts(rule="coupled_races")),
    ),
)
