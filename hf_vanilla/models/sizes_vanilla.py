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


# how several GPUs share the weights of a layer; for the `base_model_tp_plan` of a config
LAYER_TP_PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.encoder_attn.q_proj": "colwise",
    "layers.*.encoder_attn.k_proj": "colwise",
    "layers.*.encoder_attn.v_proj": "colwise",
    "layers.*.encoder_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}
