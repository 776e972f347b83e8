"""Lanes and other polylines of a place. Shapes: P polylines of S points, B scenes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LANE_KINDS = ("lane", "crossing", "boundary")


@dataclass(frozen=True, eq=False)
class RoadMap:
    """Polylines in the coordinates of the tracks, lanes in the order of driving.

    Attributes:
        points: `(P, S, 2)` float64, 0 where there is none.
        is_point: `(P, S)` bool.
        kinds: `(P,)` int64 index into `LANE_KINDS`.
    """

    points: np.ndarray
    is_point: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

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
