"""Tables of positions, their windows, readers of six formats, and what is refused."""

import gzip
import json
import logging
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.testing import assert_allclose

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.tracks.built_in_tracks import FORK_ODDS, built_in_tracks
from hf_vanilla.tracks.forecaster import SimpleForecaster
from hf_vanilla.tracks.formats import (
    Columns,
    TrackSource,
    read_columns,
    read_homography,
    read_tracks,
)
from hf_vanilla.tracks.options import TrackFileOptions
from hf_vanilla.tracks.scores import TrackSums, add_windows
from hf_vanilla.tracks.table import AGENT_KINDS, Rows, join_tables, resample, table_of_rows
from hf_vanilla.tracks.windows import cut_windows, pasts_of_rows


def table(*rows, **options):
    frame, agent, x, y = (np.array(column) for column in zip(*rows, strict=True))
    rows = Rows(source="here", frame=frame, agent=agent, positions=np.stack((x, y), 1) * 1.0)
    return table_of_rows(rows, name="s", **{"frame_seconds": 0.1, **options})


def walk(agent, frames, y=0):
    return [(frame, agent, frame, y) for frame in frames]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# --- windows -----------------------------------------------------------------------------------


def test_windows_never_cross_a_gap_or_an_agent():
    scenes = table(*walk("a", [0, 2, 4, 6, 10, 12, 14]), *walk("b", [0, 2, 4]))
    windows = cut_windows(scenes, observed=2, predicted=1)
    positions, known, origin = windows.positions(np.arange(len(windows)))
    assert scenes.gaps == 1
    assert scenes.step_seconds == pytest.approx(0.2)
    assert origin[:, 0].tolist() == [2, 4, 12, 2]
    assert known.all()
    assert_allclose(positions[..., 0], np.tile([-2, 0, 2], (4, 1)))


def test_missing_steps_are_masked_on_request():
    scenes = table(*walk("a", [0, 1, 3, 4]))
    windows = cut_windows(scenes, observed=2, predicted=2, allow_missing=True)
    _, known, origin = windows.positions(np.arange(len(windows)))
    assert origin[:, 0].tolist() == [1]  # frame 2, where the other window would end, is missing
    assert known.tolist() == [[True, True, False, True]]


def test_missing_steps_of_a_scene_are_also_those_before_and_after_an_agent():
    rows = [*walk("a", range(6)), *walk("late", [2, 3, 4]), *walk("early", [1, 2, 3])]
    scenes = table(*rows, *walk("new", [3, 4, 5]), *walk("gone", [1, 2]))
    how = {"observed": 3, "predicted": 2, "by_scene": True}
    windows = cut_windows(scenes, **how, allow_missing=True)
    _, known, _ = windows.positions(np.arange(len(windows)))
    names = scenes.agent_names[scenes.agent[windows.last_rows]]
    assert [*zip(names, scenes.frame[windows.last_rows], strict=True)] == [
        *(("a", 2), ("a", 3), ("late", 3), ("early", 2))
    ]
    assert known[2].tolist() == [False, True, True, True, False]
    assert known[3].tolist() == [False, True, True, True, False]
    assert len(cut_windows(scenes, **how)) == 2  # only the agent that is there all the time


def test_stride_counts_from_the_start_of_each_agent():
    scenes = table(*walk("a", range(7)), *walk("b", range(1, 6)))
    windows = cut_windows(scenes, observed=2, predicted=1, stride=2)
    assert scenes.frame[windows.last_rows].tolist() == [1, 3, 5, 2, 4]


def test_a_stride_by_scene_keeps_the_agents_of_a_frame_together():
    scenes = table(*walk("a", range(3, 10)), *walk("b", [4, 5, 6, 8, 9, 10]))
    windows = cut_windows(scenes, observed=2, predicted=1, stride=2, by_scene=True)
    assert scenes.frame[windows.last_rows].tolist() == [5, 7, 5, 9]


def test_company_is_two_agents_in_one_window():
    scenes = table(*walk("a", range(4)), *walk("b", range(1, 4), y=1))
    windows = cut_windows(scenes, observed=2, predicted=1).with_company()
    assert scenes.frame[windows.last_rows].tolist() == [2, 2]
    assert windows.groups.tolist() == [0, 0]


def test_pasts_mask_what_is_before_the_agent_and_in_gaps():
    scenes = table(*walk("a", [0, 1]), *walk("b", [5, 6, 8]))
    positions, known = pasts_of_rows(scenes, np.array([1, 4]), 4)
    assert known.tolist() == [[False, False, True, True], [True, True, False, True]]
    assert positions[1, :, 0].tolist() == [5, 6, 0, 8]


