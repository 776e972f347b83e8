"""Small things that many tests need: a config, a model, a tokenizer, and one seed for each test."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of huggingface_hub: no test needs a network

import pytest
import torch

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer

torch.set_num_threads(1)

SENTENCES = (
    "ein Haus am See",
    "a house by the lake",
    "das kleine Haus steht am großen See",
    "the little house stands by the big lake",
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(17)


@pytest.fixture
def tiny_config() -> VanillaConfig:
    """Every size differs from every other, so that swapped axes or sides cannot pass."""
    return VanillaConfig(
        vocab_size=43,
        d_model=12,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=29,
        decoder_layers=5,
        decoder_attention_heads=2,
        decoder_ffn_dim=31,
        max_position_embeddings=61,
    )


@pytest.fixture
def tiny_model(tiny_config) -> VanillaForConditionalGeneration:
    return VanillaForConditionalGeneration(tiny_config).eval()


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return train_tokenizer(SENTENCES, vocab_size=283, model_max_length=61)
