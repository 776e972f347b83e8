"""Each half from a translation model's checkpoint, and from one of its own."""

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForSequenceClassification,
)

B, L, S = 3, 7, 5
SIZES = {
    "vocab_size": 43,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "lm_head_bias": True,
}
OWN_TABLES = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": False}
UNTIED = {"tie_word_embeddings": False}
SHARINGS = {
    "one table": {},
    "output apart": UNTIED,
    "source apart": OWN_TABLES,
    "three tables": {**OWN_TABLES, **UNTIED},
}
EACH_SHARING = pytest.mark.parametrize("sharing", SHARINGS)
EACH_POSITION = pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
HALVES = [VanillaEncoderModel, VanillaForSequenceClassification, VanillaForCausalLM]
EACH_HALF = pytest.mark.parametrize("half", HALVES)


def filled(model):
    """No weight at its start of zero or one."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def translation_model(folder, sharing, **changes):
    config = VanillaConfig(**SIZES, **SHARINGS[sharing], **changes)
    model = filled(VanillaForConditionalGeneration(config))
    model.save_pretrained(folder)
    return model


def words():
    return torch.randint(2, 37, (B, L))


def load_in_silence(half, folder, caplog, **settings):
    model, report = half.from_pretrained(folder, output_loading_info=True, **settings)
    assert not any(report.values())
    assert "LOAD REPORT" not in caplog.text
    return model


@EACH_SHARING
@EACH_POSITION
def test_the_encoder_of_a_translation_model_loads_exactly_without_a_warning(
    tmp_path, caplog, sharing, positions
):
    whole = translation_model(tmp_path, sharing, position_embedding_type=positions)
    half = load_in_silence(VanillaEncoderModel, tmp_path, caplog)
    ids = words()
    expected = whole.get_encoder()(input_ids=ids).last_hidden_state
    assert torch.equal(half(input_ids=ids).last_hidden_state, expected)
    assert not any("decoder" in name or "lm_head" in name for name in half.state_dict())


@EACH_SHARING
@EACH_POSITION
def test_the_decoder_of_a_translation_model_loads_exactly_without_a_warning(
    tmp_path, caplog, sharing, positions
):
    whole = translation_model(tmp_path, sharing, position_embedding_type=positions)
    half = load_in_silence(VanillaForCausalLM, tmp_path, caplog)
    ids = words()
    expected = whole.lm_head(whole.model.decoder(input_ids=ids).last_hidden_state)
    assert torch.equal(half(input_ids=ids).logits, expected)
    assert not any("encoder" in name for name in half.state_dict())
    own_table = half.model.decoder.embed_tokens.weight
    assert (half.lm_head.weight is own_table) == (sharing in ("one table", "source apart"))


@EACH_SHARING
def test_a_decoder_only_model_with_a_source_gives_the_logits_of_the_whole_model(
    tmp_path, caplog, sharing
):
    whole = translation_model(tmp_path, sharing)
    half = load_in_silence(VanillaForCausalLM, tmp_path, caplog, add_cross_attention=True)
    source, target = torch.randint(2, 43, (B, S)), words()
    mask = torch.tensor([[1] * 5, [1] * 2 + [0] * 3, [1] * 4 + [0]])
    encoded = whole.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
    given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
    logits = half(input_ids=target, **given).logits
    expected = whole(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    assert torch.equal(logits, expected)


@EACH_SHARING
def test_only_the_classifier_is_new_in_a_translation_models_classifier(tmp_path, caplog, sharing):
    whole = translation_model(tmp_path, sharing)
    half, report = VanillaForSequenceClassification.from_pretrained(
        tmp_path, num_labels=5, output_loading_info=True
    )
    missing = report.pop("missing_keys")
    assert missing == {"classifier.weight", "classifier.bias"}
    assert not any(report.values())
    assert "classifier.weight" in caplog.text
    assert "UNEXPECTED" not in caplog.text
    ids = words()
    expected = whole.get_encoder()(input_ids=ids, attention_mask=torch.ones(B, L))[0].mean(dim=1)
    logits = half(input_ids=ids).logits
    assert logits.shape == (B, 5)
    # a mean of seven float32 numbers, and one product
    torch.testing.assert_close(logits, half.classifier(expected), rtol=0, atol=1e-6)
    assert half.classifier.weight.abs().max() > 0


@EACH_SHARING
@EACH_HALF
@pytest.mark.parametrize("shards", ["1GB", "5KB"])
def test_a_one_sided_model_loads_exactly_from_its_own_checkpoint(
    tmp_path, caplog, half, sharing, shards
):
    model = filled(half(VanillaConfig(**SIZES, **SHARINGS[sharing])))
    model.save_pretrained(tmp_path, max_shard_size=shards)
    loaded = load_in_silence(half, tmp_path, caplog)
    ids = words()
    assert torch.equal(loaded(input_ids=ids)[0], model(input_ids=ids)[0])
    assert loaded.config.to_dict().keys() == model.config.to_dict().keys()
    stored = [name for path in tmp_path.glob("*.safetensors") for name in load_file(path)]
    assert len(stored) == len(list(model.parameters()))  # a shared table once


@EACH_HALF
def test_a_one_sided_model_loads_in_half_precision(tmp_path, half):
    model = filled(half(VanillaConfig(**SIZES)))
    model.save_pretrained(tmp_path)
    ids = words()
    loaded = half.from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = model.bfloat16()(input_ids=ids)[0]
    assert torch.equal(loaded(input_ids=ids)[0], expected)


@EACH_HALF
def test_a_one_sided_model_is_built_without_memory_and_filled_later(half):
    config = VanillaConfig(**SIZES)
    model = filled(half(config))
    with torch.device("meta"):
        empty = half(config).eval()
    assert {weight.device.type for weight in empty.parameters()} == {"meta"}
    empty.load_state_dict(model.state_dict(), assign=True)
    empty.tie_weights()
    ids = words()
    assert torch.equal(empty(input_ids=ids)[0], model(input_ids=ids)[0])


def test_a_missing_weight_of_a_one_sided_model_is_reported(tmp_path, caplog):
    whole = VanillaForConditionalGeneration(VanillaConfig(**SIZES))
    weights = whole.state_dict()
    del weights["model.encoder.layers.1.fc2.weight"]
    whole.save_pretrained(tmp_path, state_dict=weights)
    _, report = VanillaEncoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"encoder.layers.1.fc2.weight"}
    assert "encoder.layers.1.fc2.weight" in caplog.text


def test_an_unknown_weight_beside_a_one_sided_model_is_reported(tmp_path, caplog):
    whole = VanillaForConditionalGeneration(VanillaConfig(**SIZES))
    weights = {**whole.state_dict(), "model.encoder.layers.7.fc1.bias": torch.ones(3)}
    whole.save_pretrained(tmp_path, state_dict=weights)
    _, report = VanillaEncoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert report["unexpected_keys"] == {"model.encoder.layers.7.fc1.bias"}
    assert "model.encoder.layers.7.fc1.bias" in caplog.text


@pytest.mark.parametrize("half", [VanillaEncoderModel, VanillaForCausalLM])
def test_a_translation_model_begins_with_one_half_and_translates(half, tmp_path):
    one_half = filled(half(VanillaConfig(**SIZES)))
    one_half.save_pretrained(tmp_path)
    model = VanillaForConditionalGeneration.from_pretrained(tmp_path).eval()
    name = "encoder" if half is VanillaEncoderModel else "decoder"
    ours = getattr(one_half.base_model, name).layers[0].self_attn.q_proj.weight
    assert torch.equal(getattr(model.model, name).layers[0].self_attn.q_proj.weight, ours)
    assert model.config.is_encoder_decoder
    assert not one_half.config.is_encoder_decoder
    assert model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=4).shape[0] == 1
