"""Windows of observed and future steps, cut from tables of positions.

Shapes: W windows, B some of them, T observed steps, P predicted steps.
"""

from dataclasses import dataclass, replace

import numpy as np

from .table import BLOCK_ROWS, TrackTable, check_positive


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of observed and future steps of one agent each, by rows of a table.

    Attributes:
        table: rows of agents.
        observed: steps T.
        predicted: steps P.
        last_rows: `(W,)` row of each window's last observed step, which is never missing.
    """

    table: TrackTable
    observed: int
    predicted: int
    last_rows: np.ndarray

    def __len__(self) -> int:
        return len(self.last_rows)

    def __getitem__(self, selected: np.ndarray) -> "Windows":
        return replace(self, last_rows=self.last_rows[selected])

    @property
    def first_rows(self) -> np.ndarray:
        """`(W,)` row of each window's first step; -1 where it is missing."""
        parts = np.array_split(self.last_rows, 1 + len(self) // BLOCK_ROWS)
        return np.concatenate(
            [rows_around(self.table, part, 1 - self.observed, 0)[:, 0] for part in parts]
        )

    @property
    def groups(self) -> np.ndarray:
        """`(W,)` equal numbers for windows of one scene at one frame, from 0."""
        return groups_of_rows(self.table, self.last_rows)

    def with_company(self) -> "Windows":
        """Only windows of scenes with two agents or more in the window (Social-GAN's rule)."""
        groups = self.groups
        return self[np.bincount(groups)[groups] >= 2]

    def positions(self, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions of some windows, relative to each one's last observed position.

        Args:
            selected: numbers of windows.

        Returns:
            `(B, T + P, 2)` float32, 0 where missing; `(B, T + P)` bool, True where observed;
            `(B, 2)` float64 last observed positions.
        """
        last = self.last_rows[selected]
        rows = rows_around(self.table, last, 1 - self.observed, self.predicted)
        is_known, origin = rows >= 0, self.table.positions[last]
        relative = self.table.positions[rows] - origin[:, None]
        return np.where(is_known[..., None], relative, 0).astype(np.float32), is_known, origin


def cut_windows(
    table: TrackTable,
    *,
    observed: int,
    predicted: int,
    stride: int = 1,
    by_scene: bool = False,
    allow_missing: bool = False,
) -> Windows:
    """All windows of each agent.

    Args:
        table: rows of agents.
        observed: steps T.
        predicted: steps P.
        stride: steps from one window to the next, counted from the start of each agent.
        by_scene: count them from the scene's frame 0, so that all agents of a frame have a window.
        allow_missing: mask missing steps, where the last observed step and a later one are there;
            otherwise no window crosses a gap. By scene, this includes agents that appear late or
            leave early: a window lies within the scene's frames, and has two observed steps.

    Raises:
        ValueError: a number is too small.
    """
    check_positive(observed=observed, predicted=predicted, stride=stride)
    if not len(table):
        return Windows(table, observed, predicted, np.zeros(0, np.int64))
    time = table.frame // table.frames_per_step[table.scene]
    # a segment ends with its agent, and before a gap that no window may cross
    steps, most_steps = table.steps, observed + predicted if allow_missing else 1
    is_end = (steps < 1) | (steps > most_steps)
    is_first, is_last = np.append(True, is_end), np.append(is_end, True)
    segment = np.cumsum(is_first) - 1
    start, end = time[is_first][segment], time[is_last][segment]
    if allow_missing and by_scene:
        start, end = _times_of_scenes(table, time)
    first = time - observed + 1  # step of each row's window
    is_cut = (first >= start) & (time + predicted <= end)
    is_cut &= (first if by_scene else first - start) % stride == 0
    if allow_missing:
        after = np.append(steps, 0)
        is_cut &= after <= predicted  # a later step is there
        if by_scene:
            before = np.append(0, steps)
            is_cut &= (after > 0) & (before > 0) & (before < observed)
    return Windows(table, observed, predicted, np.flatnonzero(is_cut))


def _times_of_scenes(table: TrackTable, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(N,)` first and last of the times `(N,)` in each row's scene."""
    start = np.full(len(table.scene_names), time.max())
    end = np.full(len(table.scene_names), time.min())
    np.minimum.at(start, table.scene, time)
    np.maximum.at(end, table.scene, time)
    return start[table.scene], end[table.scene]


def groups_of_rows(table: TrackTable, rows: np.ndarray) -> np.ndarray:
    """`(B,)` equal numbers, from 0, for rows `(B,)` of one scene at one frame."""
    keys = np.stack((table.scene[rows], table.frame[rows]), 1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def rows_of_groups(groups: np.ndarray) -> list[np.ndarray]:
    """Rows of each group, from equal numbers `(W,)` for rows of one group."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(order, starts) if len(order) else []


def pasts_of_rows(
    table: TrackTable, rows: np.ndarray, observed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The observed steps that end at some rows.

    Args:
        table: rows of agents.
        rows: `(B,)` row numbers.
        observed: steps T.

    Returns:
        `(B, T, 2)` float64 positions, 0 where missing; `(B, T)` bool, True where observed.
    """
    near = rows_around(table, rows, 1 - observed, 0)
    is_known = near >= 0
    return np.where(is_known[..., None], table.positions[near], 0), is_known


def rows_around(table: TrackTable, rows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Rows `(B, L)` of the agents of rows `(B,)`, from `first` to `last` steps after these.

    -1 where an agent has none.
    """
    # an agent has one row a step at most, so they are among as many rows
    near = np.clip(rows[:, None] + np.arange(first, last + 1), 0, len(table) - 1)
    after = table.frame[near] - table.frame[rows, None]
    after //= table.frames_per_step[table.scene[rows], None]
    is_there = (table.agent[near] == table.agent[rows, None]) & (first <= after) & (after <= last)
    found = np.full(near.shape, -1)
    found[is_there.nonzero()[0], after[is_there] - first] = near[is_there]
    return found
