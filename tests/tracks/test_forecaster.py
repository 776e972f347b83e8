"""Forecasts of files and of frames that arrive."""

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForQuantizedTrajectoryPrediction,
)
from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.tracks.evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.tracks.forecast import ForecastOptions, forecast_file, forecasts
from hf_vanilla.tracks.forecaster import Forecaster

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "num_modes": 4,
    "velocity_std": 0.4,
}
FORMS = (VanillaForTrajectoryPrediction, VanillaForMultimodalTrajectoryPrediction)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return VanillaForMultimodalTrajectoryPrediction(VanillaTracksConfig(**SIZES)).eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def write_tracks(path):
    lines = [f"{f},{a},{x + 0.3 * f},{x}" for a, x in (("b", 1.0), ("a", 2.0)) for f in range(7)]
    path.write_text("\n".join(["frame,agent,x,y", *lines, "0,alone,0,0"]), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_the_auto_class_loads_the_form_that_was_saved(form, tmp_path):
    form(VanillaTracksConfig(**SIZES)).save_pretrained(tmp_path)
    assert type(AutoModelForTimeSeriesPrediction.from_pretrained(tmp_path)) is form


def test_frames_one_by_one_give_the_forecasts_of_the_file(model):
    scenes = built_in_tracks("walkers", agents=6, seed=2)
    keep = np.random.default_rng(0).random(len(scenes)) < 0.8  # agents come, go and miss steps
    scenes = scenes.rows(keep)
    rows = [row for table in forecasts(model, scenes, at="all") for row in table.to_pylist()]
    found = {}
    for row in rows:
        found.setdefault((row["frame"], row["agent"]), []).append((row["x"], row["y"]))
    live, seen = Forecaster(model), set()
    for frame in range(30):
        chosen = np.flatnonzero(scenes.frame == frame)
        arrived = [
            (scenes.agent_names[scenes.agent[row]], *scenes.positions[row]) for row in chosen
        ]
        forecast = live.observe(frame, arrived)
        for agent, tracks in zip(forecast.agents, forecast.trajectories, strict=True):
            seen.add((frame, agent))
            assert_allclose(tracks.reshape(-1, 2), found[frame, agent], atol=1e-4)
    assert seen == set(found)


def test_a_late_frame_is_put_in_its_place(model):
    in_order, late = Forecaster(model), Forecaster(model)
    for frame in (0, 1, 2):
        expected = in_order.observe(frame, [("a", frame, 0.0)])
    for frame in (0, 2, 1):
        found = late.observe(frame, [("a", frame, 0.0)])
    assert found.frame == 2
    assert_allclose(found.trajectories, expected.trajectories)


def test_rows_may_be_a_tensor(model):
    in_numbers, in_tensors = Forecaster(model), Forecaster(model)
    for frame in range(3):
        expected = in_numbers.observe(frame, [(7, frame, 0.5)])
        rows = torch.tensor([[7, frame, 0.5]])
        found = in_tensors.observe(torch.tensor(frame), rows)
    assert found.agents == (7,)
    assert_allclose(found.trajectories, expected.trajectories)


@pytest.mark.parametrize(
    ("frame", "rows", "message"),
    [
        (15, [("a", 0.0, 0.0)], "frame 15 lies between two steps of 10"),
        (20, [("a", float("nan"), 0.0)], "agent a is not finite"),
        (20, [("a", 0.0, -1e300)], r"\(0.0, -1e\+300\) of agent a is not finite and below 1e\+12"),
        (20, [("a", 0.0, 0.0), ("a", 1.0, 0.0)], "agent a is there twice"),
        (10, [("a", 0.0, 0.0)], "agent a is there twice"),
    ],
)
def test_rows_that_do_not_fit_are_refused(model, frame, rows, message):
    live = Forecaster(model, frames_per_step=10)
    live.observe(10, [("a", 0.0, 0.0)])
    with pytest.raises(ValueError, match=message):
        live.observe(frame, rows)


def test_more_observed_steps_than_the_model_has_are_refused(model):
    steps = model.config.observed_steps
    with pytest.raises(ValueError, match=f"least_observed={steps + 1}: the model observes {steps}"):
        Forecaster(model, least_observed=steps + 1)


def test_a_forecast_keeps_the_order_of_agents_and_sorts_modes(folder, tmp_path, caplog):
    tracks, output = write_tracks(tmp_path / "in.csv"), tmp_path / "out.parquet"
    options = {"model": folder, "input": tracks, "frame_seconds": 0.4, "device": "cpu"}
    with caplog.at_level("WARNING", logger="hf_vanilla"):
        forecast_file(ForecastOptions(**options, output=str(output)))
    table = pyarrow.parquet.read_table(output)
    assert list(dict.fromkeys(table["agent"].to_pylist())) == ["b", "a"]
    assert "1 of 3 rows have fewer than 2" in caplog.text
    assert table.num_rows == 2 * 4 * 3
    first = table.slice(0, 12).to_pylist()
    probabilities = [row["probability"] for row in first if row["step"] == 1]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1)
    forecast_file(ForecastOptions(**options, output=str(tmp_path / "out.csv"), predicted_steps=2))
    short = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert_allclose(short["x"], table.filter(pyarrow.compute.less(table["step"], 3))["x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_seconds": 0.1}, r"steps of 0.1 s, but the model has 0.4 s: .*--step_seconds 0.4"),
        ({"unit": "px"}, "positions in px, but the model in m"),
        (
            {"predicted_steps": 4},
            "predicted_steps=4: .* all its steps at once: give at most 3",
        ),
        ({"least_observed": 9}, "no agent has 9 observed steps"),
        ({"output": "out.txt"}, r"end it with .csv or .parquet"),
    ],
)
def test_a_forecast_that_cannot_be_made_is_refused(folder, tmp_path, options, message):
    tracks = write_tracks(tmp_path / "in.csv")
    given = {"model": folder, "input": tracks, "frame_seconds": 0.4, "device": "cpu"}
    with pytest.raises(ValueError, match=message):
        forecast_file(ForecastOptions(**{**given, **options}))


