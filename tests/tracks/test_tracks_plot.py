"""Figures of forecasts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.tracks.forecaster import SimpleForecaster
from hf_vanilla.tracks.formats import TrackSource, read_tracks
from hf_vanilla.tracks.plot import (
    Drawn,
    PlotTracksOptions,
    _fullest_frame,
    _paint,
    drawn_agents,
    plot_tracks,
)


@pytest.fixture
def tracks(tmp_path):
    lines = [f"{f},{a},{0.5 * f},{a}" for a in (1, 2) for f in range(25)]
    path = tmp_path / "tracks.csv"
    path.write_text("\n".join(["frame,agent,x,y", *lines, "8,3,0,0"]), encoding="utf-8")
    return str(path)


def test_past_truth_and_future_of_each_agent_are_drawn(tracks):
    scenes = read_tracks(tracks, TrackSource(frame_seconds=0.4))
    model = SimpleForecaster("constant_velocity", VanillaTracksConfig())
    agents = drawn_agents(model, scenes, 8)
    assert len(agents) == 2  # the third has one step
    assert_allclose(agents[1].past, [[0.5 * step, 2] for step in range(1, 9)])
    assert_allclose(agents[1].future, [[0.5 * step, 2] for step in range(8, 21)])
    assert_allclose(agents[1].tracks[0], agents[1].future[1:], atol=1e-5)


def test_all_agents_of_a_large_crowd_are_drawn(tmp_path):
    path = tmp_path / "crowd.csv"
    lines = [f"{frame},{agent},{frame},{agent}" for agent in range(60) for frame in range(3)]
    path.write_text("\n".join(["frame,agent,x,y", *lines]), encoding="utf-8")
    crowd = read_tracks(path, TrackSource(frame_seconds=0.4))
    model = SimpleForecaster("constant_velocity", VanillaTracksConfig())
    assert [agent.name for agent in drawn_agents(model, crowd, 2)] == list(range(60))


def test_the_default_frame_has_a_whole_future_whatever_the_frames_of_other_scenes(tmp_path):
    for name, advance in (("a", 10), ("b", 1)):
        lines = ['{"scene": {"fps": 2.5}}']
        for agent, first in ((1, 0), (2, 20)):  # from step 20 on there are two
            row = '{"track": {"f": %d, "p": %d, "x": 0, "y": 0}}'
            lines += [row % (advance * step, agent) for step in range(first, 25)]
        (tmp_path / f"{name}.ndjson").write_text("\n".join(lines))
    scenes = read_tracks(tmp_path)
    for number, advance in ((0, 10), (1, 1)):
        scene = scenes.rows(scenes.scene == number)
        assert _fullest_frame(scene, VanillaTracksConfig()) <= 12 * advance


def test_a_figure_is_drawn_on_a_plane_and_on_a_picture(tracks, tmp_path):
    plt = pytest.importorskip("matplotlib.image")
    plt.imsave(tmp_path / "place.png", np.zeros((20, 30, 3)))
    (tmp_path / "h.txt").write_text("1 0 0\n0 1 0\n0 0 1\n")
    options = {"model": "constant_turn", "input": tracks, "frame_seconds": 0.4}
    plain, over = tmp_path / "plain.svg", tmp_path / "over.png"
    assert plot_tracks(PlotTracksOptions(**options, output=str(plain))).stat().st_size > 5000
    picture = {"picture": str(tmp_path / "place.png"), "homography": str(tmp_path / "h.txt")}
    plot_tracks(PlotTracksOptions(**options, **picture, output=str(over)))
    assert over.read_bytes()[:4] == b"\x89PNG"


def test_tracks_of_the_plane_are_drawn_on_their_pixels_of_a_picture(tmp_path):
    """A camera that sees the plane in perspective: far agents are close together in the picture."""
    image = pytest.importorskip("matplotlib.image")
    figure = pytest.importorskip("matplotlib.figure")
    image.imsave(tmp_path / "place.png", np.zeros((40, 60, 3)))
    to_plane = np.array([[0.1, 0.02, -3.0], [0.0, 0.2, -1.0], [0.0, 0.01, 1.0]])
    np.savetxt(tmp_path / "h.txt", to_plane)
    pixels = np.array([[10.0, 5.0], [20.0, 15.0], [30.0, 35.0]])
    plane = []
    for u, v in pixels:
        x, y, w = to_plane @ (u, v, 1.0)
        plane.append((x / w, y / w))
    plane = np.array(plane)
    agent = Drawn("ada", plane[:2], plane[1:], plane[None, 1:], np.ones(1))
    options = PlotTracksOptions(
        model="linear_fit",
        input="walkers",
        picture=str(tmp_path / "place.png"),
        picture_homography=str(tmp_path / "h.txt"),
    )
    panel = figure.Figure().subplots()
    _paint(panel, [agent], options, "place")
    predicted, truth, past = (line.get_xydata() for line in panel.lines)
    assert_allclose(past, pixels[:2])
    assert_allclose(truth, pixels[1:])
    assert_allclose(predicted, pixels[[1, 1, 2]])
    assert options.read("walkers").positions.std() > 1  # the tracks themselves stay on the plane


@pytest.mark.parametrize("steps", [1, 3])
def test_the_legend_names_the_truth_of_any_agent_only_where_there_is_one(steps):
    figure = pytest.importorskip("matplotlib.figure")
    walk = np.stack((np.arange(6.0), np.zeros(6)), 1)
    gone = Drawn("ada", walk[:3], walk[2:3], walk[None, 3:], np.ones(1))
    seen = Drawn("ben", walk[:3], walk[2 : 2 + steps], walk[None, 3:], np.ones(1))
    panel = figure.Figure().subplots()
    _paint(panel, [gone, seen], PlotTracksOptions(model="linear_fit", input="walkers"), "place")
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert sorted(names) == ["observed", "predicted", "truth"][: 2 + (steps > 1)]


def test_a_homography_without_its_picture_is_refused():
    with pytest.raises(ValueError, match=r"picture_homography=.h\.txt. needs a picture"):
        PlotTracksOptions(model="linear_fit", input="walkers", picture_homography="h.txt")


def test_a_scene_walks_in_a_gif_one_step_per_picture(tracks, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "walk.gif"
    options = {"model": "constant_velocity", "input": tracks, "frame_seconds": 0.4}
    plot_tracks(PlotTracksOptions(**options, frame=8, frames=4, output=str(path)))
    with image.open(path) as walk:
        assert walk.n_frames == 4
        pictures = []
        for number in range(4):
            walk.seek(number)
            pictures.append(np.asarray(walk.convert("RGB")).copy())
    assert not np.array_equal(pictures[0], pictures[1])


def test_a_gif_ends_with_the_tracks_and_shows_all_of_them(tracks, tmp_path, caplog):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "walk.gif"
    options = {"model": "constant_velocity", "input": tracks, "frame_seconds": 0.4}
    plot_tracks(PlotTracksOptions(**options, frame=20, output=str(path)))
    assert not caplog.records  # matplotlib once could not keep the limits
    with image.open(path) as walk:
        assert walk.n_frames == 5  # frames 20 to 24
        pictures = []
        for number in range(5):
            walk.seek(number)
            pictures.append(np.asarray(walk.convert("RGB")).astype(int))
    is_blue = [(p[..., 2] - p[..., 0] > 60) & (p[..., 0] < 100) for p in pictures]
    is_axis = (np.ptp(pictures[0], axis=-1) < 9) & (pictures[0].mean(-1) < 230)
    left = is_axis.sum(0).argmax()  # the column of the y axis
    assert left + 5 < np.flatnonzero(is_blue[0].any(0)).min()


def test_a_gif_without_any_agent_is_refused(tracks, tmp_path):
    options = {"model": "constant_velocity", "input": tracks, "frame_seconds": 0.4}
    with pytest.raises(ValueError, match="from frame 90 on"):
        plot_tracks(PlotTracksOptions(**options, frame=90, output=str(tmp_path / "walk.gif")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame": 99}, "frame=99: no agent has two observed steps"),
        ({"scene": "x"}, "scene='x': there are tracks"),
    ],
)
def test_a_frame_or_scene_that_is_not_there_is_named(tracks, tmp_path, options, message):
    asked = {"model": "linear_fit", "input": tracks, "frame_seconds": 0.4}
    with pytest.raises(ValueError, match=message):
        plot_tracks(PlotTracksOptions(**asked, output=str(tmp_path / "a.png"), **options))
