"""Runs that start from a trained model."""

import shutil
from dataclasses import replace

import opus
import pytest
import small_run
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from hf_vanilla import train_tokenizer
from hf_vanilla.convert.export import QuantizeOptions, quantize_folder
from hf_vanilla.convert.marian import MarianOptions, convert_marian
from hf_vanilla.files import read_json_lines
from hf_vanilla.plots.curves import LOG_FILE
from hf_vanilla.text.prepare import PrepareOptions, prepare_shards
from hf_vanilla.text.task import prepare
from hf_vanilla.training.run import train

QUICK = {"max_steps": 4, "average_checkpoints": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return small_run.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """The folder of a trained model with decoding of its own."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    decoding = {"num_beams": 3, "length_penalty": 1.3}
    train(small_run.recipe(folder, files, decoding=decoding, max_steps=20, eval_steps=20))
    return folder


def continued(folder, files, trained, *, model=None, **changes):
    """A recipe whose section `model` has these fields alone."""
    recipe = small_run.recipe(folder, files, initial_model=str(trained), **changes)
    return replace(recipe, model=model or {})


def test_the_run_starts_with_weights_and_decoding_of_the_model(files, trained, tmp_path, caplog):
    fields = {"dropout": 0.25, "label_smoothing": 0.0}
    decoding = {"num_beams": 2}
    recipe = continued(tmp_path / "run", files, trained, model=fields, decoding=decoding)
    with caplog.at_level("INFO"):
        task = prepare(recipe)
    assert "reading the corpus" in caplog.text
    assert "learning the vocabulary" not in caplog.text
    model, expected = task.model(), AutoModelForSeq2SeqLM.from_pretrained(trained)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert task.data.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(trained).get_vocab()
    assert model.model.encoder.layers[0].dropout.p == 0.25
    assert model.config.label_smoothing == 0.0
    found = model.generation_config
    assert (found.num_beams, found.length_penalty) == (2, 1.3)


def test_it_learns_on_and_a_resumed_run_is_the_same(files, trained, tmp_path, monkeypatch):
    """The weights of the first model must not replace those of a checkpoint."""
    quick = {**QUICK, "rdrop_alpha": 5.0, "save_steps": 2, "eval_steps": 4}
    straight = continued(tmp_path / "straight", files, trained, **quick)
    train(straight)
    resumed = continued(tmp_path / "resumed", files, trained, **quick)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=2)
        with pytest.raises(KeyboardInterrupt):
            train(resumed)
    train(resumed)
    expected = small_run.weights(tmp_path / "straight")
    torch.testing.assert_close(small_run.weights(tmp_path / "resumed"), expected, rtol=0, atol=0)
    folders = tmp_path / "straight", trained
    logs = (read_json_lines(folder / LOG_FILE) for folder in folders)
    after, before = (entries[-1]["validation_nll"] for entries in logs)
    assert after < before
    card = ModelCard.load(tmp_path / "straight" / "README.md")
    assert f"From {trained.name}: 4 steps" in card.text
    assert card.data.base_model is None  # a folder is no id of the Hub


def test_a_resumed_run_refuses_other_weights_under_the_same_name(files, trained, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(shutil.copytree(trained, tmp_path / "start"))
    recipe = continued(tmp_path / "run", files, tmp_path / "start", **QUICK)
    train(recipe)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    model.save_pretrained(tmp_path / "start")
    with pytest.raises(ValueError, match="made with other initial model"):
        train(recipe)


def test_a_section_model_that_describes_another_model_is_refused(files, trained, tmp_path):
    fields = {"d_model": 32, "encoder_layers": 1, "vocab_size": 400}
    recipe = continued(tmp_path / "run", files, trained, model=fields)
    with pytest.raises(ValueError, match="another config: d_model is 16 there and 32 here: set"):
        prepare(recipe)


def test_a_tokenizer_beside_it_is_refused(files, trained, tmp_path):
    with pytest.raises(ValueError, match="the model has its own tokenizer; leave tokenizer out"):
        continued(tmp_path / "run", files, trained, tokenizer=str(trained))


def test_a_missing_folder_is_named(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing: no such folder"):
        prepare(continued(tmp_path / "run", files, tmp_path / "nothing"))


def test_a_model_of_another_class_is_refused_also_without_a_tokenizer(files, tmp_path):
    config = MarianConfig(
        vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(tmp_path / "marian")
    with pytest.raises(ValueError, match="holds MarianMTModel: convert it by hf-vanilla convert"):
        prepare(continued(tmp_path / "run", files, tmp_path / "marian"))


def test_int8_weights_are_refused(files, trained, tmp_path):
    quantize_folder(QuantizeOptions(model=str(trained), output=str(tmp_path / "int8")))
    with pytest.raises(ValueError, match="give the float model"):
        prepare(continued(tmp_path / "run", files, tmp_path / "int8"))


def test_prepared_shards_need_the_same_tokenizer(files, trained, tmp_path):
    text = {name: files[name] for name in ("train_source", "train_target")}
    lines = ["ein Haus", "a house"] * 5
    train_tokenizer(lines, vocab_size=270).save_pretrained(tmp_path / "words")
    for name, tokenizer in (("same", trained), ("other", tmp_path / "words")):
        folder = str(tmp_path / name)
        prepare_shards(PrepareOptions(tokenizer=str(tokenizer), output=folder, **text))
    recipe = continued(tmp_path / "run", {}, trained, prepared=str(tmp_path / "same"))
    assert prepare(recipe).initial is not None
    with pytest.raises(ValueError, match="different tokenizers: prepare the corpus with --token"):
        prepare(continued(tmp_path / "run", {}, trained, prepared=str(tmp_path / "other")))


def test_a_converted_model_is_trained_on(tmp_path):
    """It starts with the loss of MarianMTModel on the ids of its own tokenizer."""
    theirs, tokenizer = opus.write_folder(tmp_path / "theirs")
    start = str(tmp_path / "start")
    convert_marian(MarianOptions(input=str(tmp_path / "theirs"), output=start))
    for side, sentences in (("source", opus.SOURCES), ("target", opus.TARGETS)):
        (tmp_path / side).write_text("\n".join(sentences * 8), encoding="utf-8")
    names = [
        f"{split}_{side}" for split in ("train", "validation") for side in ("source", "target")
    ]
    files = {name: str(tmp_path / name.split("_")[1]) for name in names}
    fields = {"label_smoothing": 0.0}
    recipe = continued(tmp_path / "run", files, start, model=fields, eval_steps=4, **QUICK)
    train(recipe)
    entries = read_json_lines(tmp_path / "run" / LOG_FILE)
    after = [entry["validation_nll"] for entry in entries if "validation_nll" in entry]

    sides = {"text": list(opus.SOURCES), "text_target": list(opus.TARGETS)}
    given = tokenizer(**sides, padding=True, return_tensors="pt")
    given["labels"][given["labels"] == tokenizer.pad_token_id] = -100
    task = prepare(recipe)
    with torch.no_grad():
        before = theirs(**given).loss
        ours = task.model().eval()(**task.batch([0, 1, 2], torch.Generator())).loss
    torch.testing.assert_close(ours, before)
    assert max(after) < before
