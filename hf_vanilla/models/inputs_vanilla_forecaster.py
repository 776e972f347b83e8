# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What all forecasters do with positions: checks, an agent's own axes, distances, clusters.

Checks of values are left out of a compiled or exported program. Shapes: B agents or scenes, A
agents of a scene, T observed steps, P predicted steps, L any number of steps, M modes.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from .configuration_vanilla_tracks import VanillaForecasterConfig
from .kernels_vanilla import at_least_float32, may_read, per_item

logger = logging.getLogger(__name__)

# --- checks --------------------------------------------------------------------------------------


def known_part(
    config: VanillaForecasterConfig,
    name: str,
    values: Tensor,
    mask: Tensor | None,
    agent_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Positions `(..., L, 2)`, 0 where they are not known, and which are, `(..., L)` bool.

    Args:
        config: read for the number of steps L; that of single agents wants no scenes.
        name: past or future.
        values: positions, `(B, L, 2)` or `(B, A, L, 2)`; anything where not known.
        mask: 1 = known; None: all are.
        agent_mask: `(B, A)`, 0 = nothing is known of this agent; None: 1 for all.

    Raises:
        ValueError: a shape does not fit, or a known position is not finite.
    """
    steps = config.observed_steps if name == "past" else config.predicted_steps
    # by its name: code that is uploaded may be loaded twice, with a class of its own each time
    leading = ("B",) if config.model_type == "vanilla_tracks" else ("scenes", "agents")
    if values.dim() != len(leading) + 2 or tuple(values.shape[-2:]) != (steps, 2):
        raise ValueError(
            f"{name}_values has shape {tuple(values.shape)}, but the model has {steps} such steps: "
            f"give ({', '.join(leading)}, {steps}, 2)"
        )
    if values.shape[0] == 0:
        raise ValueError(f"{name}_values has shape {tuple(values.shape)}: give one row or more")
    if name == "future" and agent_mask is not None and values.shape[:2] != agent_mask.shape:
        raise ValueError(
            f"future_values has {tuple(values.shape[:2])} scenes and agents, past_values "
            f"{tuple(agent_mask.shape)}: give the same"
        )
    is_known = _as_mask(f"{name}_observed_mask", mask, values[..., 0], f"{name}_values")
    if agent_mask is not None:
        is_agent = _as_mask("agent_mask", agent_mask, is_known[..., 0], f"{name}_values")
        is_known = is_known & is_agent.unsqueeze(-1)
    if may_read(values) and not values[is_known].isfinite().all():
        raise ValueError(
            f"{name}_values has NaN or infinite positions: hide them by {name}_observed_mask"
        )
    return torch.where(is_known.unsqueeze(-1), values, 0), is_known


def _as_mask(name: str, mask: Tensor | None, like: Tensor, needed_by: str) -> Tensor:
    """The mask as bool, of the shape of `like`; None: all True."""
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if mask.shape != like.shape:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, but {needed_by} needs {tuple(like.shape)}"
        )
    return mask.bool()


def observed_agents(
    config: VanillaForecasterConfig,
    past_values: Tensor,
    past_observed_mask: Tensor | None,
    **masks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check the observed part of a batch of scenes.

    Args:
        config: read for `observed_steps`.
        past_values: `(B, A, T, 2)` positions in the world; anything where not observed.
        past_observed_mask: `(B, A, T)`, 1 = observed; None: all are.
        **masks: `agent_mask` `(B, A)`, 1 = agent, 0 = padding; None: all are agents. Last, of a
            model that forecasts some agents alone, `focal_mask` `(B, A)`, 1 = forecast this agent;
            None: forecast all.

    Returns:
        `(B, A, T, 2)` positions, 0 where not observed; `(B, A, T)` bool, which are observed;
        `(B, A)` bool, which are agents; `(B, A)` bool, which of these to forecast.

    Raises:
        ValueError: a shape does not fit, a value is not finite, a scene has no agent to forecast,
            or an agent to forecast is not observed at the last step.
    """
    agent_mask = masks["agent_mask"]
    past, is_observed = known_part(config, "past", past_values, past_observed_mask, agent_mask)
    like = is_observed[..., 0]
    is_agent = _as_mask("agent_mask", agent_mask, like, "past_values")
    is_focal = is_agent & _as_mask("focal_mask", masks.get("focal_mask"), like, "past_values")
    if may_read(past_values) and not is_focal.any(dim=1).all():
        scene = int(is_focal.any(dim=1).logical_not().nonzero()[0])
        raise ValueError(f"scene {scene} has no agent to forecast: leave it out")
    if may_read(past_values) and (is_missing := is_focal & ~is_observed[..., -1]).any():
        scene, agent = is_missing.nonzero()[0].tolist()
        raise ValueError(
            f"the last observed step of agent {agent} of scene {scene} is missing, and predictions "
            f"start there: leave such agents out, or exclude them by {[*masks][-1]}"
        )
    return at_least_float32(past), is_observed, is_agent, is_focal


def rollout_steps(config: VanillaForecasterConfig, predicted_steps: int | None) -> int:
    """The number of steps to predict one after the other; more than in training with a warning.

    Args:
        config: read for `predicted_steps`.
        predicted_steps: None: as in training.

    Raises:
        ValueError: the number is not positive.
    """
    trained = config.predicted_steps
    steps = trained if predicted_steps is None else predicted_steps
    if steps < 1:
        raise ValueError(f"predicted_steps={steps}: give a positive number")
    if steps > trained:
        logger.warning(
            "predicted_steps=%d: the model was trained on %d, later steps are less certain",
            *(steps, trained),
        )
    return steps


# --- an agent's own axes ------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentAxes:
    """From the world's coordinates to an agent's own and back.

    The origin is its last observed position, the first axis its heading. Only observed steps enter,
    so the future never changes an input. Computed in float32, or in float64 where the observed
    positions are; a model in half precision casts its tokens.

    Attributes:
        origin: `(B, 2)` last observed position.
        rotation: `(B, 2, 2)` a row vector times it is turned into the agent's axes.
        scale: units of the world per unit of the agent's coordinates.
    """

    origin: Tensor
    rotation: Tensor
    scale: float

    def enter(self, displacements: Tensor) -> Tensor:
        """Displacements `(B, L, 2)` of the world along the agent's axes."""
        return displacements.to(self.rotation.dtype) @ self.rotation / self.scale

    def leave(self, displacements: Tensor) -> Tensor:
        """Displacements `(B, ..., 2)` along the agent's axes in the world."""
        back = self.rotation.transpose(1, 2)
        shape = displacements.shape
        flat = displacements.reshape(shape[0], -1, 2).to(back.dtype)
        return (flat @ back * self.scale).view(shape)

    def positions(self, displacements: Tensor) -> Tensor:
        """World positions `(B, ..., P, 2)` after displacements `(B, ..., P, 2)` along the axes."""
        steps = self.leave(displacements).cumsum(dim=-2)
        return steps + self.origin.view(-1, *(1,) * (steps.dim() - 2), 2)


@dataclass(frozen=True)
class TrueFuture:
    """What futures are compared with.

    Attributes:
        positions: `(B, P, 2)` in the world, or along an agent's axes; 0 where not known.
        is_known: `(B, P)` bool.
    """

    positions: Tensor
    is_known: Tensor

    def velocities(self, axes: AgentAxes) -> tuple[Tensor, Tensor]:
        """Those `(B, P, 2)` along the axes, 0 where unknown, and which are known, `(B, P)`."""
        before = torch.cat((torch.ones_like(self.is_known[:, :1]), self.is_known[:, :-1]), dim=1)
        is_known = self.is_known & before
        velocities = axes.enter(self.steps(axes))
        return torch.where(is_known.unsqueeze(-1), velocities, 0), is_known

    def steps(self, axes: AgentAxes) -> Tensor:
        """Displacements `(B, P, 2)` in the world between positions, first from the origin."""
        return torch.diff(self.positions, dim=1, prepend=axes.origin.unsqueeze(1))


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


def last_known(values: Tensor, is_known: Tensor) -> Tensor:
    """The values `(..., F)` of the last known step; those of the first where none is known.

    Args:
        values: `(..., L, F)`, such as those of `observed_velocities`, which are 0 where not known.
        is_known: `(..., L)` bool.
    """
    steps = torch.arange(1, is_known.shape[-1] + 1, device=is_known.device)
    last = (is_known * steps).argmax(dim=-1)[..., None, None]
    return values.gather(-2, last.expand(*last.shape[:-1], values.shape[-1])).squeeze(-2)


def agent_axes(
    past_values: Tensor,
    is_observed: Tensor,
    *,
    follows_heading: bool,
    heading_decay: float,
    scale: float,
) -> tuple[AgentAxes, Tensor, Tensor]:
    """The axes of each agent from its observed steps, and `observed_velocities` along them.

    The heading is that of a weighted mean of displacements: the last one that is not zero weighs 1,
    the one before it `heading_decay`, and so on. One displacement of a slow agent is mostly noise.
    An agent that never moves keeps the world's axes.

    Args:
        past_values: `(B, T, 2)`; the last step is observed.
        is_observed: `(B, T)` bool.
        follows_heading: turn the heading along x.
        heading_decay: factor from 0 to 1 on the weight per step.
        scale: units of the world per unit of the agent's coordinates.
    """
    velocities, is_known = observed_velocities(past_values, is_observed)
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
    axes = AgentAxes(origin, rows.view(-1, 2, 2), scale)
    return axes, axes.enter(velocities), is_known


# --- distances and clusters ---------------------------------------------------------------------


def distances(predicted: Tensor, future_values: Tensor) -> Tensor:
    """Euclidean distances `(...,)` of positions `(..., 2)`; the gradient at 0 is 0, not NaN."""
    squares = (predicted - torch.nan_to_num(future_values)).square().sum(dim=-1)
    is_zero = squares.eq(0)
    return torch.where(is_zero, 0, torch.where(is_zero, 1, squares).sqrt())


def per_known_step(
    total: Tensor, is_known: Tensor, num_items_in_batch: "Tensor | float | None" = None
) -> Tensor:
    """A sum over known steps, divided by their number.

    Args:
        total: `()`.
        is_known: bool, of any shape.
        num_items_in_batch: known steps of the optimizer step; None: those of `is_known`.
    """
    return per_item(total, is_known.sum() if num_items_in_batch is None else num_items_in_batch)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index `(N,)` int64 of the centre nearest to each point `(N, 2)`."""
    return torch.cdist(points, centres.to(points.dtype)).argmin(dim=1)


def k_means(points: Tensor, centres: Tensor, rounds: int) -> Tensor:
    """Centres `(G, 2)` of points `(N, 2)` after at most so many rounds from `centres` on.

    A centre that no point is closest to stays where it is.
    """
    for _ in range(rounds):
        owner = nearest(points, centres)
        total = torch.zeros_like(centres).index_add(0, owner, points)
        size = torch.bincount(owner, minlength=len(centres)).unsqueeze(1)
        moved = torch.where(size > 0, total / size.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres
