"""Agents and lanes by the engine: training, resumes, batches, evaluation, forecasts, figures."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pytest
import small_run
import torch
from process_runs import assert_processes_agree
from scene_models import SCENE_FORMS, SIZES
from torch.testing import assert_close
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.tracks import options as track_options
from hf_vanilla.tracks.attention import attention_in_scene
from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.tracks.forecast import ForecastOptions, forecast_file, forecasts
from hf_vanilla.tracks.forecaster import load_forecaster, predict
from hf_vanilla.tracks.layout import Surroundings
from hf_vanilla.tracks.options import SceneDataOptions, TrackDataOptions
from hf_vanilla.tracks.plot import (
    ATTENTION_WIDTH,
    PlotTracksOptions,
    drawn_agents,
    plot_tracks,
)
from hf_vanilla.tracks.scene_tasks import prepare_scenes as prepare
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation

SHARED = {
    "max_steps": 6,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "max_grad_norm": 1.0,
    "eval_steps": 6,
    "save_steps": 2,
    "logging_steps": 2,
    "average_checkpoints": 1,
    "use_cpu": True,
    "trackers": [],
}


@pytest.fixture(autouse=True, scope="module")
def few_cars():
    """90 cars on 30 junctions, wherever the built-in ones are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(track_options.BUILT_IN_AGENTS, "junctions", 90)
        yield


def recipe(folder, *, data=None, model=None, **shared):
    options = {"dataset": "junctions", "scenes_per_step": 8, "scenes_per_batch": 4, "mirror": 0.0}
    options |= {"rotate": True, "position_noise": 0.02}
    return Recipe(
        task="scene_trajectories",
        train=TrainRecipe(**{**SHARED, "output_dir": str(folder), **shared}),
        data=SceneDataOptions(**{**options, **(data or {})}),
        model={**SIZES, "observed_steps": 8, "thinning_distance": 2.0, **(model or {})},
        decoding={},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    steps = {"max_steps": 40, "eval_steps": 10, "save_steps": 40, "warmup_steps": 8}
    folder = tmp_path_factory.mktemp("scene") / "run"
    # nothing is thinned: of futures that are equally good to keep, rounding would choose
    return train(recipe(folder, model={"num_seeds": 4}, **steps))


def logged(folder, key):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def test_a_run_learns_and_leaves_a_folder_with_scores(trained):
    scored = logged(trained, "min_ade")
    assert scored[-1] < 0.8 * scored[0]
    model = AutoModelForTimeSeriesPrediction.from_pretrained(trained)
    assert type(model).__name__ == "VanillaForSceneTrajectoryPrediction"
    assert model.config.step_seconds == 0.4
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert "300 scenes, 30 maps of lanes" in card
    assert "validation part | 8 -> 3 steps of 0.4 s | per agent" in card


@pytest.mark.parametrize("form", SCENE_FORMS)
def test_every_form_trains_and_loads_by_its_name(form, tmp_path):
    folder = train(recipe(tmp_path / "run", data={"form": form}, max_steps=2, warmup_steps=1))
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    assert type(model) is SCENE_FORMS[form]
    if form.startswith("proposals"):
        assert len(model.centres.unique(dim=0)) == 3
    assert np.isfinite(logged(folder, "loss")).all()


def test_an_interrupted_run_ends_in_the_same_weights(tmp_path, monkeypatch):
    whole = small_run.weights(train(recipe(tmp_path / "whole")))
    with monkeypatch.context() as patch:
        small_run.interrupt(patch, after=3)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(tmp_path / "cut"))
    found = small_run.weights(train(recipe(tmp_path / "cut")))
    for name, weight in whole.items():
        assert_close(found[name], weight, rtol=0, atol=0)


def test_batches_hold_cars_and_lanes_turned_together(tmp_path):
    task = prepare(recipe(tmp_path / "run", data={"position_noise": 0.0, "max_agents": 2}))
    scenes = task.order(2)[0]
    batch = task.batch(scenes, torch.Generator().manual_seed(0))
    assert batch["past_values"].shape == (4, 2, 8, 2)
    windows, table = task.train, task.train.table
    of_batch = table.scene[windows.last_rows[[task.by_scene[scene][0] for scene in scenes]]]
    roads = [table.maps[scene] for scene in of_batch]
    assert batch["lane_mask"].any(-1).sum(1).tolist() == [len(road) for road in roads]
    for row, scene in enumerate(of_batch):
        first = table.positions[table.scene == scene]
        road = table.maps[scene]
        wanted = np.linalg.norm(road.points[0, 0] - first, axis=1)
        place = batch["lane_values"][row, 0, 0]
        found = torch.linalg.norm(batch["past_values"][row] - place, dim=-1).flatten().numpy()
        assert np.abs(found[:, None] - wanted).min(1).max() < 1e-3
    without = prepare(recipe(tmp_path / "run", data={"with_lanes": False}))
    assert "lane_values" not in without.batch(scenes, torch.Generator().manual_seed(0))


