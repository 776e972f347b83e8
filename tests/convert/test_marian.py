"""MarianMTModel to ours: the same logits and beam search, or an error with all reasons."""

import json

import opus
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    MarianTokenizer,
)

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.convert.marian import MarianOptions, compare, convert_marian, from_marian
from hf_vanilla.models.positions_vanilla import sinusoid
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import translate

# float32 sums in another order: the output bias is added by one kernel here and by two there
CLOSE = {"rtol": 0, "atol": 1e-5}
EACH_SHARING = pytest.mark.parametrize("sharing", opus.SHARINGS)
PAD = 42
SOURCE = [[5, 7, 11, 13, 0], [17, 19, 0]]


def padded(rows, *, side="right"):
    """`input_ids` and `attention_mask` of rows of ids."""
    longest = max(map(len, rows))
    fill = [[PAD] * (longest - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    ids = torch.tensor([row + pads if side == "right" else pads + row for row, pads in pairs])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


def logits(model, **inputs):
    target = torch.tensor([[PAD, 3, 5, 8, 9, 31, 0], [PAD, 4, 6, 0, PAD, PAD, PAD]])
    with torch.no_grad():
        found = model(**inputs, decoder_input_ids=target[: inputs["input_ids"].shape[0]]).logits
    return found[:, :3]  # real positions of both rows


@pytest.fixture
def folder(tmp_path):
    opus.write_folder(tmp_path / "theirs")
    return tmp_path / "theirs"


def converted(folder, **options):
    output = folder.parent / "ours"
    convert_marian(MarianOptions(input=str(folder), output=str(output), **options))
    return output


def only(folder):
    """What lies beside a folder that was given in."""
    return [path.name for path in folder.parent.iterdir()] == [folder.name]


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# --- the function ------------------------------------------------------------------------------


@EACH_SHARING
@pytest.mark.parametrize("activation", ["swish", "gelu", "relu"])
def test_logits_equal_theirs(sharing, activation):
    theirs = opus.marian_model(**opus.SHARINGS[sharing], activation_function=activation)
    ours = from_marian(theirs)
    inputs = padded(SOURCE)
    assert_close(logits(ours, **inputs), logits(theirs, **inputs), **CLOSE)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_embeddings_are_scaled_if_theirs_are(is_scaled):
    theirs = opus.marian_model(scale_embedding=is_scaled)
    inputs = padded(SOURCE)
    assert_close(logits(from_marian(theirs), **inputs), logits(theirs, **inputs), **CLOSE)


def test_left_padding_gives_their_logits_without_padding():
    theirs = opus.marian_model()
    found = logits(from_marian(theirs), **padded(SOURCE, side="left"))
    for row, source in enumerate(SOURCE):
        expected = logits(theirs, **padded([source, source]))
        assert_close(found[row], expected[row], **CLOSE)


@EACH_SHARING
def test_a_trained_padding_row_is_embedded_as_theirs(sharing):
    theirs = opus.marian_model(**opus.SHARINGS[sharing])
    with torch.no_grad():
        theirs.model.decoder.embed_tokens.weight[PAD] = torch.randn(12)
    ours = from_marian(theirs)
    assert not ours.config.zero_pad_embedding
    inputs = padded(SOURCE)
    assert_close(logits(ours, **inputs), logits(theirs, **inputs), **CLOSE)


def test_a_start_token_other_than_padding_is_kept():
    theirs = opus.marian_model(decoder_start_token_id=3)
    ours = from_marian(theirs)
    assert ours.config.decoder_start_token_id == ours.generation_config.decoder_start_token_id == 3


def test_frequencies_marian_uses_marians_positions_and_epsilon():
    theirs = opus.marian_model()
    ours = from_marian(theirs, frequencies="marian")
    table = sinusoid(torch.arange(64), 12, layout="concatenated", frequencies="tensor2tensor")
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.copy_(table)
    for module in theirs.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    inputs = padded(SOURCE)
    assert_close(logits(ours, **inputs), logits(theirs, **inputs), **CLOSE)


@EACH_SHARING
@pytest.mark.parametrize("beams", [1, 4])
def test_generate_gives_their_tokens(sharing, beams):
    theirs = opus.marian_model(**opus.SHARINGS[sharing])
    ours = from_marian(theirs)
    inputs = padded([[*range(first, first + 9), 0] for first in range(1, 30, 4)] + SOURCE)
    expected = theirs.generate(**inputs, num_beams=beams)
    assert torch.equal(ours.generate(**inputs, num_beams=beams), expected)
    assert len({tuple(row) for row in expected.tolist()}) > 4  # it does not repeat itself
    assert not (expected[:, 1] == PAD).any()


def test_generate_returns_their_scores():
    theirs = opus.marian_model()
    ours = from_marian(theirs)
    wanted = {"output_scores": True, "return_dict_in_generate": True, "num_return_sequences": 4}
    found, expected = (model.generate(**padded(SOURCE), **wanted) for model in (ours, theirs))
    assert_close(found.sequences_scores, expected.sequences_scores, **CLOSE)


# --- the folder --------------------------------------------------------------------------------


def test_a_converted_folder_translates_text_like_theirs(tmp_path):
    theirs, their_tokenizer = opus.write_folder(tmp_path / "theirs")
    model, tokenizer = load_translator(str(converted(tmp_path / "theirs")))
    assert isinstance(model, VanillaForConditionalGeneration)
    inputs = their_tokenizer(list(opus.SOURCES), padding=True, return_tensors="pt")
    expected = their_tokenizer.batch_decode(theirs.generate(**inputs), skip_special_tokens=True)
    assert translate(model, tokenizer, opus.SOURCES) == expected
    assert any(expected)


@EACH_SHARING
def test_every_weight_of_a_folder_is_exactly_equal(tmp_path, sharing):
    opus.write_tokenizer(tmp_path / "theirs")
    theirs = opus.marian_model(**opus.SHARINGS[sharing])
    vocabulary = {f"w{i}": i for i in range(1, PAD)} | {"</s>": 0, "<pad>": PAD, "<unk>": 1}
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(vocabulary))
    theirs.save_pretrained(tmp_path / "theirs")
    expected = load_file(tmp_path / "theirs" / "model.safetensors")
    found = load_file(converted(tmp_path / "theirs") / "model.safetensors")
    assert torch.equal(found.pop("lm_head.bias"), expected.pop("final_logits_bias")[0])
    if sharing == "output apart":
        del expected["model.shared.weight"]  # which transformers stores and does not use
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_generation_config_is_converted(folder):
    decoding = AutoModelForSeq2SeqLM.from_pretrained(converted(folder)).generation_config
    theirs = json.loads((folder / "generation_config.json").read_text())
    assert theirs.keys() >= {"num_beams", "max_length", "bad_words_ids", "forced_eos_token_id"}
    for name in theirs.keys() - {"transformers_version", "_from_model_config"}:
        assert getattr(decoding, name) == theirs[name], name
    assert decoding.length_penalty_form == "power"
    assert getattr(decoding, "max_tokens_beyond_source", None) is None


def test_decoding_settings_of_an_old_config_file_are_converted(folder):
    (folder / "generation_config.json").unlink()
    edit(folder, num_beams=6, max_length=17, bad_words_ids=[[3]], forced_eos_token_id=0)
    decoding = AutoModelForSeq2SeqLM.from_pretrained(converted(folder)).generation_config
    assert (decoding.num_beams, decoding.max_length, decoding.bad_words_ids) == (6, 17, [[3]])
    assert decoding.forced_eos_token_id == 0


def test_half_precision_files_become_float32(folder):
    half = AutoModelForSeq2SeqLM.from_pretrained(folder).half()
    half.save_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(converted(folder))
    assert model.dtype == torch.float32
    assert torch.equal(model.lm_head.weight, half.lm_head.weight.float())


@pytest.mark.parametrize("separate", [False, True], ids=["one vocabulary", "two"])
def test_the_tokenizer_of_both_sides_is_converted(tmp_path, separate):
    source_size, target_size = opus.write_tokenizer(tmp_path / "theirs", separate=separate)
    sharing = {"share_encoder_decoder_embeddings": not separate}
    sizes = {"vocab_size": source_size, "decoder_vocab_size": target_size}
    pad = {"decoder_start_token_id": 1} if target_size < source_size else {}
    opus.marian_model(**sizes, **sharing, **pad).save_pretrained(tmp_path / "theirs")
    theirs = MarianTokenizer.from_pretrained(tmp_path / "theirs")
    output = converted(tmp_path / "theirs")
    assert str(tmp_path) not in (output / "tokenizer_config.json").read_text()
    (tmp_path / "theirs").rename(tmp_path / "elsewhere")  # what was converted stands alone
    tokenizer = AutoTokenizer.from_pretrained(output)
    texts = {"text": list(opus.SOURCES), "text_target": list(opus.TARGETS)}
    found, expected = tokenizer(**texts), theirs(**texts)
    assert found == expected
    assert found["labels"] != found["input_ids"]
    labels = found["labels"][1]
    assert tokenizer.decode(labels, skip_special_tokens=True) == theirs.decode(
        labels, skip_special_tokens=True
    )
    assert (tokenizer.model_max_length, tokenizer.pad_token_id) == (64, source_size - 1)


def test_weights_of_marian_beside_the_config_are_not_read(folder):
    (folder / "model.npz").write_text("not read")
    assert (converted(folder) / "model.safetensors").is_file()


def test_check_compares_before_writing(folder, caplog):
    with caplog.at_level("INFO", logger="hf_vanilla"):
        converted(folder, check=True)
    assert "logits" in caplog.text
    assert "beam search gives the same tokens" in caplog.text


@pytest.mark.parametrize("saved", [{"num_return_sequences": 2}, {"return_dict_in_generate": True}])
def test_check_compares_one_translation_whatever_the_folder_returns(folder, saved):
    theirs, tokenizer = opus.write_folder(folder)
    for name, value in {"num_beams": 2, **saved}.items():
        setattr(theirs.generation_config, name, value)
    assert "the same tokens" in compare(theirs, from_marian(theirs), tokenizer)


def test_a_failed_check_reports_the_difference(folder):
    theirs, tokenizer = opus.write_folder(folder)
    ours = from_marian(theirs)
    with torch.no_grad():
        ours.lm_head.bias += torch.randn_like(ours.lm_head.bias)
    with pytest.raises(ValueError, match="differs from the original: largest difference of "):
        compare(theirs, ours, tokenizer)


# --- refusals ----------------------------------------------------------------------------------


def test_another_architecture_is_an_error(tmp_path):
    config = BartConfig(vocab_size=53, d_model=8, encoder_layers=1, decoder_layers=1)
    config.encoder_attention_heads = config.decoder_attention_heads = 2
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match="theirs is of type 'bart': give one of type"):
        converted(tmp_path / "theirs")
    assert only(tmp_path / "theirs")


