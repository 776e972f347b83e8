"""Joint forecasting by the engine: both stages, resumes, batches, evaluation, forecasts."""

import json

import numpy as np
import pyarrow.csv
import pytest
import small_run
import torch
from process_runs import assert_processes_agree
from torch.testing import assert_close
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.tracks.forecast import ForecastOptions, forecast_file
from hf_vanilla.tracks.options import JointDataOptions
from hf_vanilla.tracks.scene_tasks import JointTrajectoryTask, SceneOrder
from hf_vanilla.tracks.scene_tasks import prepare_joint as prepare
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation

MODEL = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "num_modes": 4,
    "latent_dim": 4,
    "d_model": 24,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "posterior_layers": 1,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 40,
    "map_dims": [16],
    "diversity_weight": 1.0,
}
SHARED = {
    "max_steps": 6,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "max_grad_norm": 1.0,
    "eval_steps": 3,
    "save_steps": 2,
    "logging_steps": 2,
    "average_checkpoints": 1,
    "use_cpu": True,
    "trackers": [],
}


@pytest.fixture(scope="module")
def tracks(tmp_path_factory):
    """A CSV of 30 people in 5 scenes, one of whom leaves early."""
    scenes = built_in_tracks("walkers", agents=30, seed=7)
    rows = [
        f"{scene},{frame},{agent},{x},{y}"
        for scene, frame, agent, (x, y) in zip(
            scenes.scene, scenes.frame, scenes.agent, scenes.positions.tolist(), strict=True
        )
        if not (agent == 3 and frame > 14) and frame < 20
    ]
    path = tmp_path_factory.mktemp("tracks") / "tracks.csv"
    path.write_text("\n".join(["scene,frame,agent,x,y", *rows]), encoding="utf-8")
    return path


def recipe(folder, tracks, *, data=None, model=None, **shared):
    options = {"scenes_per_step": 4, "scenes_per_batch": 2, "max_agents": 5, "rotate": True}
    options |= {"dataset": str(tracks), "frame_seconds": 0.4, "columns": "scene=scene"}
    options |= {"validation_share": 0.4, "position_noise": 0.02}
    return Recipe(
        task="joint_trajectories",
        train=TrainRecipe(**{**SHARED, "output_dir": str(folder), **shared}),
        data=JointDataOptions(**{**options, **(data or {})}),
        model={**MODEL, **(model or {})},
        decoding={},
    )


@pytest.fixture(scope="module")
def first_stage(tracks, tmp_path_factory):
    steps = {"max_steps": 60, "eval_steps": 10, "save_steps": 60}
    steps |= {"learning_rate": 0.005, "warmup_steps": 10}
    folder = tmp_path_factory.mktemp("first") / "run"
    return train(recipe(folder, tracks, **steps))


@pytest.fixture(scope="module")
def second_stage(tracks, first_stage, tmp_path_factory):
    data = {"stage": "second", "first_stage": str(first_stage)}
    folder = tmp_path_factory.mktemp("second") / "run"
    return train(recipe(folder, tracks, data=data, max_steps=12, save_steps=12))


def logged(folder, key):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def test_the_first_stage_learns_and_leaves_a_folder_with_rate_and_scores(first_stage):
    scored = logged(first_stage, "min_ade")
    assert scored[-1] < 0.7 * scored[0]
    assert all(j >= m for j, m in zip(logged(first_stage, "joint_ade"), scored, strict=True))
    assert logged(first_stage, "divergence")[-1] >= 2.0
    model = AutoModelForTimeSeriesPrediction.from_pretrained(first_stage)
    assert type(model).__name__ == "VanillaForJointTrajectoryPrediction"
    assert model.config.step_seconds == 0.4
    card = (first_stage / "README.md").read_text(encoding="utf-8")
    assert "minJADE4" in card
    assert "validation part | 5 -> 3 steps of 0.4 s | per agent" in card


def test_the_second_stage_holds_the_first_unchanged_and_learns(first_stage, second_stage):
    first = AutoModelForTimeSeriesPrediction.from_pretrained(first_stage)
    second = AutoModelForTimeSeriesPrediction.from_pretrained(second_stage)
    assert type(second).__name__ == "VanillaForDiverseTrajectoryPrediction"
    for name, weight in first.state_dict().items():
        assert_close(second.first_stage.state_dict()[name], weight, rtol=0, atol=0)
    losses = logged(second_stage, "loss")
    assert losses[-1] < losses[0]
    assert 0 < logged(second_stage, "similarity")[-1] <= 1


def test_an_interrupted_run_ends_in_the_same_weights(tracks, tmp_path, monkeypatch):
    whole = small_run.weights(train(recipe(tmp_path / "whole", tracks)))
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=3)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(tmp_path / "cut", tracks))
    found = small_run.weights(train(recipe(tmp_path / "cut", tracks)))
    for name, weight in whole.items():
        assert_close(found[name], weight, rtol=0, atol=0)


