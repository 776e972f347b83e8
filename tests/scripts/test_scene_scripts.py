"""The table of junctions and the benchmark of encoders, small."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from hf_vanilla.tracks.built_in_tracks import OBSERVED, junctions

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(Path(name).stem, SCRIPTS / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_forecaster_that_knows_the_odds_and_the_rules_gets_them_back(monkeypatch):
    table, drawn = script("junctions.py"), junctions(scenes=60, seed=1)

    def known(model, past, mask, beside):
        groups = beside.groups
        assert past.shape[1:] == (OBSERVED, 2)
        own = drawn.tracks[groups, 0, OBSERVED:]
        minds = (drawn.situation[groups] != 0)[:, None, None, None]
        tracks = np.where(minds, own[:, None], drawn.branches[groups][:, :, OBSERVED:])
        return tracks, drawn.odds[groups]

    monkeypatch.setattr(table, "predict", known)
    tracks, probabilities = table._forecasts(None, drawn, "as it is")
    free = drawn.situation == 0
    found = table._branch_odds(tracks[free], probabilities[free], drawn, free)
    assert found == pytest.approx(drawn.odds[free].mean(0))
    stopping = table._stopping(tracks, probabilities, drawn)
    assert stopping == pytest.approx(drawn.brakes.astype(float))
    error, nats = table._changed(None, drawn, "other lanes")
    assert error < 0.2
    assert nats == pytest.approx(1e-3, abs=1e-3)


def test_changes_of_inputs_keep_the_arriving_car(monkeypatch):
    table, drawn = script("junctions.py"), junctions(scenes=5, seed=1)
    seen = {}

    def note(model, past, mask, beside):
        seen["past"], seen["maps"] = past, beside.maps
        return np.zeros((len(past), 1, 12, 2)), np.ones((len(past), 1))

    monkeypatch.setattr(table, "predict", note)
    own = drawn.tracks[:, 0, :OBSERVED]
    for change in table.CHANGES:
        table._forecasts(None, drawn, change)
        cars = len(seen["past"]) // 5
        assert cars == (1 if change == "no cars" else 3)
        assert np.array_equal(seen["past"][::cars], own)
        others = np.array_equal(seen["past"][1::cars], drawn.tracks[:, 1, :OBSERVED])
        assert others == (change not in ("no cars", "other cars"))
        assert (seen["maps"][0] is drawn.maps[0]) == (change not in ("no lanes", "other lanes"))


def test_runs_of_eth_and_ucy_with_other_steps_have_scores_of_their_own(monkeypatch, tmp_path):
    table, trained = script("eth_ucy.py"), []

    def train(recipe):
        trained.append(recipe.train.max_steps)
        Path(recipe.train.output_dir).mkdir()

    monkeypatch.setattr(table, "train", train)
    monkeypatch.setattr(table, "_scores", lambda *_: {"minADE1": len(trained)})
    for steps, times in ((None, 1), (300, 2), (None, 1)):
        asked = table.TableOptions(folder="eth_ucy", output=str(tmp_path), max_steps=steps)
        assert table._trained("eth", 0, asked) == {"minADE1": times}
    assert trained == [400, 300]
    scenes = [[{"ade": ade, "fde": 1.0} for ade in of_scene] for of_scene in ((1, 2), (3, 6))]
    row = table._row("ours", scenes, "ade", "fde")  # the means of the seeds are 2 and 4
    assert row == "| ours | 1.500/1.000 | 4.500/1.000 | 3.000/1.000 ± 1.414/0.000 |"
    one = table._row("ours", [[{"ade": 1.0, "fde": 2.0}]], "ade", "fde")
    assert one == "| ours | 1.000/2.000 | 1.000/2.000 |"  # one seed has no deviation


def test_the_benchmark_of_encoders_writes_table_numbers_and_figure(monkeypatch, tmp_path):
    benchmark = script("benchmarks/scene_encoders.py")
    monkeypatch.setattr(benchmark, "TOKENS", (16, 32))
    monkeypatch.setattr(benchmark, "AGENTS", (3, 20))
    options = benchmark.EncoderOptions(output=str(tmp_path / "e.png"), rounds=1)
    encoders, crowds = benchmark.measure(options).split("\n\n")
    assert encoders.splitlines()[0].endswith("| 16 | 32 tokens |")
    assert len(encoders.splitlines()) == 2 + len(benchmark.LINES)
    assert crowds.splitlines()[0].endswith("| 3 | 20 agents |")
    assert len(crowds.splitlines()) == 2 + len(benchmark.NEIGHBORS)
    numbers = json.loads((tmp_path / "e.json").read_text())
    for key in ("milliseconds", "crowds"):
        assert all(value > 0 for values in numbers[key].values() for value in values)
    assert (tmp_path / "e.png").stat().st_size > 1000
