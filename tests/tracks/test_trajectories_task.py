"""Trajectory forecasting by the engine: runs, resumes, evaluation, and what is refused."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import small_run
import torch
from process_runs import assert_processes_agree
from torch.testing import assert_close
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.families import load_part, task_entry
from hf_vanilla.tracks import eth_ucy
from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.tracks.formats import TrackSource, read_tracks
from hf_vanilla.tracks.options import FORMS_OF, TrackDataOptions
from hf_vanilla.tracks.task import (
    WindowOrder,
    measured_fields,
    prepare,
    training_and_validation,
)
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "observed_steps": 5,
    "predicted_steps": 4,
    "num_modes": 3,
    "num_codes": 20,
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
    "trackers": [],
}
RARELY = {"eval_steps": 6, "save_steps": 60}


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


@pytest.mark.parametrize(
    "form", ["modes", "one", "density", "quantized", "tf_paper", "tf_quantized_paper"]
)
def test_a_run_learns_and_leaves_a_folder_with_rate_and_scores(tracks, tmp_path, form):
    folder = train(recipe(tmp_path / "run", tracks, data={"form": form}, max_steps=60, **RARELY))
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    key = "loss" if "quantized" in form else "min_ade"  # codes are near from the start
    scored = [line[key] for line in lines if key in line]
    assert scored[-1] < (0.85 if "quantized" in form else 0.7) * scored[0]
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    assert model.config.step_seconds == 0.4
    assert 0.2 < model.config.velocity_std < 0.5
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "validation part | 5 -> 4 steps of 0.4 s | per agent" in card


@pytest.mark.slow
def test_processes_and_micro_batches_give_the_same_weights(processes, tracks, tmp_path):
    data = {"windows_per_batch": 4, "winner_temperature": 0.3}
    assert_processes_agree(
        processes,
        lambda folder: recipe(folder, tracks, data=data),
        tmp_path,
        ignored="score_head.bias",
    )


KILLED = """
import os, signal, sys
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training import run as training
counting = training.sum_counts
def killed(run, micro_batches):
    if micro_batches[0].number // run.per_step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return counting(run, micro_batches)
