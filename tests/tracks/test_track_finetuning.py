"""A forecaster of single agents, trained further on other tracks."""

import pytest
import torch
from transformers import AutoModelForTimeSeriesPrediction

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.tracks.built_in_tracks import built_in_tracks
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.validation import evaluate, read_evaluation

SIZES = {"observed_steps": 5, "predicted_steps": 4, "num_modes": 3, "d_model": 12}
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}


@pytest.fixture
def start(tmp_path):
    config = VanillaTracksConfig(**SIZES, **HEADS, **LAYERS, velocity_std=0.3)
    VanillaForMultimodalTrajectoryPrediction(config).save_pretrained(tmp_path / "start")
    return str(tmp_path / "start")


@pytest.fixture
def tracks(tmp_path):
    scenes = built_in_tracks("walkers", agents=30, seed=7)
    rows = zip(scenes.frame, scenes.agent, scenes.positions.tolist(), strict=True)
    lines = [f"{frame},{agent},{x},{y}" for frame, agent, (x, y) in rows]
    path = tmp_path / "tracks.csv"
    path.write_text("\n".join(["frame,agent,x,y", *lines]), encoding="utf-8")
    return str(path)


def finetuned(model, tracks, folder, *more):
    arguments = ["--initial_model", model, "--dataset", tracks, "--validation", tracks]
    arguments += ["--output_dir", str(folder), "--max_steps", "20", "--learning_rate", "0.01"]
    arguments += ["--warmup_steps", "2", "--windows_per_step", "16", "--windows_per_batch", "16"]
    return train(read_recipe([*arguments, "--use_cpu", "true", "--trackers", "none", *more]))


def test_a_finetuned_model_has_a_smaller_error_and_keeps_rate_and_scale(start, tracks, tmp_path):
    narrow = AutoModelForTimeSeriesPrediction.from_pretrained(start).bfloat16()
    narrow.save_pretrained(tmp_path / "narrow")
    narrow = str(tmp_path / "narrow")
    folder = finetuned(narrow, tracks, tmp_path / "tuned", "--frame_seconds", "0.4")
    model = AutoModelForTimeSeriesPrediction.from_pretrained(folder)
    assert model.dtype == torch.float32  # small steps would be lost in bfloat16
    assert (model.config.step_seconds, model.config.velocity_std) == (0.4, 0.3)
    assert model.config.largest_step > 0.3
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "minADE3" in card
    assert "validation part | 5 -> 4 steps of 0.4 s | per agent" in card
    asked = ["--dataset", tracks, "--frame_seconds", "0.4", "--device", "cpu"]
    errors = [
        evaluate(read_evaluation(["--model", name, *asked])).values["minADE3"]
        for name in (start, str(folder))
    ]
    assert errors[1] < 0.7 * errors[0]


def test_tracks_and_models_that_do_not_fit_are_refused(start, tracks, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("frame,agent,x,y\n0,1,0,0\n1,1,1,0\n2,1,2,0\n", encoding="utf-8")
    cases = (
        (start, tracks, "0.2", (), "steps of 0.2 s, but the model has 0.4 s.*--step_seconds 0.4"),
        (start, tracks, "0.4", ("--unit", "km"), "positions in km, but the model in m"),
        (start, tracks, "0.4", ("--form", "one"), "Multimodal.*: set form to modes"),
        (start, str(short), "0.4", (), r"short.csv has no agent with 5 \+ 4 steps"),
        ("constant_turn", tracks, "0.4", ("--task", "trajectories"), "has no weights"),
    )
    for model, dataset, frame_seconds, more, message in cases:
        with pytest.raises(ValueError, match=message):
            finetuned(model, dataset, tmp_path / "tuned", "--frame_seconds", frame_seconds, *more)


def test_a_model_whose_config_names_no_class_is_of_the_first_form(start, tracks, tmp_path):
    config = VanillaTracksConfig.from_pretrained(start)
    config.architectures = None
    config.save_pretrained(start)
    folder = finetuned(start, tracks, tmp_path / "tuned", "--frame_seconds", "0.4")
    saved = VanillaTracksConfig.from_pretrained(folder).architectures
    assert saved == ["VanillaForMultimodalTrajectoryPrediction"]
