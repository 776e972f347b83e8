# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""A scene, checked, and what one agent sees of it: itself, others and lanes along its own axes.

Every agent to forecast becomes a row of its own: positions relative to its last observed one, its
heading along x, as Wayformer and mmTransformer do. Only observed steps enter, so the future never
changes an input. Shapes: B scenes, A agents, P polylines of S points, R rows, T observed steps,
N other agents, Q lights.
"""

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import (
    AgentAxes,
    agent_axes,
    last_velocity,
    observed_agents,
    observed_velocities,
)
from .kernels_vanilla import may_read

logger = logging.getLogger(__name__)

FEATURES = 4  # of a step or of a piece of a polyline: position and displacement
SIZE_FEATURES = 3  # length, width, and whether they are known

# --- checks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentAttributes:
    """Checked kinds and sizes of agents.

    Attributes:
        kinds: `(B, A)` int64, 0 where unknown.
        sizes: `(B, A, 2)` in units of the world, 0 where unknown; None: the model reads none.
    """

    kinds: Tensor
    sizes: Tensor | None

    def of(self, place: tuple[Tensor, Tensor]) -> "AgentAttributes":
        """Kinds and sizes of the agents with these numbers of scene and agent."""
        return AgentAttributes(self.kinds[place], None if self.sizes is None else self.sizes[place])


@dataclass(frozen=True)
class Polylines:
    """Checked polylines of a batch of scenes.

    Attributes:
        points: `(B, P, S, 2)` in the world, 0 where there is none.
        is_point: `(B, P, S)` bool.
        kinds: `(B, P)` int64.
    """

    points: Tensor
    is_point: Tensor
    kinds: Tensor


@dataclass(frozen=True)
class Lights:
    """Checked traffic lights of a batch of scenes.

    Attributes:
        points: `(B, Q, 2)` in the world.
        states: `(B, Q, T)` int64, 0 where unknown.
    """

    points: Tensor
    states: Tensor


def checked_scenes(  # noqa: PLR0913 - the inputs of every model of this family
    config: VanillaSceneConfig,
    past_values: Tensor,
    past_observed_mask: Tensor | None = None,
    agent_mask: Tensor | None = None,
    *,
    lane_values: Tensor | None = None,
    lane_mask: Tensor | None = None,
    lane_kinds: Tensor | None = None,
    agent_kinds: Tensor | None = None,
    agent_sizes: Tensor | None = None,
    light_values: Tensor | None = None,
    light_states: Tensor | None = None,
    focal_mask: Tensor | None = None,
    future_values: Tensor | None = None,
    future_observed_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, AgentAttributes, Polylines, Lights | None]:
    """Check a batch of scenes.

    Whoever trains on a GPU calls it with the batch on the CPU, see `may_read`.

    Args:
        config: steps, and what the model reads.
        past_values: `(B, A, T, 2)` positions in the world; anything where not observed.
        past_observed_mask: `(B, A, T)`, 1 = observed; None: all are.
        agent_mask: `(B, A)`, 1 = agent, 0 = padding; None: all are agents.
        lane_values: `(B, P, S, 2)` points of polylines in the world, in the order of driving;
            None: there is no map.
        lane_mask: `(B, P, S)`, 1 = point; None: all are.
        lane_kinds: `(B, P)` numbers below `num_lane_kinds`; None: all 0.
        agent_kinds: `(B, A)` numbers below `num_agent_kinds`, 0 where not known; None: nowhere.
        agent_sizes: `(B, A, 2)` length and width in units of the world, 0 where not known; None:
            nowhere.
        light_values: `(B, Q, 2)` positions of traffic lights in the world; None: there are none.
        light_states: `(B, Q, T)` numbers below `num_light_states`, 0 where not known.
        focal_mask: `(B, A)`, 1 = forecast this agent; None: forecast all.
        future_values: not read, so that a whole batch can be given.
        future_observed_mask: not read.

    Returns:
        `(B, A, T, 2)` positions; `(B, A, T)` bool, which are observed; `(B, A)` bool, which agents
        to forecast; kinds and sizes of agents; the polylines; the traffic lights, of a model that
        reads them.

    Raises:
        ValueError: a shape does not fit, a value is not finite, a scene has no agent to forecast,
            an agent to forecast is not observed at the last step, a polyline has one point, a map
            is far from all agents, or the model does not read what is given.
    """
    past, is_observed, _, is_focal = observed_agents(
        config, past_values, past_observed_mask, agent_mask=agent_mask, focal_mask=focal_mask
    )
    attributes = _agent_attributes(config, past, agent_kinds, agent_sizes)
    lanes = _polylines(config, past, lane_values, lane_mask, lane_kinds)
    _check_map(config, past, is_observed, lanes)
    lights = _lights(config, past, light_values, light_states)
    return past, is_observed, is_focal, attributes, lanes, lights


def _agent_attributes(
    config: VanillaSceneConfig, past: Tensor, kinds: Tensor | None, sizes: Tensor | None
) -> AgentAttributes:
    """Checked kinds and sizes; without any, all are unknown."""
    shape, count = past.shape[:2], config.num_agent_kinds
    for name, values, wanted, field, reads in (
        ("agent_kinds", kinds, tuple(shape), "num_agent_kinds", count),
        ("agent_sizes", sizes, (*shape, 2), "reads_sizes", config.reads_sizes),
    ):
        if values is not None and not reads:
            raise ValueError(
                f"{name} is given, but the model has {field}={reads}: leave it out, or train a "
                "model that reads it"
            )
        if values is not None and tuple(values.shape) != wanted:
            raise ValueError(f"{name} has shape {tuple(values.shape)}: give {wanted}")
    if kinds is None:
        kinds = torch.zeros(shape, dtype=torch.long, device=past.device)
    else:
        _check_below(config, "num_agent_kinds", "agent_kinds", kinds)
    if not config.reads_sizes:
        return AgentAttributes(kinds.long(), None)
    sizes = past.new_zeros(*shape, 2) if sizes is None else sizes
    if may_read(past) and not (sizes.isfinite() & (sizes >= 0)).all():
        raise ValueError(
            "agent_sizes has NaN, infinite or negative numbers: give 0 where a size is not known"
        )
    return AgentAttributes(kinds.long(), sizes.to(past.dtype))


def _lights(
    config: VanillaSceneConfig, past: Tensor, values: Tensor | None, states: Tensor | None
) -> Lights | None:
    """Checked lights; without any, one that is padding, so that no encoder has no token."""
    scenes, steps = past.shape[0], past.shape[2]
    if not config.num_light_states:
        if values is not None or states is not None:
            raise ValueError(
                "light_values or light_states is given, but the model has num_light_states=0: "
                "leave both out, or train a model that reads them"
            )
        return None
    if (values is None and states is None) or (values is not None and values.shape[1:2] == (0,)):
        return Lights(past.new_zeros(scenes, 1, 2), past.new_zeros(scenes, 1, steps).long())
    shapes = [None if given is None else tuple(given.shape) for given in (values, states)]
    lights = (shapes[0] or (0, 0))[1]
    expected = [(scenes, lights, 2), (scenes, lights, steps)]
    if values is None or states is None or shapes != expected:
        raise ValueError(
            f"light_values and light_states have shapes {shapes[0]} and {shapes[1]}: give "
            f"({scenes}, lights, 2) and ({scenes}, lights, {steps})"
        )
    _check_below(config, "num_light_states", "light_states", states)
    if may_read(past) and not values.isfinite().all():
        raise ValueError("light_values has NaN or infinite places: leave such lights out")
    return Lights(values.to(past.dtype), states.long())


def _polylines(
    config: VanillaSceneConfig,
    past: Tensor,
    values: Tensor | None,
    mask: Tensor | None,
    kinds: Tensor | None,
) -> Polylines:
    """Checked polylines; without any, one that is padding, so that no encoder has no token."""
    scenes = past.shape[0]
    if values is None or (values.dim() == 4 and not values.shape[1]):
        points = past.new_zeros(scenes, 1, 2, 2)
        kind = torch.zeros(scenes, 1, dtype=torch.long, device=past.device)
        return Polylines(points, torch.zeros_like(points[..., 0], dtype=torch.bool), kind)
    shape = tuple(values.shape)
    if len(shape) != 4 or shape[0] != scenes or shape[2] < 2 or shape[3] != 2:
        raise ValueError(
            f"lane_values has shape {shape}: give ({scenes}, polylines, 2 or more points, 2)"
        )
    is_point = values.new_ones(shape[:3], dtype=torch.bool) if mask is None else mask.bool()
    kind = is_point.new_zeros(shape[:2], dtype=torch.long) if kinds is None else kinds.long()
    if is_point.shape != shape[:3] or kind.shape != shape[:2]:
        raise ValueError(
            f"lane_mask has shape {tuple(is_point.shape)} and lane_kinds {tuple(kind.shape)}, but "
            f"lane_values needs {shape[:3]} and {shape[:2]}"
        )
    if may_read(values):
        _check_polylines(config, values, is_point, kind)
    return Polylines(torch.where(is_point.unsqueeze(-1), values, 0), is_point, kind)


def _check_polylines(
    config: VanillaSceneConfig, values: Tensor, is_point: Tensor, kinds: Tensor
) -> None:
    if not values[is_point].isfinite().all():
        raise ValueError("lane_values has NaN or infinite points: hide them by lane_mask")
    is_short = is_point.sum(dim=-1) == 1
    if is_short.any():
        scene, lane = is_short.nonzero()[0].tolist()
        raise ValueError(
            f"polyline {lane} of scene {scene} has one point, and a direction needs two: leave "
            "it out"
        )
    _check_below(config, "num_lane_kinds", "lane_kinds", kinds)


def _check_below(config: VanillaSceneConfig, field: str, name: str, numbers: Tensor) -> None:
    """Numbers of kinds or states are below the field of the config that says how many there are."""
    count = getattr(config, field)
    if may_read(numbers) and (numbers.min() < 0 or numbers.max() >= count):
        raise ValueError(
            f"{name} has {int(numbers.min())} to {int(numbers.max())}: give numbers below "
            f"{field}={count}"
        )


def _check_map(
    config: VanillaSceneConfig, past: Tensor, is_observed: Tensor, lanes: Polylines
) -> None:
    """A map in other coordinates is far from every agent."""
    if not may_read(past) or not lanes.is_point.any():
        return
    for scene in range(past.shape[0]):
        points = lanes.points[scene][lanes.is_point[scene]]
        if len(points):
            low, high = points.amin(dim=0), points.amax(dim=0)
            positions = past[scene][is_observed[scene]]
            outside = torch.maximum(low - positions, positions - high).clamp(min=0)
            nearest = float(outside.norm(dim=-1).amin())
            if nearest > config.map_distance:
                raise ValueError(
                    f"the lanes of scene {scene} are {nearest:.0f} {config.unit} from all its "
                    f"agents, and map_distance={config.map_distance:g}: give both in the same "
                    "coordinates"
                )


# --- what an agent sees --------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
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
        steps = torch.arange(1, self.is_real.shape[-1] + 1, device=self.is_real.device)
        index = (self.is_real * steps).argmax(dim=-1)[..., None, None]
        return self.features.gather(2, index.expand(-1, -1, 1, FEATURES)).squeeze(2)

    def nearest_first(self) -> "Seen":
        """The sequences in the order of their distance from the row's agent."""
        count = self.is_real.shape[1]
        return _selected(self, _distance(self).topk(count, dim=1, largest=False).indices)


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

    def of_others(self) -> tuple[Tensor, Tensor]:
        """Rows `(R, N)` of the others, and which are there now, where all agents have rows."""
        rows = torch.arange(self.scene.shape[0], device=self.scene.device)
        row = rows.new_full(self.shape, -1).index_put((self.scene, self.agent), rows)
        row = row[self.scene.unsqueeze(1), self.others.numbers]
        return row.clamp(min=0), (row >= 0) & self.others.is_real[..., -1]


