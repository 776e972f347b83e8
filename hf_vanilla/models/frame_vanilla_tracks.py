# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Each agent's own frame of coordinates: its last observed position, its heading, its speed.

Only observed steps enter the frame, so the future never changes an input. The frame is computed in
float32, or in float64 where the observed positions are; a model in half precision casts its tokens.
Shapes: B agents, T observed steps, P predicted steps, M modes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AgentFrame:
    """From the world's coordinates to an agent's own and back.

    Attributes:
        origin: `(B, 2)` last observed position.
        rotation: `(B, 2, 2)` a row vector times it is turned into the agent's frame.
        scale: units of the world per unit of the frame.
    """

    origin: Tensor
    rotation: Tensor
    scale: float

    def enter(self, displacements: Tensor) -> Tensor:
        """Displacements `(B, L, 2)` of the world in the agent's frame."""
        return displacements.to(self.rotation.dtype) @ self.rotation / self.scale

    def leave(self, displacements: Tensor) -> Tensor:
        """Displacements `(B, ..., 2)` of the agent's frame in the world."""
        back = self.rotation.transpose(1, 2)
        shape = displacements.shape
        flat = displacements.reshape(shape[0], -1, 2).to(back.dtype)
        return (flat @ back * self.scale).view(shape)

    def positions(self, displacements: Tensor) -> Tensor:
        """World positions `(B, ..., P, 2)` after displacements `(B, ..., P, 2)` of the frame."""
        steps = self.leave(displacements).cumsum(dim=-2)
        return steps + self.origin.view(-1, *(1,) * (steps.dim() - 2), 2)


def observed_velocities(past_values: Tensor, is_observed: Tensor) -> tuple[Tensor, Tensor]:
    """Displacements `(..., T - 1, 2)` per step, each to an observed step from the one before it.

    Where steps are missing between the two, the displacement is divided by the number of steps, so
    that an agent recorded at half the rate of the others keeps its speed.

    Args:
        past_values: `(..., T, 2)` positions; anything finite where they are not observed.
        is_observed: `(..., T)` bool.

    Returns:
        The displacements, 0 where unknown, and `(..., T - 1)` bool: which are known.
    """
    steps = torch.arange(past_values.shape[-2], device=past_values.device)
    may_precede = is_observed.unsqueeze(-2) & (steps < steps.unsqueeze(-1))  # (..., T, T)
    before = torch.where(may_precede, steps, -1).amax(dim=-1)[..., 1:]  # (..., T - 1)
    is_known = is_observed[..., 1:] & (before >= 0)
    before = before.clamp(min=0)
    index = before.unsqueeze(-1).expand(*before.shape, 2)
    moves = past_values[..., 1:, :] - past_values.gather(-2, index)
    moves = moves / (steps[1:] - before).unsqueeze(-1)
    return torch.where(is_known.unsqueeze(-1), moves, 0), is_known


def last_velocity(velocities: Tensor, is_known: Tensor) -> Tensor:
    """The last known displacement, `(B, 2)`; 0 where there is none.

    Args:
        velocities: `(B, T - 1, 2)` of `observed_velocities`.
        is_known: `(B, T - 1)` of `observed_velocities`.
    """
    steps = torch.arange(1, is_known.shape[1] + 1, device=is_known.device)
    last = (is_known * steps).argmax(dim=1)  # 0 where nothing is known, and 0 stands there
    return velocities.gather(1, last.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)


def agent_frame(
    past_values: Tensor,
    velocities: Tensor,
    is_known: Tensor,
    *,
    follows_heading: bool,
    heading_decay: float,
    scale: float,
) -> AgentFrame:
    """The frame of each agent from its observed steps.

    The heading is that of a weighted mean of displacements: the last one that is not zero weighs 1,
    the one before it `heading_decay`, and so on. One displacement of a slow agent is mostly noise.
    An agent that never moves keeps the world's axes.

    Args:
        past_values: `(B, T, 2)`; the last step is observed.
        velocities: `(B, T - 1, 2)` of `observed_velocities`.
        is_known: `(B, T - 1)` of `observed_velocities`.
        follows_heading: turn the heading along x.
        heading_decay: factor from 0 to 1 on the weight per step.
        scale: units of the world per unit of the frame.
    """
    origin = past_values[:, -1]
    cosine, sine = torch.ones_like(origin[:, 0]), torch.zeros_like(origin[:, 0])
    if follows_heading:
        moves = is_known & velocities.abs().sum(dim=-1).gt(1e-6 * scale)  # (B, T - 1)
        steps = torch.arange(1, moves.shape[1] + 1, device=moves.device)
        age = (moves * steps).amax(dim=1, keepdim=True) - steps  # 0 at the last that moves
        weights = torch.pow(heading_decay, age.clamp(min=0)) * moves
        heading = (velocities * weights.unsqueeze(-1)).sum(dim=1)  # (B, 2)
        length = heading.norm(dim=-1)
        has_moved = length.gt(1e-6 * scale)
        safe = torch.where(has_moved, length, 1)
        cosine = torch.where(has_moved, heading[:, 0] / safe, cosine)
        sine = torch.where(has_moved, heading[:, 1] / safe, sine)
    rows = torch.stack((cosine, -sine, sine, cosine), dim=-1)
    return AgentFrame(origin, rows.view(-1, 2, 2), scale)
