"""Our model in CTranslate2: the same probabilities, hypotheses and text."""

import json

import opus
import pytest
import torch
from lively import lively_model
from torch.testing import assert_close
from transformers import AutoTokenizer, GenerationConfig

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.convert.ctranslate2 import (
    ACTIVATIONS,
    their_decoding,
    to_ctranslate2,
)
from hf_vanilla.convert.export import ExportOptions, read_export
from hf_vanilla.convert.export import export as exported
from hf_vanilla.convert.marian import MarianOptions, convert_marian
from hf_vanilla.text.engines import CTranslate2Engine, TorchEngine
from hf_vanilla.text.loading import load_translator

library = pytest.importorskip("ctranslate2")

CLOSE = {"rtol": 0, "atol": 2e-5}  # float32, sums in another order
SOURCES, TARGETS = [[5, 6, 7, 8, 9, 1], [11, 12, 1]], [[3, 4, 13, 1], [7, 1]]
# what a config may say beyond the paper's own shape, and CTranslate2 says too
SHAPES = {
    "the paper's": {},
    "layers of two numbers, heads of two numbers": {"encoder_layers": 3, "decoder_layers": 1},
    "heads narrower than their share": {"head_dim": 2, "v_head_dim": 2},
    "biases": {"attention_bias": True, "lm_head_bias": True},
    "one table": {"tie_word_embeddings": True},
    "two tables": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23},
    "unscaled": {"scale_embedding": False},
    "Marian's positions": {"position_layout": "concatenated", "layer_norm_eps": 1e-3},
    "fairseq's positions": {"position_frequencies": "tensor2tensor", "position_offset": 2},
    "learned positions": {"position_embedding_type": "learned", "max_position_embeddings": 31},
    "norms on top": {"final_layer_norm": True},
    "padding as its row": {"zero_pad_embedding": False},
    **{name: {"activation_function": name} for name in ACTIVATIONS},
}


class Words:
    """As much of a tokenizer as the export asks for; two of its ids share a word."""

    unk_token = None
    model_max_length = 31

    def __len__(self):
        return 17  # fewer than the model's vocabulary

    def convert_ids_to_tokens(self, token_id):
        return "twice" if token_id in (5, 6) else f"w{token_id}"


def model_of(**changes):
    """A random model whose every weight matters, its biases, norms and padding row included."""
    model = lively_model(**changes).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 or "embed_tokens" in name or "shared" in name:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def saved(model, folder, tokenizer):
    spec = to_ctranslate2(model, tokenizer, positions=31)
    spec.optimize(quantization="float32")
    folder.mkdir()
    spec.save(str(folder))
    return library.Translator(str(folder))


def words_of(folder, side):
    shared = folder / "shared_vocabulary.json"
    return json.loads(
        (shared if shared.is_file() else folder / f"{side}_vocabulary.json").read_text()
    )


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_every_token_has_the_same_log_probability(tmp_path, changes):
    model = model_of(**changes)
    theirs = saved(model, tmp_path / "there", Words())
    source, target = (words_of(tmp_path / "there", side) for side in ("source", "target"))
    found = theirs.score_batch(
        [[source[i] for i in row] for row in SOURCES],
        [[target[i] for i in row[:-1]] for row in TARGETS],  # it adds the end itself
    )
    for ids, labels, scores in zip(SOURCES, TARGETS, found, strict=True):
        logits = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).logits[0]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(labels)[:, None]).squeeze(-1)
        assert_close(torch.tensor(scores.log_probs), expected.detach(), **CLOSE)


def test_export_does_not_change_the_model():
    model = model_of()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    to_ctranslate2(model, Words(), positions=31).optimize(quantization="int8")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_one_message_names_every_reason():
    config = VanillaConfig(
        vocab_size=19,
        d_model=12,
        encoder_attention_heads=3,
        decoder_attention_heads=2,
        head_dim=5,
        activation_function="mish",
        decoder_start_token_id=None,
        eos_token_id=[1, 2],
    )
    with pytest.raises(ValueError, match="CTranslate2 cannot express this model: ") as caught:
        to_ctranslate2(VanillaForConditionalGeneration(config), Words(), positions=31)
    for reason in (
        "activation_function='mish' (CTranslate2: relu, ",
        "encoder_attention_heads with head_dim=5 and v_head_dim=4 (CTranslate2: equal)",
        "decoder_attention_heads with head_dim=5 and v_head_dim=6 (CTranslate2: equal)",
        "decoder_start_token_id=None (CTranslate2: an id)",
        "eos_token_id=[1, 2] (CTranslate2: one id)",
    ):
        assert reason in str(caught.value)


# --- folders -----------------------------------------------------------------------------------


def export(trained_run, folder, **changes):
    return exported(ExportOptions(model=str(trained_run), output=str(folder), **changes))


