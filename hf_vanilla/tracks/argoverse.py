"""Maps of Argoverse 2: `log_map_archive_*.json` beside a scenario's Parquet file."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .road_maps import LANE_KINDS, RoadMap, resampled, road_map
from .table import TrackTable

SCENARIO, ARCHIVE = "scenario_", "log_map_archive_"
LANE_POINTS = 10  # of a lane, and of each piece of a boundary
FARTHEST_MAP = 1000.0  # metres between a map and the nearest agent


def with_map(table: TrackTable, scenario: Path) -> TrackTable:
    """The scene of a scenario file with the map beside it, if there is one.

    Raises:
        ValueError: the map is not of the format, or far from all agents.
        OSError: it cannot be read.
    """
    name = scenario.stem.removeprefix(SCENARIO)
    path = scenario.with_name(f"{ARCHIVE}{name}.json")
    if not path.is_file():
        return table
    road = read_map(path)
    _check_distance(road, table, path)
    return replace(table, maps=(road,) * len(table.scene_names))


def read_map(path: Path) -> RoadMap:
    """Middle lines of lanes, both edges of crossings, and boundaries of drivable areas.

    A lane without a middle line gets the mean of its two boundaries. Lanes and edges have
    `LANE_POINTS` points at equal distances; long boundaries are cut into pieces of as many.

    Raises:
        ValueError: the file is not of the format, or a line has one point.
        OSError: it cannot be read.
    """
    try:
        archive = json.loads(path.read_text(encoding="utf-8"))
        found = list(_lines(archive))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no map archive of Argoverse 2 ({type(error).__name__}: {error}): give one "
            "with lane_segments, pedestrian_crossings and drivable_areas"
        ) from None
    kinds = [LANE_KINDS.index(kind) for kind, _ in found]
    return road_map([line for _, line in found], kinds, source=str(path))


def _lines(archive: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Kind and points `(n, 2)` of every line."""
    for lane in archive["lane_segments"].values():
        if lane.get("centerline"):
            line = _points(lane["centerline"])
        else:
            sides = (_points(lane[f"{side}_lane_boundary"]) for side in ("left", "right"))
            line = np.mean([_even(side) for side in sides], axis=0)
        yield "lane", _even(line)
    for crossing in archive.get("pedestrian_crossings", {}).values():
        for edge in ("edge1", "edge2"):
            yield "crossing", _even(_points(crossing[edge]))
    for area in archive.get("drivable_areas", {}).values():
        around = _points(area["area_boundary"])
        for first in range(0, len(around) - 1, LANE_POINTS - 1):
            yield "boundary", around[first : first + LANE_POINTS]


def _points(points: list[dict[str, float]]) -> np.ndarray:
    return np.array([(point["x"], point["y"]) for point in points], dtype=float).reshape(-1, 2)


def _even(line: np.ndarray) -> np.ndarray:
    """At equal distances; a line of one point stays as it is, and is refused with its number."""
    return resampled(line, LANE_POINTS) if len(line) > 1 else line


def _check_distance(road: RoadMap, table: TrackTable, path: Path) -> None:
    points = road.points[road.is_point]
    if not len(points):
        return
    low, high = points.min(axis=0), points.max(axis=0)
    outside = np.maximum(low - table.positions, table.positions - high).clip(min=0)
    nearest = np.linalg.norm(outside, axis=1).min()
    if nearest > FARTHEST_MAP:
        raise ValueError(
            f"{path}: the map is {nearest:.0f} m from all agents: give a map in their frame of "
            "coordinates"
        )
