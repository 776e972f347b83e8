"""Token batches in a plain Seq2SeqTrainer: nothing lost or seen twice, resumed to the last bit."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_vanilla.data.batching import PairCollator
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.text.encoding import EncodedPairs, LengthLimits, encode_pairs
from hf_vanilla.text.finetuning import FinetuneOptions, TokenBatches, finetune
from hf_vanilla.text.loading import load_translator

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 120


@pytest.fixture
def encoded(corpus_files, trained) -> EncodedPairs:
    pairs = pairs_from_files(corpus_files["train_source"], corpus_files["train_target"])
    return encode_pairs(pairs, trained[1], LengthLimits(40))


@pytest.fixture
def arguments(tmp_path):
    def with_changes(**changes):
        default = {
            "output_dir": str(tmp_path / "tuned"),
            "use_cpu": True,
            "report_to": "none",
            "per_device_train_batch_size": 1,
            "train_sampling_strategy": "sequential",
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "dataloader_pin_memory": False,
            "disable_tqdm": True,
        }
        return Seq2SeqTrainingArguments(**{**default, **changes})

    return with_changes


def seen_by(monkeypatch, encoded, model, arguments):
    """The label rows that each step of a Trainer saw."""
    seen, step = [], Seq2SeqTrainer.training_step

    def noting(self, model, inputs, *args, **kwargs):
        rows = [tuple(row[row >= 0].tolist()) for row in inputs["labels"]]
        seen.append(rows)
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Seq2SeqTrainer, "training_step", noting)
    Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=TokenBatches(encoded, arguments, tokens_per_batch=BUDGET),
        data_collator=PairCollator(0),
    ).train()
    return seen


def test_every_epoch_of_a_plain_trainer_has_every_sentence_once_in_another_order(
    encoded, arguments, trained_run, monkeypatch
):
    model, _ = load_translator(str(trained_run))
    seen = seen_by(monkeypatch, encoded, model, arguments(num_train_epochs=2))
    half = len(seen) // 2
    expected = sorted(tuple(row["labels"].tolist()) for row in encoded.rows)
    for epoch in (seen[:half], seen[half:]):
        assert sorted(row for batch in epoch for row in batch) == expected
    assert seen[:half] != seen[half:]


def test_a_batch_keeps_the_budget_padding_included(encoded, arguments):
    batches = TokenBatches(encoded, arguments(), tokens_per_batch=BUDGET)
    for place in range(len(batches)):
        batch = PairCollator(0)([batches[place]])
        assert max(batch["input_ids"].numel(), batch["labels"].numel()) <= BUDGET


def test_the_order_is_that_of_the_data_seed(encoded, arguments):
    def order(**changes):
        batches = TokenBatches(encoded, arguments(**changes), tokens_per_batch=BUDGET)
        return [batches[place].to_pydict() for place in range(len(batches))]

    assert order(seed=3) == order(seed=5, data_seed=3) != order(seed=5)


def test_processes_get_as_many_batches_each(encoded):
    told = {"train_batch_size": 1, "train_sampling_strategy": "sequential", "seed": 0}
    told |= {"dataloader_persistent_workers": False, "data_seed": None}
    counts = [
        len(TokenBatches(encoded, SimpleNamespace(world_size=n, **told), tokens_per_batch=BUDGET))
        for n in (1, 2, 5)
    ]
    assert counts[1] % 2 == counts[2] % 5 == 0
    assert max(counts) - min(counts) < 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_device_train_batch_size": 8}, "train_batch_size=8: .* need 1"),
        ({"train_sampling_strategy": "random"}, "train_sampling_strategy=.*random.* 'sequential'"),
        (
            {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
            "dataloader_persistent_workers=True: .* need False",
        ),
    ],
    ids=["batches of batches", "shuffled twice", "stale workers"],
)
def test_arguments_that_would_spoil_the_batches_are_refused(encoded, arguments, changes, message):
    with pytest.raises(ValueError, match=message):
        TokenBatches(encoded, arguments(**changes), tokens_per_batch=BUDGET)


def test_a_budget_smaller_than_the_limit_of_a_sentence_is_refused():
    with pytest.raises(ValueError, match="tokens_per_batch=39 is smaller than max_length=40"):
        FinetuneOptions(
            model="m", train_source="a", train_target="b", max_length=40, tokens_per_batch=39
        )


def options_of(trained_run, corpus_files):
    files = {name: corpus_files[name] for name in ("train_source", "train_target")}
    return {"model": str(trained_run), **files, "max_length": 40, "tokens_per_batch": BUDGET}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_ends_at_the_very_same_weights(
    trained_run, corpus_files, arguments, tmp_path, workers
):
    options = FinetuneOptions(**options_of(trained_run, corpus_files))
    told = {"save_strategy": "steps", "save_steps": 3, "dataloader_num_workers": workers}
    whole = finetune(options, arguments(max_steps=17, output_dir=str(tmp_path / "whole"), **told))
    finetune(options, arguments(max_steps=9, **told))  # in the second epoch of five batches
    resumed = finetune(options, arguments(max_steps=17, resume_from_checkpoint="True", **told))
    first, second = small_run.weights(whole), small_run.weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- two processes -----------------------------------------------------------------------------


def launch(processes, options, output_dir, *arguments):
    """`scripts/finetune.py` in several processes, as torchrun starts them, on a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    told = [f"--{name}={value}" for name, value in options.items()]
    told += ["--use_cpu=True", "--report_to=none", "--lr_scheduler_type=constant"]
    done = subprocess.run(
        [
            *command,
            f"--nproc_per_node={processes}",
            "scripts/finetune.py",
            *told,
            *(f"--output_dir={output_dir}", "--save_steps=4", *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return small_run.weights(output_dir)


@pytest.mark.slow
def test_two_processes_resume_to_the_very_same_weights(trained_run, corpus_files, tmp_path):
    options = options_of(trained_run, corpus_files)
    whole = launch(2, options, tmp_path / "whole", "--max_steps=11")
    launch(2, options, tmp_path / "parts", "--max_steps=4")  # in the second epoch
    resumed = launch(
        2, options, tmp_path / "parts", "--max_steps=11", "--resume_from_checkpoint=True"
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_two_processes_share_the_steps_that_one_process_makes_in_two_passes(
    trained_run, corpus_files, encoded, arguments, tmp_path
):
    # an even number of batches, so that one process and two have the same ones
    budget = BUDGET
    while len(TokenBatches(encoded, arguments(), tokens_per_batch=budget)) % 2:
        budget -= 1
    model, tokenizer = load_translator(str(trained_run))
    model.config.dropout = 0.0
    model.save_pretrained(tmp_path / "still")
    tokenizer.save_pretrained(tmp_path / "still")
    options = options_of(trained_run, corpus_files)
    options |= {"model": str(tmp_path / "still"), "tokens_per_batch": budget}
    told = ["--optim=sgd", "--learning_rate=0.1", "--max_grad_norm=0", "--max_steps=9"]
    two = launch(2, options, tmp_path / "two", *told)
    one = launch(1, options, tmp_path / "one", "--gradient_accumulation_steps=2", *told)
    for name, weight in one.items():
        # plain gradient descent keeps float32 rounding small
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-6)