def read_rows(
    config: VanillaSceneConfig,
    *observed: Any,
    all_agents: bool = False,
    **inputs: Any,
) -> Rows:
    """Check a batch of scenes and turn it along each agent's axes.

    Args:
        config: steps, scales, how many others and lanes an agent sees.
        *observed: the first inputs of `checked_scenes`, whose errors are those here.
        all_agents: a row for each agent that is observed at the last step, forecast or not.
        **inputs: its others.
    """
    past, is_observed, is_focal, attributes, lanes, lights = checked_scenes(
        config, *observed, **inputs
    )
    scene, agent = _rows(is_observed[..., -1] if all_agents else is_focal)
    axes, velocities, is_known = agent_axes(
        past[scene, agent],
        is_observed[scene, agent],
        follows_heading=True,
        heading_decay=config.heading_decay,
        scale=config.velocity_std,
    )
    numbers, is_other = _others(config, past, is_observed, scene, agent)
    own, others = (
        _of_agents(config, axes, past[place], is_observed[place], attributes.of(place), place[1])
        for place in ((scene.unsqueeze(1), agent.unsqueeze(1)), (scene.unsqueeze(1), numbers))
    )
    others = replace(others, is_real=others.is_real & is_other.unsqueeze(-1))
    points = _entered(axes, lanes.points[scene])
    pieces = _of_lanes(config, points, lanes.is_point[scene], lanes.kinds[scene])
    lanes_seen = _nearest(pieces, config.max_lanes)
    velocity = last_velocity(velocities, is_known)
    shape = (past.shape[0], past.shape[1])
    focal = is_focal[scene, agent]
    lights_seen = None
    if lights is not None:
        lights_seen = _of_lights(config, axes, lights.points[scene], lights.states[scene])
    return Rows(scene, agent, shape, axes, velocity, own, others, lanes_seen, lights_seen, focal)


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
    config: VanillaSceneConfig, past: Tensor, is_observed: Tensor, scene: Tensor, agent: Tensor
) -> tuple[Tensor, Tensor]:
    """Numbers `(R, N)` of the agents that each row may see, and which are others.

    Only these are turned along its axes, so that the cost does not grow with the agents squared. An
    exported program always reads `max_others`, so that it has one shape for any number of agents.
    """
    count, most = past.shape[1], config.max_others
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
    config: VanillaSceneConfig,
    axes: AgentAxes,
    positions: Tensor,
    is_observed: Tensor,
    attributes: AgentAttributes,
    numbers: Tensor,
) -> Seen:
    """Steps of agents: position and displacement to it; the first step has that of the second.

    A displacement from or to nothing observed is 0. Each step has the size, in units of positions.
    """
    entered = _entered(axes, positions)
    moves, _ = observed_velocities(entered, is_observed)
    moves = torch.cat((moves[:, :, :1], moves), dim=2)
    features = torch.cat((entered / reach(config), moves), dim=-1)
    if attributes.sizes is not None:
        sizes = attributes.sizes / (axes.scale * reach(config))
        sizes = torch.cat((sizes, sizes.gt(0).all(dim=-1, keepdim=True)), dim=-1)
        sizes = sizes.unsqueeze(2).expand(*features.shape[:-1], -1)
        features = torch.cat((features, sizes), dim=-1)
    features = torch.where(is_observed.unsqueeze(-1), features, 0)
    return Seen(features, is_observed, attributes.kinds, numbers)


