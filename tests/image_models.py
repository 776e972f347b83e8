"""A tiny Vision Transformer whose sizes all differ, and transformers' own with the same weights."""

import torch
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from hf_vanilla import VanillaForImageClassification, VanillaVitConfig

SIZES = {
    "image_size": [15, 20],
    "patch_size": 5,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "num_labels": 7,
}


def vit_config(**changes):
    return VanillaVitConfig(**{**SIZES, **changes})


def lively(model):
    """The model with weights that are nowhere 0 or 1, so that none can be forgotten."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model.eval()


def vit(**changes):
    return lively(VanillaForImageClassification(vit_config(**changes)))


def their_vit(implementation="eager", *, is_body=False, **changes):
    """A square `ViTForImageClassification` or `ViTModel` with random weights."""
    config = ViTConfig(
        image_size=15,
        patch_size=5,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        attn_implementation=implementation,
        **{"num_labels": 7, **changes},
    )
    return lively((ViTModel if is_body else ViTForImageClassification)(config))