def test_a_batch_of_windows_needs_no_memory_of_the_whole_table():
    frames = np.arange(300_000)
    positions = np.stack((frames, frames), 1).astype(float)
    scenes = table_of_rows(
        Rows(source="long", frame=frames, agent=np.zeros_like(frames), positions=positions),
        name="long",
        frame_seconds=0.4,
    )
    windows = cut_windows(scenes, observed=8, predicted=12)
    config = VanillaTracksConfig(observed_steps=8, predicted_steps=12)
    model = SimpleForecaster("constant_velocity", config)
    tracemalloc.start()
    pasts_of_rows(scenes, np.array([100]), 8)
    add_windows(TrackSums(1), model, windows, np.array([100]))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_large_coordinates_lose_nothing_in_a_window():
    scenes = table(*[(f, "a", 6e5 + 0.01 * f, 5e6) for f in range(3)])
    positions, _, _ = cut_windows(scenes, observed=2, predicted=1).positions(np.array([0]))
    assert_allclose(positions[0, :, 0], [-0.01, 0, 0.01], atol=1e-6)


def test_resampling_interpolates_and_keeps_gaps():
    scenes = table(*walk("a", [0, 1, 2, 3, 8, 9]), frame_seconds=0.4)
    finer = resample(scenes, 0.2)
    assert finer.frame.tolist() == [0, 1, 2, 3, 4, 5, 6, 16, 17, 18]
    assert_allclose(finer.positions[:, 0], finer.frame / 2)
    coarser = resample(scenes, 0.8)
    assert coarser.positions[:, 0].tolist() == [0, 2, 8]
    assert coarser.gaps == 1


def test_scenes_of_two_rates_cannot_be_joined():
    parts = [table(*walk("a", range(3)), frame_seconds=seconds) for seconds in (0.1, 0.4)]
    with pytest.raises(ValueError, match="--step_seconds"):
        join_tables(parts)


def test_numbers_and_names_of_agents_are_joined_as_names(tmp_path):
    for agent in ("1", "ada"):
        text = f"frame,agent,x,y\n0,{agent},0,0\n1,{agent},1,0\n"
        write(tmp_path / f"{agent}.csv", text)
    scenes = read_tracks(tmp_path, TrackSource(frame_seconds=0.4))
    assert scenes.agent_names.tolist() == ["1", "ada"]


# --- built-in tracks ---------------------------------------------------------------------------


def test_forks_have_their_odds_and_a_past_that_says_nothing():
    scenes = built_in_tracks("forks", agents=3000, seed=3)
    windows = cut_windows(scenes, observed=8, predicted=12)
    assert len(windows) == 3000
    positions, _, _ = windows.positions(np.arange(3000))
    ahead = positions[:, 6] / np.linalg.norm(positions[:, 6], axis=1, keepdims=True)
    side = positions[:, -1, 0] * -ahead[:, 1] + positions[:, -1, 1] * ahead[:, 0]
    branch = np.select([side < -2, side < 2], [0, 1], 2)  # left, straight on, right
    assert_allclose(np.bincount(branch) / 3000, FORK_ODDS, atol=0.03)


def test_walkers_are_the_same_for_one_seed_only():
    first, again, other = (built_in_tracks("walkers", agents=12, seed=s) for s in (0, 0, 1))
    assert_allclose(first.positions, again.positions, rtol=0)
    assert abs(first.positions - other.positions).max() > 1


# --- formats -----------------------------------------------------------------------------------


def test_text_of_eth_and_ucy(tmp_path):
    path = write(tmp_path / "eth.txt", "10\t2.0\t1.5\t-1\n0\t2.0\t1.0\t-1\n10\t1\t3\t4\n\n")
    scenes = read_tracks(path)
    assert scenes.agent_names.tolist() == [2, 1]
    assert scenes.frame.tolist() == [0, 10, 10]
    assert scenes.step_seconds == pytest.approx(0.4)