def test_one_message_names_all_reasons(folder):
    def change(weights):
        del weights["model.encoder.layers.1.fc2.weight"], weights["model.decoder.layers.0.fc1.bias"]
        weights["model.encoder.layer_norm.weight"] = torch.ones(12)
        weights["model.decoder.layernorm_embedding.bias"] = torch.ones(12)
        weights["model.encoder.layers.0.fc1.bias"] = torch.ones(30)

    edit_weights(folder, change)
    edit(folder, normalize_before=True, normalize_embedding=True, pad_token_id=7)
    with pytest.raises(ValueError, match="does not fit this architecture") as caught:
        converted(folder)
    message = str(caught.value)
    assert "model.decoder.layernorm_embedding.bias (a norm on the embeddings), " in message
    assert "model.encoder.layer_norm.weight (final norm of a pre-norm model)" in message
    missing = "model.decoder.layers.0.fc1.bias, model.encoder.layers.1.fc2.weight"
    assert f"missing: {missing}; " in message
    assert "model.encoder.layers.0.fc1.bias (shape (30,), expected (29,))" in message
    assert "normalize_before=True (a pre-norm model)" in message
    assert "normalize_embedding=True (a norm on the embeddings)" in message
    assert "pad_token_id of the tokenizer is" in message
    assert only(folder)


