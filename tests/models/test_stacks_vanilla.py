"""The bottom of the stacks and their order of layers; the models have tests of their own."""

import math

import pytest
import torch

from hf_vanilla import VanillaConfig, VanillaModel
from hf_vanilla.models.positions_vanilla import SinusoidalPositions
from hf_vanilla.models.stacks_vanilla import (
    VanillaDecoder,
    VanillaEmbedding,
    VanillaEncoder,
    real_tokens,
)

PAD = 0


@pytest.fixture(params=[VanillaEncoder, VanillaDecoder], ids=["encoder", "decoder"])
def stack(request, tiny_config):
    return request.param(tiny_config).eval()


def test_the_input_is_the_scaled_embedding_plus_its_position(stack, tiny_config):
    ids = torch.tensor([[5, 7, 11], [13, 17, 19]])
    words = stack.embed_tokens.weight[ids] * math.sqrt(12)
    table = SinusoidalPositions(tiny_config)(3, 0, words)
    torch.testing.assert_close(stack.embed(ids, None, None), words + table, rtol=0, atol=0)


def test_inputs_embeds_equal_the_ids_they_replace(stack):
    ids = torch.tensor([[5, 7, 11]])
    vectors = stack.embed_tokens(ids)
    assert torch.equal(stack.embed(None, vectors, None), stack.embed(ids, None, None))


def test_positions_count_real_tokens_only(stack):
    ids = torch.tensor([[5, 7, 11, 13]])
    padded = torch.tensor([[PAD, PAD, 5, 7, 11, 13]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    assert torch.equal(stack.embed(padded, None, mask)[:, 2:], stack.embed(ids, None, None))


def test_positions_continue_after_the_cache(stack):
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    whole = stack.embed(ids, None, None)
    assert torch.equal(stack.embed(ids[:, 3:], None, None, 3), whole[:, 3:])
    assert torch.equal(stack.embed(ids[:, 3:], None, torch.ones(1, 5), 3), whole[:, 3:])


def test_dropout_acts_on_the_sum_in_training(tiny_config):
    tiny_config.dropout = 0.5
    ids = torch.full((1, 61), 5)
    dropped = VanillaEncoder(tiny_config).train().embed(ids, None, None) == 0
    assert 0.3 < dropped.float().mean() < 0.7  # 732 coins


@pytest.mark.parametrize("both", [True, False])
def test_ids_and_vectors_together_or_neither_are_refused(stack, both):
    ids = torch.tensor([[5, 7]])
    given = (ids, stack.embed_tokens(ids)) if both else (None, None)
    with pytest.raises(ValueError, match=r"give exactly one of .*input_ids and .*inputs_embeds"):
        stack.embed(*given, None)


def test_layers_follow_each_other_and_nothing_comes_after_the_last(tiny_config):
    encoder = VanillaEncoder(tiny_config).eval()
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    hidden_states = encoder.embed(ids, None, None)
    may_attend = torch.zeros(1, 1, 5, 5)  # added to the scores: all may look everywhere
    for layer in encoder.layers:
        hidden_states = layer(hidden_states, may_attend)
    found = encoder(input_ids=ids).last_hidden_state
    # one attention kernel with a mask, another without: float32 sums in another order
    torch.testing.assert_close(found, hidden_states, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [VanillaEncoder, VanillaDecoder], ids=["encoder", "decoder"])
def test_one_more_norm_after_the_last_layer_is_there_only_where_asked_for(side, tiny_config):
    plain = side(tiny_config).eval()
    normed = side(VanillaConfig(**tiny_config.to_dict() | {"final_layer_norm": True})).eval()
    extra = normed.state_dict().keys() - plain.state_dict().keys()
    assert extra == {"layer_norm.weight", "layer_norm.bias"}
    normed.load_state_dict(plain.state_dict(), strict=False)
    normed.layer_norm.weight.data.uniform_(1, 2)
    ids = torch.tensor([[5, 7, 11]])
    expected = normed.layer_norm(plain(input_ids=ids).last_hidden_state)
    assert torch.equal(normed(input_ids=ids).last_hidden_state, expected)
    assert normed.layer_norm.eps == tiny_config.layer_norm_eps


def test_padding_is_looked_up_as_zeros_whatever_its_row_has_become():
    table = VanillaEmbedding(7, 3, PAD)
    with torch.no_grad():
        table.weight.fill_(2.0)
    assert table(torch.tensor([[PAD, 5]])).tolist() == [[[0.0] * 3, [2.0] * 3]]
    assert VanillaEmbedding(7, 3, None)(torch.tensor([PAD])).abs().sum() > 0


def test_a_missing_mask_is_made_from_the_padding(tiny_config):
    ids = torch.tensor([[5, 7, PAD], [PAD, 11, 13]])
    assert real_tokens(tiny_config, ids, None).tolist() == [[1, 1, 0], [0, 1, 1]]
    mask = torch.ones(2, 3)
    assert real_tokens(tiny_config, ids, mask) is mask
    assert real_tokens(tiny_config, None, None) is None


SELF_ATTENTION = {f"layers.*.self_attn.{name}_proj" for name in ("q", "k", "v", "out")}
SOURCE_ATTENTION = {f"layers.*.encoder_attn.{name}_proj" for name in ("q", "k", "v", "out")}
FEED_FORWARD = {"layers.*.fc1", "layers.*.fc2"}


def test_the_plan_for_several_gpus_names_the_modules_of_the_stack_and_no_others(tiny_config):
    def rules_of_layers(stack):
        return {name for name in stack._tp_plan if name.startswith("layers.")}

    assert rules_of_layers(VanillaEncoder(tiny_config)) == SELF_ATTENTION | FEED_FORWARD
    encoder = VanillaEncoder(tiny_config)._tp_plan
    assert encoder["layers.*.self_attn.q_proj"] == encoder["layers.*.fc1"] == "colwise"
    assert encoder["layers.*.self_attn.out_proj"] == encoder["layers.*.fc2"] == "rowwise"
    decoder = rules_of_layers(VanillaDecoder(tiny_config))
    assert decoder == SELF_ATTENTION | SOURCE_ATTENTION | FEED_FORWARD
    assert "shared" in VanillaModel(tiny_config)._tp_plan
    tiny_config.share_encoder_decoder_embeddings = False
    assert "shared" not in VanillaModel(tiny_config)._tp_plan


def test_an_encoder_records_the_weights_and_states_of_each_layer(tiny_config):
    tiny_config._attn_implementation = "eager"
    encoder = VanillaEncoder(tiny_config).eval()
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    found = encoder(input_ids=ids, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in found.attentions] == [(1, 3, 5, 5)] * 2
    assert all((weights.sum(dim=-1) - 1).abs().max() < 1e-6 for weights in found.attentions)
    assert [states.shape for states in found.hidden_states] == [(1, 5, 12)] * 3
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
