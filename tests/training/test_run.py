"""The loop: what it writes, that it goes on as if never interrupted, and what it refuses."""

import json
import math
import os
import signal
from itertools import islice

import pytest
import small_run
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.text import task as translation
from hf_vanilla.training import run as training
from hf_vanilla.training import validation
from hf_vanilla.training.checkpointing import all_checkpoints
from hf_vanilla.training.metrics_log import Progress
from hf_vanilla.training.preparation import prepare_run
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.task import Validation
from hf_vanilla.training.train_step import MicroBatch, training_steps
from hf_vanilla.training.validation import compare

NO_DROPOUT = {"dropout": 0.0, "label_smoothing": 0.0}


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_same_weights(first, second, **tolerance):
    first, second = small_run.weights(first), small_run.weights(second)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance)


EXACTLY = {"rtol": 0, "atol": 0}


# --- the folder --------------------------------------------------------------------------------


def test_a_run_leaves_a_whole_model_folder_and_its_history(trained_run):
    written = {path.name for path in trained_run.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "recipe.yaml",
        "log.jsonl",
        "checkpoint-400",
    } <= written
    assert not [name for name in written if name.endswith(".partial")]


def test_the_folder_loads_by_the_auto_classes_and_has_learned(trained_run, corpus_files):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained_run).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained_run)
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.model_max_length == small_run.MODEL["max_position_embeddings"]
    pairs = small_run.digit_pairs()[:9]
    batch = tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert texts == [target for _, target in pairs]


def test_the_saved_decoding_is_the_recipes(corpus_files, tmp_path):
    decoding = {"num_beams": 3, "length_penalty": 0.9}
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, decoding=decoding))
    saved = json.loads((folder / "generation_config.json").read_text())
    assert (saved["num_beams"], saved["length_penalty"]) == (3, 0.9)
    assert (saved["length_penalty_form"], saved["max_tokens_beyond_source"]) == ("gnmt", 50)
    assert "max_length" not in saved


def test_a_recipe_may_decode_greedily(corpus_files, tmp_path):
    greedy = {"decoding": {"num_beams": 1}, "eval_sentences": 3}
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, **greedy))
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config.num_beams in (1, None)


def test_the_recipe_lies_in_the_folder_and_can_be_run_again(corpus_files, tmp_path):
    recipe = small_run.recipe(tmp_path / "run", corpus_files)
    folder = train(recipe)
    again = read_recipe(
        ["--recipe", str(folder / "recipe.yaml"), "--output_dir", str(tmp_path / "again")]
    )
    assert_same_weights(train(again), folder, **EXACTLY)


def test_the_log_tells_loss_rate_and_tokens_by_step(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, eval_steps=4))
    entries = log_of(folder)
    assert [e["step"] for e in entries if "loss" in e] == [2, 4, 6]
    assert [e["step"] for e in entries if "validation_nll" in e] == [4, 6, 6, 6]
    models = [e["model"] for e in entries if "model" in e]  # at the end; checkpoint 6 is the best
    assert sorted(models) == ["checkpoint 6", "mean of checkpoints 2, 4, 6"]
    tokens = [e["target_tokens"] for e in entries if "loss" in e]
    assert tokens == sorted(tokens)
    assert tokens[-1] <= 6 * small_run.TRAINING["tokens_per_step"]


def test_a_run_that_is_told_no_rate_takes_the_papers(corpus_files, tmp_path):
    options = {"learning_rate": None, "warmup_steps": 3, "logging_steps": 1, "max_steps": 5}
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, **options))
    rates = {e["step"]: e["learning_rate"] for e in log_of(folder) if "loss" in e}
    d_model = small_run.MODEL["d_model"]
    paper = {n: d_model**-0.5 * min(n**-0.5, n * 3**-1.5) for n in range(1, 6)}
    assert rates == pytest.approx(paper)


def test_the_log_counts_every_target_token_once(corpus_files, tmp_path):
    recipe = small_run.recipe(tmp_path / "run", corpus_files)
    steps = islice(training_steps(prepare_run(recipe), 0), 6)
    batches = [part.batch for _, parts in steps for part in parts]
    real = sum(int((batch["labels"] >= 0).sum()) for batch in batches)
    train(recipe)
    counted = [e["target_tokens"] for e in log_of(tmp_path / "run") if "loss" in e]
    assert counted[-1] == real