def test_an_export_contains_tokenizer_and_generation_config(trained_run, trained, tmp_path):
    folder = export(trained_run, tmp_path / "there")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "ein\u00e4 </s> \0"
    assert tokenizer(text).input_ids == trained[1](text).input_ids
    assert words_of(folder, "source") == trained[1].convert_ids_to_tokens(range(len(trained[1])))
    decoding = GenerationConfig.from_pretrained(folder)
    assert decoding.length_penalty_form == "power"
    assert decoding.early_stopping is True
    assert decoding.max_tokens_beyond_source == 50
    assert decoding.num_beams == 4


@pytest.mark.parametrize("num_beams", [1, 4])
def test_both_engines_give_the_same_text(trained_run, trained, tmp_path, num_beams):
    folder = export(trained_run, tmp_path / "there")
    model, tokenizer = trained
    rows = tokenizer(
        ["one two", "three", "nine nine one four", "q" * 30, "\0 \u05d0 \ufffd"]
    ).input_ids
    decoding = {
        "length_penalty_form": "power",
        "early_stopping": num_beams > 1,
        "num_beams": num_beams,
    }
    expected = TorchEngine(model, tokenizer, **decoding).translate_rows(rows)
    assert CTranslate2Engine(folder, num_beams=num_beams).translate_rows(rows) == expected
    assert len(set(expected)) > len(rows) // 2  # the model says something of its own to most


def test_differences_in_decoding_are_a_warning(trained_run, tmp_path, caplog):
    export(trained_run, tmp_path / "there")
    assert "the penalty is length ** 0.6, not ((5 + length) / 6) ** 0.6" in caplog.text
    assert "finished hypothesis 4 (early_stopping=True, not 'never')" in caplog.text


def test_ignored_settings_are_named_and_the_others_kept():
    ours = GenerationConfig(
        num_beams=3, early_stopping=True, do_sample=True, length_penalty=0.5, top_k=7
    )
    ours.exponential_decay_length_penalty = (3, 1.5)
    ours.output_attentions, ours.use_cache = False, True  # as of converted models
    theirs, differences = their_decoding(ours)
    assert sorted(differences) == [
        "do_sample=True is ignored",
        "exponential_decay_length_penalty=(3, 1.5) is ignored",
        "top_k=7 is ignored",
    ]
    assert (theirs.num_beams, theirs.length_penalty) == (3, 0.5)
    assert not theirs.do_sample
    assert ours.do_sample


def test_forbidden_tokens_need_renormalized_logits():
    theirs, differences = their_decoding(GenerationConfig(bad_words_ids=[[0]]))
    assert theirs.renormalize_logits
    assert theirs.bad_words_ids == [[0]]
    assert len(differences) == 1
    assert "renormalize_logits=True" in differences[0]


def test_settings_of_both_are_no_difference():
    ours = GenerationConfig(num_beams=3, early_stopping=True, length_penalty=0.7, max_length=9)
    assert their_decoding(ours)[1] == []


def test_int8_is_smaller_and_translates(trained_run, tmp_path):
    whole, small = (
        export(trained_run, tmp_path / "a"),
        export(trained_run, tmp_path / "b", dtype="int8"),
    )
    assert (small / "model.bin").stat().st_size < 0.5 * (whole / "model.bin").stat().st_size
    rows = AutoTokenizer.from_pretrained(small)(["one two", "three four"]).input_ids
    expected = CTranslate2Engine(whole).translate_rows(rows)
    assert CTranslate2Engine(small).translate_rows(rows) == expected


def test_an_unknown_dtype_and_the_old_option_are_errors():
    with pytest.raises(ValueError, match="dtype='int4': choose one of float32, "):
        ExportOptions(model="m", output="o", dtype="int4")
    with pytest.raises(ValueError, match="--quantization any more: use --dtype"):
        read_export(["--model", "m", "--output", "o", "--quantization", "int8"])


def test_a_failed_export_leaves_no_folder(tmp_path, tiny_tokenizer):
    config = VanillaConfig(
        vocab_size=283, d_model=12, encoder_attention_heads=3, decoder_attention_heads=2, head_dim=5
    )
    VanillaForConditionalGeneration(config).save_pretrained(tmp_path / "ours")
    tiny_tokenizer.save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="cannot express"):
        export(tmp_path / "ours", tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_an_existing_output_is_kept(trained_run, tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(FileExistsError, match="choose another name"):
        export(trained_run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_model_converted_from_marian_can_be_exported(tmp_path):
    opus.write_folder(tmp_path / "theirs", forced_eos_token_id=None)
    ours = convert_marian(
        MarianOptions(input=str(tmp_path / "theirs"), output=str(tmp_path / "ours"))
    )
    folder = export(ours, tmp_path / "there")
    model, tokenizer = load_translator(str(ours))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    rows = tokenizer(list(opus.SOURCES)).input_ids
    expected = TorchEngine(model, tokenizer).translate_rows(rows)
    assert CTranslate2Engine(folder).translate_rows(rows) == expected
    assert any(expected)
