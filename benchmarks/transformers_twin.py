"""The reference's transformer as a model of transformers: the same function of the same weights, in the library's own loop.

It lets transformers' assisted generation be timed on the models that the reference decodes with. The blocks are written as
the library writes its own: products fused where the reference fuses them, the library's growing cache, its ``generate``. What
differs from the reference is thus the loop and the cache, not the arithmetic.

Names of shapes: B rows, n new tokens, S positions in use, H heads, D width of a head, E = H D, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from reference.model import Shape, Transformer


class TwinConfig(PreTrainedConfig):
    """Size of a twin, under the names that the library's cache and loop look for."""

    model_type = "reference_twin"

    def __init__(self, shape: Shape | None = None, **kwargs: Any) -> None:
        shape = shape or Shape(vocab_size=2, layers=1, width=4, heads=1)  # the library makes a default one to compare with
        self.vocab_size, self.reach = shape.vocab_size, shape.reach
        self.hidden_size, self.num_hidden_layers = shape.width, shape.layers
        self.num_attention_heads = shape.heads
        super().__init__(bos_token_id=None, eos_token_id=None, pad_token_id=None, **kwargs)


class TwinBlock(nn.Module):
    """One block, with the names of the reference's weights."""

    def __init__(self, config: TwinConfig, index: int) -> None:
        super().__init__()
        E = config.hidden_size
        self.heads, self.index = config.num_attention_heads, index
        self.mix = nn.Linear(E, 3 * E, bias=False)
        self.gather = nn.Linear(E, E, bias=False)
        self.widen = nn.Linear(E, 4 * E, bias=False)
        self.narrow = nn.Linear(4 * E, E, bias=False)

    def forward(self, x: Tensor, bias: Tensor, cache: Any) -> Tensor:
        """Map x (B, n, E) -> (B, n, E), with the attention bias (1, H, n, S)."""
        B, n, E = x.shape
        mixed = self.mix(functional.layer_norm(x, (E,))).view(B, n, 3, self.heads, E // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, n, D)
        if cache is not None:
            key, value = cache.update(key, value, self.index)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.gather(seen.transpose(1, 2).reshape(B, n, E))
        return x + self.narrow(functional.gelu(self.widen(functional.layer_norm(x, (E,))), approximate="tanh"))


class Twin(PreTrainedModel, GenerationMixin):
    """A causal language model of transformers with the function of :class:`reference.model.Transformer`."""

    config_class = TwinConfig

    def __init__(self, config: TwinConfig) -> None:
        super().__init__(config)
        E = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, E)
        self.distance_bias = nn.Parameter(torch.zeros(config.reach + 1, config.num_attention_heads))
        self.blocks = nn.ModuleList(TwinBlock(config, i) for i in range(config.num_hidden_layers))
        self.head = nn.Linear(E, config.vocab_size, bias=False)
        self.register_buffer("far", torch.empty(1, config.num_attention_heads, 0, 0), persistent=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor, cache: Any = None, use_cache: bool | None = None, logits_to_keep: int = 0, **_: Any
    ) -> CausalLMOutputWithPast:
        """Return logits (B, n, V), the last ``logits_to_keep`` of them unless 0, for ids (B, n) after what the cache holds.

        One text per row and no padding: the mask and the positions that the library passes along are not looked at.
        """
        past = 0 if cache is None else cache.get_seq_length()
        bias = self._bias(past + input_ids.shape[1])[:, :, past:]  # (1, H, n, S)
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, bias, cache if use_cache is not False else None)
        x = x[:, -logits_to_keep:]
        logits = self.head(functional.layer_norm(x, (self.config.hidden_size,)))
        return CausalLMOutputWithPast(logits=logits, cache=cache)

    def _bias(self, length: int) -> Tensor:
        """Return what a token at t adds to its score for s, (1, H, T, T), T >= length, made anew when it has to grow."""
        if self.far.shape[-1] < length:
            T = max(2 * self.far.shape[-1], length)
            distances = torch.arange(T)[:, None] - torch.arange(T)
            table = torch.cat([torch.full_like(self.distance_bias[:1], -torch.inf), self.distance_bias[1:]])
            self.far = table[(distances + 1).clamp(0, self.config.reach)].permute(2, 0, 1)[None].contiguous()
        return self.far[:, :, :length, :length]


def twin(model: Transformer) -> Twin:
    """Return the twin of a reference model, with copies of its weights."""
    made = Twin(TwinConfig(model.shape))
    made.load_state_dict(model.state_dict())
    return made.eval().requires_grad_(False)


def assist(draft: Twin, k: int) -> Twin:
    """Set a draft to propose k tokens in every round, however sure it is, and return it."""
    drafting = copy.deepcopy(draft.generation_config)
    drafting.num_assistant_tokens, drafting.num_assistant_tokens_schedule = k, "constant"
    drafting.assistant_confidence_threshold = 0.0
    draft.generation_config = drafting
    return draft


def sampling(max_new_tokens: int) -> GenerationConfig:
    """Return settings that sample every token from the model's own law, without end."""
    return GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max_new_tokens, use_cache=True, pad_token_id=0
    )
