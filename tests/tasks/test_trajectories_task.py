"""Trajectory forecasting by the engine: runs, resumes, evaluation, and what is refused."""

import json

import pytest
import small_run
import torch
from torch.testing import assert_close
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.data.built_in_tracks import built_in_tracks
from hf_vanilla.recipes.recipe import Recipe, TrainRecipe
from hf_vanilla.tasks.dispatch import evaluate, read_evaluation
from hf_vanilla.tasks.trajectories import WindowOrder, prepare
from hf_vanilla.tasks.trajectory_options import TrackDataOptions
from hf_vanilla.training.run import train

MODEL = {
    "observed_steps": 5,
    "predicted_steps": 4,
    "num_modes": 3,
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 20,
}
SHARED = {
    "max_steps": 6,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "eval_steps": 3,
    "save_steps": 2,
    "logging_steps": 2,
    "average_checkpoints": 1,
    "use_cpu": True,
    "trackers": "none",
}


@pytest.fixture
def tracks(tmp_path):
    """A CSV of 40 agents who miss some steps."""
    scenes = built_in_tracks("walkers", agents=40, seed=7)
    rows = [
        f"{frame},{agent},{x},{y}"
        for frame, agent, (x, y) in zip(
            scenes.frame, scenes.agent, scenes.positions.tolist(), strict=True
        )
        if (frame + agent) % 11
    ]
    path = tmp_path / "tracks.csv"
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    return path


def recipe(folder, tracks, *, data=None, **shared):
    options = {"windows_per_step": 16, "windows_per_batch": 8, "frame_seconds": 0.4}
    options |= {"dataset": str(tracks), "allow_missing": True, "speed_change": 0.1, "rotate": True}
    return Recipe(
        task="trajectories",
        train=TrainRecipe(**{**SHARED, "output_dir": str(folder), **shared}),
        data=TrackDataOptions(**{**options, **(data or {})}),
        model=MODEL,
        decoding={},
    )


@pytest.mark.parametrize("form", ["modes", "one"])
def test_a_run_learns_and_leaves_a_folder_with_rate_and_scores(tracks, tmp_path, form):
    folder = train(recipe(tmp_path / "run", tracks, data={"form": form}, max_steps=60))
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    scored = [line["min_ade"] for line in lines if "min_ade" in line]
    assert scored[-1] < 0.7 * scored[0]
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    assert model.config.step_seconds == 0.4
    assert 0.2 < model.config.velocity_std < 0.5
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "validation part | 5 -> 4 steps of 0.4 s | per person" in card


def test_an_interrupted_run_ends_in_the_same_weights(tracks, tmp_path, monkeypatch):
    whole = small_run.weights(train(recipe(tmp_path / "whole", tracks)))
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=3)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(tmp_path / "cut", tracks))
    found = small_run.weights(train(recipe(tmp_path / "cut", tracks)))
    for name, weight in whole.items():
        assert_close(found[name], weight, rtol=0, atol=0)


def test_counts_are_observed_future_steps(tracks, tmp_path):
    task = prepare(recipe(tmp_path / "run", tracks))
    rows = WindowOrder(len(task.tracks.train), 40, 0)[0]
    windows = task.tracks.train
    _, known, _ = windows.positions(rows)
    batch = task.batch(rows, torch.Generator().manual_seed(0))
    assert task.counts(batch) == [int(known[:, 5:].sum())]
    assert task.counts(batch)[0] < 40 * 4


def test_an_epoch_has_each_window_once_whatever_the_size():
    order = WindowOrder(10, 4, 3)
    rows = [row for number in range(5) for row in order[number].tolist()]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10] != rows[10:]


def test_evaluation_equals_the_validation_of_the_run(tracks, tmp_path):
    asked = recipe(tmp_path / "run", tracks, data={"validation": str(tracks)})
    folder = train(asked)
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    arguments = ["--model", str(folder), "--dataset", str(tracks), "--frame_seconds", "0.4"]
    arguments += ["--allow_missing", "True", "--device", "cpu"]
    scores = evaluate(read_evaluation(arguments))
    assert scores.values["minADE3"] == pytest.approx(last["min_ade"], rel=1e-4)
    assert "minADE3" in str(scores)
    assert "windows" in str(scores).splitlines()[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"windows_per_batch": 5}, "windows_per_step=16 is not a multiple"),
        ({"mirror": 1.5}, "mirror=1.5"),
        ({"form": "two"}, "form='two'"),
        ({"test_scene": "zara9"}, "test_scene='zara9'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(tracks, tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        recipe(tmp_path / "run", tracks, data=data)


def test_tracks_that_are_too_short_are_named(tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("frame,agent,x,y\n0,1,0,0\n1,1,1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no agent with 5 \+ 4 steps"):
        prepare(recipe(tmp_path / "run", path))
