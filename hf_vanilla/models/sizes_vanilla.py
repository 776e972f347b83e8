# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What attention and layers read from a config, whatever the model family."""

from typing import Any, Protocol


class LayerSizes(Protocol):
    """Widths, head counts and rates of the layers of Figure 1; the config of each family has them.

    Attributes:
        d_model: width of every hidden state.
        encoder_attention_heads: h of an encoder layer.
        encoder_ffn_dim: d_ff of an encoder layer.
        decoder_attention_heads: h of a decoder layer, in both its attentions.
        decoder_ffn_dim: d_ff of a decoder layer.
        dropout: rate on the output of every sublayer (5.4).
        attention_dropout: rate on the attention weights.
        activation_dropout: rate inside the feed-forward network.
        activation_function: a name of `transformers.activations.ACT2FN`.
        attention_bias: whether the four projections of attention have biases.
        layer_norm_eps: added to the variance in every LayerNorm.
    """

    d_model: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    dropout: float | int
    attention_dropout: float | int
    activation_dropout: float | int
    activation_function: str
    attention_bias: bool
    layer_norm_eps: float
    _attn_implementation: Any  # set by transformers

    def head_widths(self, num_heads: int) -> tuple[int, int]:
        """d_k and d_v (3.2.2) of an attention with `num_heads` heads."""
