"""Scores of the agents of a scene together, in units of the world.

Shapes: W windows, M modes or samples, P predicted steps, N agents of one scene.
"""

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.models.loss_vanilla_tracks import distances

from .scores import COLLISION_DISTANCE


class JointSums:
    """Sums of joint scores over scenes of two or more agents, which add up over batches.

    Mode m of all agents of a scene makes one future of the scene. `minJADE` is the smallest mean
    error of any of these futures, one future for all agents; `minJFDE` that of final errors, for
    itself. An agent counts as much as in `minADE`, which is never larger.
    `joint_collision_share` is the share of pairs of agents that come closer than a distance in the
    same future of their scene, over all its futures.

    Args:
        modes: of the model.
        collision_distance: in units of the world.
    """

    def __init__(self, modes: int, *, collision_distance: float = COLLISION_DISTANCE) -> None:
        self.collision_distance = collision_distance
        self.names = [f"minJADE{modes}", f"minJFDE{modes}", "joint_collision_share"]
        self.sums = torch.zeros(2, 3, dtype=torch.float64)  # values, agents or pairs

    def add(self, tracks: Tensor, future: Tensor, known: Tensor, groups: np.ndarray) -> None:
        """Add whole scenes; those of one agent count nothing.

        Args:
            tracks: `(W, M, P, 2)` float64 positions in the world.
            future: `(W, P, 2)`; anything where it is not known.
            known: `(W, P)` bool.
            groups: `(W,)` equal numbers for windows of one scene at one frame.
        """
        apart = distances(tracks, future.to(tracks.dtype).unsqueeze(1)) * known.unsqueeze(1)
        steps = known.sum(dim=1)
        mean = apart.sum(dim=-1) / steps.clamp(min=1).unsqueeze(1)  # (W, M)
        order = np.argsort(groups, kind="stable")
        bounds = np.flatnonzero(np.diff(groups[order])) + 1
        for members in np.split(order, bounds):
            if len(members) < 2:
                continue
            rows = torch.from_numpy(members)
            has_any, has_last = steps[rows] > 0, known[rows, -1]
            self._add_best(0, mean[rows][has_any])
            self._add_best(1, apart[rows, :, -1][has_last])
            close = close_pairs(tracks[rows], self.collision_distance)  # (pairs, M)
            self.sums[0, 2] += close.double().mean(dim=1).sum()
            self.sums[1, 2] += len(close)

    def _add_best(self, column: int, errors: Tensor) -> None:
        """Errors `(N, M)` of the agents of a scene; the mode with the smallest mean counts."""
        if len(errors):
            self.sums[0, column] += errors.mean(dim=0).amin() * len(errors)
            self.sums[1, column] += len(errors)

    def means(self, sums: Tensor | None = None) -> dict[str, float]:
        """The mean of each score; of the sums of all processes where these are given.

        A score without any scene of two or more agents is left out.
        """
        total = (self.sums if sums is None else sums).double().cpu()
        return {
            name: float(total[0, column] / total[1, column])
            for column, name in enumerate(self.names)
            if total[1, column]
        }


def close_pairs(tracks: Tensor, distance: float) -> Tensor:
    """Which pairs of agents come closer than a distance in which mode, bool `(pairs, M)`.

    Args:
        tracks: `(N, M, P, 2)` positions in the world of the agents of one scene.
        distance: in units of the world.
    """
    first, second = torch.triu_indices(len(tracks), len(tracks), 1)
    # step by step: all pairs at all steps would need P times the memory
    is_close = torch.zeros(len(first), tracks.shape[1], dtype=torch.bool)
    for step in tracks.unbind(dim=2):
        is_close |= (step[first] - step[second]).square().sum(dim=-1) < distance**2
    return is_close
