"""Packed linear layers: the products of the layers they replace."""

import copy

import pytest
import torch
from lively import lively_model, sources
from torch import nn

from hf_vanilla import quantize
from hf_vanilla.models import packing_vanilla, quantization_vanilla
from hf_vanilla.models.onednn_vanilla import can_multiply
from hf_vanilla.models.packing_vanilla import PackedLinear, pack
from hf_vanilla.models.quantization_vanilla import QuantizedLinear, is_quantized
from hf_vanilla.models.search_vanilla_conditions import is_as_built

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=["AVX2", "AVX512"])
def processor(request, monkeypatch):
    """A processor on which small weights stay plain, or are packed."""
    is_new = request.param == "AVX512"
    monkeypatch.setattr(packing_vanilla, "has_instructions", lambda name: is_new)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_packed_layer_computes_the_product_of_its_layers(dtype, has_bias, processor):
    if not can_multiply(dtype):
        pytest.skip("this processor or this torch has no packed products")
    layers = [nn.Linear(37, width, bias=has_bias, dtype=dtype) for width in (11, 5)]
    states = torch.randn((2, 7, 37), dtype=dtype)
    wanted = torch.cat([layer(states) for layer in layers], dim=-1)
    # one rounding to 8 bits of a number below 4
    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 2**-6}
    packed = PackedLinear(layers)
    found = packed(states)
    assert found.dtype == dtype
    assert packed.weight.is_mkldnn == (processor == "AVX512" or dtype != torch.float32)
    assert torch.allclose(found, wanted, **tolerance)


@torch.no_grad()
@pytest.mark.usefixtures("processor")
def test_a_packed_model_has_the_same_logits_and_translations():
    model = lively_model(attention_bias=True, lm_head_bias=True).float()
    packed, batch = copy.deepcopy(model), sources(5, 3, 7)
    pack(packed)
    kinds = {type(module) for module in packed.modules()}
    assert (nn.Linear in kinds) != can_multiply(torch.float32)
    ids = batch["input_ids"]
    logits = [m(input_ids=ids, decoder_input_ids=ids).logits for m in (model, packed)]
    assert torch.allclose(*logits, atol=1e-4)
    for beams in (1, 3):
        given = {**batch, "num_beams": beams}
        assert torch.equal(model.generate(**given), packed.generate(**given))


@torch.no_grad()
def test_our_search_runs_on_a_packed_model():
    model = lively_model().float()
    pack(model)
    assert any(isinstance(module, PackedLinear) for module in model.modules()) == can_multiply(
        torch.float32
    )
    assert is_as_built(model)


def test_projections_of_different_inputs_are_those_of_the_layers():
    attention = lively_model().float().model.decoder.layers[0].self_attn
    wanted = attention(*(inputs := torch.randn(3, 2, 5, 12)))[0]
    holder = nn.ModuleDict({"self_attn": attention})
    pack(holder)
    assert torch.allclose(attention(*inputs)[0], wanted, atol=1e-5)


def test_a_feed_forward_part_of_another_package_is_packed():
    """NLLB-MoE and SeamlessM4T call their activation `act`."""
    part = nn.ModuleDict({"fc1": nn.Linear(3, 4), "act": nn.ReLU(), "fc2": nn.Linear(4, 3)})
    wanted = part["fc2"](states := torch.randn(2, 4))
    pack(part)
    assert torch.allclose(part["fc2"](states), wanted, atol=1e-5)


def test_layers_of_other_dtypes_stay(monkeypatch):
    double = nn.Sequential(nn.Linear(3, 4).double())
    pack(double)
    assert type(double[0]) is nn.Linear
    monkeypatch.setattr(packing_vanilla, "can_multiply", lambda dtype: False)
    single = nn.Sequential(nn.Linear(3, 4))
    pack(single)
    assert type(single[0]) is nn.Linear


@torch.no_grad()
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_packed_int8_model_overwrites_only_what_a_relu_made(activation, monkeypatch):
    monkeypatch.setattr(packing_vanilla, "multiplies_bfloat16", lambda: False)
    model = quantize(lively_model(activation_function=activation).float())
    small, ids = copy.deepcopy(model), sources(5, 3, 7)["input_ids"]
    pack(small)
    assert small.model.decoder.layers[0].fc2.integer.is_after_relu is (activation == "relu")
    expected, found = (m(input_ids=ids, decoder_input_ids=ids).logits for m in (model, small))
    assert torch.equal(found, expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("has_bytes", "has_bfloat16"), [(True, True), (True, False), (False, False)]
)
def test_a_packed_int8_model_has_the_logits_and_translations_of_the_int8_model(
    has_bytes, has_bfloat16, monkeypatch
):
    monkeypatch.setattr(packing_vanilla, "multiplies_bfloat16", lambda: has_bfloat16)
    if not has_bytes:
        monkeypatch.setattr(quantization_vanilla, "can_multiply", lambda dtype: False)
    model = quantize(lively_model(attention_bias=True, lm_head_bias=True).float())
    small, batch = copy.deepcopy(model), sources(5, 3, 7)
    pack(small)
    assert is_quantized(small)
    assert not any(isinstance(module, QuantizedLinear) for module in small.modules())
    assert is_as_built(small)
    ids = batch["input_ids"]
    expected, found = (m(input_ids=ids, decoder_input_ids=ids).logits for m in (model, small))
    assert torch.equal(found, expected) is not has_bfloat16  # attention in bfloat16 rounds
    assert (found - expected).std() < 0.05 * expected.std()
    ours = small.generate(**batch, num_beams=3)
    if not has_bfloat16:
        assert torch.equal(ours, model.generate(**batch, num_beams=3))
    keys = small.model.decoder.layers[0].self_attn.k_proj(torch.ones(1, 1, 12))
    assert keys.dtype == (torch.bfloat16 if has_bfloat16 else torch.float32)
    with pytest.raises(ValueError, match="packed for decoding: save it as it was loaded"):
        small.state_dict()


def test_a_packed_model_refuses_to_be_saved(tmp_path):
    if not can_multiply(torch.float32):
        pytest.skip("this torch has no packed products")
    model = lively_model().float()
    pack(model)
    with pytest.raises(ValueError, match="packed for decoding: save it as it was loaded"):
        model.save_pretrained(tmp_path)
