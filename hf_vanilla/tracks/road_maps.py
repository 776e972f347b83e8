"""Road maps: lanes and other polylines, and their files in Argoverse 2.

Shapes: P polylines of S points, B scenes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .table import TrackTable

LIGHT_STATES = ("unknown", "red", "yellow", "green")
LANE_KINDS = ("lane", "crossing", "boundary")
SCENARIO, ARCHIVE = "scenario_", "log_map_archive_"
LANE_POINTS = 10  # of a lane, and of each piece of a boundary
FARTHEST_MAP = 1000.0  # metres between a map and the nearest agent


@dataclass(frozen=True, eq=False)
class RoadMap:
    """Polylines in the coordinates of the tracks, lanes in the order of driving.

    Attributes:
        points: `(P, S, 2)` float64, 0 where there is none.
        is_point: `(P, S)` bool.
        kinds: `(P,)` int64 index into `LANE_KINDS`.
        light_points: `(Q, 2)` float64 positions of traffic lights.
        light_states: `(Q, L)` int64 index into `LIGHT_STATES`, from the scene's frame 0 on, one per
            step; unknown before and after.
    """

    points: np.ndarray
    is_point: np.ndarray
    kinds: np.ndarray
    light_points: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    light_states: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __len__(self) -> int:
        return len(self.points)

    def at_steps_of(self, ratio: float) -> "RoadMap":
        """The map for steps that are `ratio` as long; a light's state is the last one before."""
        if not len(self.light_points):
            return self
        count = self.light_states.shape[1]
        wanted = np.floor(np.round(np.arange(0, count, ratio), 6)).astype(np.int64)
        return replace(self, light_states=self.light_states[:, wanted[wanted < count]])

    @property
    def lines(self) -> list[np.ndarray]:
        """Points `(n, 2)` of each polyline."""
        parts = zip(self.points, self.is_point, strict=True)
        return [points[is_point] for points, is_point in parts]


def road_map(polylines: Sequence[np.ndarray], kinds: Sequence[int], *, source: str) -> RoadMap:
    """A map of polylines of any length.

    Args:
        polylines: `(points, 2)` each.
        kinds: index into `LANE_KINDS` of each.
        source: name of the file for messages.

    Raises:
        ValueError: a polyline has fewer than two points, or a point is not finite.
    """
    longest = max((len(line) for line in polylines), default=2)
    points = np.zeros((len(polylines), longest, 2))
    is_point = np.zeros(points.shape[:2], bool)
    for number, line in enumerate(polylines):
        if len(line) < 2:
            raise ValueError(
                f"{source}: polyline {number} has {len(line)} point, and a direction needs two: "
                "leave it out"
            )
        if not np.isfinite(line).all():
            raise ValueError(f"{source}: polyline {number} has a point that is not finite")
        points[number, : len(line)], is_point[number, : len(line)] = line, True
    return RoadMap(points, is_point, np.array(kinds, np.int64).reshape(len(polylines)))


def resampled(polyline: np.ndarray, count: int) -> np.ndarray:
    """`(count, 2)` points at equal distances along a polyline `(points, 2)`."""
    lengths = np.linalg.norm(np.diff(polyline, axis=0), axis=1)
    along = np.concatenate(([0], lengths.cumsum()))
    wanted = np.linspace(0, along[-1], count)
    return np.stack([np.interp(wanted, along, column) for column in polyline.T], axis=1)


def maps_side_by_side(
    maps: Sequence[RoadMap | None], offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Maps of several scenes in padded arrays.

    Args:
        maps: of each scene; None: no map.
        offsets: `(B, 2)` float64, subtracted from the points of each scene.

    Returns:
        `(B, P, S, 2)` float32 points, 0 where there is none; `(B, P, S)` bool; `(B, P)` int64.
    """
    most = max((len(part) for part in maps if part is not None), default=0)
    longest = max((part.points.shape[1] for part in maps if part is not None), default=2)
    points = np.zeros((len(maps), most, longest, 2), np.float32)
    is_point = np.zeros(points.shape[:3], bool)
    kinds = np.zeros(points.shape[:2], np.int64)
    for row, part in enumerate(maps):
        if part is not None and len(part):
            count, steps = part.is_point.shape
            relative = np.where(part.is_point[..., None], part.points - offsets[row], 0)
            points[row, :count, :steps] = relative
            is_point[row, :count, :steps] = part.is_point
            kinds[row, :count] = part.kinds
    return points, is_point, kinds


# --- Argoverse 2: `log_map_archive_*.json` beside a scenario's Parquet file ----------------------


def with_map(table: "TrackTable", scenario: Path) -> "TrackTable":
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
    points = road.points[road.is_point]
    if len(points):
        low, high = points.min(axis=0), points.max(axis=0)
        outside = np.maximum(low - table.positions, table.positions - high).clip(min=0)
        nearest = np.linalg.norm(outside, axis=1).min()
        if nearest > FARTHEST_MAP:
            raise ValueError(
                f"{path}: the map is {nearest:.0f} m from all agents: give it in their coordinates"
            )
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
        lines = list(_lines(archive))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is no map archive of Argoverse 2 ({type(error).__name__}: {error}): give one "
            "with lane_segments, pedestrian_crossings and drivable_areas"
        ) from None
    kinds = [LANE_KINDS.index(kind) for kind, _ in lines]
    return road_map([line for _, line in lines], kinds, source=str(path))


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
        corners = _points(area["area_boundary"])
        around = np.concatenate((corners, corners[:1]))
        for first in range(0, len(around) - 1, LANE_POINTS - 1):
            yield "boundary", around[first : first + LANE_POINTS]


def _points(points: list[dict[str, float]]) -> np.ndarray:
    return np.array([(point["x"], point["y"]) for point in points], dtype=float).reshape(-1, 2)


def _even(line: np.ndarray) -> np.ndarray:
    """At equal distances; a line of one point stays as it is, and is refused with its number."""
    return resampled(line, LANE_POINTS) if len(line) > 1 else line
