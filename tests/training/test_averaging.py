"""The mean of checkpoints is the plain mean; a model folder of it loads by the Auto classes."""

import json
import shutil
from pathlib import Path

import pytest
import small_run
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.families import task_measures
from hf_vanilla.hub.card import languages_of
from hf_vanilla.training.checkpointing import (
    STATE_FILE,
    AverageOptions,
    all_checkpoints,
    average_checkpoints,
    average_run,
    best_checkpoints,
)
from hf_vanilla.training.run import train


@pytest.fixture
def folder_with(tmp_path):
    """Makes folders of hand-made weights."""

    def make(name, **weights):
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "model.safetensors")
        return tmp_path / name

    return make


# --- the mean ----------------------------------------------------------------------------------


def test_the_mean_of_three_by_hand(folder_with):
    parts = [
        folder_with(name, a=torch.tensor(a), b=torch.tensor([b]))
        for name, a, b in (("x", [1.0, 2.0], 9.0), ("y", [2.0, 4.0], 0.0), ("z", [6.0, -3.0], 3.0))
    ]
    mean = average_checkpoints(parts)
    assert {name: weight.tolist() for name, weight in mean.items()} == {"a": [3.0, 1.0], "b": [4.0]}


def test_the_mean_of_one_is_itself(folder_with):
    weight = torch.randn(5, 3)
    assert torch.equal(average_checkpoints([folder_with("x", a=weight)])["a"], weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_mean_keeps_the_dtype(folder_with, dtype):
    values = {"x": 1, "y": 2}
    parts = [folder_with(n, a=torch.full((3,), v, dtype=dtype)) for n, v in values.items()]
    assert average_checkpoints(parts)["a"].dtype == dtype
    assert average_checkpoints(parts)["a"].tolist() == [1.5] * 3


def test_the_sum_of_half_precision_weights_does_not_overflow(folder_with):
    parts = [folder_with(name, a=torch.tensor([60_000.0], dtype=torch.float16)) for name in "vwxyz"]
    assert average_checkpoints(parts)["a"].item() == 60_000  # 300,000 has no half


def test_no_checkpoint_is_refused():
    with pytest.raises(ValueError, match="no checkpoints to average"):
        average_checkpoints([])


def test_other_names_are_refused_and_named(folder_with):
    first, second = folder_with("x", a=torch.zeros(2)), folder_with("y", b=torch.zeros(2))
    with pytest.raises(ValueError, match=r"y is of another model than .*x: \['a', 'b'\] differ"):
        average_checkpoints([first, second])


def test_other_shapes_are_refused_with_the_tensors_name(folder_with):
    first = folder_with("x", a=torch.zeros(2), size=torch.zeros(3))
    second = folder_with("y", a=torch.zeros(2), size=torch.zeros(5))
    with pytest.raises(ValueError, match=r"y is of another model.*size"):
        average_checkpoints([first, second])


def test_a_shape_that_would_broadcast_is_refused(folder_with):
    first, second = folder_with("x", a=torch.zeros(2, 3)), folder_with("y", a=torch.zeros(1, 3))
    with pytest.raises(ValueError, match="is of another model"):
        average_checkpoints([first, second])


def test_a_damaged_file_is_named(folder_with):
    parts = [folder_with(name, a=torch.ones(7)) for name in ("x", "y")]
    path = parts[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"y/model.safetensors is damaged \(.*\): restore it"):
        average_checkpoints(parts)


def test_a_folder_without_weights_is_named(folder_with, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty/model\.safetensors: no such file"):
        average_checkpoints([folder_with("x", a=torch.zeros(2)), tmp_path / "empty"])


# --- the command -------------------------------------------------------------------------------


def test_a_runs_checkpoints_become_a_model_folder(trained_run, tmp_path):
    folder = average_run(AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), last=2))
    mean = average_checkpoints(all_checkpoints(trained_run)[-2:])
    assert all(torch.equal(small_run.weights(folder)[name], mean[name]) for name in mean)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.generation_config.length_penalty_form == "gnmt"
    assert AutoTokenizer.from_pretrained(folder)("one").input_ids[-1] == model.config.eos_token_id


