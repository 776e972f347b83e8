"""Our model to MarianMTModel and back: the same logits, or an error with all reasons."""

import json

import opus
import pytest
import small_run
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoTokenizer, GenerationConfig, MarianMTModel

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.convert.marian import (
    MarianOptions,
    ToMarianOptions,
    convert_marian,
    convert_to_marian,
    from_marian,
    to_marian,
)

CLOSE = {"rtol": 0, "atol": 1e-5}  # float32 sums in another order
PAD = 42
INPUTS = {
    "input_ids": torch.tensor([[5, 7, 11, 13, 0], [17, 19, 0, PAD, PAD]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}
# what MarianMTModel takes for granted
THEIR_FORM = {
    "vocab_size": 43,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 61,
    "position_layout": "concatenated",
    "layer_norm_eps": 1e-5,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": 0,
}
OWN_TABLES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47}
SHARINGS = {
    "one table": {},
    "output apart": {"tie_word_embeddings": False},
    "source apart": OWN_TABLES,
    "three tables": {**OWN_TABLES, "tie_word_embeddings": False},
}


def our_model(**changes):
    model = VanillaForConditionalGeneration(VanillaConfig(**{**THEIR_FORM, **changes})).eval()
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.3)
    ids = {"pad_token_id": PAD, "eos_token_id": 0, "decoder_start_token_id": PAD}
    model.generation_config = GenerationConfig(num_beams=3, max_length=19, **ids)
    return model


def logits(model):
    target = torch.tensor([[PAD, 3, 5, 8], [PAD, 4, 6, 0]])
    with torch.no_grad():
        return model(**INPUTS, decoder_input_ids=target).logits


@pytest.mark.parametrize("biases", [{}, {"attention_bias": True, "lm_head_bias": True}])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("is_trained", [True, False], ids=["pad trained", "pad zero"])
def test_logits_and_beam_search_equal_ours(sharing, biases, is_trained):
    ours = our_model(**SHARINGS[sharing], **biases)
    if not is_trained:
        for stack in (ours.model.encoder, ours.model.decoder):
            stack.embed_tokens.weight.data[PAD] = 0
    theirs = to_marian(ours)
    assert_close(logits(theirs), logits(ours), **CLOSE)
    assert torch.equal(theirs.generate(**INPUTS), ours.generate(**INPUTS))
    is_one = sharing == "one table" and not is_trained
    assert theirs.config.share_encoder_decoder_embeddings == is_one
    assert_close(logits(from_marian(theirs)), logits(ours), **CLOSE)


def test_padding_embedded_as_its_row_stays_tied():
    ours = our_model(zero_pad_embedding=False)
    theirs = to_marian(ours)
    assert theirs.config.tie_word_embeddings
    assert_close(logits(theirs), logits(ours), **CLOSE)


@pytest.mark.parametrize("sharing", opus.SHARINGS)
def test_a_round_trip_keeps_weights_and_settings(sharing):
    theirs = opus.marian_model(**opus.SHARINGS[sharing])
    again = to_marian(from_marian(theirs))
    expected, found = theirs.state_dict(), again.state_dict()
    if sharing == "output apart":  # transformers keeps three tables there, and this one unused
        del expected["model.shared.weight"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert again.generation_config.to_diff_dict() == theirs.generation_config.to_diff_dict()
    before, after = theirs.config.to_dict(), again.config.to_dict()
    if sharing == "output apart":
        del before["share_encoder_decoder_embeddings"], after["share_encoder_decoder_embeddings"]
    assert after == before


def test_a_round_trip_through_folders(tmp_path, caplog):
    opus.write_folder(tmp_path / "theirs", forced_eos_token_id=None)
    paths = [str(tmp_path / name) for name in ("theirs", "ours", "again")]
    convert_marian(MarianOptions(input=paths[0], output=paths[1]))
    with caplog.at_level("INFO", logger="hf_vanilla"):
        convert_to_marian(ToMarianOptions(input=paths[1], output=paths[2], check=True))
    assert "beam search gives the same tokens" in caplog.text
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    decoding = [
        json.loads((tmp_path / name / "generation_config.json").read_text())
        for name in ("theirs", "again")
    ]
    assert decoding[0] == decoding[1]
    text = opus.SOURCES[1]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in paths]
    assert len({str(tokenizer(text, text_target=text)) for tokenizer in tokenizers}) == 1
    assert MarianMTModel.from_pretrained(paths[2]).dtype == torch.float32


