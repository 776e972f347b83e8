# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What one agent sees of its scene: itself, other agents and lanes along its own axes.

Every agent to forecast becomes a row of its own: positions relative to its last observed one, its
heading along x, as Wayformer and mmTransformer do. Only observed steps enter, so the future never
changes an input. Shapes: B scenes, A agents, P polylines of S points, R rows, T observed steps,
N other agents.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import AgentAxes, agent_axes, last_known, observed_velocities
from .inputs_vanilla_scene import Scenes, checked_scenes

FEATURES = 4  # of a step or of a piece of a polyline: position and displacement
SIZE_FEATURES = 3  # length, width, and whether they are known

logger = logging.getLogger(__name__)


class Seen(NamedTuple):
    """Sequences that a row sees: an agent's steps, or a polyline's pieces.

    Attributes:
        features: `(R, N, L, 4)` position and displacement along the row's axes, 0 where there
            is none; of agents also the features of their size, where the model reads them.
        is_real: `(R, N, L)` bool.
        kinds: `(R, N)` int64 number of the kind, 0 where there is one kind only; of lights
            `(R, N, L)`, the state at each step.
        numbers: `(R, N)` int64 number of the agent or the polyline in its scene.
    """

    features: Tensor
    is_real: Tensor
    kinds: Tensor
    numbers: Tensor

    def last(self) -> Tensor:
        """The last real features `(R, N, 4)` of each sequence."""
        return last_known(self.features[..., :FEATURES], self.is_real)

    def nearest(self, count: int) -> "Seen":
        """The `count` sequences of each row that are nearest to its agent, nearest first.

        The distance is that of a sequence's nearest step or piece; those without any come last.
        """
        distance = self.features[..., :2].square().sum(dim=-1)
        distance = torch.where(self.is_real, distance, torch.inf).amin(dim=-1)  # (R, N)
        index = distance.topk(count, dim=1, largest=False).indices
        row = torch.arange(index.shape[0], device=index.device).unsqueeze(1)
        return Seen(*(part[row, index] for part in self))


@dataclass(frozen=True)
class Rows:
    """The agents to forecast, or all that are there, each with what it sees.

    Attributes:
        scene: `(R,)` int64 number of the scene, and
        agent: `(R,)` int64 of the agent in it.
        shape: B and A.
        axes: of each row.
        velocity: `(R, 2)` last known displacement along the axes.
        own: the agent's own steps, `(R, 1, T, 4)`.
        others: steps of other agents, `(R, N, T, 4)`.
        lanes: pieces of polylines, `(R, P, S - 1, 4)`.
        lights: steps of traffic lights, `(R, Q, T, 4)`; None: the model reads none.
        is_focal: `(R,)` bool, agents to forecast.
    """

    scene: Tensor
    agent: Tensor
    shape: tuple[int, int]
    axes: AgentAxes
    velocity: Tensor
    own: Seen
    others: Seen
    lanes: Seen
    lights: Seen | None
    is_focal: Tensor

    def spread(self, values: Tensor) -> Tensor:
        """Values `(R, ...)` of rows as `(B, A, ...)`, 0 for agents that are not forecast."""
        is_focal = self.is_focal.view(-1, *(1,) * (values.dim() - 1))
        spread = values.new_zeros(*self.shape, *values.shape[1:])
        return spread.index_put((self.scene, self.agent), torch.where(is_focal, values, 0))


def read_rows(
    config: VanillaSceneConfig, *observed: Any, all_agents: bool = False, **inputs: Any
) -> Rows:
    """Check a batch of scenes and turn it along each agent's axes.

    Args:
        config: steps, scales, how many others and lanes an agent sees.
        *observed: the first inputs of `checked_scenes`, whose errors are those here.
        all_agents: a row for each agent that is observed at the last step, forecast or not.
        **inputs: its others.
    """
    scenes = checked_scenes(config, *observed, **inputs)
    scene, agent = _rows(scenes.is_observed[..., -1] if all_agents else scenes.is_focal)
    axes, velocities, is_known = agent_axes(
        scenes.past[scene, agent],
        scenes.is_observed[scene, agent],
        follows_heading=True,
        heading_decay=config.heading_decay,
        scale=config.velocity_std,
    )
    numbers, is_other = _others(config, scenes, scene, agent)
    own, others = (
        _of_agents(config, axes, scenes, (scene.unsqueeze(1), seen))
        for seen in (agent.unsqueeze(1), numbers)
    )
    others = others._replace(is_real=others.is_real & is_other.unsqueeze(-1))
    pieces = _of_lanes(config, axes, *(part[scene] for part in scenes.lanes))
    lanes, lights = _nearest(pieces, config.max_lanes), None
    if scenes.lights is not None:
        lights = _of_lights(config, axes, *(part[scene] for part in scenes.lights))
    velocity = last_known(velocities, is_known)
    shape = (scenes.past.shape[0], scenes.past.shape[1])
    is_focal = scenes.is_focal[scene, agent]
    return Rows(scene, agent, shape, axes, velocity, own, others, lanes, lights, is_focal)


def _rows(is_focal: Tensor) -> tuple[Tensor, Tensor]:
    """Scene and agent `(R,)` of each row; an exported program has a row for every agent.

    The number of its rows must follow from the shapes of its inputs.
    """
    if not torch.compiler.is_compiling():
        scene, agent = is_focal.nonzero(as_tuple=True)
        return scene, agent
    scene, agent = (torch.arange(size, device=is_focal.device) for size in is_focal.shape)
    scene = scene.unsqueeze(1).expand(is_focal.shape).flatten()
    return scene, agent.expand(is_focal.shape).flatten()


