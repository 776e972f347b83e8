"""What a run says when something is wrong: after Ctrl-C, in divergence, on a busy machine."""

import json
import logging
import re

import pytest
import small_run
import torch
from accelerate import PartialState

from hf_vanilla.training import metrics_log, validation
from hf_vanilla.training.checkpointing import all_checkpoints
from hf_vanilla.training.metrics_log import Progress
from hf_vanilla.training.preparation import prepare_run
from hf_vanilla.training.processes import MainProcessLogger
from hf_vanilla.training.run import train
from hf_vanilla.training.task import Validation
from hf_vanilla.training.validation import compare


@pytest.fixture(autouse=True)
def _all_messages(caplog):
    with caplog.at_level("INFO", logger="hf_vanilla"):
        yield


@pytest.fixture
def prepared(corpus_files, tmp_path):
    options = {"best_by": "bleu", "eval_sentences": 3, "eval_steps": 1}
    return prepare_run(small_run.recipe(tmp_path / "run", corpus_files, **options))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (1, "after step 1: the same command starts anew; the first checkpoint comes after step 2"),
        (3, "after step 3: the same command resumes after step 2"),
    ],
)
def test_ctrl_c_promises_a_checkpoint_only_where_there_is_one(
    corpus_files, tmp_path, monkeypatch, caplog, after, message
):
    small_run.interrupt(monkeypatch, after=after)
    with pytest.raises(KeyboardInterrupt):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    assert f"stopped {message}" in caplog.text
    assert bool(all_checkpoints(tmp_path / "run")) == ("resumes" in message)


def test_a_validation_much_worse_than_the_best_is_reported_at_every_second_one(prepared, caplog):
    progress = Progress()
    expected = [(9.0, 0), (8.5, 0), (7.0, 1), (6.0, 1), (8.9, 1), (8.9, 1), (5.0, 2)]
    for step, (value, warnings) in enumerate(expected):
        progress.step = step
        compare(prepared, progress, value)
        assert caplog.text.count("if training diverges, lower learning_rate") == warnings
    assert "step 2: validation BLEU is 7.0000, and was 9.0000 at its best 2" in caplog.text


@pytest.mark.parametrize(
    ("values", "is_reported"),
    [
        ({"nll": 9.0, "bleu": 0.0, "exact_match": 0.0}, True),
        ({"nll": 9.0, "bleu": 0.1, "exact_match": 0.0}, False),  # as is usual for sentences
        ({"nll": 9.0, "bleu": 0.0, "chrf": 100.0, "exact_match": 100.0}, False),  # of one word each
        ({"nll": 9.0, "bleu": 0.0, "chrf": 9.0, "exact_match": 0.0}, True),
        ({"nll": 9.0, "bleu": 0.0}, True),
        ({"nll": 9.0}, False),
    ],
    ids=str,
)
def test_a_bleu_of_0_at_the_end_is_reported(prepared, caplog, values, is_reported):
    validation._warn_of_no_success(prepared, Validation(values))
    assert ("validation BLEU of the finished model is 0: train" in caplog.text) == is_reported
    assert caplog.text.count("finished model") == is_reported


def test_a_message_names_its_process_only_where_there_are_several(caplog, monkeypatch):
    logger = MainProcessLogger(logging.getLogger("hf_vanilla.x"), {})
    logger.warning("one")
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    logger.warning("of two")
    assert caplog.messages == ["one", "[RANK 0] of two"]


def test_a_run_says_how_much_there_is_to_do_and_after_ten_steps_how_long_it_will_take(
    corpus_files, tmp_path, caplog, capsys
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, max_steps=1200, save_steps=6)
    with pytest.MonkeyPatch.context() as patch:
        small_run.interrupt(patch, after=14)
        with pytest.raises(KeyboardInterrupt):
            train(recipe)
    saved = small_run.weights(tmp_path / "run" / "checkpoint-12").values()
    parameters = f"{sum(weight.numel() for weight in saved):,}"
    assert f"{parameters} parameters; 1,200 steps, tokens_per_step=240" in caplog.text
    found = re.findall(
        r"expected: 0:(\d\d):(\d\d) for the other (.*) steps", capsys.readouterr().err
    )
    assert [steps for _, _, steps in found] == ["1,190"]


@pytest.mark.parametrize(("factor", "count"), [(0.0, 1), (1e9, 0)])
def test_steps_that_wait_for_the_processor_are_reported_once(
    corpus_files, tmp_path, monkeypatch, caplog, factor, count
):
    monkeypatch.setattr(metrics_log, "WAITING_FACTOR", factor)
    train(small_run.recipe(tmp_path / "run", corpus_files))
    assert caplog.text.count("other processes use the cores") == count


def test_a_checkpoint_records_the_threads_and_a_run_resumed_with_others_says_so(
    corpus_files, tmp_path, caplog
):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    path = folder / "checkpoint-6" / "training_state.json"
    state = json.loads(path.read_text())
    assert state["threads"] == torch.get_num_threads()
    path.write_text(json.dumps({**state, "threads": 61}))
    train(small_run.recipe(folder, corpus_files, max_steps=7))
    assert "the run used 61 threads and resumes with" in caplog.text