def test_the_loss_goes_down(trained_run):
    losses = [entry["loss"] for entry in log_of(trained_run) if "loss" in entry]
    assert losses[0] > math.log(250)  # near the logarithm of the vocabulary, as nothing is known
    assert losses[-1] < losses[0] / 3


# --- validation --------------------------------------------------------------------------------


def test_validation_does_not_change_the_run(corpus_files, tmp_path):
    often = {"eval_steps": 1, "eval_sentences": 3}
    folders = [
        train(small_run.recipe(tmp_path / name, corpus_files, **options))
        for name, options in (("often", often), ("once", {}))
    ]
    assert_same_weights(*folders, **EXACTLY)


def test_validation_scores_as_many_sentences_as_asked_and_all_at_the_end(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, eval_sentences=2))
    validations = [e for e in log_of(folder) if "validation_nll" in e]
    assert all("bleu" in e for e in validations)
    pairs = small_run.digit_pairs()[small_run.TRAIN :]
    for entry in validations:
        count = 3 if entry["averaged_checkpoints"] else 2
        shown = [(sample["source"], sample["reference"]) for sample in entry["samples"]]
        assert shown == pairs[:count]
        assert all(isinstance(sample["translation"], str) for sample in entry["samples"])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"of {small_run.VALIDATION} sentences" in card


def test_a_run_without_validation_files_needs_none(corpus_files, tmp_path):
    files = {name: corpus_files[name] for name in ("train_source", "train_target")}
    folder = train(small_run.recipe(tmp_path / "run", files))
    assert not [entry for entry in log_of(folder) if "validation_nll" in entry]
    assert "not measured" in (folder / "README.md").read_text(encoding="utf-8")


# --- averaging ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_saved_model_is_the_mean_of_the_last_checkpoints(corpus_files, tmp_path, count):
    # without a validation set nobody knows a better one
    files = {name: corpus_files[name] for name in ("train_source", "train_target")}
    recipe = small_run.recipe(tmp_path / "run", files, max_steps=7, average_checkpoints=count)
    folder = train(recipe)
    names = ["checkpoint-7", "checkpoint-6", "checkpoint-4"][:count]
    parts = [small_run.weights(folder / name) for name in names]
    saved = small_run.weights(folder)
    assert saved.keys() == parts[0].keys()
    for name, weight in saved.items():
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        # one rounding to float32 of a sum of at most three
        torch.testing.assert_close(weight.double(), mean, rtol=1e-6, atol=1e-8)


# --- interrupted -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(corpus_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(small_run.recipe(folder, corpus_files, max_steps=11, tokens_per_batch=120))


@pytest.mark.parametrize("after", [1, 2, 5, 10])
def test_an_interrupted_run_goes_on_to_the_very_same_weights(
    corpus_files, tmp_path, monkeypatch, undisturbed, after
):
    options = {"max_steps": 11, "tokens_per_batch": 120}  # two passes a step, epochs of several
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **options)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=after)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    torch.rand(after)  # whatever happened to the generator meanwhile
    folder = train(recipe)
    assert_same_weights(folder, undisturbed, **EXACTLY)
    assert_same_weights(folder / "checkpoint-11", undisturbed / "checkpoint-11", **EXACTLY)
    assert [p.name for p in all_checkpoints(folder)] == [
        p.name for p in all_checkpoints(undisturbed)
    ]


def test_sigterm_saves_a_checkpoint_after_the_step_and_changes_nothing_in_the_end(
    corpus_files, tmp_path, monkeypatch, undisturbed
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, max_steps=11, tokens_per_batch=120)
    counting = training.sum_counts

    def terminated(run, micro_batches):
        if micro_batches[0].number // run.per_step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return counting(run, micro_batches)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(training, "sum_counts", terminated)
        with pytest.raises(SystemExit) as stopped:
            train(recipe)
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert all_checkpoints(tmp_path / "run")[-1].name == "checkpoint-9"  # save_steps is 2
    folder = train(recipe)
    # checkpoint 9 is not one of those that are averaged
    assert_same_weights(folder, undisturbed, **EXACTLY)
    assert not (folder / "checkpoint-9").exists()