def test_compressed_text_is_read_and_damage_is_named(tmp_path):
    texts = {
        "eth.txt": "0 7 1 2\n10 7 2 2\n",
        "t.csv": "frame,agent,x,y\n0,7,1,2\n10,7,2,2\n",
        "t.ndjson": "".join(
            f'{{"track": {{"f": {f}, "p": 7, "x": {x}, "y": 2}}}}\n' for f, x in ((0, 1), (10, 2))
        ),
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        scenes = read_tracks(path, TrackSource(frame_seconds=0.04))
        assert scenes.positions.tolist() == [[1, 2], [2, 2]]
        assert scenes.scene_names == (name.partition(".")[0],)
        path.write_bytes(path.read_bytes()[:-12])
        with pytest.raises(OSError, match=rf"{path.name} is incomplete"):
            read_tracks(path, TrackSource(frame_seconds=0.04))


def test_scenes_of_one_name_have_the_path_of_their_file(tmp_path):
    (tmp_path / "val").mkdir()
    for path in ("a.txt", "val/a.txt"):
        write(tmp_path / path, "0 1 2 3\n10 1 2 3\n")
    assert read_tracks(tmp_path).scene_names == ("a", "val/a")
    (tmp_path / "val" / "a.txt").unlink()
    for name in ("b", "c"):
        write(tmp_path / f"{name}.csv", "scene,frame,agent,x,y\n0,0,1,2,3\n0,10,1,2,3\n")
    source = TrackSource(columns=read_columns("scene=scene"), frame_seconds=0.04)
    assert read_tracks(tmp_path, source).scene_names == ("a", "b/0", "c/0")


def test_csv_and_parquet_with_other_names_give_equal_tables(tmp_path):
    columns = {"t": [0, 1, 0], "who": ["b", "b", "a"], "px": [0.0, 1.0, 2.0], "py": [3.0, 4.0, 5.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    write(tmp_path / "t.csv", "\n".join(["t,who,px,py", *lines]))
    names = Columns(frame="t", agent="who", x="px", y="py")
    source = TrackSource(columns=names, frame_seconds=0.5)
    found = [read_tracks(tmp_path / name, source) for name in ("t.csv", "t.parquet")]
    for scenes in found:
        assert scenes.agent_names.tolist() == ["b", "a"]
        assert_allclose(scenes.positions, [[0, 3], [1, 4], [2, 5]])


def test_a_category_that_is_missing_in_parquet_is_unknown(tmp_path):
    kinds = pyarrow.array(["vehicle", None, "cyclist"]).dictionary_encode()
    columns = {"frame": [0, 1, 2], "agent": ["a"] * 3, "x": [0.0] * 3, "y": [0.0] * 3}
    pyarrow.parquet.write_table(pyarrow.table(columns | {"k": kinds}), tmp_path / "t.parquet")
    source = TrackSource(columns=Columns(kind="k"), frame_seconds=0.5)
    table = read_tracks(tmp_path / "t.parquet", source)
    assert [AGENT_KINDS[kind] for kind in table.kinds_of(np.arange(3))] == [
        *("vehicle", "unknown", "cyclist")
    ]


def test_names_in_a_csv_are_as_written(tmp_path):
    rows = ["scene,frame,agent,x,y"]
    agents = ("12345678901234567891", "12345678901234567892")  # equal as numbers of 64 bits
    rows += [f"{scene},0,{agent},1,2" for scene in ("0061", "0103") for agent in agents]
    path = write(tmp_path / "t.csv", "\n".join(rows))
    source = TrackSource(columns=read_columns("scene=scene"), frame_seconds=0.4)
    scenes = read_tracks(path, source)
    assert scenes.agent_names.tolist() == [*agents, *agents]
    assert scenes.scene_names == ("0061", "0103")


def test_a_table_comes_through_a_pipe(tmp_path):
    """As of `--input /dev/stdin` and `<(...)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        pool.submit(pipe.write_text, "frame,agent,x,y\n0,a,1,2\n1,a,2,3\n")
        rows = read_tracks(pipe, TrackSource(format="table", frame_seconds=0.4))
    assert rows.positions.tolist() == [[1, 2], [2, 3]]


def test_trajnet_leaves_predictions_out_and_knows_its_rate(tmp_path):
    entries = [{"scene": {"id": 0, "p": 1, "s": 0, "e": 10, "fps": 2.5}}]
    entries += [{"track": {"f": f, "p": 1, "x": f / 10, "y": 0.0}} for f in (0, 10)]
    entries += [{"track": {"f": 20, "p": 1, "x": 9, "y": 9, "prediction_number": 0}}]
    path = write(tmp_path / "a.ndjson", "\n".join(map(json.dumps, entries)))
    scenes = read_tracks(path)
    assert len(scenes) == 2
    assert scenes.step_seconds == pytest.approx(0.4)


def test_two_rates_in_one_file_of_trajnet_are_refused(tmp_path):
    rates = [json.dumps({"scene": {"id": rate, "fps": rate}}) for rate in (2.5, 5)]
    rows = [json.dumps({"track": {"f": f, "p": 1, "x": 0, "y": 0}}) for f in (0, 10)]
    path = write(tmp_path / "a.ndjson", "\n".join([*rates, *rows]))
    with pytest.raises(ValueError, match=r"line 2: .*fps=5 after fps=2\.5"):
        read_tracks(path)


@pytest.mark.parametrize("columns", [17, 18])  # ETH and UCY; nuScenes
def test_the_columns_of_agentformer(tmp_path, columns):
    unused = " ".join(["-1.0"] * 7)
    text = "\n".join(
        f"{f}.0 7.0 Construction {unused} 1.9 3.2 4.6 {f}.5 0 2.5 0.1 1.0" for f in (0, 1)
    )
    lines = [" ".join(line.split()[:columns]) for line in text.splitlines()]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    scenes = read_tracks(path, TrackSource(frame_seconds=0.5))
    assert scenes.positions.tolist() == [[0.5, 2.5], [1.5, 2.5]]
    assert scenes.kinds_of(np.array([1])).tolist() == [AGENT_KINDS.index("vehicle")]
    assert scenes.sizes_of(np.array([1]))[0] == pytest.approx([4.6, 1.9])  # length, width


def test_names_of_kinds_and_sizes_that_a_file_does_not_know():
    names = [
        "vehicle",
        "Car",
        "Bicycle",
        "riderless_bicycle",
        "construction",
        "BUS",
        None,
        "unknown",
    ]
    wanted = ["vehicle", "vehicle", "cyclist", "other", "other", "bus", "unknown", "unknown"]
    table = replace(
        built_in_tracks("walkers", agents=1, seed=0),
        kind=np.array(names, object),
        size=np.array([[4.5, 1.8], [-1, -1], [np.nan, 2.0]]),
    )
    assert [AGENT_KINDS[kind] for kind in table.kinds_of(np.arange(8))] == wanted
    assert np.allclose(table.sizes_of(np.arange(3)), [[4.5, 1.8], [0, 0], [0, 2]])
    without = built_in_tracks("walkers", agents=1, seed=0)
    assert not without.kinds_of(np.arange(3)).any()
    assert not without.sizes_of(np.arange(3)).any()


def test_a_table_names_kinds_and_joins_tables_without_any(tmp_path):
    text = "frame,agent,x,y,type\n0,a,1,2,Cyclist\n0,b,3,4,bus\n1,a,1,3,Cyclist\n"
    source = TrackSource(columns=read_columns("kind=type"), frame_seconds=0.4)
    typed = read_tracks(write(tmp_path / "a.csv", text), source)
    plain = read_tracks(tmp_path / "a.csv", TrackSource(frame_seconds=0.4))
    sized = replace(plain, size=np.full((3, 2), 2.0))
    joined = join_tables([typed, sized, typed])
    kinds = [AGENT_KINDS[kind] for kind in joined.kinds_of(np.arange(9))]
    own = ["cyclist", "cyclist", "bus"]  # by agent
    assert kinds == [*own, *["unknown"] * 3, *own]
    assert joined.sizes_of(np.arange(9))[:, 0].tolist() == [0] * 3 + [2] * 3 + [0] * 3
    assert join_tables([plain, plain]).kind is None


def test_argoverse_scenarios_keep_agents_of_different_scenes_apart(tmp_path):
    for name in ("one", "two"):
        columns = {
            "timestep": [0, 1],
            "track_id": ["AV", "AV"],
            "position_x": [1e5, 1e5 + 1],
            "position_y": [0.0, 0.0],
            "scenario_id": [name] * 2,
            "object_type": ["vehicle"] * 2,
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    scenes = read_tracks(tmp_path)
    assert scenes.scene_names == ("one", "two")
    assert len(scenes.agent_names) == 2
    assert scenes.step_seconds == 0.1
    coarse = pyarrow.table(columns | {"timestep": [0, 2]})
    pyarrow.parquet.write_table(coarse, tmp_path / "two.parquet")
    assert read_tracks(tmp_path / "two.parquet").step_seconds == 0.2
    del columns["object_type"]  # a table of its own, which `columns` names
    (tmp_path / "one.parquet").unlink()
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "two.parquet")
    names = read_columns("frame=timestep,agent=track_id,x=position_x,y=position_y")
    assert read_tracks(tmp_path, TrackSource(columns=names, frame_seconds=0.4)).kind is None


def test_columns_of_lists_are_refused_by_name(tmp_path):
    columns = {"frame": [0], "agent": [["a", "b"]], "x": [0.0], "y": [0.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: the column agent holds list"):
        read_tracks(tmp_path / "t.parquet")


def test_pixels_become_metres_by_a_homography(tmp_path):
    matrix = read_homography(write(tmp_path / "h.txt", "0.5 0 1\n0 2 0\n0 0 2\n"))
    path = write(tmp_path / "a.csv", "frame,agent,x,y\n0,1,2,4\n1,1,4,4\n")
    scenes = read_tracks(path, TrackSource(frame_seconds=1.0, homography=matrix))
    assert_allclose(scenes.positions, [[1, 4], [1.5, 4]])


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "frame,agent,x\n0,1,2\n",
            r"no column 'y', only 'frame', 'agent', 'x': rename one, or .*--columns y=NAME",
        ),
        ("frame,agent,x,y,x\n0,1,2,3,4\n", r"has two columns 'x': rename one"),
        ("frame,agent,x,y\n0,1,2,3\n1,1,two,3\n", r"line 3: x is 'two', not a number"),
        ("frame,agent,x,y\n2026-01-01,1,2,3\n", r"line 2: frame is '2026-01-01', not a number"),
        ("frame,agent,x,y\n0,1,2,3\n1,1,nan,3\n", r"line 3: position \(nan, 3.0\) is not finite"),
        (
            "frame,agent,x,y\n0,1,1e30,3\n",
            r"line 2: position \(1e\+30, 3.0\) .* beyond 1e\+12",
        ),
        ("frame,agent,x,y\n0,1,2,3\n1e300,1,2,3\n", r"line 3: frame 1e\+300 is not a whole number"),
        (
            "frame,agent,x,y\n0,1,2,3\n0,1,2,4\n",
            r"line 3: agent 1 is twice in frame 0: keep.*scene=",
        ),
        ("frame,agent,x,y\n0.5,1,2,3\n", r"line 2: frame 0.5 is not a whole number"),
        ("frame,agent,x,y\n0,1,0,0\n2,1,0,0\n4,1,0,0\n5,1,0,0\n", r"line 5: .* but mostly by 2"),
        ("frame;agent;x;y\n0;1;2.0;3.0\n", "commas separate columns, and decimals have a point"),
        ("frame;agent;x;y\n0;1;2,0;3,0\n", "commas separate columns, and decimals have a point"),
        ("frame,agent,x,y\n", "has no rows"),
        ("", "is not a table with a header"),
    ],
)
def test_a_csv_that_cannot_be_read_is_named_with_line_and_value(tmp_path, text, message):
    for name in ("a.csv", "a.txt"):
        path = write(tmp_path / name, text)
        with pytest.raises(ValueError, match=message):
            read_tracks(path, TrackSource(format="table", frame_seconds=0.4))


def test_a_csv_in_utf_16_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("frame,agent,x,y\n0,1,2,3\n", encoding="utf-16")
    with pytest.raises(ValueError, match="not UTF-8: save it in UTF-8"):
        read_tracks(path)


def test_two_numbers_are_not_read_from_one_column():
    for text, problem in (
        ("x=y", "frame, agent, x, y are read from frame, agent, y, y: give each a column of its"),
        ("scene=frame", "frame, agent, x, y, scene are read from frame, agent, x, y, frame"),
        ("x=east,x=north", "frame, agent, x, y are read from frame, agent, north, y"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_columns(text)


def test_names_of_columns_are_for_tables_alone(tmp_path):
    path = write(tmp_path / "a.txt", "0 1 2 3\n10 1 2 4\n")
    with pytest.raises(ValueError, match=r"a\.txt is read as eth_ucy, whose .*leave out --columns"):
        read_tracks(path, TrackSource(columns=read_columns("x=y,y=x")))


def test_a_misspelt_name_of_built_in_tracks_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="walker: no such file; built-in: walkers, forks"):
        TrackFileOptions().read("walker")
    with pytest.raises(ValueError, match=r"tracks.dat: end its name with .csv, .*or give --format"):
        TrackFileOptions().read(str(write(tmp_path / "tracks.dat", "0 1 2 4")))


def test_tracks_of_which_resampling_leaves_nothing_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "frame,agent,x,y\n1,1,0,0\n2,1,1,0\n3,1,2,0\n")
    with pytest.raises(ValueError, match=r"no agent is there at a step of 0.4 s"):
        TrackFileOptions(frame_seconds=0.1, step_seconds=0.4).read(str(path))


@pytest.mark.parametrize(
    ("rows", "name"),
    [("1,0,1,2,3\n,1,1,2,3", "scene"), ("1,0,ada,2,3\n1,1,,2,3\n1,2,ada,2,3", "agent")],
)
def test_a_row_without_its_scene_or_agent_is_refused(tmp_path, rows, name):
    path = write(tmp_path / "a.csv", f"scene,frame,agent,x,y\n{rows}\n")
    with pytest.raises(ValueError, match=rf"line 3: the {name} is missing"):
        read_tracks(path, TrackSource(columns=read_columns("scene=scene"), frame_seconds=0.4))


def test_a_scene_whose_agents_are_there_once_has_the_rate_of_the_others(tmp_path):
    rows = ["scene,frame,agent,x,y", "a,0,1,0,0", "b,0,1,0,0", "b,10,1,1,0", "b,20,1,2,0"]
    path = write(tmp_path / "a.csv", "\n".join(rows))
    source = TrackSource(columns=read_columns("scene=scene"), frame_seconds=0.04)
    scenes = read_tracks(path, source)
    assert scenes.frames_per_step.tolist() == [10, 10]
    assert scenes.step_seconds == pytest.approx(0.4)


def test_a_rate_that_nobody_states_is_asked_for(tmp_path):
    path = write(tmp_path / "a.csv", "frame,agent,x,y\n0,1,2,3\n")
    with pytest.raises(ValueError, match="--frame_seconds"):
        read_tracks(path)


def test_unsorted_frames_are_sorted(tmp_path):
    path = write(tmp_path / "a.csv", "frame,agent,x,y\n2,1,2,0\n0,1,0,0\n1,1,1,0\n")
    scenes = read_tracks(path, TrackSource(frame_seconds=0.4))
    assert scenes.positions[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["1 0 0\n0 0 0\n0 0 1", "1 2 3"])
def test_a_homography_that_cannot_be_inverted_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"inverted|nine|three rows"):
        read_homography(write(tmp_path / "h.txt", text))
    np.save(tmp_path / "h.npy", np.eye(3))
    with pytest.raises(ValueError, match=r"h\.npy is no homography"):
        read_homography(tmp_path / "h.npy")


def test_a_bad_row_of_trajnet_is_named_by_its_line(tmp_path):
    row = '{"track": {"f": 0, "p": %d, "x": %s, "y": 0}}'
    head = ['{"scene": {"fps": 2.5}}', "", row % (1, 0)]
    for bad, problem in (
        (row % (2, "NaN"), "position"),
        (row % (1, 5), "agent 1 is twice"),
        ('{"track": 0}', "'{\"track\": 0}' is no object"),
        (row.replace("%d", "null") % 0, ".*p is None: give a number or a text"),
    ):
        path = write(tmp_path / "a.ndjson", "\n".join([*head, bad]))
        with pytest.raises(ValueError, match=rf"line 4: {problem}"):
            read_tracks(path)


@pytest.mark.parametrize(
    ("step", "message"), [(60.0, "1 displacements of more than 50"), (1e-5, "degrees")]
)
def test_jumps_and_degrees_are_kept_and_reported(caplog, step, message):
    with caplog.at_level(logging.WARNING, logger="hf_vanilla"):
        scenes = table((0, "a", 0, 0), (1, "a", step, 0))
    assert message in caplog.text
    assert len(scenes) == 2


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    table = pyarrow.table({"frame": [0], "agent": [["a"]], "x": [0.0], "y": [0.0]})
    pyarrow.parquet.write_table(table, tmp_path / "lists.parquet")
    whole = (tmp_path / "lists.parquet").read_bytes()
    row = '{"track": {"f": %s, "p": 1, "x": 0, "y": 0}}'
    contents = {
        "junk.parquet": b"no table",
        "cut.parquet": whole[: len(whole) // 2],
        "lists.parquet": whole,
        "latin1.csv": "frame,agent,x,y\n0,Zoë,1,2\n1,Zoë,1,2\n".encode("latin-1"),
        "frame.ndjson": (row % '"late"').encode(),
        "fps.ndjson": b'{"scene": {"fps": -2.5}}\n' + (row % 0).encode(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"^[^\n]*{name}[^\n]*$"):
            read_tracks(tmp_path / name, TrackSource(frame_seconds=0.4))
