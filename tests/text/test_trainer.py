"""Seq2SeqTrainer as it is, with our rows, collator, batches and scores."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_run
import torch
from transformers import EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_vanilla import PairCollator, TokenBatches, bleu_metrics
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.text.encoding import EncodedPairs, LengthLimits, encode_pairs
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import translate

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


def test_arguments_that_would_spoil_the_batches_are_refused(encoded, arguments):
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    for changes, message in (
        ({"per_device_train_batch_size": 8}, "train_batch_size=8: .* need 1"),
        ({"train_sampling_strategy": "random"}, "train_sampling_strategy=.*random.* 'sequential'"),
        (workers, "dataloader_persistent_workers=True: .* need False"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenBatches(encoded, arguments(**changes), tokens_per_batch=BUDGET)


def test_token_batches_are_evaluated_one_by_one(trained, encoded, arguments):
    told = arguments(per_device_eval_batch_size=2)
    batches = TokenBatches(encoded, told, tokens_per_batch=BUDGET)
    trainer = Seq2SeqTrainer(trained[0], told, PairCollator(0), eval_dataset=batches)
    with pytest.raises(ValueError, match=r"2 items, .*: set .* per_device_eval_batch_size to 1"):
        trainer.evaluate()


def trained_on_batches(trained_run, encoded, arguments):
    """Weights after training on token batches; a path resumes from its newest checkpoint."""
    torch.manual_seed(3)
    model, _ = load_translator(str(trained_run))
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=TokenBatches(encoded, arguments, tokens_per_batch=BUDGET),
        data_collator=PairCollator(0),
    )
    trainer.train(resume_from_checkpoint=any(Path(arguments.output_dir).glob("checkpoint-*")))
    return model.state_dict()


def test_a_resumed_run_ends_at_the_very_same_weights(trained_run, encoded, arguments, tmp_path):
    told = {"save_strategy": "steps", "save_steps": 3, "dataloader_num_workers": 1}
    whole = arguments(max_steps=17, output_dir=str(tmp_path / "whole"), **told)
    expected = trained_on_batches(trained_run, encoded, whole)
    # in the second epoch of five batches
    trained_on_batches(trained_run, encoded, arguments(max_steps=9, **told))
    resumed = trained_on_batches(trained_run, encoded, arguments(max_steps=17, **told))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_evaluation_translates_as_the_model_would_alone(trained, corpus_files, arguments):
    model, tokenizer = trained
    files = corpus_files["validation_source"], corpus_files["validation_target"]
    pairs = pairs_from_files(*files)
    trainer = Seq2SeqTrainer(
        model,
        arguments(predict_with_generate=True),
        eval_dataset=encode_pairs(pairs, tokenizer, LengthLimits(40)).rows,
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        compute_metrics=bleu_metrics(tokenizer),
    )
    expected = score_translations(
        translate(model, tokenizer, pairs["source"][:]), pairs["target"][:]
    )
    assert trainer.evaluate()["eval_bleu"] == expected.bleu


def test_scores_of_logits_are_refused_with_the_remedy(trained, encoded, arguments):
    model, tokenizer = trained
    trainer = Seq2SeqTrainer(
        model,
        arguments(),
        eval_dataset=encoded.rows.select(range(3)),
        data_collator=PairCollator(tokenizer.pad_token_id),
        compute_metrics=bleu_metrics(tokenizer),
    )
    with pytest.raises(ValueError, match="set predict_with_generate=True"):
        trainer.evaluate()
    trainer.args.eval_do_concat_batches = False
    with pytest.raises(ValueError, match="eval_do_concat_batches=False: bleu_metrics needs True"):
        trainer.evaluate()


def test_accumulated_passes_train_as_one_batch_does(trained_run, encoded, arguments):
    results = []
    for batch, accumulated in ((8, 1), (4, 2), (1, 8)):
        model, _ = load_translator(str(trained_run))
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        told = {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated,
            "max_steps": 3,
            "optim": "sgd",
            "learning_rate": 0.1,
            "max_grad_norm": 0.0,
        }
        trainer = Seq2SeqTrainer(
            model,
            arguments(**told),
            train_dataset=encoded.rows.select(range(32)),
            data_collator=PairCollator(0),
        )
        trainer.train()
        results.append(model.state_dict())
    for other in results[1:]:
        for name, weight in results[0].items():
            # plain gradient descent keeps float32 rounding small
            torch.testing.assert_close(other[name], weight, rtol=1e-5, atol=1e-6)


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


# --- two processes -----------------------------------------------------------------------------


@pytest.fixture
def launch(processes):
    """`scripts/finetune.py` in several processes; the weights that it saves."""

    def launch(count, options, output_dir, *arguments):
        told = [f"--{name}={value}" for name, value in options.items()]
        told += ["--use_cpu=True", "--report_to=none", "--lr_scheduler_type=constant"]
        told += [f"--output_dir={output_dir}", "--save_steps=4", *arguments]
        for done in processes(count, "python", ROOT / "scripts/finetune.py", *told):
            assert done.returncode == 0, done.stderr
        return small_run.weights(output_dir)

    return launch


@pytest.mark.slow
def test_two_processes_share_the_steps_that_one_process_makes_in_two_passes(
    launch, trained_run, corpus_files, encoded, arguments, tmp_path
):
    # an even number of batches, so that one process and two have the same ones
    budget = BUDGET
    while len(TokenBatches(encoded, arguments(), tokens_per_batch=budget)) % 2:
        budget -= 1
    model, tokenizer = load_translator(str(trained_run))
    model.config.dropout = 0.0
    model.save_pretrained(tmp_path / "still")
    tokenizer.save_pretrained(tmp_path / "still")
    options = {name: corpus_files[name] for name in ("train_source", "train_target")}
    options |= {"model": tmp_path / "still", "max_length": 40, "tokens_per_batch": budget}
    told = ["--optim=sgd", "--learning_rate=0.1", "--max_grad_norm=0", "--max_steps=9"]
    two = launch(2, options, tmp_path / "two", *told)
    one = launch(1, options, tmp_path / "one", "--gradient_accumulation_steps=2", *told)
    for name, weight in one.items():
        # plain gradient descent keeps float32 rounding small
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-6)
