"""Folders of Argoverse 2: scenarios with their maps, and a recipe on them."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from hf_vanilla.tracks.formats import read_tracks
from hf_vanilla.tracks.road_maps import LANE_KINDS, read_map
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train


def line(*points):
    return [{"x": x, "y": y, "z": 0.0} for x, y in points]


def archive(shift=0.0):
    lane = {"centerline": line((shift, 0), (shift + 3, 0), (shift + 9, 0)), "lane_type": "VEHICLE"}
    sides = {
        "left_lane_boundary": line((0, 4), (6, 4)),
        "right_lane_boundary": line((0, 2), (6, 2)),
    }
    return {
        "lane_segments": {"11": {"id": 11, **lane}, "12": {"id": 12, **sides}},
        "pedestrian_crossings": {
            "5": {"edge1": line((0, 0), (0, 9)), "edge2": line((3, 0), (3, 9)), "id": 5}
        },
        "drivable_areas": {"7": {"area_boundary": line(*((x, x % 2) for x in range(13))), "id": 7}},
    }


def write_scenario(folder, name, *, steps=110, road=None, seed=0):
    """A scenario of three tracks, one of which appears late."""
    draw = np.random.default_rng(seed)
    rows = []
    for track, first in (("AV", 0), ("31", 0), ("32", 70)):
        start, speed = draw.normal(0, 5, 2), draw.normal(0, 1, 2)
        rows += [
            (track, "vehicle", step, *(start + 0.1 * step * speed), name)
            for step in range(first, steps)
        ]
    names = ("track_id", "object_type", "timestep", "position_x", "position_y")
    columns = dict(zip((*names, "scenario_id"), zip(*rows, strict=True), strict=True))
    folder = folder / name
    folder.mkdir(parents=True)
    path = folder / f"scenario_{name}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({k: list(v) for k, v in columns.items()}), path)
    if road is not None:
        text = road if isinstance(road, str) else json.dumps(road)
        (folder / f"log_map_archive_{name}.json").write_text(text, encoding="utf-8")
    return path


def test_a_folder_gives_scenarios_with_lanes_crossings_and_boundaries(tmp_path):
    write_scenario(tmp_path, "a", road=archive())
    write_scenario(tmp_path, "b")
    scenes = read_tracks(tmp_path)
    assert scenes.scene_names == ("a", "b")
    assert scenes.step_seconds == pytest.approx(0.1)
    road, nothing = scenes.maps
    assert nothing is None
    kinds = [LANE_KINDS[kind] for kind in road.kinds]
    assert kinds == ["lane", "lane", "crossing", "crossing", "boundary", "boundary"]
    assert road.points[0].tolist() == [[x, 0] for x in range(10)]
    assert road.points[1, :, 1].tolist() == [3.0] * 10  # between the boundaries
    assert road.points[1, -1].tolist() == [6, 3]
    assert road.is_point.sum(1).tolist() == [10, 10, 10, 10, 10, 5]
    assert road.points[5, :5].tolist() == [[9, 1], [10, 0], [11, 1], [12, 0], [0, 0]]  # closed


@pytest.mark.parametrize(
    ("road", "message"),
    [
        ("{", "is no map archive of Argoverse 2"),
        (json.dumps(archive()).replace("0.0", '"far"', 1), "is no map archive of Argoverse 2"),
        ({"lanes": {}}, "KeyError: 'lane_segments'"),
        ({"lane_segments": {"1": {"centerline": line((1, 2))}}}, "polyline 0 has 1 point"),
        (
            {"lane_segments": {"1": {"centerline": line((1, 2), (float("nan"), 2))}}},
            "polyline 0 has a point that is not finite",
        ),
        (
            {"lane_segments": {"1": {"centerline": line((9e5, 2), (9e5, 9))}}},
            r"map is 899\d\d\d m from all agents",
        ),
    ],
)
def test_maps_that_do_not_fit_are_refused(tmp_path, road, message):
    path = write_scenario(tmp_path, "a", road=road)
    with pytest.raises(ValueError, match=message):
        read_tracks(path)


def test_a_map_without_lanes_is_empty(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"lane_segments": {}}), encoding="utf-8")
    assert len(read_map(path)) == 0


@pytest.mark.parametrize("recipe", ["av2_small", "av2_wayformer"])
def test_recipes_run_on_a_folder(tmp_path, recipe):
    for number in range(3):
        write_scenario(tmp_path / "train", f"t{number}", road=archive(number), seed=number)
    write_scenario(tmp_path / "val", "v", road=archive())
    small = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "num_latents": 3}
    small |= {"encoder_layers": 1, "decoder_layers": 1}
    options = {"dataset": tmp_path / "train", "validation": tmp_path / "val", "max_steps": 2}
    options |= {"warmup_steps": 1, "eval_steps": 2, "save_steps": 2, "output_dir": tmp_path / "run"}
    options |= {"scenes_per_step": 2, "scenes_per_batch": 2, "use_cpu": True, "trackers": []}
    arguments = ["--recipe", recipe, *(f"--{key}={value}" for key, value in options.items())]
    arguments += [f"--model.{key}={value}" for key, value in small.items()]
    folder = train(read_recipe(arguments))
    assert "3 maps of lanes" in (folder / "README.md").read_text(encoding="utf-8")
    seconds = {"av2_small": 0.5, "av2_wayformer": 0.1}[recipe]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["step_seconds"] == pytest.approx(seconds)