def test_a_resumed_run_counts_tokens_as_an_undisturbed_one(
    corpus_files, tmp_path, monkeypatch, undisturbed
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, max_steps=11, tokens_per_batch=120)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=7)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    state = [
        json.loads((folder / "checkpoint-11" / "training_state.json").read_text())
        for folder in (train(recipe), undisturbed)
    ]
    assert state[0]["counts"] == state[1]["counts"]
    assert state[0]["step"] == 11


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(corpus_files, tmp_path, undisturbed):
    files = {"files": corpus_files, "tokens_per_batch": 120}
    train(small_run.recipe(tmp_path / "run", max_steps=5, **files))
    folder = train(small_run.recipe(tmp_path / "run", max_steps=11, **files))
    assert_same_weights(folder / "checkpoint-11", undisturbed / "checkpoint-11", **EXACTLY)


def test_a_finished_run_is_not_trained_again(corpus_files, tmp_path, monkeypatch):
    recipe = small_run.recipe(tmp_path / "run", corpus_files)
    before = small_run.weights(train(recipe))
    small_run.interrupt(monkeypatch, after=6)  # one more step would raise
    after = small_run.weights(train(recipe))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_checkpoint_cut_off_while_written_is_not_resumed_from(
    corpus_files, tmp_path, monkeypatch, undisturbed
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, max_steps=11, tokens_per_batch=120)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    (tmp_path / "run" / "checkpoint-4").rename(tmp_path / "run" / "checkpoint-4.partial")
    assert_same_weights(train(recipe), undisturbed, **EXACTLY)
    assert not list((tmp_path / "run").glob("*.partial"))


# --- refused -----------------------------------------------------------------------------------


def test_a_run_of_another_recipe_is_refused_with_the_difference(corpus_files, tmp_path):
    train(small_run.recipe(tmp_path / "run", corpus_files))
    with pytest.raises(ValueError, match=r"seed \(0, now 5\)") as caught:
        train(small_run.recipe(tmp_path / "run", corpus_files, seed=5))
    assert "another output_dir" in str(caught.value)


