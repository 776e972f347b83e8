"""Arithmetic of translation training.

Shapes: B batch.
"""

from torch import Tensor

from hf_vanilla.models.configuration_vanilla import VanillaConfig


def training_flops(config: VanillaConfig, source_lengths: Tensor, target_lengths: Tensor) -> int:
    """Floating-point operations of the matrix products of one forward and backward pass.

    A product with a weight costs 2 operations per weight and token in the forward pass and 4 in the
    backward pass: 6 in all. Per layer, with h heads of d_k and d_v, the projections of an attention
    have 2 d h (d_k + d_v) weights, half of them for queries and output, half for keys and values;
    attention itself costs h (d_k + d_v) multiplications for each pair of positions, and half as
    many pairs where it is causal. Embedding, softmax, norms and recomputation by gradient
    checkpointing are not counted; neither is padding.

    Args:
        config: of the model.
        source_lengths: `(B,)` int64 real tokens.
        target_lengths: `(B,)` likewise.
    """
    source, target = int(source_lengths.sum()), int(target_lengths.sum())
    d_model, heads = config.d_model, config.encoder_attention_heads
    width = heads * sum(config.head_widths(heads))  # h (d_k + d_v)
    encoder = source * (2 * d_model * width + 2 * d_model * config.encoder_ffn_dim)
    encoder += width * int((source_lengths**2).sum())
    heads = config.decoder_attention_heads
    width = heads * sum(config.head_widths(heads))
    # self-attention, and the target's side of cross-attention; its other side reads the source
    decoder = target * (3 * d_model * width + 2 * d_model * config.decoder_ffn_dim)
    decoder += source * d_model * width
    decoder += width * int((target_lengths**2).sum() // 2 + (source_lengths * target_lengths).sum())
    output = target * d_model * config.target_vocab_size
    return 6 * (config.encoder_layers * encoder + config.decoder_layers * decoder + output)