def test_learned_positions_are_an_error(folder):
    edit_weights(folder, lambda w: w.update({"model.encoder.embed_positions.weight": _noise()}))
    edit(folder, static_position_embeddings=False)
    with pytest.raises(ValueError, match="is not sinusoidal") as caught:
        converted(folder)
    assert "static_position_embeddings=False (learned positions)" in str(caught.value)
    assert only(folder)


def _noise():
    return torch.randn(64, 12)


def test_an_incomplete_file_is_one_line_and_leaves_no_output(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"theirs cannot be loaded .* again$") as caught:
        converted(folder)
    assert "\n" not in str(caught.value)
    assert only(folder)


def test_a_vocabulary_larger_than_the_embedding_is_an_error(folder):
    path = folder / "vocab.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"new": 999}))
    with pytest.raises(ValueError, match="the vocabulary goes up to id 999, but vocab_size="):
        converted(folder)
    assert only(folder)


def test_a_target_vocabulary_larger_than_its_embedding_is_an_error(tmp_path):
    source_size, target_size = opus.write_tokenizer(tmp_path / "theirs", separate=True)
    sizes = {"vocab_size": source_size, "decoder_vocab_size": target_size - 2}
    own = {"share_encoder_decoder_embeddings": False, "pad_token_id": 3}
    opus.marian_model(**sizes, **own, decoder_start_token_id=3).save_pretrained(tmp_path / "theirs")
    message = f"goes up to id {target_size - 1}, but decoder_vocab_size={target_size - 2}"
    with pytest.raises(ValueError, match=message):
        converted(tmp_path / "theirs")


def test_a_folder_without_a_tokenizer_is_an_error(folder):
    (folder / "source.spm").unlink()
    with pytest.raises(ValueError, match=r"cannot be loaded \(AutoTok.*source\.spm, target\.spm"):
        converted(folder)
    assert only(folder)


@pytest.mark.parametrize("name", ["nowhere", "nobody/nothing"])
def test_a_missing_model_is_one_line(tmp_path, name):
    with pytest.raises(
        OSError, match=f"{name}: no such folder, and not found on the Hub"
    ) as caught:
        convert_marian(MarianOptions(input=name, output=str(tmp_path / "ours")))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_kept(folder):
    (folder.parent / "ours").mkdir()
    (folder.parent / "ours" / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="choose another name"):
        converted(folder)
    assert (folder.parent / "ours" / "mine").read_text() == "mine"


def test_unknown_or_contradicting_options_are_an_error():
    files = {"input": "a", "output": "b"}
    with pytest.raises(ValueError, match="frequencies='fast': choose one of transformers, marian"):
        MarianOptions(**files, frequencies="fast")
    with pytest.raises(ValueError, match="give only one of the two options"):
        MarianOptions(**files, frequencies="marian", check=True)
    with pytest.raises(ValueError, match="frequencies='fast'"):
        from_marian(opus.marian_model(), frequencies="fast")
