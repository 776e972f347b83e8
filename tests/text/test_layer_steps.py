"""A token's way through a layer: the formulas of the paper hold between the vectors."""

import pytest
import torch
from torch.testing import assert_close
from transformers import T5Config, T5ForConditionalGeneration

from hf_vanilla.text.attentions import (
    CROSS,
    DECODER,
    ENCODER,
    attentions,
    layer_steps,
    model_inputs,
)

SENTENCE, IDS = "ein Haus", [5, 9, 7, 1]


@pytest.fixture
def model(tiny_model, tiny_tokenizer):
    tiny_model.resize_token_embeddings(len(tiny_tokenizer))
    return tiny_model


@pytest.mark.parametrize(
    ("kind", "layer", "head", "token"),
    [(ENCODER, 1, 2, 2), (DECODER, 4, 1, 2), (CROSS, 0, 0, 1), (CROSS, 4, 1, 3)],
)
@torch.inference_mode()
def test_each_vector_follows_from_the_ones_before(model, tiny_tokenizer, kind, layer, head, token):
    place = {"kind": kind, "layer": layer, "head": head, "token": token}
    found = layer_steps(model, tiny_tokenizer, SENTENCE, translation=IDS, **place)
    seen = attentions(model, tiny_tokenizer, SENTENCE, translation=IDS)
    side = model.model.encoder if kind == ENCODER else model.model.decoder
    own = side.layers[layer]
    attention = own.encoder_attn if kind == CROSS else own.self_attn
    norm = own.encoder_attn_layer_norm if kind == CROSS else own.self_attn_layer_norm
    width = found.query.shape[0]

    rows = slice(head * width, (head + 1) * width)
    assert_close(found.query, attention.q_proj.weight[rows] @ found.x)
    scores = found.keys @ found.query / width**0.5
    if kind == DECODER:
        scores[token + 1 :] = float("-inf")  # (3.2.3)
    assert_close(found.weights, scores.softmax(-1))
    assert_close(found.weights, seen.of(kind)[layer, head, token], rtol=1e-4, atol=1e-6)
    assert_close(found.head, (found.weights[:, None] * found.values).sum(0))
    assert_close(found.normed, norm(found.x + found.attended))
    if kind != DECODER:  # behind it comes the attention to the source
        assert_close(found.output, own.final_layer_norm(found.normed + found.fed))

    inputs, _ = model_inputs(model, tiny_tokenizer, SENTENCE, IDS)
    states = model(**inputs, output_hidden_states=True)
    hidden = states.encoder_hidden_states if kind == ENCODER else states.decoder_hidden_states
    assert_close(found.output, hidden[layer + 1][0, token], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 2}, "layer=2: the model has layers 0 to 1"),
        ({"head": 3}, "head=3: the model has heads 0 to 2"),
        ({"token": -1}, "token=-1"),
        ({"kind": "sideways"}, "kind='sideways': choose one of cross-attention"),
    ],
    ids=str,
)
def test_a_place_that_does_not_exist_is_refused(model, tiny_tokenizer, changes, message):
    place = {"kind": ENCODER, "layer": 0, "head": 0, "token": 0, **changes}
    with pytest.raises(ValueError, match=message):
        layer_steps(model, tiny_tokenizer, SENTENCE, translation=IDS, **place)


def test_a_model_with_other_layers_is_refused(tiny_tokenizer):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    theirs = T5ForConditionalGeneration(T5Config(vocab_size=300, **sizes))
    place = {"kind": ENCODER, "layer": 0, "head": 0, "token": 0}
    with pytest.raises(ValueError, match="not a model of this package"):
        layer_steps(theirs, tiny_tokenizer, SENTENCE, translation=IDS, **place)


def test_the_model_is_left_as_it_was(model, tiny_tokenizer):
    hooks = [len(module._forward_hooks) for module in model.modules()]
    place = {"kind": CROSS, "layer": 0, "head": 0, "token": 0}
    with torch.inference_mode():
        layer_steps(model, tiny_tokenizer, SENTENCE, translation=IDS, **place)
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    assert model.config._attn_implementation == "sdpa"
