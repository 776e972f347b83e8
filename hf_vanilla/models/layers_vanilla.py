# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The two layers of Figure 1: `LayerNorm(x + Dropout(Sublayer(x)))` around every sublayer (3.1).

A layer reads fields of `VanillaTwoSidedConfig` and knows no vocabulary, image or label, so every
model family can use it. Shapes: B batch, S source, T target, D `d_model`.
"""

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.output_capturing import OutputRecorder

from .attention_vanilla import VanillaAttention
from .kernels_vanilla import VanillaDropout, VanillaLayerNorm
from .pretrained_vanilla import VanillaPreTrainedConfig


def with_positions(hidden_states: Tensor, positions: Tensor | None) -> Tensor:
    """Queries or keys plus positions; None: the embedding has added them already (3.5)."""
    return hidden_states if positions is None else hidden_states + positions


class VanillaEncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then feed-forward (3.1, 3.3)."""

    def __init__(self, config: VanillaPreTrainedConfig) -> None:
        super().__init__()
        self.self_attn = VanillaAttention(config, config.encoder_attention_heads)
        self.self_attn_layer_norm = VanillaLayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = VanillaLayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = VanillaDropout(config.activation_dropout)
        self.dropout = VanillaDropout(config.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        source: Tensor | None = None,
        **kwargs: object,
    ) -> Tensor:
        """One layer of the encoder.

        Args:
            hidden_states: `(B, S, D)`.
            attention_mask: `(B, 1, S, S)` in the form of the attention implementation; None: all.
            positions: broadcastable to `(B, S, D)`, added to queries and keys, never to values.
            source: `(B, L, D)`, keys and values; None: those of `hidden_states`. Positional:
                reentrant checkpointing needs its gradient.
            **kwargs: passed on to attention.

        Returns:
            `(B, S, D)`.
        """
        query = with_positions(hidden_states, positions)
        key, value = (query, hidden_states) if source is None else (source, source)
        attended, _ = self.self_attn(query, key, value, attention_mask, **kwargs)
        hidden_states = self.self_attn_layer_norm(hidden_states + self.dropout(attended))

        fed = self.fc2(self.activation_dropout(self.activation_fn(self.fc1(hidden_states))))
        return self.final_layer_norm(hidden_states + self.dropout(fed))


class VanillaDecoderLayer(GradientCheckpointingLayer):
    """Masked self-attention, attention to the source, then feed-forward (3.1, 3.3).

    Args:
        config: widths, counts and rates.
        layer_idx: index of the layer in the cache.
        is_causal: False for a decoder that computes all its outputs at once.
        has_source: False for a decoder-only model, without the middle sublayer.
    """

    def __init__(
        self,
        config: VanillaPreTrainedConfig,
        layer_idx: int,
        *,
        is_causal: bool = True,
        has_source: bool = True,
    ) -> None:
        super().__init__()
        heads = config.decoder_attention_heads
        self.self_attn = VanillaAttention(config, heads, is_causal=is_causal, layer_idx=layer_idx)
        self.self_attn_layer_norm = VanillaLayerNorm(config.d_model, eps=config.layer_norm_eps)
        if has_source:
            self.encoder_attn = VanillaAttention(config, heads, layer_idx=layer_idx)
            self.encoder_attn_layer_norm = VanillaLayerNorm(
                config.d_model, eps=config.layer_norm_eps
            )
        self.fc1 = nn.Linear(config.d_model, config.decoder_ffn_dim)
        self.fc2 = nn.Linear(config.decoder_ffn_dim, config.d_model)
        self.final_layer_norm = VanillaLayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = VanillaDropout(config.activation_dropout)
        self.dropout = VanillaDropout(config.dropout)

    def forward(  # noqa: PLR0913 - three sublayers need their inputs
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        encoder_positions: Tensor | None = None,
        **kwargs: object,
    ) -> Tensor:
        """One layer of the decoder.

        Args:
            hidden_states: `(B, T, D)`.
            attention_mask: `(B, 1, T, T + past)` in the form of the attention implementation. None:
                the self-attention's `is_causal` decides.
            encoder_hidden_states: `(B, S, D)`; None skips the attention to the source.
            encoder_attention_mask: `(B, 1, T, S)`; None: all.
            cache: an `EncoderDecoderCache`, or a plain `Cache` for self-attention alone.
            positions: broadcastable to `(B, T, D)`, added to the queries of both attentions and to
                the keys of self-attention.
            encoder_positions: broadcastable to `(B, S, D)`, added to the keys of the source.
            **kwargs: passed on to attention.

        Returns:
            `(B, T, D)`.
        """
        own_cache, source_cache = cache, None
        if isinstance(cache, EncoderDecoderCache):
            own_cache, source_cache = cache.self_attention_cache, cache
        query = with_positions(hidden_states, positions)
        attended, _ = self.self_attn(
            query, query, hidden_states, attention_mask, own_cache, **kwargs
        )
        hidden_states = self.self_attn_layer_norm(hidden_states + self.dropout(attended))

        if encoder_hidden_states is not None:
            attended, _ = self.encoder_attn(
                with_positions(hidden_states, positions),
                with_positions(encoder_hidden_states, encoder_positions),
                encoder_hidden_states,
                encoder_attention_mask,
                source_cache,
                **kwargs,
            )
            hidden_states = self.encoder_attn_layer_norm(hidden_states + self.dropout(attended))

        fed = self.fc2(self.activation_dropout(self.activation_fn(self.fc1(hidden_states))))
        return self.final_layer_norm(hidden_states + self.dropout(fed))


def encoder_layers(config: VanillaPreTrainedConfig) -> nn.ModuleList:
    """The encoder's N layers (3.1)."""
    return nn.ModuleList(VanillaEncoderLayer(config) for _ in range(config.encoder_layers))


def decoder_layers(config: VanillaPreTrainedConfig, **options: bool) -> nn.ModuleList:
    """The decoder's N layers (3.1), numbered for the cache; `options` are those of a layer."""
    numbers = range(config.decoder_layers)
    return nn.ModuleList(VanillaDecoderLayer(config, number, **options) for number in numbers)


# what transformers can record of the layers of a model, for its `_can_record_outputs`
CROSS_ATTENTIONS: dict[str, Any] = {
    "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="encoder_attn")
}
SELF_ATTENTIONS = {"attentions": OutputRecorder(VanillaAttention, index=1, layer_name="self_attn")}
ENCODER_RECORDS = {"hidden_states": VanillaEncoderLayer, **SELF_ATTENTIONS}
DECODER_RECORDS = {"hidden_states": VanillaDecoderLayer, **SELF_ATTENTIONS, **CROSS_ATTENTIONS}