def test_the_mean_keeps_card_and_alignment_head_of_the_run(trained_run, tmp_path):
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    (run / "README.md").write_text(
        "---\nlicense: mit\n# of the Hub\nmodel-index:\n- name: run\n  results: []\ntags:\n- a\n"
        "---\n\n# run\n\n- Translates: en to de\n"
    )
    (run / "alignment.json").write_text('{"layer": 0}')
    folder = average_run(AverageOptions(run=str(run), output=str(tmp_path / "mean"), last=2))
    assert (folder / "README.md").read_text() == (
        "---\nlicense: mit\n# of the Hub\ntags:\n- a\n---\n\n# run\n\nMean of checkpoint-350, "
        "checkpoint-400 of run, by `hf-vanilla average`. Scores on this card are those of the "
        "model before.\n\n- Translates: en to de\n"
    )
    assert languages_of(str(folder)) == ("en", "de")
    assert (folder / "alignment.json").read_text() == '{"layer": 0}'
    (run / "README.md").unlink()  # a run that has not ended has none
    second = average_run(AverageOptions(run=str(run), output=str(tmp_path / "second"), last=2))
    assert not (second / "README.md").exists()


def test_the_mean_of_as_many_as_in_training_is_the_model_of_the_run(trained_run, tmp_path):
    count = small_run.TRAINING["average_checkpoints"]
    options = AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), last=count)
    mean, trained = small_run.weights(average_run(options)), small_run.weights(trained_run)
    assert all(torch.equal(mean[name], trained[name]) for name in trained)


def test_the_checkpoint_of_a_stopped_run_is_not_averaged(trained_run, tmp_path):
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    *_, before, last = all_checkpoints(run)
    state = json.loads((last / STATE_FILE).read_text())
    (last / STATE_FILE).write_text(json.dumps({**state, "is_extra": True}))
    folder = average_run(AverageOptions(run=str(run), output=str(tmp_path / "m"), last=1))
    mean, expected = small_run.weights(folder), small_run.weights(before)
    assert all(torch.equal(mean[name], expected[name]) for name in expected)


def test_numbers_of_checkpoints_that_make_no_sense_are_refused(trained_run, tmp_path):
    told = {"run": str(trained_run), "output": str(tmp_path / "m")}
    with pytest.raises(ValueError, match="has 5 checkpoints: give a smaller number"):
        average_run(AverageOptions(**told, last=6))
    with pytest.raises(ValueError, match="last=2 and best=3: give one of them"):
        average_run(AverageOptions(**told, last=2, best=3))
    for name in ("last", "best"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            AverageOptions(**told, **{name: 0})
    assert not (tmp_path / "m").exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no checkpoints: give the output_dir of a"):
        average_run(AverageOptions(run=str(tmp_path), output=str(tmp_path / "m")))
    assert not (tmp_path / "m").exists()


def test_a_measure_without_a_number_of_best_checkpoints_is_refused(trained_run, tmp_path):
    options = AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), best_by="nll")
    with pytest.raises(ValueError, match="best_by='nll' needs best"):
        average_run(options)


def test_an_existing_output_is_refused(trained_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="exists and is not an empty folder"):
        average_run(AverageOptions(run=str(trained_run), output=str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_best_checkpoints_of_a_run_become_a_model(corpus_files, tmp_path):
    options = {"eval_steps": 1, "save_steps": 1, "eval_sentences": 2}
    run = train(small_run.recipe(tmp_path / "run", corpus_files, **options))
    told = {"run": str(run), "output": str(tmp_path / "m"), "best_by": "nll"}
    folder = average_run(AverageOptions(**told, best=2))
    best = best_checkpoints(
        all_checkpoints(run), 2, measures=task_measures("translation"), by="nll"
    )
    mean = average_checkpoints(best)
    assert all(torch.equal(small_run.weights(folder)[name], mean[name]) for name in mean)
    with pytest.raises(ValueError, match=r"best=7: .* has 5 checkpoints whose nll was measured"):
        average_run(AverageOptions(**{**told, "output": str(tmp_path / "n")}, best=7))
    with pytest.raises(ValueError, match="best_by='loss': choose one of nll, bleu"):
        average_run(
            AverageOptions(run=str(run), output=str(tmp_path / "n"), best=1, best_by="loss")
        )
