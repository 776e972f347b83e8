"""Generated junctions: known odds, right of way, lanes; maps that travel with tables."""

from dataclasses import replace

import numpy as np
import pytest

from hf_vanilla.tracks.built_in_tracks import (
    LEADER,
    OBSERVED,
    TURN_ODDS,
    UNHINDERED,
    YIELD,
    built_in_tracks,
    junctions,
)
from hf_vanilla.tracks.road_maps import (
    LANE_KINDS,
    LIGHT_STATES,
    maps_side_by_side,
    resampled,
    road_map,
)
from hf_vanilla.tracks.table import join_tables, resample


@pytest.fixture(scope="module")
def drawn():
    return junctions(scenes=3000, seed=4)


def speeds(tracks):
    return np.linalg.norm(np.diff(tracks, axis=-2), axis=-1) / 0.4


def test_turns_come_with_their_odds_and_nothing_observed_says_which(drawn):
    four = (drawn.situation == UNHINDERED) & (drawn.odds > 0).all(1)
    shares = np.bincount(drawn.branch[four], minlength=3) / four.sum()
    assert np.abs(shares - TURN_ODDS).max() < 0.05
    assert drawn.odds.sum(1) == pytest.approx(1.0)
    assert (drawn.odds[np.arange(3000), drawn.branch] > 0).all()
    # without noise, the observed steps of all turns are one
    past = drawn.branches[:, :, :OBSERVED]
    assert np.abs(past - past[:, :1]).max() < 1e-9
    ends = drawn.branches[:, :, -1]
    assert np.linalg.norm(ends[:, 0] - ends[:, 2], axis=-1).min() > 4
    free = drawn.situation == UNHINDERED
    own = drawn.branches[np.arange(3000), drawn.branch]
    assert np.abs(drawn.tracks[:, 0] - own)[free].max() < 0.2


def test_a_driver_stops_behind_a_car_that_brakes_and_for_one_from_the_right(drawn):
    own, second = speeds(drawn.tracks[:, 0]), speeds(drawn.tracks[:, 1])
    brakes, behind = drawn.brakes, drawn.situation == LEADER
    assert own[brakes, -1].max() < 1.0
    assert own[~brakes, -1].min() > 3.0
    # the car ahead brakes in the observed steps, the driver behind it after them
    assert (second[behind & brakes, OBSERVED - 2] < 0.9 * second[behind & brakes, 0]).all()
    assert np.abs(own[:, OBSERVED - 2] - own[:, 0]).max() < 0.7
    assert drawn.brakes[drawn.situation == YIELD].all()
    assert not drawn.brakes[drawn.situation == UNHINDERED].any()
    apart = np.linalg.norm(drawn.tracks[:, 0] - drawn.tracks[:, 1], axis=-1).min(1)
    assert apart[drawn.situation != UNHINDERED].min() > 3


def test_lanes_are_where_cars_drive_and_a_closed_side_has_a_boundary(drawn):
    closed = drawn.odds.min(1) == 0
    for scene in (*np.flatnonzero(closed)[:3], *np.flatnonzero(~closed)[:3]):
        road = drawn.maps[scene]
        kinds = [LANE_KINDS[kind] for kind in road.kinds]
        assert kinds.count("lane") == (6 if closed[scene] else 8)
        assert kinds.count("boundary") == int(closed[scene])
        start = drawn.tracks[scene, 0, OBSERVED - 1]
        lines = [resampled(line, 200) for line in road.points]
        assert min(np.linalg.norm(line - start, axis=1).min() for line in lines) < 0.5


def test_tables_keep_the_maps_of_their_scenes():
    first = built_in_tracks("junctions", agents=12, seed=0)
    assert len(first.maps) == len(first.scene_names) == 4
    walkers = built_in_tracks("walkers", agents=6, seed=0)
    both = join_tables([walkers, first])
    assert both.maps == (None, *first.maps)
    assert both.maps_of(np.array([len(both) - 1])) == [first.maps[-1]]
    assert join_tables([walkers, walkers]).maps is None
    assert walkers.maps_of(np.arange(2)) == [None, None]
    roads = zip(resample(first, 0.8).maps, first.maps, strict=True)
    assert all(np.array_equal(road.points, whole.points) for road, whole in roads)
    assert first.rows(first.scene == 2).maps_of(np.array([0])) == [first.maps[2]]
    again, other = (built_in_tracks("junctions", agents=12, seed=s) for s in (0, 1))
    assert np.array_equal(first.positions, again.positions)
    assert not np.array_equal(first.positions, other.positions)