def _of_lanes(config: VanillaSceneConfig, points: Tensor, is_point: Tensor, kinds: Tensor) -> Seen:
    """Pieces of polylines: middle and direction of each, `(R, P, S - 1, 4)`."""
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
        parts = (seen.features, seen.is_real, seen.kinds, seen.numbers)
        seen = Seen(*(pad(part, (*(0, 0) * (part.dim() - 2), 0, most)) for part in parts))
    elif seen.is_real.shape[1] <= most:
        return seen
    else:
        _report_cut("polylines", seen.is_real.shape[1], f"max_lanes={most}")
    return _selected(seen, _distance(seen).topk(most, dim=1, largest=False).indices)


def _distance(seen: Seen) -> Tensor:
    """Squared distance `(R, N)` of each sequence's nearest step or piece; infinite without any."""
    distance = seen.features[..., :2].square().sum(dim=-1)
    return torch.where(seen.is_real, distance, torch.inf).amin(dim=-1)


def _selected(seen: Seen, index: Tensor) -> Seen:
    """Sequences `(R, M)` of each row."""
    row = torch.arange(index.shape[0], device=index.device).unsqueeze(1)
    parts = (seen.features, seen.is_real, seen.kinds, seen.numbers)
    return Seen(*(part[row, index] for part in parts))


@cache
def _report_cut(name: str, count: int, limit: str) -> None:
    logger.warning("a scene has %d %s; an agent sees the nearest %s", count, name, limit)
