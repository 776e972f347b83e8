"""Seq2SeqTrainer as it is, with our rows, collator and loss: it learns, and it harms nothing."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
import yaml
from huggingface_hub import ModelCard, RepoUrl
from transformers import EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_vanilla.data.batching import PairCollator
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.options import parse_options
from hf_vanilla.text import finetuning as translation_finetuning
from hf_vanilla.text.encoding import LengthLimits, encode_pairs
from hf_vanilla.text.finetuning import (
    FinetuneOptions,
    bleu_metrics,
    finetune,
    given_options,
)
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import translate

# what a plain model folder on disk says after a run must be what it said before
DECODING = ("num_beams", "length_penalty", "length_penalty_form", "max_tokens_beyond_source")


@pytest.fixture
def base(trained_run, tmp_path):
    """A model folder without its history."""
    folder = tmp_path / "base"
    shutil.copytree(trained_run, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
    return folder


@pytest.fixture
def options(base, corpus_files):
    return FinetuneOptions(model=str(base), **corpus_files, max_length=40)


@pytest.fixture
def arguments(tmp_path):
    def with_changes(**changes):
        default = {
            "output_dir": str(tmp_path / "tuned"),
            "use_cpu": True,
            "report_to": "none",
            "max_steps": 3,
            "per_device_train_batch_size": 7,
            "per_device_eval_batch_size": 5,
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
        }
        return Seq2SeqTrainingArguments(**{**default, **changes})

    return with_changes


def test_a_run_with_evaluation_harms_neither_decoding_nor_cache(options, arguments, base):
    told = {"predict_with_generate": True, "eval_strategy": "steps", "eval_steps": 1}
    folder = finetune(options, arguments(**told, save_strategy="steps", save_steps=3))
    before, after, checkpoint = (
        json.loads((path / "generation_config.json").read_text())
        for path in (base, folder, folder / "checkpoint-3")
    )
    assert before["length_penalty_form"] == "gnmt"
    for saved in (after, checkpoint):
        assert {name: saved.get(name) for name in DECODING} == {n: before[n] for n in DECODING}
        assert saved.get("max_length") is None
    assert json.loads((folder / "config.json").read_text())["use_cache"] is True


def test_the_result_loads_and_translates(options, arguments):
    model, tokenizer = load_translator(str(finetune(options, arguments())))
    translations = translate(model, tokenizer, ["one two", "", "three"])
    assert len(translations) == 3
    assert translations[1] == ""


def test_small_steps_move_the_weights_of_a_model_that_was_saved_in_bfloat16(
    options, arguments, base
):
    load_translator(str(base), dtype="float32")[0].bfloat16().save_pretrained(base)
    before = small_run.weights(base)
    after = small_run.weights(finetune(options, arguments(learning_rate=1e-5)))
    assert before.keys() == after.keys()
    moved = [(before[name].float() != after[name]).float().mean() for name in before]
    assert min(moved) > 0.5  # in bfloat16 a weight of 0.1 moves by steps of 2 ** -11 or not at all
    assert {weight.dtype for weight in after.values()} == {torch.float32}


def test_evaluation_translates_as_the_model_would_alone(options, arguments, monkeypatch):
    seen, measure = [], bleu_metrics

    def noting(tokenizer):
        compute = measure(tokenizer)
        return lambda prediction: seen.append(prediction.predictions) or compute(prediction)

    monkeypatch.setattr(translation_finetuning, "bleu_metrics", noting)
    told = {"predict_with_generate": True, "eval_strategy": "steps", "eval_steps": 3}
    folder = finetune(options, arguments(**told))
    model, tokenizer = load_translator(str(folder))
    ids = np.where(seen[-1] < 0, tokenizer.pad_token_id, seen[-1])
    sources = [source for source, _ in small_run.digit_pairs()[small_run.TRAIN :]]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == translate(
        model, tokenizer, sources
    )


def test_the_loss_goes_down_on_a_set_small_enough_to_know_by_heart(
    base, corpus_files, arguments, monkeypatch
):
    losses, log = [], Seq2SeqTrainer.log

    def noting(self, logs, *args, **kwargs):
        losses.extend([logs["loss"]] if "loss" in logs else [])
        return log(self, logs, *args, **kwargs)

    monkeypatch.setattr(Seq2SeqTrainer, "log", noting)
    # the other direction, of which the model knows nothing yet
    german, english = corpus_files["train_source"], corpus_files["train_target"]
    options = FinetuneOptions(model=str(base), train_source=english, train_target=german)
    told = {"max_steps": 23, "learning_rate": 5e-3, "per_device_train_batch_size": 61}
    finetune(options, arguments(**told))
    assert len(losses) == 23
    assert losses[-1] < 0.7 * losses[0]


def test_evaluation_does_not_cut_translations_at_a_length_of_its_own(
    base, corpus_files, arguments, tmp_path, monkeypatch
):
    long = " ".join(["seven six five four"] * 3)
    (tmp_path / "long").write_text(long + "\n")
    held_out = {"validation_source": str(tmp_path / "long")}
    held_out["validation_target"] = held_out["validation_source"]
    seen, measure = [], bleu_metrics

    def noting(tokenizer):
        compute = measure(tokenizer)
        return lambda prediction: seen.append(prediction.predictions) or compute(prediction)

    monkeypatch.setattr(translation_finetuning, "bleu_metrics", noting)
    # the end is forbidden, so only a limit can end a translation
    model, tokenizer = load_translator(str(base))
    model.generation_config.suppress_tokens = [model.config.eos_token_id]
    model.save_pretrained(base)
    told = {"predict_with_generate": True, "eval_strategy": "steps", "eval_steps": 3}
    options = FinetuneOptions(model=str(base), **{**corpus_files, **held_out})
    finetune(options, arguments(**told))
    paper = len(tokenizer(long).input_ids) + 50
    assert (seen[-1] >= 0).sum() >= paper


def test_a_run_goes_on_after_an_interruption_when_it_is_told_to(
    options, arguments, tmp_path, monkeypatch
):
    told = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}
    undisturbed = small_run.weights(
        finetune(options, arguments(output_dir=str(tmp_path / "whole"), **told))
    )
    step = Seq2SeqTrainer.training_step
    with monkeypatch.context() as patch:
        calls = []

        def interrupted(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return step(self, *args, **kwargs)

        patch.setattr(Seq2SeqTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune(options, arguments(**told))
    with pytest.raises(ValueError, match="add --resume_from_checkpoint True"):
        finetune(options, arguments(**told))
    going_on = arguments(resume_from_checkpoint="True", **told)
    resumed = small_run.weights(finetune(options, going_on))
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.parametrize("passes", [2, 8])
def test_accumulated_passes_train_as_one_batch_does(base, corpus_files, arguments, passes):
    _, tokenizer = load_translator(str(base))
    pairs = pairs_from_files(corpus_files["train_source"], corpus_files["train_target"])
    rows = encode_pairs(pairs, tokenizer, LengthLimits(40)).rows.select(range(32))
    results = []
    for batch, accumulated in ((8, 1), (8 // passes, passes)):
        model, _ = load_translator(str(base))
        model.config.dropout = 0.0
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        told = {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated,
            "train_sampling_strategy": "sequential",
            "optim": "sgd",
            "learning_rate": 0.1,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
        }
        trainer = Seq2SeqTrainer(
            model=model,
            args=arguments(**told),
            train_dataset=rows,
            data_collator=PairCollator(tokenizer.pad_token_id),
        )
        trainer.train()
        results.append({name: weight.detach() for name, weight in model.named_parameters()})
    for name, weight in results[0].items():
        # plain gradient descent keeps float32 rounding small
        torch.testing.assert_close(results[1][name], weight, rtol=1e-5, atol=1e-6)


def test_padding_of_every_kind_is_gone_before_scoring(trained):
    _, tokenizer = trained
    texts, references = ["eins zwei", "drei"], ["eins zwei", "vier"]
    predictions = tokenizer(texts, padding=True, return_tensors="np").input_ids
    labels = tokenizer(references, padding=True, return_tensors="np").input_ids
    labels[labels == tokenizer.pad_token_id] = -100
    filled = np.full((2, predictions.shape[1] + 3), -100)
    filled[:, : predictions.shape[1]] = predictions
    found = bleu_metrics(tokenizer)(EvalPrediction(predictions=filled, label_ids=labels))
    expected = score_translations(texts, references)
    assert found == {"bleu": expected.bleu, "chrf": expected.chrf, "exact_match": 50.0}


@pytest.mark.parametrize("given", ["validation_source", "validation_target"])
def test_half_a_validation_set_is_refused(given):
    with pytest.raises(ValueError, match="give both validation_source and validation_target"):
        FinetuneOptions(model="m", train_source="a", train_target="b", **{given: "c"})


def test_the_card_states_what_was_done_and_how_good_it_is(options, arguments, corpus_files, base):
    told = {"source_language": "en", "target_language": "de", "model_license": "mit"}
    folder = finetune(replace(options, **told), arguments(learning_rate=0.003))
    card = ModelCard.load(folder / "README.md")
    assert (card.data.language, card.data.license) == (["en", "de"], "mit")
    model, tokenizer = load_translator(str(folder))
    pairs = pairs_from_files(corpus_files["validation_source"], corpus_files["validation_target"])
    scores = score_translations(translate(model, tokenizer, pairs["source"][:]), pairs["target"][:])
    assert card.data.eval_results[0].metric_value == round(scores.bleu, 2)
    (written,) = re.findall(r"```yaml\n(.*?)```", card.text, re.DOTALL)
    recipe = yaml.safe_load(written)
    assert recipe["learning_rate"] == 0.003
    files = ("model", "train_source", "train_target", "validation_source", "validation_target")
    for name in files:  # a card names no folder of this machine
        assert recipe.pop(name) == Path(getattr(options, name)).name
    assert set(recipe) == {
        *("max_length", "source_language", "target_language", "model_license"),
        *("use_cpu", "max_steps", "per_device_train_batch_size", "per_device_eval_batch_size"),
        *("save_strategy", "logging_steps", "learning_rate"),
    }
    again = [f"--{name}={value}" for name, value in recipe.items()]
    again += [f"--{name}={getattr(options, name)}" for name in files]
    told_again, _ = parse_options(
        [FinetuneOptions, Seq2SeqTrainingArguments], [*again, "--output_dir", "again"]
    )
    assert told_again == replace(options, **told)
    assert "Fine-tuned from base: 3 steps" in card.text
    assert str(base.parent) not in str(card)
    assert "hf-vanilla finetune" in card.text
    assert "${" not in card.text


def test_languages_are_those_of_the_card_before_and_scores_are_told(
    options, arguments, base, caplog
):
    card = ModelCard.load(base / "README.md")
    text = str(card).replace("- Translates: en to de", "- Translates: sv to fi")
    (base / "README.md").write_text(text, encoding="utf-8")
    with caplog.at_level("INFO"):
        folder = finetune(options, arguments())
    card = ModelCard.load(folder / "README.md")
    assert card.data.language == ["sv", "fi"]
    assert "- Translates: sv to fi" in card.text
    nll, bleu = (re.search(rf"{name}\D*([\d.]+)", caplog.text)[1] for name in ("NLL", "BLEU"))
    assert nll in card.text
    assert f"BLEU {bleu}" in card.text


def test_a_language_alone_is_refused():
    with pytest.raises(ValueError, match="give both source_language and target_language"):
        FinetuneOptions(model="m", train_source="a", train_target="b", source_language="en")


def test_smoothing_twice_is_refused(options, arguments):
    with pytest.raises(
        ValueError, match=r"label_smoothing_factor=0\.1: the model smooths by itself"
    ):
        finetune(options, arguments(label_smoothing_factor=0.1))


def test_a_folder_without_a_model_is_refused(arguments, corpus_files, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=re.escape("has no config.json")):
        finetune(FinetuneOptions(model=str(tmp_path / "none"), **corpus_files), arguments())


# --- what the card says was given ----------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data_seed": 7, "save_total_limit": 2},  # None unless given
        {"eval_strategy": "steps"},  # sets eval_steps and do_eval by itself
        {"eval_strategy": "steps", "eval_steps": 3},
        {"lr_scheduler_type": "cosine", "optim": "sgd"},
        {"activation_checkpointing": True},
        {"metric_for_best_model": "bleu"},  # sets greater_is_better by itself
    ],
    ids=str,
)
def test_the_given_options_are_those_and_no_others(given, options, arguments):
    usual = given_options(options, arguments())
    found = given_options(options, arguments(**given))
    assert {name: value for name, value in found.items() if name not in usual} == given


def test_a_token_budget_adds_no_option_that_nobody_gave(options, arguments):
    told = arguments(per_device_train_batch_size=8)
    folder = finetune(replace(options, tokens_per_batch=120), told)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "tokens_per_batch: 120" in text
    assert "train_sampling_strategy" not in text
    assert told.per_device_train_batch_size == 8  # the caller's arguments are left alone


def test_the_card_names_the_step_of_the_weights_that_were_loaded(options, arguments):
    told = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    told |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    # a first step that does no harm, then ever larger ones in a wrong direction
    rising = {"learning_rate": 0.5, "warmup_steps": 3}
    folder = finetune(options, arguments(**told, **rising))
    state = json.loads((folder / "checkpoint-3" / "trainer_state.json").read_text())
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert state["best_global_step"] < 3
    assert f"the weights of step {state['best_global_step']}, the best by eval_loss" in text


# --- pushing -------------------------------------------------------------------------------------


def test_a_result_is_pushed_in_one_commit_with_card_and_code(
    options, arguments, monkeypatch, tmp_path
):
    commits = []

    def commit(repo_id, operations, **_):
        commits.append((repo_id, {operation.path_in_repo for operation in operations}))

    repository = RepoUrl("https://hub/me/tuned", endpoint="https://hub")
    monkeypatch.setattr("hf_vanilla.hub.push.create_repo", lambda *_, **__: repository)
    monkeypatch.setattr("hf_vanilla.hub.push.create_commit", commit)
    monkeypatch.setattr(Seq2SeqTrainer, "push_to_hub", lambda *_, **__: 1 / 0)  # its own card
    monkeypatch.setattr(Seq2SeqTrainer, "init_hf_repo", lambda *_, **__: None)
    monkeypatch.setattr(Seq2SeqTrainer, "hub_model_id", "me/tuned", raising=False)
    finetune(options, arguments(push_to_hub=True, hub_strategy="end"))
    ((repo_id, files),) = commits
    assert repo_id == "me/tuned"
    assert {"README.md", "model.safetensors", "tokenizer.json", "modeling_vanilla.py"} <= files
    assert "training_args.bin" not in files  # a pickle


# --- bad input -----------------------------------------------------------------------------------


def test_a_folder_in_place_of_a_text_file_is_refused(options, arguments, tmp_path):
    with pytest.raises(ValueError, match=r"train_target=.* is a folder: give a text file"):
        finetune(replace(options, train_target=str(tmp_path)), arguments())


@pytest.mark.parametrize("part", ["train", "validation"])
def test_files_of_which_every_pair_is_dropped_are_refused(options, arguments, tmp_path, part):
    (tmp_path / "blank").write_text("\n\n")
    files = {f"{part}_{side}": str(tmp_path / "blank") for side in ("source", "target")}
    with pytest.raises(
        ValueError, match=r"blank and .*blank: no sentence pair to use: of 2, 2 with an"
    ):
        finetune(replace(options, **files), arguments())
