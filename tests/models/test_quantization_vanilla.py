"""int8 weights: exact products, batch mates, saving and loading, and other processors."""

import copy
import json
from pathlib import Path

import pytest
import torch
from lively import lively_model, sources
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    MarianConfig,
    MarianMTModel,
)

from hf_vanilla import (
    VanillaConfig,
    VanillaForConditionalGeneration,
    VanillaForTrajectoryPrediction,
    VanillaInt8Config,
    VanillaTracksConfig,
    quantize,
)
from hf_vanilla.models import quantization_vanilla
from hf_vanilla.models.onednn_vanilla import can_multiply, exact_product
from hf_vanilla.models.quantization_vanilla import (
    IntegerProduct,
    QuantizedLinear,
    quantized,
    replace_layers,
)

KINDS = {
    "tied": {},
    "one table each": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 17},
    "untied, biases": {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "lm_head_bias": True,
        "position_embedding_type": "learned",
    },
}


@pytest.fixture(params=[True, False], ids=["as here", "without instructions"])
def processor(request, monkeypatch):
    """With the products of this processor, and with those of one that has no instructions."""
    if not request.param:
        monkeypatch.setattr(quantization_vanilla, "can_multiply", lambda dtype: False)


def quantized_linear(linear: nn.Linear) -> QuantizedLinear:
    """As `quantize` makes it; written again, so that the tests do not use what they test."""
    new = QuantizedLinear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    scale = linear.weight.detach().abs().amax(1) / 127
    new.weight.data = (linear.weight.detach() / scale[:, None]).round().to(torch.int8)
    new.weight_scale.data = scale
    if linear.bias is not None:
        new.bias.data = linear.bias.detach()
    return new


def in_float64(layer: QuantizedLinear, states: torch.Tensor) -> torch.Tensor:
    """The definition: round(127 x / max |x|) of each row, exact products, scales, bias."""
    rows = []
    for state in states.double():
        scale = state.abs().max() / 127
        levels = torch.round(state / scale) if scale else state
        product = torch.stack([(levels * weight).sum() for weight in layer.weight.double()])
        rows.append(product * layer.weight_scale.double() * scale)
    found = torch.stack(rows)
    return found if layer.bias is None else found + layer.bias.double()