def test_a_recipe_can_train_a_model_that_marian_can_express(tmp_path, corpus_files, tiny_tokenizer):
    recipe = small_run.recipe(  # as the documentation says
        tmp_path / "run",
        corpus_files,
        model={"position_layout": "concatenated", "layer_norm_eps": 1e-5},
        decoding={
            "length_penalty_form": "power",
            "max_tokens_beyond_source": None,
            "max_length": 20,
        },
    )
    config = recipe.config()
    ours = VanillaForConditionalGeneration(config)
    ours.generation_config = recipe.generation_config(config)
    ours.save_pretrained(tmp_path / "ours")
    tiny_tokenizer.save_pretrained(tmp_path / "ours")
    output = tmp_path / "theirs"
    convert_to_marian(ToMarianOptions(input=str(tmp_path / "ours"), output=str(output), check=True))
    assert MarianMTModel.from_pretrained(output).generation_config.max_length == 20
    expected = tiny_tokenizer("ein Haus").input_ids
    assert AutoTokenizer.from_pretrained(output)("ein Haus").input_ids == expected
    assert json.loads((output / "tokenizer.json").read_text())["padding"] is None


def test_one_message_names_all_reasons():
    ours = VanillaForConditionalGeneration(
        VanillaConfig(
            **{**THEIR_FORM, "position_layout": "interleaved", "layer_norm_eps": 1e-6},
            position_frequencies="tensor2tensor",
            position_offset=2,
            final_layer_norm=True,
            head_dim=7,
        )
    )
    with pytest.raises(ValueError, match="MarianMTModel cannot express this model: ") as caught:
        to_marian(ours)
    for reason in (
        "position_layout='interleaved' (Marian: 'concatenated')",
        "position_frequencies='tensor2tensor' (Marian: 'paper')",
        "position_offset=2 (Marian: 0)",
        "layer_norm_eps=1e-06 (Marian: 1e-05)",
        "final_layer_norm=True (Marian: False)",
        "encoder_attention_heads=3 with head_dim, v_head_dim = 7, 4 (Marian: d_model=12 / heads)",
        "decoder_attention_heads=2 with head_dim, v_head_dim = 7, 6",
        "length_penalty_form='gnmt' in the generation config (Marian: 'power')",
        "max_tokens_beyond_source=50 in the generation config (Marian: max_length)",
    ):
        assert reason in str(caught.value)


def test_learned_positions_and_a_missing_start_token_are_reasons():
    ours = our_model(position_embedding_type="learned", decoder_start_token_id=None)
    with pytest.raises(ValueError, match="position_embedding_type='learned'") as caught:
        to_marian(ours)
    assert "decoder_start_token_id=None (Marian: an id)" in str(caught.value)


def test_a_failed_conversion_leaves_no_output(tmp_path, tiny_model, tiny_tokenizer):
    tiny_model.save_pretrained(tmp_path / "ours")
    tiny_tokenizer.save_pretrained(tmp_path / "ours")
    options = ToMarianOptions(input=str(tmp_path / "ours"), output=str(tmp_path / "theirs"))
    with pytest.raises(ValueError, match="cannot express this model"):
        convert_to_marian(options)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_another_model_is_an_error(tmp_path):
    opus.write_folder(tmp_path / "theirs")
    options = ToMarianOptions(input=str(tmp_path / "theirs"), output=str(tmp_path / "again"))
    with pytest.raises(ValueError, match="theirs holds MarianMTModel: convert it by"):
        convert_to_marian(options)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