def reach(config: VanillaSceneConfig) -> float:
    """How far an agent moves in the predicted steps, in units of its coordinates."""
    return float(config.predicted_steps)


def _entered(axes: AgentAxes, points: Tensor) -> Tensor:
    """Positions `(R, N, L, 2)` of the world along each row's axes."""
    relative = points - axes.origin[:, None, None]
    return axes.enter(relative.flatten(1, 2)).unflatten(1, points.shape[1:3])


def _others(
    config: VanillaSceneConfig, scenes: Scenes, scene: Tensor, agent: Tensor
) -> tuple[Tensor, Tensor]:
    """Numbers `(R, N)` of the agents that each row may see, and which are others.

    Only these are turned along its axes, so that the cost does not grow with the agents squared. An
    exported program always reads `max_others`, so that it has one shape for any number of agents.
    """
    past, is_observed, most = scenes.past, scenes.is_observed, config.max_others
    count = past.shape[1]
    if not torch.compiler.is_exporting():
        if count <= most:
            numbers = torch.arange(count, device=past.device).expand(scene.shape[0], -1)
            return numbers, numbers != agent.unsqueeze(1)
        _report_cut("agents", count, f"max_others={most}")
    apart = past[:, :, -1].unsqueeze(2) - past.flatten(1, 2).unsqueeze(1)  # (B, A, A T, 2)
    apart = apart.square().sum(dim=-1).masked_fill(~is_observed.flatten(1).unsqueeze(1), torch.inf)
    apart = apart.unflatten(-1, (count, -1)).amin(dim=-1)[scene, agent]
    apart = apart.scatter(1, agent.unsqueeze(1), torch.inf)
    if torch.compiler.is_exporting():
        apart = pad(apart, (0, most), value=torch.inf)
    nearest = apart.topk(most, dim=1, largest=False)
    return nearest.indices.clamp(max=count - 1), nearest.values.isfinite()


def _of_agents(
    config: VanillaSceneConfig, axes: AgentAxes, scenes: Scenes, place: tuple[Tensor, Tensor]
) -> Seen:
    """Steps of agents: position and displacement to it; the first step has that of the second.

    A displacement from or to nothing observed is 0. Each step has the size, in units of positions.
    `place` are the numbers of scene and agent, `(R, N)` together.
    """
    entered, is_observed = _entered(axes, scenes.past[place]), scenes.is_observed[place]
    moves, _ = observed_velocities(entered, is_observed)
    moves = torch.cat((moves[:, :, :1], moves), dim=2)
    features = torch.cat((entered / reach(config), moves), dim=-1)
    if scenes.sizes is not None:
        sizes = scenes.sizes[place] / (axes.scale * reach(config))
        sizes = torch.cat((sizes, sizes.gt(0).all(dim=-1, keepdim=True)), dim=-1)
        sizes = sizes.unsqueeze(2).expand(*features.shape[:-1], -1)
        features = torch.cat((features, sizes), dim=-1)
    features = torch.where(is_observed.unsqueeze(-1), features, 0)
    return Seen(features, is_observed, scenes.kinds[place], place[1])


def _of_lanes(
    config: VanillaSceneConfig, axes: AgentAxes, points: Tensor, is_point: Tensor, kinds: Tensor
) -> Seen:
    """Pieces of polylines: middle and direction of each, `(R, P, S - 1, 4)`."""
    points = _entered(axes, points)
    is_real = is_point[..., 1:] & is_point[..., :-1]
    middle = (points[:, :, 1:] + points[:, :, :-1]) / 2
    features = torch.cat((middle, points.diff(dim=2)), dim=-1) / reach(config)
    features = torch.where(is_real.unsqueeze(-1), features, 0)
    numbers = torch.arange(kinds.shape[1], device=kinds.device).expand_as(kinds)
    return Seen(features, is_real, kinds, numbers)


def _of_lights(config: VanillaSceneConfig, axes: AgentAxes, points: Tensor, states: Tensor) -> Seen:
    """Steps of traffic lights: the position, which is the same at each, and no displacement."""
    entered = _entered(axes, points.unsqueeze(2)) / reach(config)
    features = pad(entered, (0, FEATURES - 2)).expand(*states.shape, -1)
    features = torch.where(states.unsqueeze(-1) > 0, features, 0)
    numbers = torch.arange(states.shape[1], device=states.device).expand(states.shape[:2])
    return Seen(features, states > 0, states, numbers)


def _nearest(seen: Seen, most: int) -> Seen:
    """The polylines nearest to the row's agent, at most so many.

    An exported program always reads so many, so that it has one shape for any number.
    """
    if torch.compiler.is_exporting():
        seen = Seen(*(pad(part, (*(0, 0) * (part.dim() - 2), 0, most)) for part in seen))
    elif seen.is_real.shape[1] <= most:
        return seen
    else:
        _report_cut("polylines", seen.is_real.shape[1], f"max_lanes={most}")
    return seen.nearest(most)


@cache
def _report_cut(name: str, count: int, limit: str) -> None:
    logger.warning("a scene has %d %s; an agent sees the nearest %s", count, name, limit)
