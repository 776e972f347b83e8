"""Agents in rows, scenes in batches: how joint forecasters are fed.

Shapes: W windows or agents, S scenes, A agents of the largest scene, T observed steps, K samples,
P predicted steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig

from .road_maps import RoadMap, maps_side_by_side


def is_joint(config: Any) -> bool:
    """Whether a model of this config has futures of a scene, drawn for all its agents together."""
    return getattr(config, "model_type", "") == VanillaAgentFormerConfig.model_type


def reads_scene(config: Any) -> bool:
    """Whether a model of this config reads all agents of a scene together."""
    return is_joint(config) or reads_maps(config)


def reads_maps(config: Any) -> bool:
    """Whether a model of this config reads lanes."""
    return getattr(config, "model_type", "") == VanillaSceneConfig.model_type


@dataclass(frozen=True, eq=False)
class SceneLayout:
    """Where each row stands in a padded batch of scenes.

    Attributes:
        scene: `(W,)` row of the batch.
        slot: `(W,)` number of the agent in its scene.
    """

    scene: np.ndarray
    slot: np.ndarray

    @classmethod
    def of_groups(cls, groups: np.ndarray) -> "SceneLayout":
        """The layout of rows `(W,)` whose numbers are equal where they share a scene.

        Examples:
            >>> import numpy as np
            >>> layout = SceneLayout.of_groups(np.array([7, 3, 7]))
            >>> layout.scene.tolist(), layout.slot.tolist()
            ([1, 0, 1], [0, 0, 1])
        """
        scene = np.unique(groups, return_inverse=True)[1].reshape(-1)
        order = np.argsort(scene, kind="stable")
        slot = np.empty_like(scene)
        starts = np.searchsorted(scene[order], np.arange(scene.max(initial=-1) + 1))
        slot[order] = np.arange(len(scene)) - starts[scene[order]]
        return cls(scene, slot)

    def pad(self, values: Tensor) -> Tensor:
        """Rows `(W, ...)` as `(S, A, ...)`, 0 or False where there is no agent."""
        shape = (int(self.scene.max()) + 1, int(self.slot.max()) + 1, *values.shape[1:])
        padded = values.new_zeros(shape)
        padded[torch.from_numpy(self.scene), torch.from_numpy(self.slot)] = values
        return padded

    def unpad(self, values: Tensor) -> Tensor:
        """`(S, A, ...)` as rows `(W, ...)`."""
        return values[torch.from_numpy(self.scene), torch.from_numpy(self.slot)]


def scene_batches(groups: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Rows of whole scenes, scenes of similar size together, up to `size` rows with padding.

    Args:
        groups: `(W,)` equal numbers for rows of one scene.
        size: rows of a batch; a scene that is larger makes a batch of its own.
    """
    _, scene, counts = np.unique(groups, return_inverse=True, return_counts=True)
    scene = scene.reshape(-1)
    order = np.lexsort((scene, counts[scene]))  # smallest scenes first
    scenes = np.flatnonzero(np.diff(scene[order], prepend=-1))  # place of each first row
    ends = [*scenes.tolist(), len(order)][1:]
    start = inside = 0
    for first, end in zip(scenes.tolist(), ends, strict=True):
        if inside and (inside + 1) * (end - first) > size:
            yield order[start:first]
            start, inside = first, 0
        inside += 1
    if len(order):
        yield order[start:]


def rollout_arguments(model: Any, **values: int | None) -> dict[str, int]:
    """Those of `samples_at_once` and `predicted_steps` that are set.

    Raises:
        ValueError: the model has no such argument: samples at a time are those of a joint
            forecaster, other steps those of a forecaster with a rollout.
    """
    found = {name: value for name, value in values.items() if value is not None}
    name = type(model).__name__
    if "samples_at_once" in found and not is_joint(model.config):
        raise ValueError(
            f"samples_at_once={found['samples_at_once']}: {name} computes all its futures at once: "
            "leave it out"
        )
    if "predicted_steps" in found and not getattr(model, "is_rollout", False):
        raise ValueError(
            f"predicted_steps={found['predicted_steps']}: {name} computes all its steps at once: "
            f"give at most {model.config.predicted_steps}"
        )
    return found


def joint_forecast(
    model: Any,
    past: Tensor,
    is_observed: Tensor,
    last: np.ndarray,
    groups: np.ndarray,
    maps: Sequence[RoadMap | None] | None = None,
    **kwargs: Any,
) -> Any:
    """Outputs of a joint forecaster for agents in rows.

    Positions enter relative to the mean of the last positions of a scene, so that single precision
    suffices for large coordinates.

    Args:
        model: a joint forecaster.
        past: `(W, T, 2)` positions relative to each agent's last one.
        is_observed: `(W, T)` bool; last steps are observed.
        last: `(W, 2)` float64 last positions in the world.
        groups: `(W,)` equal numbers for agents of one scene.
        maps: map of each row, equal for rows of one scene, for a model that reads maps; None:
            there are none.
        **kwargs: passed to the model, such as `samples_at_once`.

    Returns:
        Outputs whose `trajectories` `(W, K, P, 2)` are relative to each agent's last position and
        whose `mode_logits` are `(W, K)`.
    """
    device = next(model.parameters()).device
    layout = SceneLayout.of_groups(groups)
    offset = torch.from_numpy(offsets_in_scene(last, layout)).to(past.dtype)  # (W, 2)
    agents = torch.ones(len(past), dtype=torch.bool)
    lanes: dict[str, Tensor] = {}
    if maps is not None and reads_maps(model.config):
        lanes = map_inputs(maps, layout, scene_middles(last, layout))
    outputs = model(
        layout.pad(past + offset.unsqueeze(1)).to(device),
        past_observed_mask=layout.pad(is_observed).to(device),
        agent_mask=layout.pad(agents).to(device),
        **{name: values.to(device) for name, values in lanes.items()},
        **kwargs,
    )
    tracks = layout.unpad(outputs.trajectories.float().cpu())
    outputs.trajectories = tracks - offset[:, None, None]
    outputs.mode_logits = layout.unpad(outputs.mode_logits.float().cpu())
    return outputs


def offsets_in_scene(last: np.ndarray, layout: SceneLayout) -> np.ndarray:
    """Last positions `(W, 2)` relative to the mean of those of the scene."""
    return last - scene_middles(last, layout)[layout.scene]


def scene_middles(last: np.ndarray, layout: SceneLayout) -> np.ndarray:
    """Mean `(S, 2)` of the last positions `(W, 2)` of each scene."""
    counts = np.bincount(layout.scene)
    return np.stack([np.bincount(layout.scene, column) / counts for column in last.T], 1)


def map_inputs(
    maps: Sequence[RoadMap | None], layout: SceneLayout, middles: np.ndarray
) -> dict[str, Tensor]:
    """Lanes of each scene as a model's inputs.

    Args:
        maps: of each row, equal for rows of one scene.
        layout: of the rows.
        middles: `(S, 2)` of `scene_middles`, subtracted from the points.
    """
    first = np.unique(layout.scene, return_index=True)[1]
    arrays = maps_side_by_side([maps[row] for row in first], middles)
    names = ("lane_values", "lane_mask", "lane_kinds")
    return dict(zip(names, map(torch.from_numpy, arrays), strict=True))