def test_kinds_and_sizes_of_cars_say_nothing_about_how_they_drive(drawn):
    shares = {kind: (drawn.kinds == kind).mean() for kind in ("vehicle", "bus", "unknown")}
    assert list(shares.values()) == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert (drawn.sizes[drawn.kinds == "bus"][:, 0] > 10).all()
    assert not drawn.sizes[drawn.kinds == "unknown"].any()
    is_bus = drawn.kinds[:, 0] == "bus"
    assert drawn.brakes[is_bus].mean() == pytest.approx(drawn.brakes.mean(), abs=0.06)
    table = built_in_tracks("junctions", agents=12, seed=4)
    assert table.size.shape == (240, 2)
    assert table.kind.tolist() == np.repeat(junctions(scenes=4, seed=4).kinds, 20).tolist()


def test_lights_are_red_where_a_car_has_to_stop_and_change_once(drawn):
    lit = [s for s, road in enumerate(drawn.maps) if len(road.light_points)]
    assert len(lit) / 3000 == pytest.approx(0.5, abs=0.03)
    changes = []
    for scene in lit[:200]:
        road, car = drawn.maps[scene], drawn.tracks[scene, 0]
        starts = [line[-1] for line in road.lines]  # a lane that comes in ends at its light
        gaps = np.linalg.norm(road.light_points[:, None] - np.array(starts), axis=2).min(1)
        assert gaps.max() < 1e-9
        assert len(road.light_points) == (drawn.odds[scene] > 0).sum() + 1
        own = np.linalg.norm(road.light_points - car[OBSERVED - 1], axis=1)
        # its light is ahead of the car, in its lane
        heading = car[OBSERVED - 1] - car[0]
        ahead = ((road.light_points - car[OBSERVED - 1]) @ heading) / np.linalg.norm(heading)
        light = np.argmax(np.isclose(own, np.abs(ahead), atol=0.1) & (ahead > 0))
        states = [LIGHT_STATES[state] for state in road.light_states[light]]
        last = "red" if drawn.situation[scene] == YIELD else "green"
        assert states[OBSERVED - 3] == states[-1] == last
        changes.append(states.index(last))
        finals = {LIGHT_STATES[state] for state in road.light_states[:, -1]}
        assert finals == {"red", "green"}
    assert set(changes) == {0, 1, 2, 3, 4}


def test_tables_give_the_lights_of_observed_steps_only():
    cars = built_in_tracks("junctions", agents=30, seed=0)
    scene = next(s for s, road in enumerate(cars.maps) if len(road.light_points))
    road, rows = cars.maps[scene], np.flatnonzero(cars.scene == scene)
    points, states = cars.lights_of(rows[[2, 9, 12]], 8)
    count = len(road.light_points)
    assert np.array_equal(points[0, :count], road.light_points)
    assert not states[0, :, :5].any()  # before the first frame
    assert np.array_equal(states[0, :count, 5:], road.light_states[:, :3])
    assert np.array_equal(states[2, :count], road.light_states[:, 5:13])
    dark = next(s for s, road in enumerate(cars.maps) if not len(road.light_points))
    both = np.array([np.flatnonzero(cars.scene == dark)[9], rows[9]])
    assert not cars.lights_of(both, 8)[1][0].any()
    slower = resample(cars, 0.8)
    rows = np.flatnonzero(slower.scene == scene)
    assert np.array_equal(slower.lights_of(rows[[4]], 5)[1][0, :count], road.light_states[:, :10:2])
    bare = replace(road, points=road.points[:0], is_point=road.is_point[:0], kinds=road.kinds[:0])
    without_lanes = replace(cars, maps=(bare,) * len(cars.maps))
    assert np.array_equal(
        resample(without_lanes, 0.8).maps[0].light_states, road.light_states[:, ::2]
    )
    walkers = built_in_tracks("walkers", agents=1, seed=0)
    assert walkers.lights_of(np.arange(3), 8)[0].shape == (3, 0, 2)
    later = join_tables([walkers, cars])
    assert later.lights_of(len(walkers) + both, 8)[1].any(axis=(1, 2)).tolist() == [False, True]


def test_maps_of_different_size_stand_side_by_side():
    line = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0]])
    roads = [road_map([line, line[:2] + 9], [0, 2], source="a"), None]
    points, is_point, kinds = maps_side_by_side(roads, np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert points.shape == (2, 2, 3, 2)
    assert points[0, 0].tolist() == [[-1, 0], [1, 0], [1, 2]]
    assert is_point.tolist() == [[[1, 1, 1], [1, 1, 0]], [[0, 0, 0]] * 2]
    assert kinds.tolist() == [[0, 2], [0, 0]]
    assert resampled(line, 5).tolist() == [[0, 0], [1, 0], [2, 0], [2, 1], [2, 2]]
    with pytest.raises(ValueError, match="b: polyline 1 has 1 point, and a direction needs two"):
        road_map([line, line[:1]], [0, 0], source="b")
    with pytest.raises(ValueError, match="polyline 0 has a point that is not finite"):
        road_map([line * np.nan], [0], source="b")