def test_batches_hold_whole_scenes_of_one_frame_cut_to_the_largest_number(tracks, tmp_path):
    task = prepare(recipe(tmp_path / "run", tracks, data={"rotate": False, "position_noise": 0.0}))
    sizes = task.sizes
    scenes = np.array([sizes.argmax(), sizes.argmin()])
    assert sizes[scenes].tolist() == [6, 5]
    batch = task.batch(scenes, torch.Generator().manual_seed(0))
    counts = np.minimum(sizes[scenes], 5)
    assert batch["agent_mask"].sum(1).tolist() == counts.tolist()
    assert task.counts(batch) == [counts.sum()]
    # distances between agents are those of the table, but for a mirror image
    windows = task.train
    scene = int(np.argmin(sizes[scenes]))
    number = scenes[scene]
    rows = task.by_scene[number]
    assert len(np.unique(windows.table.frame[windows.last_rows[rows]])) == 1
    wanted = np.sort(windows.table.positions[windows.last_rows[rows]][:, 0])
    found = np.sort(batch["past_values"][scene, batch["agent_mask"][scene], -1, 0].numpy())
    assert_close(
        found - found.mean(), (wanted - wanted.mean()).astype(np.float32), rtol=0, atol=1e-5
    )


def test_an_epoch_has_each_scene_once_in_batches_of_similar_size():
    sizes = np.random.default_rng(0).integers(1, 40, 160)
    order = SceneOrder(sizes, 5, seed=3)
    batches = [order[number] for number in range(32)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(160))
    assert sorted(np.concatenate([order[number] for number in range(32, 64)])) == list(range(160))
    spread = np.mean([np.ptp(sizes[batch]) for batch in batches])
    assert spread < 0.5 * np.mean(
        [np.ptp(sizes[number : number + 5]) for number in range(0, 160, 5)]
    )
    assert not np.array_equal(batches[0], SceneOrder(sizes, 5, seed=4)[0])


def test_evaluation_prints_joint_scores_beside_marginal_ones(tracks, second_stage):
    arguments = ["--model", str(second_stage), "--dataset", str(tracks), "--device", "cpu"]
    arguments += ["--frame_seconds", "0.4", "--columns", "scene=scene"]
    more = (["--batch_size", "7", "--samples_at_once", "1"], ["--batch_size", "99"])
    scores = [evaluate(read_evaluation([*arguments, *change])) for change in more]
    values = scores[0].values
    assert values["minJADE4"] >= values["minADE4"]
    assert 0 <= values["joint_collision_share"] <= 1
    for name, value in scores[1].values.items():
        assert values[name] == pytest.approx(value, abs=1e-5)
    assert "minJADE4" in str(scores[0])


def test_forecasts_of_last_rows_are_those_of_all_rows(tracks, second_stage, tmp_path):
    tables = {}
    for at in ("last", "all"):
        output = tmp_path / f"{at}.csv"
        forecast_file(
            ForecastOptions(
                model=str(second_stage),
                input=str(tracks),
                output=str(output),
                at=at,
                frame_seconds=0.4,
                columns="scene=scene",
                batch_size=11,
                device="cpu",
            )
        )
        tables[at] = pyarrow.csv.read_csv(output).to_pylist()
    every = {
        tuple(row[k] for k in ("frame", "agent", "step", "mode")): row for row in tables["all"]
    }
    assert len(tables["last"]) == 30 * 4 * 3
    for row in tables["last"]:
        same = every[tuple(row[k] for k in ("frame", "agent", "step", "mode"))]
        assert row["x"] == pytest.approx(same["x"], abs=1e-4)
        assert row["probability"] == pytest.approx(0.25)
    # the person who leaves early is forecast at the last frame seen, together with the others
    assert {row["frame"] for row in tables["last"] if row["agent"] == 3} == {14}


def test_the_samples_of_a_forecast_are_the_same_each_time(tracks, first_stage, tmp_path):
    options = {"model": str(first_stage), "input": str(tracks), "frame_seconds": 0.4}
    options |= {"columns": "scene=scene", "device": "cpu"}
    found = []
    for seed, at_once in ((1, None), (2, 1)):
        torch.manual_seed(seed)
        path = tmp_path / f"{seed}.csv"
        forecast_file(ForecastOptions(**options, output=str(path), samples_at_once=at_once))
        found.append(pyarrow.csv.read_csv(path)["x"].to_numpy())
    assert_close(*map(torch.tensor, found), atol=1e-4, rtol=0)


def test_a_forecast_longer_than_in_training_is_written_with_a_warning(
    tracks, first_stage, tmp_path, caplog
):
    options = {"model": str(first_stage), "input": str(tracks), "frame_seconds": 0.4}
    options |= {"columns": "scene=scene", "device": "cpu", "predicted_steps": 6}
    output = tmp_path / "long.csv"
    forecast_file(ForecastOptions(**options, output=str(output), samples_at_once=3))
    assert max(pyarrow.csv.read_csv(output)["step"].to_pylist()) == 6
    assert "predicted_steps=6: the model was trained on 3" in caplog.text
    options["model"] = "constant_velocity"
    del options["predicted_steps"]
    with pytest.raises(ValueError, match="samples_at_once=3: SimpleForecaster computes all"):
        forecast_file(ForecastOptions(**options, samples_at_once=3))


