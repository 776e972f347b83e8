"""Positions of moving agents in memory. Shapes: N rows of a table, S scenes."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow

from .road_maps import RoadMap

logger = logging.getLogger(__name__)

LONGEST_STEP = 50.0  # a longer displacement in one step is counted as a jump
FARTHEST = 1e12  # squares and differences of positions stay numbers of 32 bits
SHORTEST_MOVE = 1e-3  # where nothing moves farther in a step, positions may be in degrees
BLOCK_ROWS = 100_000  # at a time, where a copy of a whole table would be large
COLUMNS = ("scene", "agent", "frame", "positions", "kind", "size")
AGENT_KINDS = ("unknown", "vehicle", "pedestrian", "cyclist", "motorcyclist", "bus", "other")
# names of Argoverse 2 are those of `AGENT_KINDS`; of nuScenes in AgentFormer's form:
OTHER_NAMES = {
    **dict.fromkeys(("car", "truck", "van", "trailer"), "vehicle"),
    **dict.fromkeys(("emergency", "construction_vehicle"), "vehicle"),
    **{"person": "pedestrian", "bicycle": "cyclist", "motorcycle": "motorcyclist"},
    **dict.fromkeys(("dontcare", "none", "nan", ""), "unknown"),
}


@dataclass(frozen=True, eq=False)
class TrackTable:
    """A table of positions, sorted by agent, then frame; agents are numbered as they first appear.

    Attributes:
        frame: `(N,)` int64 numbers of frames.
        agent: `(N,)` int32 index into `agent_names`; agents of different scenes differ.
        scene: `(N,)` int32 index into `scene_names`.
        positions: `(N, 2)` float64 x and y.
        agent_names: name of each agent as in its file, text or number.
        scene_names: name of each scene.
        frames_per_step: `(S,)` int64 how far frame numbers advance in a step of each scene.
        step_seconds: time of a step.
        unit: of the positions.
        kind: `(N,)` such as "Pedestrian", where the file says so.
        size: `(N, 2)` length and width, likewise.
        maps: lanes of each scene, None for a scene without; None: there are no maps.
    """

    frame: np.ndarray
    agent: np.ndarray
    scene: np.ndarray
    positions: np.ndarray
    agent_names: np.ndarray
    scene_names: tuple[str, ...]
    frames_per_step: np.ndarray
    step_seconds: float
    unit: str = "m"
    kind: np.ndarray | None = None
    size: np.ndarray | None = None
    maps: tuple[RoadMap | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, selected: np.ndarray | slice) -> "TrackTable":
        """The table of these rows: bool `(N,)`, rising numbers or a slice, which copies nothing.

        Names and numbers stay.
        """
        columns = {name: getattr(self, name) for name in COLUMNS}
        return replace(self, **{k: v[selected] for k, v in columns.items() if v is not None})

    def maps_of(self, rows: np.ndarray) -> list[RoadMap | None]:
        """The map of each row's scene."""
        if self.maps is None:
            return [None] * len(rows)
        return [self.maps[scene] for scene in self.scene[rows]]

    def kinds_of(self, rows: np.ndarray) -> np.ndarray:
        """Index into `AGENT_KINDS` of each row, `(B,)` int64; a name not known there is "other"."""
        if self.kind is None:
            return np.zeros(len(rows), np.int64)
        names = [str(name).lower() for name in self.kind[rows]]
        names = [OTHER_NAMES.get(name, name) for name in names]
        return np.array([AGENT_KINDS.index(n if n in AGENT_KINDS else "other") for n in names])

    def sizes_of(self, rows: np.ndarray) -> np.ndarray:
        """Length and width of each row, `(B, 2)` float32, 0 where a file has none or -1."""
        size = np.zeros((len(rows), 2)) if self.size is None else self.size[rows]
        return np.where(size > 0, size, 0).astype(np.float32)

    def lights_of(self, rows: np.ndarray, observed: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions `(B, Q, 2)` and states `(B, Q, T)` of lights, observed steps up to each row."""
        maps = self.maps_of(rows)
        most = max((len(road.light_points) for road in maps if road is not None), default=0)
        points = np.zeros((len(rows), most, 2))
        states = np.zeros((len(rows), most, observed), np.int64)
        last = self.frame[rows] // self.frames_per_step[self.scene[rows]]
        for row, road in enumerate(maps):
            if road is None or not len(road.light_points):
                continue
            count, steps = road.light_states.shape
            wanted = last[row] + np.arange(1 - observed, 1)
            is_known = (wanted >= 0) & (wanted < steps)
            points[row, :count] = road.light_points
            states[row, :count, is_known] = road.light_states[:, wanted[is_known]].T
        return points, states

    @property
    def steps(self) -> np.ndarray:
        """`(N - 1,)` steps from each row to the next one of the same agent; 0 at another agent."""
        is_same = self.agent[1:] == self.agent[:-1]
        return np.diff(self.frame) // self.frames_per_step[self.scene[1:]] * is_same

    @property
    def gaps(self) -> int:
        """How often an agent is missing between two of its rows."""
        return int((self.steps > 1).sum())

    @property
    def displacements(self) -> np.ndarray:
        """Lengths of all displacements within one step, in units."""
        return np.concatenate(list(self.displacement_blocks()))

    def displacement_blocks(self) -> Iterator[np.ndarray]:
        """`displacements` in parts, which need little memory at a time."""
        for rows in _blocks(len(self)):
            block = self.rows(rows)
            yield np.linalg.norm(np.diff(block.positions, axis=0)[block.steps == 1], axis=1)

    def describe(self) -> str:
        """Rows, agents, scenes, rate, gaps and jumps in one line."""
        jumps = int((self.displacements > LONGEST_STEP).sum())
        scenes = len(np.unique(self.scene))
        return (
            f"{len(self):,} rows, {len(np.unique(self.agent)):,} agents, "
            f"{scenes:,} {'scene' if scenes == 1 else 'scenes'}, steps of {self.step_seconds:g} s; "
            f"{self.gaps:,} gaps, {jumps:,} steps of more than {LONGEST_STEP:g} {self.unit}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The rows of one file, in its order.

    Attributes:
        source: name of the file for messages.
        frame: `(N,)` numbers.
        agent: `(N,)` names.
        positions: `(N, 2)`.
        lines: number of the line of each row.
        scene: `(N,)` names where one file holds several scenes.
        step_seconds: where the file states it.
        columns: `kind` and `size`, where there are.
    """

    source: str
    frame: np.ndarray
    agent: np.ndarray
    positions: np.ndarray
    lines: Sequence[int] | np.ndarray = range(1, sys.maxsize)
    scene: np.ndarray | None = None
    step_seconds: float | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def line(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self.source}, line {self.lines[row]}"


def table_of_rows(
    rows: Rows, *, name: str, frame_seconds: float | None = None, unit: str = "m"
) -> TrackTable:
    """Check, number and sort the rows of a file.

    Args:
        rows: as read.
        name: of the scene, where the file has no names of its own.
        frame_seconds: time between two frame numbers that follow each other; None where the file
            states its rate.
        unit: of the positions.

    Raises:
        ValueError: there is no row, a number is not finite, a frame is no whole number, an agent
            is twice in a frame, frames have two rates, or no rate is known.
    """
    _check_numbers(rows)
    frame = rows.frame.astype(np.int64, copy=False)
    scene, scene_names = np.zeros(len(frame), np.int32), np.array([name])
    if rows.scene is not None:
        scene, scene_names = _numbered(rows.scene)
    agent, agent_names = _numbered(rows.agent)
    if len(scene_names) > 1:
        pair, pairs = _numbered(scene.astype(np.int64) * (agent.max() + 1) + agent)
        agent, agent_names = pair, agent_names[pairs % (agent.max() + 1)]
    order: Any = slice(None)
    is_next = agent[1:] > agent[:-1]
    is_next |= (agent[1:] == agent[:-1]) & (frame[1:] >= frame[:-1])
    if not is_next.all():  # sorted rows need no copy
        order = np.lexsort((frame, agent))
        frame, agent, scene = frame[order], agent[order], scene[order]
    is_twice = (frame[1:] == frame[:-1]) & (agent[1:] == agent[:-1])
    if is_twice.any():
        row = int(np.flatnonzero(is_twice)[0])
        several = (
            ", or name the column of scenes: --columns scene=NAME" if rows.scene is None else ""
        )
        raise ValueError(
            f"{rows.line(_row_of_file(order, row + 1))}: agent {agent_names[agent[row]]} is twice "
            f"in frame {frame[row]}: keep one row{several}"
        )
    del is_twice
    per_step = _frames_per_step(rows, order, frame, agent, scene)
    table = TrackTable(
        frame=frame,
        agent=agent,
        scene=scene,
        positions=rows.positions[order],
        agent_names=agent_names,
        scene_names=tuple(map(str, scene_names)),
        frames_per_step=per_step,
        step_seconds=_step_seconds(rows, per_step, frame_seconds),
        unit=unit,
        **{key: values[order] for key, values in rows.columns.items()},
    )
    _warn_of_units(rows.source, table)
    return table


def check_positive(**numbers: float) -> None:
    """Refuse numbers that are not positive.

    Raises:
        ValueError: there is one; the message has its name.
    """
    for name, value in numbers.items():
        if not value > 0:
            raise ValueError(f"{name}={value}: give a positive number")


def join_tables(parts: Sequence[TrackTable]) -> TrackTable:
    """One table of one or several; where only some have kinds or sizes, the others' are unknown.

    Raises:
        ValueError: rates or units differ.
    """
    first = parts[0]
    for part in parts[1:]:
        if not np.isclose(part.step_seconds, first.step_seconds) or part.unit != first.unit:
            raise ValueError(
                f"{part.scene_names[0]} has steps of {part.step_seconds:g} s in {part.unit}, "
                f"{first.scene_names[0]} of {first.step_seconds:g} s in {first.unit}: read all "
                "with one --step_seconds"
            )
    agents = np.cumsum([0, *(len(part.agent_names) for part in parts)])
    numbers = np.cumsum([0, *(len(part.scene_names) for part in parts)])
    maps: tuple[RoadMap | None, ...] | None = None
    if any(part.maps is not None for part in parts):
        maps = tuple(m for part in parts for m in part.maps or (None,) * len(part.scene_names))
    join = np.concatenate
    columns: dict[str, Any] = {
        name: join([getattr(part, name) for part in parts])
        for name in ("frame", "positions", "frames_per_step")
    }
    for name, unknown in (("kind", np.array(["unknown"], object)), ("size", np.zeros((1, 2)))):
        values = [getattr(part, name) for part in parts]
        if any(value is not None for value in values):
            pairs = zip(parts, values, strict=True)
            columns[name] = join(
                [unknown.repeat(len(part), 0) if v is None else v for part, v in pairs]
            )
    names = [part.agent_names for part in parts]
    if len({part.dtype == object for part in names}) > 1:  # text and numbers
        names = [part.astype(str) for part in names]
    return replace(
        first,
        agent=join([part.agent + shift for part, shift in zip(parts, agents, strict=False)]),
        scene=join([part.scene + shift for part, shift in zip(parts, numbers, strict=False)]),
        agent_names=join([part.astype(object) for part in names]),
        scene_names=tuple(name for part in parts for name in part.scene_names),
        maps=maps,
        **columns,
    )


def resample(table: TrackTable, step_seconds: float | None) -> TrackTable:
    """Positions at another rate, by linear interpolation; gaps stay gaps.

    New frame numbers count the new steps from the scene's frame 0, so agents stay aligned. A point
    in time without observed rows on both sides, or exactly on it, has no position.

    Args:
        table: rows of agents.
        step_seconds: wanted time of a step; None: as it is.

    Raises:
        ValueError: `step_seconds` is not positive.
    """
    if step_seconds is None:
        return table
    check_positive(step_seconds=step_seconds)
    ratio = step_seconds / table.step_seconds
    if np.isclose(ratio, 1):
        return table
    time = table.frame / table.frames_per_step[table.scene] / ratio  # in new steps
    is_end = np.append(table.steps != 1, True)
    segment = np.concatenate(([0], np.cumsum(is_end[:-1])))
    starts = np.flatnonzero(np.concatenate(([True], is_end[:-1])))
    first = np.ceil(np.round(time[starts], 6)).astype(np.int64)
    last = np.floor(np.round(time[np.flatnonzero(is_end)], 6)).astype(np.int64)
    count = np.maximum(last - first + 1, 0)
    of_point = np.repeat(np.arange(len(starts)), count)
    frame = first[of_point] + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    # one rising axis for all segments: each has room of its own
    room = time.max() - time.min() + 2
    axis, wanted = time - time.min() + segment * room, frame - time.min() + of_point * room
    positions = np.stack([np.interp(wanted, axis, column) for column in table.positions.T], 1)
    maps = table.maps and tuple(
        None if road is None else road.at_steps_of(ratio) for road in table.maps
    )
    before = np.clip(np.searchsorted(axis, wanted + 1e-6, side="right") - 1, 0, len(axis) - 1)
    return replace(
        table.rows(before),
        frame=frame,
        positions=positions,
        frames_per_step=np.ones_like(table.frames_per_step),
        step_seconds=step_seconds,
        maps=maps,
    )


# --- checks --------------------------------------------------------------------------------------


def _numbered(names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of names in the order of their first appearance, and the names in that order."""
    encoded = pyarrow.array(names).dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    return encoded.indices.to_numpy(), values


def _row_of_file(order: Any, row: int) -> int:
    """The index in the file of row `row` of the sorted table; a slice: the same."""
    return row if isinstance(order, slice) else int(order[row])


def _check_numbers(rows: Rows) -> None:
    if not len(rows.frame):
        raise ValueError(f"{rows.source} has no rows: give a file with positions")
    is_bad = ~(np.abs(rows.positions) <= FARTHEST).all(axis=1)  # also NaN
    if is_bad.any():
        row = int(np.flatnonzero(is_bad)[0])
        raise ValueError(
            f"{rows.line(row)}: position {tuple(rows.positions[row].tolist())} is not finite "
            f"or beyond {FARTHEST:g}: leave the row out, and the step counts as missing"
        )
    if rows.frame.dtype.kind == "f":
        is_bad = rows.frame != np.round(rows.frame)  # also NaN
        is_bad |= np.abs(rows.frame) > 2**53  # not every whole number is a float there
        if is_bad.any():
            row = int(np.flatnonzero(is_bad)[0])
            raise ValueError(
                f"{rows.line(row)}: frame {rows.frame[row]} is not a whole number: number the "
                "frames, and give --frame_seconds"
            )


def _frames_per_step(
    rows: Rows, order: Any, frame: np.ndarray, agent: np.ndarray, scene: np.ndarray
) -> np.ndarray:
    """`(S,)` most frequent advance of each scene's agents; all others must be its multiples.

    A scene in which every agent is there once has that of the others.
    """
    per_step = np.zeros(scene.max() + 1, np.int64)
    counts: list[Counter[int]] = [Counter() for _ in per_step]
    for block in _blocks(len(frame)):
        advance, is_same = np.diff(frame[block]), agent[block][1:] == agent[block][:-1]
        of_row = scene[block][1:]
        for number in np.unique(of_row):
            values, times = np.unique(advance[is_same & (of_row == number)], return_counts=True)
            counts[number].update(dict(zip(values.tolist(), times.tolist(), strict=True)))
    for number, of_scene in enumerate(counts):
        if not of_scene:
            continue
        most = max(of_scene.values())
        per_step[number] = step = min(value for value, times in of_scene.items() if times == most)
        if any(value % step for value in of_scene):
            is_odd = (np.diff(frame) % step != 0) & (agent[1:] == agent[:-1])
            row = int(np.flatnonzero(is_odd & (scene[1:] == number))[0]) + 1
            raise ValueError(
                f"{rows.line(_row_of_file(order, row))}: an agent's frames advance by "
                f"{frame[row] - frame[row - 1]}, but mostly by {step}: frames must have one rate"
            )
    per_step[per_step == 0] = per_step.max(initial=1)
    return per_step


def _blocks(count: int) -> Iterator[slice]:
    """Parts of a table, each with the first row of the next, for differences of rows."""
    for first in range(0, max(1, count - 1), BLOCK_ROWS):
        yield slice(first, first + BLOCK_ROWS + 1)


def _step_seconds(rows: Rows, per_step: np.ndarray, frame_seconds: float | None) -> float:
    if frame_seconds is None:
        if rows.step_seconds is None:
            raise ValueError(
                f"{rows.source} does not state its rate: give --frame_seconds, the time between "
                "two frame numbers that follow each other"
            )
        return rows.step_seconds
    check_positive(frame_seconds=frame_seconds)
    rates = sorted(set(per_step.tolist()))
    if len(rates) > 1:
        raise ValueError(
            f"{rows.source}: frame numbers of its scenes advance by {rates} in a step: frames "
            "must have one rate"
        )
    return float(per_step[0]) * frame_seconds


def _warn_of_units(source: str, table: TrackTable) -> None:
    jumps, longest = 0, 0.0
    for lengths in table.displacement_blocks():
        jumps += int((lengths > LONGEST_STEP).sum())
        longest = max(longest, float(lengths.max(initial=0)))
    if jumps:
        logger.warning(
            "%s: %d displacements of more than %g %s in a step, up to %.4g; they are used",
            *(source, jumps, LONGEST_STEP, table.unit, longest),
        )
    if 0 < longest < SHORTEST_MOVE and (np.abs(table.positions) <= (180, 90)).all():
        logger.warning(
            "%s: nothing moves by more than %.2g in a step: are these degrees? Positions must be "
            "in %s",
            *(source, longest, table.unit),
        )