@pytest.mark.parametrize(
    "form", [VanillaForTrajectoryPrediction, VanillaForQuantizedTrajectoryPrediction]
)
def test_a_rollout_may_be_longer_than_in_training(form, tmp_path, caplog):
    model = form(VanillaTracksConfig(**SIZES, num_codes=20))
    if form is VanillaForQuantizedTrajectoryPrediction:
        model.fit_codebook(torch.randn(60, 5, 2), torch.randn(60, 3, 2))
    model.save_pretrained(tmp_path / "model")
    options = {"input": write_tracks(tmp_path / "in.csv"), "frame_seconds": 0.4, "device": "cpu"}
    options |= {"model": str(tmp_path / "model")}
    tables = {}
    for steps in (3, 5):
        torch.manual_seed(0)
        output = tmp_path / f"{steps}.parquet"
        forecast_file(ForecastOptions(**options, output=str(output), predicted_steps=steps))
        tables[steps] = pyarrow.parquet.read_table(output)
    assert "predicted_steps=5: the model was trained on 3" in caplog.text
    assert max(tables[5]["step"].to_pylist()) == 5
    same = tables[5].filter(pyarrow.compute.less(tables[5]["step"], 4))
    assert_allclose(same["x"], tables[3]["x"], atol=1e-5)


def test_step_seconds_resamples_to_the_rate_of_the_model(folder, tmp_path):
    tracks, output = write_tracks(tmp_path / "in.csv"), tmp_path / "out.csv"
    options = {"frame_seconds": 0.2, "step_seconds": 0.4, "device": "cpu", "output": str(output)}
    forecast_file(ForecastOptions(model=folder, input=tracks, **options))
    assert set(pyarrow.csv.read_csv(output)["frame"].to_pylist()) == {3}


def test_long_forecasts_and_scores_show_how_far_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_vanilla.options.PROGRESS_AFTER", 0)
    given = {"model": "constant_velocity", "frame_seconds": 0.4}
    tracks = write_tracks(tmp_path / "tracks.csv")
    forecast_file(ForecastOptions(**given, input=tracks, output=str(tmp_path / "out.csv")))
    assert "Forecasting:   0%|          | 0/3" in capsys.readouterr().err
    steps = {"observed_steps": 2, "predicted_steps": 1}
    evaluate_tracks(EvaluateTracksOptions(**given, **steps, dataset=tracks))
    assert "Scoring:   0%|" in capsys.readouterr().err
