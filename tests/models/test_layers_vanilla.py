"""The two layers of Figure 1: against PyTorch's, and as heads other than text will stack them."""

from types import SimpleNamespace

import pytest
import torch
from reference import decoder_layer, encoder_layer
from theirs import causal, copy_decoder_layer, copy_encoder_layer
from torch import nn
from torch.testing import assert_close
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_vanilla import VanillaConfig
from hf_vanilla.models.layers_vanilla import VanillaDecoderLayer, VanillaEncoderLayer

BOTH = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
B, T, S, D = 2, 5, 7, 12
# a layer in float32: sums of some dozen numbers near 1, in another order
FLOAT32 = {"rtol": 0, "atol": 5e-6}


def config_with(implementation="eager", **changes):
    sizes = {
        "d_model": D,
        "encoder_attention_heads": 3,
        "encoder_ffn_dim": 29,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 31,
    }
    config = VanillaConfig(**{**sizes, **changes})
    config._attn_implementation = implementation
    return config


def shaken(layer):
    """The layer with every weight random, norms and biases too, so that each is noticed."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer.eval()


def padding(length, *, of):
    """`(B, 1, of, length)`, True = may look; the second sentence is two tokens shorter."""
    real = torch.ones(B, length, dtype=torch.bool)
    real[1, -2:] = False
    return real[:, None, None].expand(B, 1, of, length)


@BOTH
def test_an_encoder_layer_equals_torchs(implementation):
    ours = shaken(VanillaEncoderLayer(config_with(implementation, attention_bias=True)))
    theirs = nn.TransformerEncoderLayer(
        D, 3, 29, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=False
    )
    copy_encoder_layer(theirs, ours)
    states, may_attend = torch.randn(B, S, D), padding(S, of=S)
    expected = theirs(states, src_key_padding_mask=~may_attend[:, 0, 0])
    assert_close(ours(states, may_attend), expected, **FLOAT32)


@BOTH
def test_a_decoder_layer_equals_torchs(implementation):
    ours = shaken(VanillaDecoderLayer(config_with(implementation, attention_bias=True), 0))
    theirs = nn.TransformerDecoderLayer(
        D, 2, 31, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=False
    )
    copy_decoder_layer(theirs, ours)
    states, source, of_source = torch.randn(B, T, D), torch.randn(B, S, D), padding(S, of=T)
    expected = theirs(
        states,
        source,
        tgt_mask=causal(T),
        memory_key_padding_mask=~of_source[:, 0, 0],
    )
    actual = ours(states, ~causal(T)[None, None], source, of_source)
    assert_close(actual, expected, **FLOAT32)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_both_layers_equal_the_reference(activation):
    config = config_with(activation_function=activation, head_dim=5, v_head_dim=3)
    source = torch.randn(1, S, D, dtype=torch.float64)
    states = torch.randn(1, T, D, dtype=torch.float64)
    encoder = shaken(VanillaEncoderLayer(config).double())
    decoder = shaken(VanillaDecoderLayer(config, 0).double())
    by_hand = encoder_layer(source[0], encoder.state_dict(), config)
    # double precision on both sides, through two norms
    assert_close(encoder(source)[0], by_hand, rtol=0, atol=1e-12)
    by_hand = decoder_layer(states[0], source[0], decoder.state_dict(), config)
    actual = decoder(states, ~causal(T)[None, None], source)
    assert_close(actual[0], by_hand, rtol=0, atol=1e-12)


@BOTH
def test_without_a_mask_a_causal_decoder_layer_is_causal(implementation):
    layer = shaken(VanillaDecoderLayer(config_with(implementation), 0))
    states, source = torch.randn(B, T, D), torch.randn(B, S, D)
    expected = layer(states, ~causal(T)[None, None], source)
    assert_close(layer(states, None, source), expected, **FLOAT32)


@BOTH
def test_a_decoder_layer_that_is_not_causal_sees_all_its_outputs_at_once(implementation):
    layer = shaken(VanillaDecoderLayer(config_with(implementation), 0, is_causal=False))
    states, source = torch.randn(B, T, D), torch.randn(B, S, D)
    everything = torch.ones(B, 1, T, T, dtype=torch.bool)
    expected = layer(states, everything, source)
    assert_close(layer(states, None, source), expected, **FLOAT32)
    changed = states.clone()
    changed[:, -1] = torch.randn(B, D)
    assert not torch.allclose(layer(changed, None, source)[:, 0], expected[:, 0])


def attended_by_hand(attention, query_states, key_states, value_states, places):
    """Attention whose positions are added outside, to queries and keys and not to values."""
    query_places, key_places = places
    return attention(query_states + query_places, key_states + key_places, value_states)[0]


def test_positions_of_an_encoder_layer_join_queries_and_keys_but_not_values():
    layer = shaken(VanillaEncoderLayer(config_with()))
    states, places = torch.randn(B, S, D), torch.randn(1, S, D)
    attended = attended_by_hand(layer.self_attn, states, states, states, (places, places))
    after = layer.self_attn_layer_norm(states + attended)
    expected = layer.final_layer_norm(after + layer.fc2(layer.fc1(after).relu()))
    assert torch.equal(layer(states, positions=places), expected)
    assert not torch.allclose(layer(states + places), expected)


def test_positions_of_a_decoder_layer_join_both_queries_and_those_of_the_source_its_keys():
    layer = shaken(VanillaDecoderLayer(config_with(), 0, is_causal=False))
    states, source = torch.randn(B, T, D), torch.randn(B, S, D)
    places, source_places = torch.randn(1, T, D), torch.randn(B, S, D)
    attended = attended_by_hand(layer.self_attn, states, states, states, (places, places))
    after = layer.self_attn_layer_norm(states + attended)
    found = attended_by_hand(layer.encoder_attn, after, source, source, (places, source_places))
    after = layer.encoder_attn_layer_norm(after + found)
    expected = layer.final_layer_norm(after + layer.fc2(layer.fc1(after).relu()))
    actual = layer(
        states,
        encoder_hidden_states=source,
        positions=places,
        encoder_positions=source_places,
    )
    assert torch.equal(actual, expected)


def test_without_a_source_the_attention_to_it_is_left_out():
    layer = shaken(VanillaDecoderLayer(config_with(), 0))
    states, may_attend = torch.randn(B, T, D), ~causal(T)[None, None]
    after = layer.self_attn_layer_norm(
        states + layer.self_attn(states, states, states, may_attend)[0]
    )
    expected = layer.final_layer_norm(after + layer.fc2(layer.fc1(after).relu()))
    assert torch.equal(layer(states, may_attend), expected)


STAND_IN = {
    "d_model": D,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "layer_norm_eps": 1e-6,
    "attention_bias": False,
}


@BOTH
def test_a_layer_reads_no_more_of_its_config_than_widths_counts_and_rates(implementation):
    def head_widths(num_heads):
        return D // num_heads, D // num_heads

    stand_in = SimpleNamespace(
        **STAND_IN, head_widths=head_widths, _attn_implementation=implementation
    )
    source, states = torch.randn(B, S, D), torch.randn(B, T, D)
    full = config_with(implementation)
    for kind, arguments in (
        ((VanillaEncoderLayer, ()), (source,)),
        ((VanillaDecoderLayer, (0,)), (states, None, source)),
    ):
        make, extra = kind
        layer, expected = make(stand_in, *extra).eval(), make(full, *extra).eval()
        expected.load_state_dict(layer.state_dict())
        assert torch.equal(layer(*arguments), expected(*arguments))


@pytest.mark.parametrize("has_source", [True, False], ids=["two caches", "one cache"])
def test_token_by_token_with_a_cache_equals_all_at_once(has_source):
    layer = shaken(VanillaDecoderLayer(config_with(), 0).double())
    states = torch.randn(B, T, D, dtype=torch.float64)
    source = torch.randn(B, S, D, dtype=torch.float64) if has_source else None
    at_once = layer(states, ~causal(T)[None, None], source)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if has_source else DynamicCache()
    words = [layer(states[:, place : place + 1], None, source, cache=cache) for place in range(T)]
    # double precision; one query at a time sums in another order
    assert_close(torch.cat(words, dim=1), at_once, rtol=0, atol=1e-12)


def test_the_cache_keeps_keys_and_values_of_the_source_from_the_first_token():
    layer = shaken(VanillaDecoderLayer(config_with(), 0))
    word, source = torch.randn(B, 1, D), torch.randn(B, S, D)
    projections = []
    layer.encoder_attn.k_proj.register_forward_hook(lambda *_: projections.append("k"))
    layer.encoder_attn.v_proj.register_forward_hook(lambda *_: projections.append("v"))
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for _ in range(3):
        layer(word, None, source, cache=cache)
    assert projections == ["k", "v"]
    assert cache.cross_attention_cache.layers[0].keys.shape == (B, 2, S, 6)
    assert cache.self_attention_cache.layers[0].keys.shape == (B, 2, 3, 6)


@pytest.mark.parametrize("rate", ["dropout", "activation_dropout", "attention_dropout"])
def test_each_dropout_acts_in_training_and_only_there(rate):
    quiet = {"dropout": 0, "activation_dropout": 0, "attention_dropout": 0}
    layer = shaken(VanillaEncoderLayer(config_with(**{**quiet, rate: 0.5})))
    states = torch.randn(B, S, D)
    evaluated = layer(states)
    assert torch.equal(layer(states), evaluated)
    assert not torch.allclose(layer.train()(states), evaluated)


def test_dropout_falls_on_the_sublayer_and_not_on_the_residual():
    layer = VanillaEncoderLayer(config_with(dropout=0.5)).train()
    layer.dropout.p = 1.0  # every sublayer's output is dropped: two norms remain
    states = torch.randn(B, S, D)
    expected = layer.final_layer_norm(layer.self_attn_layer_norm(states))
    assert torch.equal(layer(states), expected)
