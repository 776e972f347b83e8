"""Tensors that models make themselves lie on the device of their inputs.

The meta device stands for a GPU: torch refuses to combine its tensors with those of the CPU.
"""

import pytest
import torch
from transformers import masking_utils

from hf_vanilla import (
    VanillaConfig,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForImageClassification,
    VanillaForSequenceClassification,
    VanillaVitConfig,
)

SIZES = {"d_model": 12, "encoder_layers": 1, "encoder_attention_heads": 3, "encoder_ffn_dim": 29}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 31}
IDS = torch.ones(2, 5, dtype=torch.long)
MASK, LABELS = torch.ones_like(IDS), torch.ones(2, 7, dtype=torch.long)


def text(**changes):
    return VanillaConfig(**SIZES, **DECODER, vocab_size=43, **changes)


MODELS = {
    "translation": lambda: VanillaForConditionalGeneration(text()),
    "other positions": lambda: VanillaForConditionalGeneration(
        text(position_embedding_type="learned", max_position_embeddings=11)
    ),
    "language model": lambda: VanillaForCausalLM(text()),
    "classification": lambda: VanillaForSequenceClassification(text(num_labels=3)),
    "images": lambda: VanillaForImageClassification(
        VanillaVitConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    ),
}
INPUTS = {
    "translation": {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS},
    "other positions": {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS},
    "language model": {"input_ids": IDS, "attention_mask": MASK, "labels": IDS},
    "classification": {"input_ids": IDS, "attention_mask": MASK, "labels": torch.ones(2).long()},
    "images": {"pixel_values": torch.ones(2, 3, 8, 8), "labels": torch.ones(2).long()},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_makes_nothing_on_another_device(name, dtype, monkeypatch):
    # transformers reads whether a mask is full, and the meta device has no values
    for name_of in ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa"):
        monkeypatch.setattr(masking_utils, name_of, lambda *_, **__: False, raising=False)
    model = MODELS[name]().train().to("meta", dtype)
    given = {key: value.to("meta") for key, value in INPUTS[name].items()}
    given = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in given.items()
    }
    loss = model(**given).loss
    loss.backward()
    assert loss.device.type == "meta"
    # the shared table loses its ties on the way to the meta device
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(gradients) >= len(list(model.parameters())) - 2
    assert {gradient.device.type for gradient in gradients} == {"meta"}