training.sum_counts = killed
training.train(read_recipe(["--recipe", sys.argv[1]]))
"""


def test_a_killed_run_ends_in_the_same_weights(tracks, tmp_path, program):
    data = {"winner_temperature": 0.3}
    whole = small_run.weights(train(recipe(tmp_path / "whole", tracks, data=data)))
    asked, path = recipe(tmp_path / "cut", tracks, data=data), tmp_path / "cut.yaml"
    path.write_text(asked.to_yaml(), encoding="utf-8")
    assert program("python", "-c", KILLED, path).returncode == -9
    assert (tmp_path / "cut" / "checkpoint-4").is_dir()
    found = small_run.weights(train(asked))
    for name, weight in whole.items():
        assert_close(found[name], weight, rtol=0, atol=0)


def test_counts_are_observed_future_steps(tracks, tmp_path):
    task = prepare(recipe(tmp_path / "run", tracks))
    rows = WindowOrder(len(task.train), 40, 0)[0]
    windows = task.train
    _, known, _ = windows.positions(rows[0])
    batch = task.batch(rows, torch.Generator().manual_seed(0))
    assert task.counts(batch) == [int(known[:, 5:].sum())]
    assert task.counts(batch)[0] < 40 * 4


def test_noise_changes_observed_positions_of_its_share_of_windows_only(tracks, tmp_path):
    still = {"speed_change": 0.0, "rotate": False, "mirror": 0.0}
    noisy = still | {"position_noise": 0.3, "noise_share": 0.4}
    tasks = [prepare(recipe(tmp_path, tracks, data=data)) for data in (still, noisy)]
    rows = WindowOrder(len(tasks[0].train), 600, seed=0)[0]
    plain, changed = (task.batch(rows, torch.Generator().manual_seed(5)) for task in tasks)
    assert_close(changed["future_values"], plain["future_values"], rtol=0, atol=0)
    apart = (changed["past_values"] - plain["past_values"]).square().mean((1, 2)).sqrt()  # (B,)
    is_noisy = apart > 0
    assert is_noisy.float().mean().item() == pytest.approx(0.4, abs=0.08)  # 4 deviations
    # a window's own deviation is uniform from 0 to 0.3; its estimate has 10 numbers
    assert apart[is_noisy].mean().item() == pytest.approx(0.15, abs=0.03)
    assert 0.25 < apart.max() < 0.6


def test_an_epoch_has_each_window_once_whatever_the_size():
    order = WindowOrder(10, 4, 3)
    rows = [row for number in range(5) for row in order[number][0].tolist()]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10] != rows[10:]


def test_the_temperature_falls_with_the_optimizer_step_not_with_the_micro_batch(tracks, tmp_path):
    data = {"winner_temperature": 0.3}
    task = prepare(recipe(tmp_path / "run", tracks, data=data, max_steps=30))

    def temperatures(per_step, numbers):
        order = task.order(per_step)
        batches = [task.batch(order[number], torch.Generator()) for number in numbers]
        return [round(batch["winner_temperature"].item(), 4) for batch in batches]

    assert temperatures(1, (0, 10, 20, 29)) == [0.3, 0.15, 0, 0]
    assert temperatures(2, (0, 1, 20, 21)) == [0.3, 0.3, 0.15, 0.15]


def test_evaluation_equals_the_validation_of_the_run(tracks, tmp_path):
    asked = recipe(tmp_path / "run", tracks, data={"validation": str(tracks)})
    folder = train(asked)
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    arguments = ["--model", str(folder), "--dataset", str(tracks), "--frame_seconds", "0.4"]
    arguments += ["--allow_missing", "True", "--device", "cpu"]
    scores = evaluate(read_evaluation(arguments))
    assert scores.values["minADE3"] == pytest.approx(last["min_ade"], rel=1e-4)
    assert "minADE3" in str(scores)
    assert "windows, missing steps masked" in str(scores).splitlines()[0]


def test_without_a_share_built_in_tracks_have_no_validation():
    for share, has in ((0.1, True), (0, False)):
        tables = training_and_validation(TrackDataOptions(validation_share=share))
        assert (tables[1] is not None) == has


def test_a_share_of_less_than_one_agent_is_a_warning(tmp_path, caplog):
    path = tmp_path / "few.csv"
    rows = [f"{frame},{agent},{0.5 * frame},0" for agent in range(6) for frame in range(22)]
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    options = TrackDataOptions(dataset=str(path), frame_seconds=0.4, validation_share=0.1)
    assert training_and_validation(options)[1] is None
    assert "no validation: validation_share=0.1 of 6 agents is less than one" in caplog.text
    assert training_and_validation(replace(options, validation_share=0.2))[1] is not None


def test_counts_of_the_log_are_written_as_people_read_them(tmp_path, caplog):
    path = tmp_path / "long.csv"
    rows = [f"{frame},{agent},{0.5 * frame},0" for agent in range(6) for frame in range(208)]
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    with caplog.at_level(logging.INFO):
        prepare(recipe(tmp_path / "run", path, data={"validation_share": 0.0}))
    assert "training: 1,248 rows, 6 agents, 1 scene, steps of 0.4 s; 0 gaps" in caplog.text
    assert "; 1,200 windows" in caplog.text


def test_a_scene_with_one_person_has_scores_alone_and_none_in_company(tmp_path):
    path = tmp_path / "one.csv"
    rows = [f"{frame},1,{0.5 * frame},0" for frame in range(22)]
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    arguments = ["--model", "constant_velocity", "--dataset", str(path), "--frame_seconds", "0.4"]
    scores = evaluate(read_evaluation(arguments)).values
    assert scores["minADE1"] == pytest.approx(0, abs=1e-6)
    assert scores["collision_share"] == 0
    with pytest.raises(ValueError, match=r"one\.csv has no window of two agents"):
        evaluate(read_evaluation([*arguments, "--with_company", "True"]))


def test_a_model_of_another_rate_is_not_scored_on_the_tracks(tracks, tmp_path):
    folder = train(recipe(tmp_path / "run", tracks))
    arguments = ["--model", str(folder), "--dataset", str(tracks), "--frame_seconds", "0.1"]
    with pytest.raises(
        ValueError, match=r"steps of 0.1 s, but the model has 0.4 s.*--step_seconds"
    ):
        evaluate(read_evaluation(arguments))


def test_a_new_model_is_not_validated_on_tracks_of_another_rate(tracks, tmp_path):
    rows = [f"{10 * frame},a,{frame},0" for frame in range(20)]
    path = tmp_path / "slow.csv"
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"validation has steps of 4 s, but .* 0.4 s"):
        prepare(recipe(tmp_path / "run", tracks, data={"validation": str(path)}))


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


def test_a_form_without_checkpoints_of_activations_is_named_with_the_remedy(tracks, tmp_path):
    asked = recipe(tmp_path / "run", tracks, data={"form": "one"}, gradient_checkpointing=True)
    with pytest.raises(
        ValueError, match=r"gradient_checkpointing=True: .*Prediction: leave it out"
    ):
        train(asked)


def test_a_field_that_the_form_does_not_read_is_named(tracks, tmp_path, caplog):
    def named(form):
        fields = replace(recipe(tmp_path, tracks, data={"form": form}), model={"num_codes": 7})
        caplog.clear()
        prepare(fields)
        return "model.num_codes changes nothing in form" in caplog.text

    assert named("modes")
    assert not named("quantized")
    entries = [task_entry(name) for name in ("trajectories", "scene_trajectories")]
    configs = [load_part(entry.config)() for entry in entries]
    for name, forms in FORMS_OF.items():
        known = next(e for e, config in zip(entries, configs, strict=True) if hasattr(config, name))
        assert {*forms} < {*known.forms}


def test_tracks_that_are_too_short_are_named(tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("frame,agent,x,y\n0,1,0,0\n1,1,1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no agent with 5 \+ 4 steps.* set allow_missing"):
        prepare(recipe(tmp_path / "run", path, data={"allow_missing": False}))
    with pytest.raises(ValueError, match=r"lower model.observed_steps or \S+$"):
        prepare(recipe(tmp_path / "run", path))
    arguments = ["--model", "constant_velocity", "--dataset", str(path), "--frame_seconds", "0.4"]
    with pytest.raises(ValueError, match="gap: set allow_missing, or give longer tracks"):
        evaluate(read_evaluation(arguments))
    with pytest.raises(ValueError, match="gap: give longer tracks"):
        evaluate(read_evaluation([*arguments, "--allow_missing", "True"]))


def test_tracks_without_two_steps_in_a_row_are_refused(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("frame,agent,x,y\n0,1,0,0\n1,2,1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no two positions of an agent are one step of 0\.4 s"):
        measured_fields(read_tracks(path, TrackSource(frame_seconds=0.4)))


@pytest.fixture
def eth_ucy_folder(tmp_path, monkeypatch):
    """The eight files of ETH and UCY, each with two walkers of 25 steps, one to validate on."""
    for number, (name, first) in enumerate(eth_ucy.FIRST_VALIDATION_FRAME.items()):
        rows = [
            f"{start + 10 * step}\t{agent}\t{number + 0.4 * step}\t{number}"
            for agent, start in ((1, first - 250), (2, first))
            for step in range(25)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.setitem(eth_ucy.TEST_WINDOWS, "zara1", 12)
    return tmp_path


def test_a_recipe_keeps_its_test_scene_wherever_the_data_lies(eth_ucy_folder, caplog):
    arguments = ["--recipe", "tracks_zara1", "--dataset", str(eth_ucy_folder)]
    with caplog.at_level(logging.INFO):
        task = prepare(read_recipe(arguments))
    test_file = list(eth_ucy.FIRST_VALIDATION_FRAME).index("crowds_zara01")
    files = task.train.table.positions[:, 1]  # y is the number of the file
    assert sorted(set(files.tolist())) == [number for number in range(8) if number != test_file]
    card = task.card({"title": "x", "training": "x"}, None).content
    assert all("without scene zara1" in text for text in (caplog.text, card))
    everything = prepare(read_recipe([*arguments, "--test_scene", "none"]))
    assert test_file in everything.train.table.positions[:, 1]


def test_chosen_tracks_validate_a_recipe_with_a_test_scene(eth_ucy_folder):
    arguments = ["--recipe", "tracks_zara1", "--dataset", str(eth_ucy_folder)]
    chosen = str(eth_ucy_folder / "biwi_hotel.txt")
    task = prepare(read_recipe([*arguments, "--validation", chosen]))
    assert set(task.validation.table.scene_names) == {"biwi_hotel"}
    assert len(task.validation.table) == 50


def test_other_tracks_with_such_a_recipe_are_told_how(tracks):
    with pytest.raises(FileNotFoundError, match=r"no biwi_eth.txt.*--test_scene none"):
        prepare(read_recipe(["--recipe", "tracks_zara1", "--dataset", str(tracks)]))


@pytest.mark.parametrize("data", [["walkers"], ["folder", "--test_scene", "zara1"]])
def test_a_format_of_files_beside_tracks_of_known_format_is_refused(data):
    arguments = ["--model", "constant_velocity", "--unit", "km", "--dataset", *data]
    with pytest.raises(ValueError, match=f"unit: for other files; the format of {data[-1]} is"):
        evaluate(read_evaluation(arguments))


def test_options_of_files_beside_built_in_tracks_are_named_in_a_training(tmp_path, caplog):
    prepare(read_recipe(["--recipe", "demo_tracks", "--unit", "ft", "--frame_seconds", "0.1"]))
    assert "frame_seconds, unit: for other files; the format of walkers is known" in caplog.text
