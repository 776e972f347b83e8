"""Windows of observed and future steps, cut from tables of positions.

Shapes: W windows, B some of them, T observed steps, P predicted steps.
"""

from dataclasses import dataclass, replace

import numpy as np

from .table import TrackTable, check_positive


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of observed and future steps of one agent each, as row numbers into a table.

    Attributes:
        table: rows of agents.
        observed: steps T.
        predicted: steps P.
        grid: rows of the table at equal steps, agent after agent; -1 where a step is missing.
        first: `(W,)` index of each window's first step in `grid`.
    """

    table: TrackTable
    observed: int
    predicted: int
    grid: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, selected: np.ndarray) -> "Windows":
        return replace(self, first=self.first[selected])

    @property
    def last_rows(self) -> np.ndarray:
        """`(W,)` row of each window's last observed step, which is never missing."""
        return self.grid[self.first + self.observed - 1]

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
        rows = self.grid[self.first[selected, None] + np.arange(self.observed + self.predicted)]
        is_known = rows >= 0
        origin = self.table.positions[rows[:, self.observed - 1]]
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
            otherwise no window crosses a gap.

    Raises:
        ValueError: a number is too small.
    """
    check_positive(observed=observed, predicted=predicted, stride=stride)
    length = observed + predicted
    grid, segment = _grid(table, most_steps=length if allow_missing else 1)
    first = np.arange(max(0, len(grid) - length + 1))
    first = first[segment[first] == segment[first + length - 1]]
    if stride > 1:
        starts = np.flatnonzero(np.diff(segment, prepend=-1))[segment[first]]
        number = first - starts
        if by_scene:
            rows = grid[starts]
            number += table.frame[rows] // table.frames_per_step[table.scene[rows]]
        first = first[number % stride == 0]
    if allow_missing:
        known = np.concatenate(([0], np.cumsum(grid >= 0)))
        has_future = known[first + length] > known[first + observed]
        first = first[(grid[first + observed - 1] >= 0) & has_future]
    return Windows(table, observed, predicted, grid, first)


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
    # an agent has one row a step at most, so they are among as many rows
    near = np.maximum(rows[:, None] + np.arange(1 - observed, 1), 0)
    ago = table.frame[rows, None] - table.frame[near]
    ago //= table.frames_per_step[table.scene[rows], None]
    is_near = (table.agent[near] == table.agent[rows, None]) & (ago < observed)
    places = is_near.nonzero()[0], observed - 1 - ago[is_near]
    positions, is_known = np.zeros((*near.shape, 2)), np.zeros(near.shape, bool)
    positions[places], is_known[places] = table.positions[near[is_near]], True
    return positions, is_known


def _grid(table: TrackTable, *, most_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows at equal steps, -1 where missing, and the segment `(L,)` of each.

    A segment ends with its agent, and before a gap of more than `most_steps` steps.
    """
    if not len(table):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    steps = table.steps
    is_new = (steps < 1) | (steps > most_steps)
    indices = np.concatenate(([0], np.cumsum(np.where(is_new, 1, steps))))
    grid = np.full(indices[-1] + 1, -1, np.int64)
    grid[indices] = np.arange(len(table))
    is_start = np.zeros(len(grid), np.int64)
    is_start[indices[1:][is_new]] = 1
    return grid, np.cumsum(is_start)
