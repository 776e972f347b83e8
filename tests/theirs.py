"""PyTorch's Transformer with the weights of our models, for comparison in tests."""

import torch
from torch import nn


def copy_attention(theirs, ours):
    """Copy the weights of a `VanillaAttention` with biases into an `nn.MultiheadAttention`."""
    with torch.no_grad():
        for kind in ("weight", "bias"):
            projections = (ours.q_proj, ours.k_proj, ours.v_proj)
            stacked = torch.cat([getattr(projection, kind) for projection in projections])
            getattr(theirs, f"in_proj_{kind}").copy_(stacked)
            getattr(theirs.out_proj, kind).copy_(getattr(ours.out_proj, kind))


def copy_encoder_layer(theirs, ours):
    copy_attention(theirs.self_attn, ours.self_attn)
    theirs.norm1.load_state_dict(ours.self_attn_layer_norm.state_dict())
    theirs.linear1.load_state_dict(ours.fc1.state_dict())
    theirs.linear2.load_state_dict(ours.fc2.state_dict())
    theirs.norm2.load_state_dict(ours.final_layer_norm.state_dict())


def copy_decoder_layer(theirs, ours):
    copy_attention(theirs.self_attn, ours.self_attn)
    theirs.norm1.load_state_dict(ours.self_attn_layer_norm.state_dict())
    copy_attention(theirs.multihead_attn, ours.encoder_attn)
    theirs.norm2.load_state_dict(ours.encoder_attn_layer_norm.state_dict())
    theirs.linear1.load_state_dict(ours.fc1.state_dict())
    theirs.linear2.load_state_dict(ours.fc2.state_dict())
    theirs.norm3.load_state_dict(ours.final_layer_norm.state_dict())


def torch_transformer(model):
    """An `nn.Transformer` with the weights of our model, whose config has `attention_bias=True`.

    It has one number of heads and one feed-forward width for both sides. The LayerNorm that torch
    adds after each stack is not in the paper and is removed.
    """
    config = model.config
    theirs = nn.Transformer(
        config.d_model,
        config.encoder_attention_heads,
        config.encoder_layers,
        config.decoder_layers,
        config.encoder_ffn_dim,
        dropout=0.0,
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=False,
    )
    theirs.encoder.norm = theirs.decoder.norm = None
    for their_layer, layer in zip(theirs.encoder.layers, model.model.encoder.layers, strict=True):
        copy_encoder_layer(their_layer, layer)
    for their_layer, layer in zip(theirs.decoder.layers, model.model.decoder.layers, strict=True):
        copy_decoder_layer(their_layer, layer)
    return theirs.train()  # without dropout it computes as in evaluation, but never by a fused path


def causal(length):
    """torch's form of a causal mask: True hides, `(L, L)`."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
