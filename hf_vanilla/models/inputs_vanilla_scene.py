# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The checked inputs of a forecaster of agents among lanes: agents, polylines, traffic lights.

Shapes: B scenes, A agents, P polylines of S points, Q lights, T observed steps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import observed_agents
from .kernels_vanilla import may_read


class Polylines(NamedTuple):
    """Checked polylines of a batch of scenes.

    Attributes:
        points: `(B, P, S, 2)` in the world, 0 where there is none.
        is_point: `(B, P, S)` bool.
        kinds: `(B, P)` int64.
    """

    points: Tensor
    is_point: Tensor
    kinds: Tensor


class Lights(NamedTuple):
    """Checked traffic lights of a batch of scenes.

    Attributes:
        points: `(B, Q, 2)` in the world.
        states: `(B, Q, T)` int64, 0 where unknown.
    """

    points: Tensor
    states: Tensor


class Scenes(NamedTuple):
    """A checked batch of scenes.

    Attributes:
        past: `(B, A, T, 2)` positions, 0 where not observed.
        is_observed: `(B, A, T)` bool.
        is_focal: `(B, A)` bool, agents to forecast.
        kinds: `(B, A)` int64 of agents, 0 where unknown.
        sizes: `(B, A, 2)` of agents in units of the world, 0 where unknown; None: the model reads
            none.
        lanes: the polylines.
        lights: the traffic lights; None: the model reads none.
    """

    past: Tensor
    is_observed: Tensor
    is_focal: Tensor
    kinds: Tensor
    sizes: Tensor | None
    lanes: Polylines
    lights: Lights | None


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
) -> Scenes:
    """Check a batch of scenes.

    Whoever trains on a GPU calls it with the batch on the CPU, see `may_read`.

    Args:
        config: steps, and what the model reads.
        past_values: `(B, A, T, 2)` positions in the world; anything where not observed.
        past_observed_mask: `(B, A, T)`, 1 = observed; None: all are.
        agent_mask: `(B, A)`, 1 = agent, 0 = padding; None: all are agents.
        lane_values: `(B, P, S, 2)` points of polylines in the world, in the order of driving;
            None: there is no map. Not read under `reads_lanes=False`.
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

    Raises:
        ValueError: a shape does not fit, a value is not finite, a scene has no agent to forecast,
            an agent to forecast is not observed at the last step, a polyline has one point, a map
            is far from all agents, or the model does not read what is given.
    """
    for name, values, field in (
        ("agent_kinds", agent_kinds, "num_agent_kinds"),
        ("agent_sizes", agent_sizes, "reads_sizes"),
        ("light_values", light_values, "num_light_states"),
        ("light_states", light_states, "num_light_states"),
    ):
        if values is not None and not getattr(config, field):
            raise ValueError(
                f"{name} is given, but the model has {field}={getattr(config, field)}: leave it "
                "out, or train a model that reads it"
            )
    past, is_observed, _, is_focal = observed_agents(
        config, past_values, past_observed_mask, agent_mask=agent_mask, focal_mask=focal_mask
    )
    kinds, sizes = _agent_attributes(config, past, agent_kinds, agent_sizes)
    lanes = _polylines(config, past, lane_values, lane_mask, lane_kinds)
    _check_map(config, past, is_observed, lanes)
    lights = _lights(config, past, light_values, light_states)
    return Scenes(past, is_observed, is_focal, kinds, sizes, lanes, lights)


def _agent_attributes(
    config: VanillaSceneConfig, past: Tensor, kinds: Tensor | None, sizes: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Checked kinds and sizes; without any, all are unknown."""
    shape = tuple(past.shape[:2])
    kinds = past.new_zeros(shape, dtype=torch.long) if kinds is None else kinds
    _check_shape("agent_kinds", kinds, shape)
    if config.num_agent_kinds:
        _check_below(config, "num_agent_kinds", "agent_kinds", kinds)
    if not config.reads_sizes:
        return kinds.long(), None
    sizes = past.new_zeros(*shape, 2) if sizes is None else sizes
    _check_shape("agent_sizes", sizes, (*shape, 2))
    if may_read(past) and not (sizes.isfinite() & (sizes >= 0)).all():
        raise ValueError(
            "agent_sizes has NaN, infinite or negative numbers: give 0 where a size is not known"
        )
    return kinds.long(), sizes.to(past.dtype)


def _lights(
    config: VanillaSceneConfig, past: Tensor, values: Tensor | None, states: Tensor | None
) -> Lights | None:
    """Checked lights; without any, one that is padding, so that no encoder has no token."""
    scenes, steps = past.shape[0], past.shape[2]
    if not config.num_light_states:
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
    if not config.reads_lanes or values is None or (values.dim() == 4 and not values.shape[1]):
        points = past.new_zeros(scenes, 1, 2, 2)
        return Polylines(points, points[..., 0].bool(), points[..., 0, 0].long())
    shape = tuple(values.shape)
    if len(shape) != 4 or shape[0] != scenes or shape[2] < 2 or shape[3] != 2:
        raise ValueError(
            f"lane_values has shape {shape}: give ({scenes}, polylines, 2 or more points, 2)"
        )
    is_point = values.new_ones(shape[:3], dtype=torch.bool) if mask is None else mask.bool()
    kind = is_point.new_zeros(shape[:2], dtype=torch.long) if kinds is None else kinds.long()
    _check_shape("lane_mask", is_point, shape[:3])
    _check_shape("lane_kinds", kind, shape[:2])
    if may_read(values) and not values[is_point].isfinite().all():
        raise ValueError("lane_values has NaN or infinite points: hide them by lane_mask")
    if may_read(values) and (is_short := is_point.sum(dim=-1) == 1).any():
        scene, lane = is_short.nonzero()[0].tolist()
        raise ValueError(
            f"polyline {lane} of scene {scene} has one point, a direction needs two: leave it out"
        )
    _check_below(config, "num_lane_kinds", "lane_kinds", kind)
    return Polylines(torch.where(is_point.unsqueeze(-1), values, 0), is_point, kind)


def _check_shape(name: str, values: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(values.shape) != wanted:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: give {wanted}")


def _check_below(config: VanillaSceneConfig, field: str, name: str, numbers: Tensor) -> None:
    """Numbers of kinds or states are below the field of the config that says how many there are."""
    count = getattr(config, field)
    if may_read(numbers) and (numbers.min() < 0 or numbers.max() >= count):
        raise ValueError(
            f"{name} has {int(numbers.min())} to {int(numbers.max())}: give numbers below "
            f"{field}={count}, or raise it"
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