@pytest.mark.parametrize(
    "section", [{"model": {"d_model": 18}}, {"model": {"dropout": 0.3}}], ids=str
)
def test_a_run_of_another_model_is_refused(corpus_files, tmp_path, section):
    before = small_run.weights(train(small_run.recipe(tmp_path / "run", corpus_files)))
    (name,) = section["model"]
    with pytest.raises(ValueError, match=rf"differ.* model\.{name} \([^()]*\)[^()]*$"):
        train(small_run.recipe(tmp_path / "run", corpus_files, **section))
    after = small_run.weights(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(corpus_files, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_loss_that_is_no_number_stops_with_a_remedy_and_a_whole_checkpoint(
    corpus_files, tmp_path, monkeypatch
):
    add = training.Gradients.add

    def breaking(gradients, micro_batch, totals, *, is_logged):
        losses = add(gradients, micro_batch, totals, is_logged=is_logged)
        is_fifth = micro_batch.number // gradients._run.per_step == 4
        return losses | {"loss": losses["loss"] * (math.nan if is_fifth else 1)}

    monkeypatch.setattr(training.Gradients, "add", breaking)
    with pytest.raises(ValueError, match=r"the loss is nan at step 5, .*lower learning_rate"):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    folders = all_checkpoints(tmp_path / "run")
    assert [folder.name for folder in folders] == ["checkpoint-2", "checkpoint-4"]
    assert all(weight.isfinite().all() for weight in small_run.weights(folders[-1]).values())


def test_a_step_smaller_than_a_sentence_is_refused_by_the_options_name(corpus_files, tmp_path):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, tokens_per_step=9)
    with pytest.raises(ValueError, match="tokens_per_step=9"):
        train(recipe)


def test_a_missing_file_is_named_and_the_corrected_command_runs(corpus_files, tmp_path):
    files = {**corpus_files, "train_target": str(tmp_path / "nowhere")}
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        train(small_run.recipe(tmp_path / "run", files))
    train(small_run.recipe(tmp_path / "run", corpus_files))


# --- many passes, one step ---------------------------------------------------------------------


@pytest.fixture
def gradients(monkeypatch):
    """The gradients of every update, as the optimizer gets them."""
    seen, step = [], torch.optim.Adam.step

    def noting(self, *args, **kwargs):
        seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", noting)
    return seen


def test_one_step_in_four_unequal_passes_has_the_gradient_of_one_pass(
    corpus_files, tmp_path, gradients, monkeypatch
):
    budget = {"max_steps": 1, "tokens_per_step": 480, "tokens_per_batch": 480}
    once = {"logging_steps": 1, "average_checkpoints": 1}
    losses = []
    for passes in (1, 4):
        folder = tmp_path / str(passes)
        recipe = small_run.recipe(folder, corpus_files, model=NO_DROPOUT, **budget, **once)
        ((step, (whole,)),) = islice(training_steps(prepare_run(recipe), 0), 1)
        rows = torch.arange(len(whole.batch["labels"]))
        # parts of unequal size: a mean of means would differ
        parts = [
            MicroBatch(i, {name: ids[part] for name, ids in whole.batch.items()}, i == passes - 1)
            for i, part in enumerate(rows.tensor_split([1, 3, 8][: passes - 1]))
        ]
        with monkeypatch.context() as patch:
            patch.setattr(
                training, "training_steps", lambda *_, s=(step, parts): (one for one in [s])
            )
            losses.append(log_of(train(recipe))[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    for of_one, of_four in zip(*gradients, strict=True):
        # float32 sums in another order
        torch.testing.assert_close(of_four, of_one, rtol=1e-4, atol=1e-7)


def test_the_gradient_can_be_held_to_a_norm(corpus_files, tmp_path, gradients):
    train(small_run.recipe(tmp_path / "run", corpus_files, max_grad_norm=0.05, max_steps=3))
    norms = [torch.cat([g.flatten() for g in step]).norm().item() for step in gradients]
    # clipping divides by the norm plus 1e-6
    assert norms == pytest.approx([0.05] * 3, rel=1e-3)


def test_a_seed_gives_the_same_weights_again_and_another_seed_others(corpus_files, tmp_path):
    folders = [
        train(small_run.recipe(tmp_path / name, corpus_files, seed=seed))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert_same_weights(folders[0], folders[1], **EXACTLY)
    first, other = (small_run.weights(folder) for folder in folders[::2])
    assert not torch.equal(first["model.shared.weight"], other["model.shared.weight"])


def test_a_tokenizer_of_an_earlier_run_can_be_used(corpus_files, trained_run, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, tokenizer=str(trained_run)))
    vocabularies = [AutoTokenizer.from_pretrained(f).get_vocab() for f in (folder, trained_run)]
    assert vocabularies[0] == vocabularies[1]


# --- the best, and enough ----------------------------------------------------------------------


def scripted(monkeypatch, nlls):
    """Validation that finds these values, one after the other, whatever the weights are."""
    values = iter(nlls)

    def measured(run, model, *, is_final=False):
        return Validation({"nll": 0.0 if is_final else next(values)})

    monkeypatch.setattr(validation, "measure", measured)


def test_the_best_checkpoints_are_averaged_and_kept_with_the_newest(
    corpus_files, tmp_path, monkeypatch
):
    scripted(monkeypatch, [5.0, 2.0, 4.0, 1.0, 3.0, 6.0])
    options = {"average_best": True, "average_checkpoints": 3, "save_total_limit": 3}
    options |= {"eval_steps": 1, "save_steps": 1}
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, **options))
    kept = [path.name for path in all_checkpoints(folder)]
    assert kept == [f"checkpoint-{n}" for n in (2, 4, 5, 6)]
    parts = [small_run.weights(folder / f"checkpoint-{n}") for n in (2, 4, 5)]
    for name, weight in small_run.weights(folder).items():
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        # one rounding to float32 of a sum of three
        torch.testing.assert_close(weight.double(), mean, rtol=1e-6, atol=1e-8)


def test_a_run_ends_when_validation_has_not_improved_for_long_enough(
    corpus_files, tmp_path, monkeypatch
):
    scripted(monkeypatch, [5.0, 4.0, 4.0, 3.5, 3.6, 3.7, 1.0, 1.0])
    options = {"patience": 2, "eval_steps": 1, "max_steps": 8, "save_steps": 4}
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **options)
    folder = train(recipe)
    assert [path.name for path in all_checkpoints(folder)] == ["checkpoint-4", "checkpoint-6"]
    small_run.interrupt(monkeypatch, after=6)  # one more step would raise
    train(recipe)