def test_a_model_trained_without_lanes_reads_none_later_and_keeps_its_lights(trained, tmp_path):
    short = {"max_steps": 2, "eval_steps": 2, "save_steps": 2, "data": {"with_lanes": False}}
    new = train(recipe(tmp_path / "new", model={"num_light_states": 4}, **short))
    start = recipe(tmp_path / "tuned", initial_model=str(trained), **short)
    tuned = train(replace(start, model={}))
    table = built_in_tracks("junctions", agents=30, seed=0)
    dark = tuple(replace(road, light_states=0 * road.light_states) for road in table.maps)
    for folder in (new, tuned):
        model = load_forecaster(str(folder), device="cpu")
        found = [
            next(forecasts(model, replace(table, maps=maps)))["x"].to_numpy()
            for maps in (table.maps, dark, None)
        ]
        assert np.array_equal(found[1], found[2])  # without lights, a map says nothing
        assert np.array_equal(found[0], found[1]) == (folder == tuned)


def test_two_micro_batches_give_the_gradient_of_one(tmp_path):
    found = []
    for size in (4, 8):
        data = {"scenes_per_batch": size, "rotate": False, "position_noise": 0.0}
        task = prepare(recipe(tmp_path / str(size), data=data))
        torch.manual_seed(0)
        model = task.model().double()
        order = task.order(8 // size)
        batches = [task.batch(order[i], torch.Generator().manual_seed(i)) for i in range(8 // size)]
        if size == 4:
            scenes = np.concatenate([order[0], order[1]])
        else:
            batches = [task.batch(scenes, torch.Generator().manual_seed(0))]
        total = torch.tensor([sum(task.counts(batch)[0] for batch in batches)])
        for batch in batches:
            batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
            task.losses(model, batch, total, is_logged=True)["loss"].backward()
        found.append([weight.grad for weight in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_evaluation_and_forecasts_read_the_lanes(trained, tmp_path):
    arguments = ["--model", str(trained), "--dataset", "junctions", "--device", "cpu"]
    scores = [evaluate(read_evaluation([*arguments, "--batch_size", size])) for size in ("7", "99")]
    for name, value in scores[1].values.items():
        assert scores[0].values[name] == pytest.approx(value, abs=1e-5)
    assert "minJADE4" in str(scores[0])

    output = tmp_path / "f.csv"
    asked = ForecastOptions(
        model=str(trained), input="junctions", output=str(output), device="cpu", batch_size=11
    )
    forecast_file(asked)
    rows = pyarrow.csv.read_csv(output).to_pylist()
    assert len(rows) == 90 * 4 * 3
    model = load_forecaster(str(trained), device="cpu")
    table = built_in_tracks("junctions", agents=90, seed=0)
    past = table.positions.reshape(90, 20, 2)[:3, -8:]
    mask, maps = np.ones((3, 8), bool), [table.maps[0]] * 3
    beside = Surroundings(np.zeros(len(past), int), maps)
    tracks, probabilities = predict(model, past, mask, beside)
    for agent in range(3):
        of_agent = [row for row in rows if row["agent"] == agent and row["mode"] == 0]
        assert of_agent[0]["probability"] == pytest.approx(probabilities[agent, 0], abs=1e-5)
        assert [row["x"] for row in of_agent] == pytest.approx(tracks[agent, 0, :, 0], abs=1e-4)
    bare, _ = predict(model, past, mask)
    assert np.abs(bare - tracks).max() > 1e-3


def test_a_run_with_kinds_sizes_and_lights_reads_them_wherever_it_forecasts(tmp_path):
    model = {"num_agent_kinds": 7, "reads_sizes": True, "num_seeds": 4, "learned_positions": 8}
    model["num_light_states"] = 4
    folder = train(recipe(tmp_path / "run", model=model, max_steps=20, eval_steps=20))
    loaded = load_forecaster(str(folder), device="cpu")
    loaded.set_attn_implementation("eager")
    kinds = loaded.tokens.own.kinds.weight
    trained_kinds = (kinds - kinds[6]).abs().amax(1) > 1e-3  # no car is "other"
    table = built_in_tracks("junctions", agents=90, seed=0)
    assert trained_kinds[table.kinds_of(np.arange(len(table)))].all()
    scores = evaluate(
        read_evaluation(["--model", str(folder), "--dataset", "junctions", "--device", "cpu"])
    )
    found = {}
    dark = tuple(replace(road, light_states=0 * road.light_states) for road in table.maps)
    tables = {"as read": table, "unknown": replace(table, kind=None, size=None)}
    tables["dark"] = replace(table, maps=dark)
    for name, given in tables.items():
        (futures,) = forecasts(loaded, given)
        found[name] = np.stack((futures["x"], futures["y"]), 1)
    assert np.abs(found["as read"] - found["unknown"]).max() > 1e-3
    has_lights = [len(table.maps[row // 3].light_points) > 0 for row in range(90)]
    lit = np.abs(found["as read"] - found["dark"]).reshape(90, -1).max(1)
    assert ((lit > 1e-4) == has_lights).all()
    drawn = drawn_agents(loaded, table.rows(table.scene == 0), 19)
    assert np.abs(drawn[0].tracks.reshape(-1, 2) - found["as read"][:12]).max() < 1e-3
    beside = Surroundings.of_rows(loaded.config, table, np.array([agent.row for agent in drawn]))
    past = np.stack([agent.past for agent in drawn])
    weights = [
        attention_in_scene(loaded, past, np.ones((3, 8), bool), given)
        for given in (beside, replace(beside, known={}))
    ]
    assert np.abs(weights[0].others - weights[1].others).max() > 1e-5
    assert scores.values["minADE4"] == pytest.approx(logged(folder, "min_ade")[-1], rel=0.5)


def test_the_figure_shows_lanes(trained, tmp_path, monkeypatch):
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda self, *xy, **style: (drawn.append(xy), plot(self, *xy, **style))[1]
    )
    path = tmp_path / "t.png"
    plot_tracks(PlotTracksOptions(model=str(trained), input="junctions", output=str(path)))
    assert path.stat().st_size > 1000
    road = built_in_tracks("junctions", agents=90, seed=2).maps[0]
    for line in road.points:
        assert any(np.array_equal(np.stack(xy, 1), line) for xy in drawn if len(xy) == 2)


def test_the_figure_shows_whom_an_agent_looks_at(trained, tmp_path, monkeypatch):
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda self, *xy, **style: (drawn.append(style), plot(self, *xy, **style))[1]
    )
    asked = {"model": str(trained), "input": "junctions", "output": str(tmp_path / "t.png")}
    plot_tracks(PlotTracksOptions(**asked))
    before, drawn[:] = len(drawn), []
    plot_tracks(PlotTracksOptions(**asked, attention_of="1", overwrite=True))
    road = built_in_tracks("junctions", agents=90, seed=2).maps[0]
    attention_lines = drawn[before:]
    assert len(attention_lines) == 2 + len(road)  # to two cars, and each lane
    assert 0 < sum(style["linewidth"] for style in attention_lines) < ATTENTION_WIDTH
    with pytest.raises(ValueError, match="attention_of='7': the frame has 0, 1, 2"):
        plot_tracks(PlotTracksOptions(**asked, attention_of="7", overwrite=True))
    asked["model"] = "constant_velocity"
    told = "SimpleForecaster does not say whom .* the forms vectors, neighbors and proposals_paper"
    with pytest.raises(ValueError, match=told):
        plot_tracks(PlotTracksOptions(**asked, attention_of="1", overwrite=True))
    with pytest.raises(ValueError, match="attention_of='1' is for one frame"):
        PlotTracksOptions(model="m", input="junctions", output="t.gif", attention_of="1")


def test_what_is_kept_for_validation_are_whole_scenes_or_the_last_frames(tmp_path):
    scenes = built_in_tracks("walkers", agents=60, seed=7)
    options = SceneDataOptions(validation_share=0.4)
    held_out = options.held_out(scenes)
    kept, others = (set(scenes.scene[rows].tolist()) for rows in (held_out, ~held_out))
    assert len(kept) == int(0.4 * len(kept | others)) > 1
    assert not kept & others
    one = scenes.rows(scenes.scene == 0)
    held_out = options.held_out(one)
    assert one.frame[held_out].min() == one.frame[~held_out].max() + 1
    assert (one.frame.max() - one.frame[held_out].min()) / np.ptp(one.frame) < 0.4
    assert not SceneDataOptions(validation_share=0.0).held_out(one).any()
    agents = TrackDataOptions(validation_share=0.4).held_out(one)
    assert not set(one.agent[agents].tolist()) & set(one.agent[~agents].tolist())


@pytest.mark.slow
def test_processes_and_micro_batches_give_the_same_weights(processes, tmp_path):
    # four scenes without lanes; with lanes a process reads 6,000 cars
    rows = [f"{s},{f},{a},{f * 0.3 + s},{a}" for s in range(4) for a in range(3) for f in range(20)]
    path = tmp_path / "tracks.csv"
    path.write_text("\n".join(["scene,frame,agent,x,y", *rows]), encoding="utf-8")
    data = {"dataset": str(path), "frame_seconds": 0.4, "columns": "scene=scene"}
    data |= {"validation_share": 0.4, "scenes_per_step": 4, "scenes_per_batch": 1}
    # the last bias of the head is that of the score of every future
    ignored = ("k_proj.bias", "head.projection.bias")
    assert_processes_agree(
        processes, lambda folder: recipe(folder, data=data), tmp_path, ignored=ignored
    )


def test_the_recipe_is_read_and_wrong_options_are_refused(tmp_path):
    assert read_recipe(["--recipe", "junctions"]).task == "scene_trajectories"
    with pytest.raises(ValueError, match="scenes_per_step=5 is not a multiple"):
        recipe(tmp_path / "run", data={"scenes_per_step": 5})
    with pytest.raises(ValueError, match="form='other'"):
        recipe(tmp_path / "run", data={"form": "other"})
