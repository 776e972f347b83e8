"""What a run stands on may not change under it, and what a kill leaves behind does not stop it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import small_run
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hf_vanilla.loading import load_saved
from hf_vanilla.text.task import TranslationTask
from hf_vanilla.training.checkpointing import all_checkpoints
from hf_vanilla.training.preparation import prepare_run
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

LONGER = {"max_steps": 8}


@pytest.fixture
def files(corpus_files, tmp_path):
    """A corpus of its own, to be edited."""
    copies = {}
    for name, path in corpus_files.items():
        copies[name] = str(tmp_path / f"{name}.txt")
        shutil.copy(path, copies[name])
    return copies


def facts_of(recipe):
    return prepare_run(recipe).facts


def edit(path, old, new):
    text = Path(path).read_text(encoding="utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new, 1), encoding="utf-8")


def test_weights_are_trained_in_float32_whatever_a_task_loads(files, tmp_path, monkeypatch):
    make = TranslationTask.model
    monkeypatch.setattr(TranslationTask, "model", lambda task: make(task).bfloat16())
    run = prepare_run(small_run.recipe(tmp_path / "run", files))
    assert run.model.dtype == torch.float32


# --- data, tokenizer, config -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"), [("train_target", "training data"), ("validation_source", "validation data")]
)
def test_files_edited_under_their_old_names_are_refused(files, tmp_path, name, told):
    folder = train(small_run.recipe(tmp_path / "run", files))
    before = (folder / "config.json").read_bytes()
    first = Path(files[name]).read_text(encoding="utf-8").splitlines()[0]
    edit(files[name], first, first[::-1])
    with pytest.raises(ValueError, match=rf"checkpoint-6 was made with other {told} \(.* pairs, "):
        train(small_run.recipe(folder, files, **LONGER))
    assert (folder / "config.json").read_bytes() == before
    edit(files[name], first[::-1], first)
    train(small_run.recipe(folder, files, **LONGER))


def test_the_same_data_under_other_dates_and_names_has_the_same_facts(
    files, corpus_files, tmp_path, fresh_accelerator
):
    os.utime(files["train_source"], (1, 1))
    told = {"tokenizer": str(train(small_run.recipe(tmp_path / "run", corpus_files, max_steps=1)))}
    assert facts_of(small_run.recipe(tmp_path / "a", files, **told)) == facts_of(
        small_run.recipe(tmp_path / "b", corpus_files, **told)
    )


def test_another_tokenizer_of_the_same_place_is_refused(files, tmp_path):
    first = train(small_run.recipe(tmp_path / "first", files, max_steps=2))
    folder = train(small_run.recipe(tmp_path / "run", files, tokenizer=str(first)))
    other = small_run.recipe(tmp_path / "other", files, max_steps=1, model={"vocab_size": 280})
    shutil.copy(train(other) / "tokenizer.json", first / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer \(290 entries, \w+, now 280 entries, \w+\)"):
        train(small_run.recipe(folder, files, tokenizer=str(first), **LONGER))


def test_a_checkpoint_of_another_config_is_refused_by_field(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    state = folder / "checkpoint-6" / "training_state.json"
    edit(state, '"encoder_ffn_dim": 32', '"encoder_ffn_dim": 37')
    with pytest.raises(ValueError, match=r"made with other encoder_ffn_dim \(37, now 32\)"):
        train(small_run.recipe(folder, corpus_files, **LONGER))


def test_a_run_of_the_time_before_checkpoints_held_facts_goes_on(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    for checkpoint in all_checkpoints(folder):
        path = checkpoint / "training_state.json"
        state = json.loads(path.read_text())
        counts = {"target_tokens": state["counts"]["target_tokens"]}
        path.write_text(json.dumps({"step": state["step"], "seconds": 5.0, **counts}))
        entries = {}
        for name, tensor in load_file(checkpoint / "optimizer.safetensors").items():
            entries.setdefault(int(name.split(".")[0]), {})[name.split(".")[1]] = tensor
        old = {"state": entries, "param_groups": state["optimizer"]}
        torch.save(old, checkpoint / "optimizer.bin")
        (checkpoint / "optimizer.safetensors").unlink()
    train(small_run.recipe(folder, corpus_files, **LONGER))
    assert all_checkpoints(folder)[-1].name == "checkpoint-8"
    whole = train(small_run.recipe(tmp_path / "whole", corpus_files, **LONGER))
    first, second = (small_run.weights(run / "checkpoint-8") for run in (folder, whole))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_made_by_other_free_options_goes_on(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    other = {"gradient_checkpointing": True, "logging_steps": 1, "trackers": None}
    train(small_run.recipe(folder, corpus_files, **LONGER, **other))


# --- leftovers of a kill -----------------------------------------------------------------------


def test_a_run_killed_before_its_first_file_was_whole_begins_anew(corpus_files, tmp_path):
    (tmp_path / "run" / "files.partial").mkdir(parents=True)
    (tmp_path / "run" / "files.partial" / "recipe.yaml").write_text("max_st")
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    assert not list(folder.glob("*.partial"))


def without_step(folder, files):
    """The folder of a run that ends before its first step, by a misspelled option."""
    with pytest.raises(ValueError, match="learning_rate_of='backbne': no trained weight"):
        train(small_run.recipe(folder, files, learning_rate_of={"backbne": 1e-5}))


def test_another_recipe_replaces_a_run_without_a_step(corpus_files, tmp_path):
    without_step(tmp_path / "run", corpus_files)
    assert len(load_saved(AutoTokenizer, tmp_path / "run")) == 290
    (tmp_path / "run" / "files.partial").mkdir()
    (tmp_path / "run" / "trackers").mkdir()
    (tmp_path / "run" / "trackers" / "events.0").touch()  # before a first step that failed
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, model={"vocab_size": 280}))
    assert not (folder / "trackers" / "events.0").exists()
    assert len(load_saved(AutoTokenizer, folder)) == 280
    assert read_recipe(["--recipe", str(folder / "recipe.yaml")]).train.learning_rate_of == {}


@pytest.mark.parametrize("name", ["checkpoint-2", "log.jsonl", "model.safetensors", "tokens.txt"])
def test_a_run_that_began_is_not_replaced(corpus_files, tmp_path, name):
    without_step(tmp_path / "run", corpus_files)
    (tmp_path / "run" / name).touch()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(
        ValueError, match=r"another recipe, which differs in learning_rate_of\.\w+ \("
    ):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_recipe_that_somebody_put_there_is_not_replaced(corpus_files, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 3  # as Ada had it\n", encoding="utf-8")
    with pytest.raises(ValueError, match="another recipe, which differs in"):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    assert "Ada" in (tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")


# --- early errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"patience": 2}, {"average_best": True, "eval_steps": 2}])
def test_what_needs_a_validation_set_is_refused_without_one(corpus_files, tmp_path, option):
    files = {name: corpus_files[name] for name in ("train_source", "train_target")}
    with pytest.raises(ValueError, match="need validation files"):
        small_run.recipe(tmp_path / "run", files, **option)


def test_an_output_dir_that_is_a_file_is_refused_before_data_is_read(corpus_files, tmp_path):
    files = {**corpus_files, "train_source": "nowhere.en"}
    (tmp_path / "train.en").write_text("text")
    with pytest.raises(ValueError, match=r"output_dir=.*train.en is a file: choose another folder"):
        train(small_run.recipe(tmp_path / "train.en", files))
    assert [path.name for path in tmp_path.glob("train.en*")] == ["train.en"]
