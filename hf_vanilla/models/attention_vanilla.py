# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product and multi-head attention (3.2), with the KV cache of decoding.

Shapes: B batch, T queries, S keys, D `d_model`, H heads, K key width d_k, W value width d_v.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .kernels_vanilla import at_least_float32, faster_attention, may_read
from .pretrained_vanilla import VanillaPreTrainedConfig


def eager_attention(  # noqa: PLR0913 - transformers' attention interface
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention (3.2.1) and its weights.

    The softmax is computed in float32 at least. A query with no allowed key gets zeros, not NaN.

    Args:
        module: the calling attention; read for `training` and `is_causal`.
        query: `(B, H, T, K)`.
        key: `(B, H, S, K)`.
        value: `(B, H, S, W)`.
        attention_mask: `(B, 1, T, S)`; bool, True = may attend; or float, added to the scores, with
            `torch.finfo(dtype).min` or -inf = may not attend. None: causal if `module.is_causal`,
            where the last query is the last key.
        dropout: rate on the weights.
        scaling: factor on the scores; None: `K ** -0.5`.
        **kwargs: ignored; other attention implementations read them.

    Returns:
        The weighted means `(B, T, H, W)` and the weights `(B, H, T, S)`, whose rows sum to 1 or 0.
    """
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    scores = at_least_float32(query @ key.transpose(-2, -1) * scaling)  # (B, H, T, S)
    if attention_mask is None and getattr(module, "is_causal", False):
        past = scores.size(-1) - scores.size(-2)  # keys in the cache
        attention_mask = torch.ones_like(scores[:1, :1], dtype=torch.bool).tril(past)
    if attention_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        may_attend = attention_mask
        if attention_mask.dtype != torch.bool:
            may_attend = attention_mask > torch.finfo(attention_mask.dtype).min
            scores = scores + attention_mask
        scores = scores.masked_fill(~may_attend, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1) * may_attend.any(dim=-1, keepdim=True)
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def padding_mask(
    config: VanillaPreTrainedConfig,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    encoder_hidden_states: Tensor | None = None,
) -> Any:
    """The mask that hides padded keys, in the form of the attention implementation; None: no mask.

    Transformers' own reads whether a mask hides anything, for which the host waits for a GPU.

    Args:
        config: read for the attention implementation.
        inputs_embeds: `(B, T, D)` of the queries.
        attention_mask: `(B, S)`, 1 = real; None: all are.
        encoder_hidden_states: `(B, S, D)` of the keys; None: those of the queries.
    """
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        allow_is_bidirectional_skip=attention_mask is None or may_read(inputs_embeds),
    )


class VanillaAttention(nn.Module):
    """Multi-head attention (3.2.2) over three inputs; positions and masks come from the caller.

    Args:
        config: read for `d_model`, `head_widths`, `attention_bias`, `attention_dropout` and the
            attention implementation.
        num_heads: h.
        is_causal: True only for a text decoder's self-attention. Always set, because transformers'
            sdpa treats a module without it as causal.
        layer_idx: index of the layer in the cache; needed only with a cache.
    """

    def __init__(
        self,
        config: VanillaPreTrainedConfig,
        num_heads: int,
        *,
        is_causal: bool = False,
        layer_idx: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.head_dim, self.v_head_dim = config.head_widths(num_heads)
        self.scaling = self.head_dim**-0.5
        self.num_key_value_groups = 1  # for transformers' sdpa: queries and keys have equal heads
        d_model, bias = config.d_model, config.attention_bias
        keys, values = num_heads * self.head_dim, num_heads * self.v_head_dim
        self.q_proj = nn.Linear(d_model, keys, bias=bias)
        self.k_proj = nn.Linear(d_model, keys, bias=bias)
        self.v_proj = nn.Linear(d_model, values, bias=bias)
        self.out_proj = nn.Linear(values, d_model, bias=bias)
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            # tensor2tensor initializes them as one d x 3d matrix, whose Glorot range is narrower
            projection.init_gain = 2**-0.5  # type: ignore[assignment]  # a module takes any
        # query, key and value of one input in one product, side by side in these widths; set for
        # decoding by `packing_vanilla.py` and `quantization_vanilla.py`
        self.joined: Callable[[Tensor], Tensor] | None = None
        self.widths = (keys, keys, values)

    def forward(
        self,
        query_input: Tensor,
        key_input: Tensor,
        value_input: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from every query to the keys it may see.

        Args:
            query_input: `(B, T, D)`.
            key_input: `(B, S, D)`.
            value_input: `(B, S, D)`.
            attention_mask: `(B, 1, T, S)` in the form of the attention implementation; None: all.
            cache: a plain `Cache` appends these keys and values. An
                `EncoderDecoderCache` holds those of the source, computed at the first call only.
            **kwargs: passed on to the attention implementation.

        Returns:
            `(B, T, D)` and the weights `(B, H, T, S)`, None if the implementation returns none.
        """
        if self.joined is not None and query_input is key_input is value_input:
            projected, *of_keys = self.joined(query_input).split(self.widths, dim=-1)
        else:
            projected, of_keys = self.q_proj(query_input), []
        query = split_heads(projected, self.head_dim)
        key, value = self._keys_and_values(key_input, value_input, cache, of_keys)
        implementation = self.config._attn_implementation
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        attended, weights = faster_attention(attend, query)(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(attended.flatten(2)), weights  # (B, T, H, W) -> (B, T, D)

    def _keys_and_values(
        self,
        key_input: Tensor,
        value_input: Tensor,
        cache: Any,
        projected: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots; `projected` has the new ones, or nothing."""
        is_of_source = isinstance(cache, EncoderDecoderCache)
        if is_of_source and cache.is_updated.get(self.layer_idx):
            cached = cache.cross_attention_cache.layers[self.layer_idx]
            return cached.keys, cached.values
        key, value = projected or (self.k_proj(key_input), self.v_proj(value_input))
        key, value = split_heads(key, self.head_dim), split_heads(value, self.v_head_dim)
        if is_of_source:
            cache.is_updated[self.layer_idx] = True
            cache = cache.cross_attention_cache
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)


def split_heads(projected: Tensor, width: int) -> Tensor:
    """`(B, L, H * width)` as `(B, H, L, width)`."""
    return projected.unflatten(-1, (-1, width)).transpose(1, 2)