# --- products ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (31, 64), (1100, 13)])
def test_a_quantized_layer_computes_its_definition(inputs, outputs, has_bias):
    layer = quantized_linear(nn.Linear(inputs, outputs, bias=has_bias))
    states = torch.randn(11, inputs)
    wanted = in_float64(layer, states)
    # two roundings of float32 in a division decide whether a level differs: compare in levels
    assert (layer(states) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert layer(states.view(1, 11, 1, inputs)).shape == (1, 11, 1, outputs)


@pytest.mark.usefixtures("processor")
def test_a_quantized_layer_is_close_to_the_float_layer():
    linear = nn.Linear(512, 64)
    states = torch.randn(9, 512)
    error = quantized_linear(linear)(states) - linear(states)
    assert 0 < error.std() < 0.02 * linear(states).std()


@pytest.mark.usefixtures("processor")
def test_largest_products_do_not_overflow():
    layer = QuantizedLinear(2048, 3, bias=False)
    layer.weight.data = torch.tensor([[127], [-127], [1]], dtype=torch.int8).expand(3, 2048)
    layer.weight.data = layer.weight.data.contiguous()
    layer.weight_scale.data = torch.ones(3)
    # 127 * 127 * 2048 = 33,032,192 is above 2**24
    found = layer(torch.full((1, 2048), 127.0))
    assert found.tolist() == [[33_032_192.0, -33_032_192.0, 127.0 * 2048]]


def test_exact_product_equals_integers_of_64_bits():
    rows, weight = (torch.randint(-127, 128, (n, 2300), dtype=torch.int8) for n in (5, 7))
    rows[0], weight[0] = 127, 127
    assert torch.equal(exact_product(rows, weight), (rows.long() @ weight.long().t()).float())


@pytest.mark.usefixtures("processor")
def test_a_row_does_not_depend_on_other_rows():
    layer = quantized_linear(nn.Linear(40, 24))
    row = torch.randn(1, 40)
    mates = torch.cat((1000 * torch.randn(6, 40), row, torch.zeros(1, 40)))
    assert torch.equal(layer(mates)[6], layer(row)[0])


@pytest.mark.usefixtures("processor")
def test_a_row_is_bitwise_the_same_among_any_number_of_rows():
    layer, states = quantized_linear(nn.Linear(37, 11)), torch.randn(257, 37)
    alone = torch.cat([layer(row) for row in states.split(1)])
    for count in range(1, 258):
        assert torch.equal(layer(states[:count]), alone[:count])


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("unit", [2.0**-100, 1.0, 2.0**100])
def test_levels_are_rounded_half_to_even_and_fit_a_byte(unit):
    layer = QuantizedLinear(6, 6, bias=False)  # its outputs are the levels times the scale
    layer.weight.data, layer.weight_scale.data = torch.eye(6, dtype=torch.int8), torch.ones(6)
    rows = torch.tensor([[127, -127, 0.5, 1.5, -2.5, 126.5], [-127, 63.49, 63.51, -0.5, 0, 3]])
    wanted = torch.tensor([[127.0, -127, 0, 2, -2, 126], [-127, 63, 64, 0, 0, 3]])
    assert torch.equal(layer(rows * unit), wanted * unit)
    tiny = torch.tensor([[1e-45, -1e-45, 0, 0, 0, 0], [1e-39, -2e-39, 0, 0, 0, 0]])  # subnormal
    assert torch.equal(layer(tiny), torch.zeros(2, 6))


@pytest.mark.usefixtures("processor")
def test_a_row_of_zeros_gives_the_bias_and_nan_stays_nan():
    layer = quantized_linear(nn.Linear(40, 24))
    assert torch.equal(layer(torch.zeros(2, 40))[1], layer.bias)
    assert layer(torch.full((1, 40), float("nan"))).isnan().all()


def test_the_largest_number_of_a_row_is_the_largest_level():
    levels, scale = quantized(torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]]))
    assert levels.tolist() == [[32, -127, 64], [0, 0, 0]]
    assert scale[0].item() == pytest.approx(2 / 127)


def test_a_changed_weight_is_packed_again():
    layer = quantized_linear(nn.Linear(40, 24))
    states = torch.randn(3, 40)
    before = layer(states)
    with torch.no_grad():
        layer.weight.neg_()
        layer.bias.neg_()
    assert torch.allclose(layer(states), -before, atol=1e-6)
    other = quantized_linear(nn.Linear(40, 24))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(states), other(states))


# --- processors --------------------------------------------------------------------------------


def has_byte_instructions() -> bool:
    names = ("avx512_vnni", "avx_vnni", "amx_int8")
    return any(torch.cpu.get_capabilities().get(name) for name in names)


@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="torch cannot tell")
def test_the_fast_product_runs_where_the_processor_has_its_instructions():
    if not has_byte_instructions():
        pytest.skip("this processor has no instructions for 8-bit products")
    assert can_multiply(torch.int8)
    product = IntegerProduct([quantized_linear(nn.Linear(40, 24))])
    assert product.is_fast
    assert product.weight.is_mkldnn