def test_a_scene_of_500_people_is_cut_in_training_and_reported(tmp_path, caplog):
    rows = [f"{frame},{agent},{agent},{frame}" for agent in range(500) for frame in range(8)]
    rows += [f"{frame},{agent},{agent},{frame}" for agent in range(500, 503) for frame in (20,)]
    path = tmp_path / "crowd.csv"
    path.write_text("\n".join(["frame,agent,x,y", *rows]), encoding="utf-8")
    data = {"columns": "scene=scene", "validation_share": 0.0, "scenes_per_batch": 4}
    with caplog.at_level("INFO"):
        task = prepare(recipe(tmp_path / "run", path, data={**data, "columns": ""}))
    assert "1 scenes of up to 500 agents; 1 are cut to max_agents=5" in caplog.text
    batch = task.batch(task.order(1)[0][:1], torch.Generator().manual_seed(0))
    assert batch["past_values"].shape == (1, 5, 5, 2)
    assert batch["agent_mask"].all()


def test_scenes_whose_loss_is_not_finite_are_saved_for_inspection(tracks, tmp_path, monkeypatch):
    made = JointTrajectoryTask.batch

    def far_away(self, scenes, generator):
        batch = made(self, scenes, generator)
        batch["future_values"] = batch["future_values"] * 1e30
        return batch

    monkeypatch.setattr(JointTrajectoryTask, "batch", far_away)
    with pytest.raises(
        ValueError, match=r"at step 1,.* not-finite-step-1|at step 1, .*micro-batch"
    ):
        train(recipe(tmp_path / "run", tracks, logging_steps=1))
    saved = torch.load(next((tmp_path / "run").glob("not-finite-step-1-process-0.pt")))
    assert saved["step"] == 1
    for batch in saved["micro_batches"]:
        assert batch["past_values"].shape[:2] == batch["agent_mask"].shape
        assert (batch["future_values"].abs().amax(dim=(2, 3))[batch["agent_mask"]] > 1e20).all()


@pytest.mark.slow
def test_processes_and_micro_batches_give_the_same_weights(processes, tracks, tmp_path):
    # noise on positions and latents is drawn per micro-batch, whose number all runs share
    assert_processes_agree(
        processes,
        lambda folder: recipe(folder, tracks, data={"scenes_per_batch": 1}),
        tmp_path,
        ignored="k_proj.bias",
    )


def test_a_first_stage_with_fewer_samples_serves_a_second(tracks, first_stage, tmp_path):
    data = {"stage": "second", "first_stage": str(first_stage)}
    task = prepare(recipe(tmp_path / "run", tracks, data=data, model={"num_modes": 7}))
    model = task.model().eval()
    assert model(torch.zeros(1, 2, 5, 2)).trajectories.shape == (1, 2, 7, 3, 2)


def test_a_first_stage_of_another_size_is_refused(tracks, first_stage, second_stage, tmp_path):
    data = {"stage": "second", "first_stage": str(first_stage)}
    wrong = recipe(tmp_path / "run", tracks, data=data, model={"latent_dim": 6})
    with pytest.raises(ValueError, match="latent_dim is 4 there and 6 here: set the section model"):
        prepare(wrong)
    data["first_stage"] = str(second_stage)
    with pytest.raises(ValueError, match="holds VanillaForDiverseTrajectoryPrediction"):
        prepare(recipe(tmp_path / "run", tracks, data=data))
    data |= {"first_stage": str(first_stage), "frame_seconds": 0.5}
    with pytest.raises(ValueError, match=r"steps of 0.5 s, but the model has 0.4 s"):
        prepare(recipe(tmp_path / "run", tracks, data=data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenes_per_step": 5}, "scenes_per_step=5 is not a multiple of scenes_per_batch=2"),
        ({"stage": "second"}, "give first_stage"),
        ({"first_stage": "somewhere"}, "give first_stage"),
        ({"mirror": 1.5}, "mirror=1.5: give a number from 0 to 1"),
    ],
)
def test_wrong_options_are_refused(tracks, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        recipe(tmp_path / "run", tracks, data=change)


def test_a_trained_stage_is_trained_further(tracks, second_stage, tmp_path):
    more = {"initial_model": str(second_stage), "max_steps": 1, "learning_rate": 1e-9}
    with pytest.raises(ValueError, match=r"holds VanillaForDiverse.*: set stage to second"):
        train(recipe(tmp_path / "first", tracks, **more))
    folder = train(recipe(tmp_path / "run", tracks, data={"stage": "second"}, **more))
    before, after = (small_run.weights(path) for path in (second_stage, folder))
    for name, weight in before.items():
        assert_close(after[name], weight, rtol=0, atol=1e-6)
