"""Checkpoints are whole or not there; their mean is the plain mean."""

import json

import pytest
import small_run
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.files import write_files
from hf_vanilla.training.checkpointing import (
    AverageOptions,
    Keeping,
    all_checkpoints,
    average_checkpoints,
    average_run,
    best_checkpoints,
    checkpoint_folder,
    load_weights,
    resume,
    save_checkpoint,
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


def test_a_folder_without_weights_is_named(folder_with, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty/model\.safetensors: no such file"):
        average_checkpoints([folder_with("x", a=torch.zeros(2)), tmp_path / "empty"])


# --- weights into a model ----------------------------------------------------------------------


def test_weights_with_ties_stored_once_fill_the_model(tiny_config, tmp_path):
    saved = VanillaForConditionalGeneration(tiny_config)
    saved.save_pretrained(tmp_path)
    weights = small_run.weights(tmp_path)
    assert len(weights) < len(saved.state_dict())
    other = VanillaForConditionalGeneration(tiny_config)
    load_weights(other, weights)
    for name, weight in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight)
    assert other.lm_head.weight is other.get_input_embeddings().weight


def test_leftover_and_missing_weights_are_all_named(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    weights = small_run.weights(tmp_path)
    gone = sorted(name for name in weights if name.endswith("fc1.bias"))
    rest = {name: weight for name, weight in weights.items() if name not in gone}
    rest |= {"odd.one": torch.zeros(1), "odd.two": torch.zeros(1)}
    before = {name: weight.clone() for name, weight in tiny_model.state_dict().items()}
    with pytest.raises(ValueError, match=r"left over \['odd.one', 'odd.two'\]") as caught:
        load_weights(tiny_model, rest)
    assert str(gone) in str(caught.value)
    assert all(torch.equal(before[name], w) for name, w in tiny_model.state_dict().items())


# --- folders -----------------------------------------------------------------------------------


def test_checkpoints_are_ordered_by_step_and_whole(tmp_path):
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-20", "checkpoint-1100.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "runs").mkdir()
    steps = [checkpoint_folder(tmp_path, step) for step in (20, 900, 1000)]
    assert all_checkpoints(tmp_path) == steps


@pytest.fixture
def run(tmp_path, fresh_accelerator):
    """An accelerator with a small model, and the folder of its checkpoints."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 2)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator, model, tmp_path


def test_older_checkpoints_are_pruned_and_no_partial_one_stays(run):
    accelerator, _, folder = run
    for step in (2, 5, 9, 12):
        assert save_checkpoint(accelerator, folder, {"step": step}, keep=Keeping(3)).name.endswith(
            str(step)
        )
    assert [p.name for p in all_checkpoints(folder)] == [f"checkpoint-{n}" for n in (5, 9, 12)]
    assert len(list(folder.iterdir())) == 3


def test_the_newest_checkpoint_comes_back_with_its_state(run):
    accelerator, model, folder = run
    for step in (9, 10):
        with torch.no_grad():
            model.weight.fill_(step)
        save_checkpoint(accelerator, folder, {"step": step, "tokens": 70 * step}, keep=Keeping(5))
    with torch.no_grad():
        model.weight.fill_(-1)
    assert resume(accelerator, folder) == {"step": 10, "tokens": 700}
    assert model.weight.eq(10).all()


def test_there_is_nothing_to_resume_in_a_new_folder(run):
    accelerator, _, folder = run
    assert resume(accelerator, folder) is None


def test_a_leftover_of_an_earlier_crash_does_not_reach_the_checkpoint(run):
    accelerator, _, folder = run
    (folder / "checkpoint-7.partial").mkdir()
    (folder / "checkpoint-7.partial" / "old").write_text("half")
    written = save_checkpoint(accelerator, folder, {"step": 7}, keep=Keeping(1))
    assert not (written / "old").exists()
    assert json.loads((written / "training_state.json").read_text()) == {"step": 7}


def test_a_checkpoint_is_not_there_before_it_is_whole(run, monkeypatch):
    accelerator, _, folder = run

    def full_disk(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(accelerator, "save_state", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(accelerator, folder, {"step": 3}, keep=Keeping(1))
    assert all_checkpoints(folder) == []


def test_a_checkpoint_that_cannot_be_written_ends_with_the_remedy(run, monkeypatch):
    accelerator, _, folder = run
    save_checkpoint(accelerator, folder, {"step": 2}, keep=Keeping(1))

    def torchs_own(path, **_):
        (folder / "checkpoint-3.partial").mkdir()
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    monkeypatch.setattr(accelerator, "save_state", torchs_own)
    with pytest.raises(OSError, match=r"cannot write .*checkpoint-3: .*make room"):
        save_checkpoint(accelerator, folder, {"step": 3}, keep=Keeping(1))
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]


# --- the best ----------------------------------------------------------------------------------

SCORES = {1: (3.0, 20.0), 2: (2.0, 30.0), 3: (2.5, 40.0), 4: (2.0, 10.0)}


@pytest.fixture
def measured(run):
    """A run of five checkpoints, the last of them not validated."""
    accelerator, _, folder = run
    for step, (nll, bleu) in SCORES.items():
        state = {"step": step, "scores": {"nll": nll, "bleu": bleu}}
        save_checkpoint(accelerator, folder, state, keep=Keeping(9))
    save_checkpoint(accelerator, folder, {"step": 5, "scores": {}}, keep=Keeping(9))
    return accelerator, folder


@pytest.mark.parametrize(
    ("measure", "steps"), [("nll", [4, 2, 3, 1]), ("bleu", [3, 2, 1, 4])], ids=["nll", "bleu"]
)
def test_the_best_come_first_and_of_equals_the_newer(measured, measure, steps):
    folders = all_checkpoints(measured[1])
    for count in (2, 9):
        found = best_checkpoints(folders, count, measure=measure)
        assert [int(folder.name.removeprefix("checkpoint-")) for folder in found] == steps[:count]


def test_the_best_are_kept_besides_the_newest(measured):
    accelerator, folder = measured
    keep = Keeping(2, best=2, measure="bleu")
    save_checkpoint(accelerator, folder, {"step": 6, "scores": {}}, keep=keep)
    assert [p.name for p in all_checkpoints(folder)] == [f"checkpoint-{n}" for n in (2, 3, 5, 6)]


def test_files_are_whole_or_as_before(tmp_path):
    write_files(tmp_path, lambda new: (new / "a").write_text("old"))

    def cut_off(new):
        (new / "a").write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, cut_off)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


# --- the command -------------------------------------------------------------------------------


def test_a_runs_checkpoints_become_a_model_folder(trained_run, tmp_path):
    folder = average_run(AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), last=2))
    mean = average_checkpoints(all_checkpoints(trained_run)[-2:])
    assert all(torch.equal(small_run.weights(folder)[name], mean[name]) for name in mean)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.generation_config.length_penalty_form == "gnmt"
    assert AutoTokenizer.from_pretrained(folder)("one").input_ids[-1] == model.config.eos_token_id


def test_the_mean_of_as_many_as_in_training_is_the_model_of_the_run(trained_run, tmp_path):
    count = small_run.TRAINING["average_checkpoints"]
    options = AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), last=count)
    mean, trained = small_run.weights(average_run(options)), small_run.weights(trained_run)
    assert all(torch.equal(mean[name], trained[name]) for name in trained)


@pytest.mark.parametrize("last", [0, -1, 6])
def test_more_checkpoints_than_there_are_is_refused(trained_run, tmp_path, last):
    options = AverageOptions(run=str(trained_run), output=str(tmp_path / "m"), last=last)
    with pytest.raises(ValueError, match=f"last={last}: .* has 5 checkpoints"):
        average_run(options)
    assert not (tmp_path / "m").exists()


def test_an_existing_output_is_refused(trained_run, tmp_path):
    with pytest.raises(FileExistsError, match="exists and is not an empty folder: choose another"):
        average_run(AverageOptions(run=str(trained_run), output=str(tmp_path)))


def test_the_best_checkpoints_of_a_run_become_a_model(corpus_files, tmp_path):
    options = {"eval_steps": 1, "save_steps": 1, "eval_sentences": 2}
    run = train(small_run.recipe(tmp_path / "run", corpus_files, **options))
    told = {"run": str(run), "output": str(tmp_path / "m"), "best_by": "nll"}
    folder = average_run(AverageOptions(**told, best=2))
    best = best_checkpoints(all_checkpoints(run), 2, measure="nll")
    mean = average_checkpoints(best)
    assert all(torch.equal(small_run.weights(folder)[name], mean[name]) for name in mean)
    with pytest.raises(ValueError, match=r"best=7: .* has 5 checkpoints whose nll was measured"):
        average_run(AverageOptions(**{**told, "output": str(tmp_path / "n")}, best=7))
    with pytest.raises(ValueError, match="best_by='loss': choose one of nll, bleu"):
        average_run(
            AverageOptions(run=str(run), output=str(tmp_path / "n"), best=1, best_by="loss")
        )