IDS = torch.tensor([[5, 9, 3, 1], [7, 2, 8, 1]])
ELSEWHERE = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from transformers import AutoModelForSeq2SeqLM
import hf_vanilla
from hf_vanilla.models.onednn_vanilla import can_multiply
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[2])
ids = torch.tensor([[5, 9, 3, 1], [7, 2, 8, 1]])
logits = model(input_ids=ids, decoder_input_ids=ids).logits.detach()
print(can_multiply(torch.int8))
torch.save((logits, model.generate(ids)), sys.argv[3])
"""


def test_a_machine_without_the_instructions_has_the_same_results(program, tmp_path):
    model = quantize(lively_model().float())
    model.save_pretrained(tmp_path / "model")
    arguments = (Path(__file__).parents[2], tmp_path / "model", tmp_path / "results")
    older = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = program("python", "-c", ELSEWHERE, *arguments, environment=older, check=True)
    assert done.stdout.strip() == "False"
    logits, ids = torch.load(tmp_path / "results")
    assert torch.equal(model.generate(IDS), ids)
    # float32 layers such as LayerNorm may round differently there
    found = model(input_ids=IDS, decoder_input_ids=IDS).logits
    assert torch.allclose(found, logits, atol=1e-4)


# --- models ------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def float_model(request):
    return VanillaForConditionalGeneration(
        VanillaConfig(
            vocab_size=23,
            d_model=12,
            encoder_layers=1,
            encoder_attention_heads=3,
            encoder_ffn_dim=29,
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=31,
            max_position_embeddings=61,
            **request.param,
        )
    ).eval()


@torch.no_grad()
def logits_of(model):
    ids = torch.tensor([[5, 9, 3, 1], [7, 2, 0, 0]])
    return model(input_ids=ids, decoder_input_ids=ids).logits


def test_a_quantized_model_is_close_and_has_no_float_matrix(float_model):
    before = logits_of(float_model)
    model = quantize(float_model)
    assert 0 < (logits_of(model) - before).std() < 0.05 * before.std()
    matrices = [
        name for name, w in model.named_parameters() if w.dim() == 2 and w.is_floating_point()
    ]
    assert all("embed_positions" in name for name in matrices)


def test_a_quantized_model_is_saved_and_loaded_exactly(float_model, tmp_path):
    model = quantize(copy.deepcopy(float_model))
    expected = logits_of(model)
    model.save_pretrained(tmp_path / "int8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    assert torch.equal(logits_of(loaded), expected)
    assert loaded.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    float_model.save_pretrained(tmp_path / "float")
    given = {"quantization_config": VanillaInt8Config()}
    made = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "float", **given)
    assert torch.equal(logits_of(made), expected)
    loaded.save_pretrained(tmp_path / "again")
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("int8", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_int8_weights_that_say_so_load_as_float_ones_for_all_uses(float_model, dtype, tmp_path):
    expected = copy.deepcopy(float_model)
    with torch.no_grad():
        for name, weight in expected.named_parameters():
            if weight.dim() == 2 and "embed_positions" not in name:
                levels, scale = quantized(weight)
                weight.copy_(levels * scale)
    quantize(float_model).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["dequantize"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {} if dtype is None else {"dtype": dtype}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **given)
    expected.to(dtype or torch.float32)
    assert (loaded.dtype, loaded.is_quantized) == (expected.dtype, False)
    assert torch.equal(logits_of(loaded), logits_of(expected))
    assert loaded.state_dict().keys() == expected.state_dict().keys()
    ids = torch.tensor([[5, 9, 3, 1]])
    loaded.train()(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in loaded.parameters() if weight.requires_grad)
    loaded.eval().save_pretrained(tmp_path / "float")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "float")
    assert torch.equal(logits_of(again), logits_of(loaded))
    assert "quantization_config" not in (tmp_path / "float" / "config.json").read_text()
    with pytest.raises(ValueError, match="int8 weights cannot be resized: call dequantize"):
        float_model.resize_token_embeddings(60)
    with pytest.raises(ValueError, match="int8 weights cannot be resized: call dequantize"):
        float_model.resize_decoder_token_embeddings(60)
    here = float_model.dequantize(dtype or torch.float32)
    assert torch.equal(logits_of(here), logits_of(loaded))
    here.train()(input_ids=ids, labels=ids).loss.backward()
    with pytest.raises(ValueError, match="first quantize"):
        here.dequantize()


def test_tied_weights_are_stored_once(tmp_path):
    model = quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL)))
    assert model.lm_head.weight is model.model.shared.weight
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert {name for name in saved if "layers" not in name} == {
        "model.shared.weight",
        "model.shared.weight_scale",
    }
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight_scale is loaded.model.decoder.embed_tokens.weight_scale


SMALL = {
    "vocab_size": 23,
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
}


def test_copies_of_a_used_model_compute_the_same():
    model = quantize(lively_model().float())
    expected = logits_of(model)
    assert torch.equal(logits_of(copy.deepcopy(model)), expected)


def test_joined_projections_equal_separate_ones():
    model = quantize(lively_model(attention_bias=True).float())
    joined = logits_of(model)
    for module in model.modules():
        if hasattr(module, "joined"):
            module.joined = None
    assert torch.equal(logits_of(model), joined)


@pytest.mark.parametrize("beams", [1, 3])
def test_our_search_equals_transformers_search_in_int8(beams):
    model, batch = quantize(lively_model().float()), sources(5, 3, 7)
    ours = model.generate(**batch, num_beams=beams)
    model.register_forward_hook(lambda *_: None)  # hooks need transformers' search
    assert torch.equal(ours, model.generate(**batch, num_beams=beams))


def test_batch_mates_do_not_change_a_translation_in_int8():
    model = quantize(lively_model().float())
    lengths = torch.randint(1, 12, (13,)).tolist()
    batch = sources(*lengths)
    together = model.generate(**batch, num_beams=2)
    for row, length in enumerate(lengths):
        alone = model.generate(batch["input_ids"][row : row + 1, :length], num_beams=2)[0]
        assert torch.equal(together[row][: len(alone)], alone)


# --- what is refused ---------------------------------------------------------------------------


def test_quantize_names_the_reason_and_the_remedy(tmp_path):
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=13,
            d_model=4,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            pad_token_id=0,
            decoder_start_token_id=0,
        )
    )
    with pytest.raises(
        ValueError, match="MarianMTModel is not a model of hf_vanilla: use hf-vanilla convert"
    ):
        quantize(marian)
    tracks = VanillaTracksConfig(d_model=8, encoder_attention_heads=2, decoder_attention_heads=2)
    forecaster = VanillaForTrajectoryPrediction(tracks)
    with pytest.raises(ValueError, match="is a forecaster: give dtype='bfloat16'"):
        quantize(forecaster)
    forecaster.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a forecaster: give dtype='bfloat16'"):
        VanillaForTrajectoryPrediction.from_pretrained(
            tmp_path, quantization_config=VanillaInt8Config()
        )
    with torch.device("meta"):
        empty = VanillaForConditionalGeneration(VanillaConfig(**SMALL))
    with pytest.raises(ValueError, match="on the meta device, without values: load its weights"):
        quantize(empty)
    model = quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL)))
    with pytest.raises(ValueError, match="has int8 weights already: quantize the float model"):
        quantize(model)


def test_int8_weights_elsewhere_than_on_a_cpu_are_refused(tmp_path):
    model = quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL)))
    model.save_pretrained(tmp_path)
    for device_map in ("cuda", {"": 0}):
        with pytest.raises(ValueError, match="int8 is for CPUs: leave it out"):
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=device_map)
    layer = QuantizedLinear(5, 3, bias=False).to("meta")
    with pytest.raises(ValueError, match="int8 is for CPUs, and the weights are on 'meta'"):
        layer(torch.ones(1, 5))


def test_int8_weights_on_the_disk_are_refused_also_if_dequantized(tmp_path):
    quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL))).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["dequantize"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    places = {"model.encoder": "cpu", "model.shared": "cpu", "model.decoder": "disk"}
    with pytest.raises(ValueError, match="int8 weights cannot stay on the disk: load and save"):
        AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path, device_map=places | {"lm_head": "cpu"}, offload_folder=tmp_path / "offload"
        )


def test_a_head_that_int8_weights_lack_is_new(tmp_path):
    quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL))).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=30)
    head = model.classifier
    weight = head.weight * head.weight_scale.unsqueeze(1)
    assert weight.std() == pytest.approx((2 / sum(weight.shape)) ** 0.5, rel=0.1)
    assert not head.bias.any()


def test_weights_of_a_newer_format_are_refused(tmp_path):
    quantize(VanillaForConditionalGeneration(VanillaConfig(**SMALL))).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    # versions without int8 refuse this dtype
    assert config["dtype"] == "int8"
    config["quantization_config"]["version"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"format 2.*not 1: update hf_vanilla"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_layers_are_replaced_without_values_before_loading():
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(VanillaConfig(**SMALL))
        replace_layers(model, has_values=False)
    assert model.lm_head.weight.dtype == torch.int8
    assert model.lm_head.weight.is_meta
