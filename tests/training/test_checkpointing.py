"""Checkpoints are complete or not there, and come back to the last bit."""

import contextlib
import json
import shutil
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace

import pytest
import small_run
import torch
from accelerate import Accelerator
from safetensors import SafetensorError

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.files import write_files
from hf_vanilla.text.options import MEASURES
from hf_vanilla.training import checkpointing
from hf_vanilla.training.checkpointing import (
    all_checkpoints,
    best_checkpoints,
    checkpoint_state,
    damage,
    load_checkpoint,
    load_weights,
    remove_leftovers,
    save_checkpoint,
    usable_checkpoint,
)
from hf_vanilla.training.run import train

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
    steps = [tmp_path / f"checkpoint-{step}" for step in (20, 900, 1000)]
    assert all_checkpoints(tmp_path) == steps


@pytest.fixture
def run(tmp_path, fresh_accelerator):
    """A small model with its optimizer, and the folder of its checkpoints."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    parts = SimpleNamespace(
        accelerator=accelerator, model=model, optimizer=optimizer, output_dir=tmp_path
    )
    return parts, model, tmp_path


def keeping(parts, newest, best=1, by="nll"):
    """A run that keeps so many of its checkpoints."""
    options = {"save_total_limit": newest, "average_best": True, "average_checkpoints": best}
    recipe = SimpleNamespace(measures=MEASURES, best_by=by)
    return SimpleNamespace(**vars(parts), options=SimpleNamespace(**options), recipe=recipe)


def test_older_checkpoints_are_pruned_and_no_partial_one_stays(run):
    parts, _, folder = run
    for step in (2, 5, 9, 12):
        assert save_checkpoint(keeping(parts, 3), {"step": step}).name.endswith(str(step))
    assert [p.name for p in all_checkpoints(folder)] == [f"checkpoint-{n}" for n in (5, 9, 12)]
    assert len(list(folder.iterdir())) == 3


def test_the_newest_checkpoint_comes_back_with_its_state(run):
    parts, model, folder = run
    for step in (9, 10):
        with torch.no_grad():
            model.weight.fill_(step)
        save_checkpoint(keeping(parts, 5), {"step": step, "tokens": 70 * step})
    with torch.no_grad():
        model.weight.fill_(-1)
    newest = usable_checkpoint(folder)
    load_checkpoint(parts, newest)
    state = checkpoint_state(newest)
    assert (state["step"], state["tokens"]) == (10, 700)
    assert model.weight.eq(10).all()


def test_the_scale_of_fp16_comes_back_with_the_checkpoint(run):
    parts, *_ = run

    def with_scaler(scale):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        accelerator = SimpleNamespace(
            scaler=scaler, is_main_process=True, wait_for_everyone=lambda: None
        )
        return SimpleNamespace(**{**vars(parts), "accelerator": accelerator})

    saved = save_checkpoint(keeping(with_scaler(512.0), 1), {"step": 3})
    resumed = with_scaler(65536.0)
    load_checkpoint(resumed, saved)
    assert resumed.accelerator.scaler.get_scale() == 512.0


def test_there_is_nothing_to_resume_in_a_new_folder(run):
    _, _, folder = run
    assert usable_checkpoint(folder) is None


def test_a_leftover_of_an_earlier_crash_does_not_reach_the_checkpoint(run):
    parts, _, folder = run
    (folder / "checkpoint-7.partial").mkdir()
    (folder / "checkpoint-7.partial" / "old").write_text("half")
    written = save_checkpoint(keeping(parts, 1), {"step": 7})
    assert not (written / "old").exists()
    assert json.loads((written / "training_state.json").read_text())["step"] == 7


def test_a_checkpoint_is_not_there_before_it_is_whole(run, monkeypatch):
    parts, _, folder = run

    def full_disk(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpointing, "save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(keeping(parts, 1), {"step": 3})
    assert all_checkpoints(folder) == []


def test_a_checkpoint_that_cannot_be_written_ends_with_the_remedy(run, monkeypatch):
    parts, _, folder = run

    def safetensors_own(weights, path, **_):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(checkpointing, "save_file", safetensors_own)
        with pytest.raises(OSError, match=r"cannot write .*checkpoint-2: .*there is no checkpoint"):
            save_checkpoint(keeping(parts, 1), {"step": 2})
    save_checkpoint(keeping(parts, 1), {"step": 2})
    monkeypatch.setattr(checkpointing, "save_file", safetensors_own)
    with pytest.raises(OSError, match=r"cannot write .*checkpoint-3: .*make room.*last checkpoint"):
        save_checkpoint(keeping(parts, 1), {"step": 3})
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]


def test_a_folder_removed_during_the_training_ends_it(run):
    parts, _, folder = run
    shutil.rmtree(folder)
    with pytest.raises(OSError, match=r"checkpoint-2: .*output_dir was removed: put it back"):
        save_checkpoint(keeping(parts, 1), {"step": 2})
    assert not folder.exists()


# --- the best ----------------------------------------------------------------------------------

SCORES = {1: (3.0, 20.0), 2: (2.0, 30.0), 3: (2.5, 40.0), 4: (2.0, 10.0)}


@pytest.fixture
def measured(run):
    """A run of five checkpoints, the last of them not validated."""
    parts, _, folder = run
    for step, (nll, bleu) in SCORES.items():
        state = {"step": step, "scores": {"nll": nll, "bleu": bleu}}
        save_checkpoint(keeping(parts, 9), state)
    save_checkpoint(keeping(parts, 9), {"step": 5, "scores": {}})
    return parts, folder


@pytest.mark.parametrize(
    ("measure", "steps"), [("nll", [4, 2, 3, 1]), ("bleu", [3, 2, 1, 4])], ids=["nll", "bleu"]
)
def test_the_best_come_first_and_of_equals_the_newer(measured, measure, steps):
    folders = all_checkpoints(measured[1])
    for count in (2, 9):
        found = best_checkpoints(folders, count, measures=MEASURES, by=measure)
        assert [int(folder.name.removeprefix("checkpoint-")) for folder in found] == steps[:count]


def test_a_validation_that_is_nan_is_the_worst(measured):
    parts, folder = measured
    save_checkpoint(keeping(parts, 9), {"step": 6, "scores": {"nll": float("nan")}})
    found = best_checkpoints(all_checkpoints(folder), 9, measures=MEASURES, by="nll")
    assert [int(each.name.removeprefix("checkpoint-")) for each in found] == [4, 2, 3, 1, 6]


def test_the_best_are_kept_besides_the_newest(measured):
    parts, folder = measured
    save_checkpoint(keeping(parts, 2, best=2, by="bleu"), {"step": 6, "scores": {}})
    assert [p.name for p in all_checkpoints(folder)] == [f"checkpoint-{n}" for n in (2, 3, 5, 6)]


def test_files_are_whole_or_as_before(tmp_path):
    write_files(tmp_path, lambda new: (new / "a").write_text("old"))

    def cut_off(new):
        (new / "a").write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, cut_off)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


# --- damage --------------------------------------------------------------------------------------


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def test_what_a_killed_run_left_is_removed_files_and_folders(tmp_path):
    (tmp_path / "checkpoint-4.partial").mkdir()
    (tmp_path / "checkpoint-4.partial" / "model.safetensors").touch()
    for name in ("log.jsonl.partial", "log.jsonl"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


FILES = ["model.safetensors", "optimizer.safetensors", "training_state.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [flip_a_bit, cut, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(run, caplog, name, harm):
    parts, _, folder = run
    for step in (2, 4):
        save_checkpoint(keeping(parts, 5), {"step": step, "note": "x" * 999})
    harm(folder / "checkpoint-4" / name)
    if name == "training_state.json" and harm is flip_a_bit:
        (folder / "checkpoint-4" / name).write_bytes(b"{\xff}")  # a flipped x stays JSON
    assert usable_checkpoint(folder) == folder / "checkpoint-2"
    assert f"DAMAGED CHECKPOINT: {folder / 'checkpoint-4' / name}" in caplog.text
    assert [path.name for path in all_checkpoints(folder)] == ["checkpoint-2"]


@pytest.mark.parametrize("name", FILES)
def test_an_older_damaged_checkpoint_is_set_aside_before_it_is_averaged(run, caplog, name):
    parts, _, folder = run
    for step in (2, 4, 6):
        save_checkpoint(keeping(parts, 5), {"step": step})
    cut(folder / "checkpoint-4" / name)
    assert usable_checkpoint(folder) == folder / "checkpoint-6"
    assert f"DAMAGED CHECKPOINT: {folder / 'checkpoint-4' / name}" in caplog.text
    save_checkpoint(keeping(parts, 5), {"step": 8})
    assert [path.name for path in all_checkpoints(folder)] == [
        f"checkpoint-{step}" for step in (2, 6, 8)
    ]


def test_a_folder_of_damaged_checkpoints_is_an_error_and_does_not_start_anew(run):
    parts, _, folder = run
    save_checkpoint(keeping(parts, 5), {"step": 2})
    (folder / "checkpoint-2" / "training_state.json").unlink()
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged: restore one"):
        usable_checkpoint(folder)


def test_a_state_with_values_of_other_types_is_damaged_or_named(run):
    parts, _, folder = run
    save_checkpoint(keeping(parts, 5), {"step": 2, "scores": {"nll": 1.0}})
    path = folder / "checkpoint-2" / "training_state.json"
    state = json.loads(path.read_text())
    for section in ("scores", "facts", "optimizer"):
        path.write_text(json.dumps(state | {section: "x"}))
        assert f"{section} is 'x': give" in damage(path.parent)
    path.write_text(json.dumps(state | {"optimizer": [{"betas": None}]}))
    with pytest.raises(ValueError, match=r"checkpoint-2 cannot be loaded .*: delete it"):
        load_checkpoint(parts, path.parent)


class Planted:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_planted_in_any_file_of_a_checkpoint_runs_no_code(corpus_files, tmp_path):
    done = train(small_run.recipe(tmp_path / "run", corpus_files, max_steps=2))
    old = ["optimizer.bin", "custom_checkpoint_0.pkl", "random_states_0.pkl", "scheduler.bin"]
    for number, name in enumerate([*FILES, *old, "scaler.pt", "pytorch_model.bin"]):
        folder = tmp_path / str(number)
        shutil.copytree(done, folder)
        checkpoint, ran = folder / "checkpoint-2", tmp_path / f"ran-{number}"
        if name in old:  # as an earlier version left it
            (checkpoint / "optimizer.safetensors").unlink()
            state = json.loads((checkpoint / "training_state.json").read_text())
            del state["files"]
            (checkpoint / "training_state.json").write_text(json.dumps(state))
            torch.save({"state": {}, "param_groups": []}, checkpoint / "optimizer.bin")
        torch.save(Planted(ran), checkpoint / name)
        with contextlib.suppress(ValueError, UnpicklingError):
            train(small_run.recipe(folder, corpus_files, max_steps=3))
        assert not ran.exists()
        with contextlib.suppress(Exception):
            torch.load(checkpoint / name, weights_only=False)
        assert ran.exists() or not checkpoint.exists() or name in FILES