def test_patience_outlasts_an_interruption(corpus_files, tmp_path, monkeypatch):
    scripted(monkeypatch, [5.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    options = {"patience": 4, "eval_steps": 1, "max_steps": 8, "save_steps": 1}
    recipe = small_run.recipe(tmp_path / "run", corpus_files, **options)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=4)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    assert all_checkpoints(train(recipe))[-1].name == "checkpoint-6"


def test_a_higher_bleu_is_the_better_one(corpus_files, tmp_path):
    options = {"best_by": "bleu", "eval_sentences": 3, "patience": 1, "eval_steps": 1}
    run = prepare_run(small_run.recipe(tmp_path / "run", corpus_files, **options))
    progress = Progress()
    for value, best, stale in ((10.0, 10.0, 0), (12.0, 12.0, 0), (11.0, 12.0, 1)):
        compare(run, progress, value)
        assert (progress.best, progress.stale) == (best, stale)


@pytest.mark.parametrize(
    ("last", "best", "mean", "delivered"),
    [
        (3.0, 2.0, 1.0, "mean of checkpoints 4, 5, 6"),
        (3.0, 2.0, 2.5, "checkpoint 2"),
        (1.0, 2.0, 2.5, "checkpoint 6"),
        (2.0, 2.0, 2.0, "mean of checkpoints 4, 5, 6"),
        (math.nan, 2.0, math.nan, "checkpoint 2"),
    ],
)
def test_the_finished_model_is_the_best_of_mean_best_checkpoint_and_last(
    corpus_files, tmp_path, monkeypatch, caplog, last, best, mean, delivered
):
    # checkpoint 2 is the best of those in training; then come the candidates
    values = iter([5.0, 1.5, 4.0, 4.0, 4.0, 4.0, last, best, mean])
    monkeypatch.setattr(translation, "validation_nll", lambda *_, **__: next(values))
    recipe = small_run.recipe(tmp_path / "run", corpus_files, eval_steps=1, save_steps=1)
    with caplog.at_level("INFO", logger="hf_vanilla"):
        folder = train(recipe)
    assert f"wrote {delivered} to {folder}, in float32: the best by validation NLL (" in caplog.text
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"| finished model | {delivered} |\n| computed in | float32 |" in card
    assert log_of(folder)[-1]["model"] == delivered
    steps = delivered.split("checkpoint")[1].lstrip("s").split(",")
    parts = [small_run.weights(folder / f"checkpoint-{int(step)}") for step in steps]
    for name, weight in small_run.weights(folder).items():
        torch.testing.assert_close(weight, torch.stack([part[name] for part in parts]).mean(0))


def test_without_translations_the_nll_chooses_the_finished_model(corpus_files, tmp_path, caplog):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, best_by="bleu", eval_sentences=0)
    with caplog.at_level("INFO", logger="hf_vanilla"):
        folder = train(recipe)
    assert "in float32: the best by validation NLL (" in caplog.text
    assert (folder / "model.safetensors").is_file()


# --- told once ---------------------------------------------------------------------------------


def test_a_resumed_run_tells_every_step_once(corpus_files, tmp_path, monkeypatch):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, logging_steps=1, save_steps=4)
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    steps = [entry["step"] for entry in log_of(train(recipe)) if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_what_a_step_consists_of_is_told(corpus_files, tmp_path, caplog):
    with caplog.at_level("INFO", logger="hf_vanilla"):
        prepare_run(small_run.recipe(tmp_path / "run", corpus_files, tokens_per_batch=80))
        mixture = [{side: corpus_files[f"train_{side}"] for side in ("source", "target")}]
        prepare_run(small_run.recipe(tmp_path / "mixture", {}, mixture=mixture))
        prepare_run(small_run.recipe(tmp_path / "dropout", corpus_files, bpe_dropout=0.1))
    assert "1 process(es) x 3 micro-batch(es) of up to 80 tokens" in caplog.text


def test_a_run_that_goes_on_in_other_micro_batches_says_so(corpus_files, tmp_path, caplog):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, tokens_per_batch=120))
    state = folder / "checkpoint-6" / "training_state.json"
    state.write_text(state.read_text().replace('"micro_batches": 2', '"micro_batches": 3'))
    with caplog.at_level("INFO", logger="hf_vanilla"):
        train(small_run.recipe(folder, corpus_files, tokens_per_batch=120, max_steps=7))
    assert "began with 3 micro-batches a step and resumes with 2" in caplog.text
