"""Agents in rows, scenes in batches: how forecasters are fed.

Shapes: W windows or agents, S scenes, A agents of the largest scene, T observed steps, K samples,
P predicted steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.data.batching import batch_bounds
from hf_vanilla.families import entry_of

from .road_maps import RoadMap, maps_side_by_side
from .table import TrackTable
from .windows import Windows, groups_of_rows, rows_of_groups


@dataclass(frozen=True, eq=False)
class SceneLayout:
    """The position of each row in a padded batch of scenes.

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
        order, slot = np.argsort(scene, kind="stable"), np.empty_like(scene)
        slot[order] = np.arange(len(scene)) - np.searchsorted(scene[order], scene[order])
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
    scenes = sorted(rows_of_groups(groups), key=len)
    for first, end in pairwise(batch_bounds([min(len(rows), size) for rows in scenes], size)):
        yield np.concatenate(scenes[first:end])


def rollout_arguments(model: Any, **values: int | None) -> dict[str, int]:
    """Those of `samples_at_once` and `predicted_steps` that are set.

    Raises:
        ValueError: the model has no such argument: samples at a time are those of a joint
            forecaster, other steps those of a forecaster with a rollout.
    """
    given = {name: value for name, value in values.items() if value is not None}
    name = type(model).__name__
    if "samples_at_once" in given and not entry_of(model.config).is_joint:
        raise ValueError(
            f"samples_at_once={given['samples_at_once']}: {name} computes all its futures at once: "
            "leave it out"
        )
    if "predicted_steps" in given and not getattr(model, "is_rollout", False):
        raise ValueError(
            f"predicted_steps={given['predicted_steps']}: {name} computes all its steps at once: "
            f"give at most {model.config.predicted_steps}"
        )
    return given


@contextmanager
def fixed_draws(seed: int = 0) -> Iterator[None]:
    """The same samples each time; torch's random state is afterwards as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a model may read beside the tracks of agents in rows.

    Attributes:
        groups: `(W,)` equal numbers for agents of one scene at one frame.
        maps: map of each row's scene, None where there is none.
        known: by the names of a model's inputs, kinds `(W,)` and sizes `(W, 2)` of agents, and
            positions `(W, Q, 2)` and states `(W, Q, T)` of the lights of their scenes.
    """

    groups: np.ndarray
    maps: Sequence[RoadMap | None]
    known: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, config: Any, table: TrackTable, rows: np.ndarray) -> "Surroundings":
        """Those of rows of a table, as far as a model of this config reads them."""
        groups, known = groups_of_rows(table, rows), {}
        if "lanes" not in entry_of(config).reads:
            return cls(groups, [None] * len(rows))
        if config.num_agent_kinds:
            known["agent_kinds"] = torch.from_numpy(table.kinds_of(rows))
        if config.reads_sizes:
            known["agent_sizes"] = torch.from_numpy(table.sizes_of(rows))
        if config.num_light_states:
            lights = table.lights_of(rows, config.observed_steps)
            known["light_values"], known["light_states"] = map(torch.from_numpy, lights)
        return cls(groups, table.maps_of(rows), known)


def run_model(
    model: Any,
    past: np.ndarray,
    is_observed: np.ndarray,
    beside: Surroundings | None = None,
    **kwargs: Any,
) -> Any:
    """Outputs of a forecaster for agents in rows: the one place where a model is called.

    The model computes in single precision relative to each last position, so large coordinates,
    such as those of maps, lose nothing. One that reads whole scenes gets the rows of each scene
    together, relative to the mean of their last positions.

    Args:
        model: a forecaster.
        past: `(W, T, 2)` float64 positions in the world; anything where not observed.
        is_observed: `(W, T)` bool; last steps are observed.
        beside: what else is there; None: all agents are in one scene of which no more is known.
        **kwargs: passed to the model, such as `samples_at_once`.

    Returns:
        Outputs whose `trajectories` `(W, K, P, 2)` are relative to each agent's last position and
        whose `mode_logits` are `(W, K)`.
    """
    device = next(model.parameters(), torch.empty(0)).device
    relative = np.where(is_observed[..., None], past - past[:, -1:], 0)
    inputs = {
        "past_values": torch.as_tensor(relative, dtype=torch.float32),
        "past_observed_mask": torch.as_tensor(is_observed),
    }
    whole_scenes = "others" in entry_of(model.config).reads
    if whole_scenes:
        if beside is None:
            beside = Surroundings(np.zeros(len(past), np.int64), [None] * len(past))
        inputs, layout, offset = scene_inputs(inputs, past[:, -1], beside)
    outputs = model(**{name: values.to(device) for name, values in inputs.items()}, **kwargs)
    if whole_scenes:
        tracks = layout.unpad(outputs.trajectories.float().cpu())
        outputs.trajectories = tracks - offset.unsqueeze(1)
        outputs.mode_logits = layout.unpad(outputs.mode_logits.float().cpu())
    return outputs


def scene_inputs(
    values: Mapping[str, Tensor],
    last: np.ndarray,
    beside: Surroundings,
    change: Tensor | None = None,
) -> tuple[dict[str, Tensor], SceneLayout, Tensor]:
    """A model's inputs, relative to the mean of the last positions of each scene.

    Args:
        values: of the rows, as of `model_inputs`; future ones may be missing.
        last: `(W, 2)` float64 last positions in the world.
        beside: what else is there.
        change: `(S, 2, 2)` matrices that positions of each scene are multiplied with.

    Returns:
        The inputs by name, the layout of the rows in them, and `(W, 1, 2)` last positions relative
        to the means.
    """
    layout, known = SceneLayout.of_groups(beside.groups), beside.known
    counts = np.bincount(layout.scene)
    middles = np.stack([np.bincount(layout.scene, column) / counts for column in last.T], 1)
    offset = torch.from_numpy(last - middles[layout.scene]).float().unsqueeze(1)
    inputs = {"agent_mask": torch.ones(len(last), dtype=torch.bool), **values}
    for name in ("past_values", "future_values"):
        if name in inputs:
            moved = inputs[name] + offset
            inputs[name] = moved if change is None else moved @ change[layout.scene]
    inputs |= {name: part for name, part in known.items() if name.startswith("agent_")}
    inputs = {name: layout.pad(part) for name, part in inputs.items()}
    first = np.unique(layout.scene, return_index=True)[1]  # row of each scene
    if "light_values" in known:
        points = known["light_values"][first] - torch.from_numpy(middles).unsqueeze(1)
        inputs |= {"light_values": points.float(), "light_states": known["light_states"][first]}
    maps = [beside.maps[row] for row in first]
    if any(road is not None for road in maps):
        arrays = maps_side_by_side(maps, middles)
        names = ("lane_values", "lane_mask", "lane_kinds")
        inputs |= dict(zip(names, map(torch.from_numpy, arrays), strict=True))
    if change is not None:
        for name, of_scene in (("light_values", change), ("lane_values", change.unsqueeze(1))):
            if name in inputs:
                inputs[name] = inputs[name] @ of_scene
    return inputs, layout, offset


def model_inputs(windows: Windows, rows: np.ndarray) -> dict[str, Tensor]:
    """Inputs of the models for some windows, positions relative to the last observed one.

    Args:
        windows: cut from a table.
        rows: numbers of windows.

    Returns:
        `past_values` `(B, T, 2)`, `future_values` `(B, P, 2)` and their masks, bool.
    """
    positions, is_known, _ = windows.positions(rows)
    values, mask = torch.from_numpy(positions), torch.from_numpy(is_known)
    steps = windows.observed
    return {
        "past_values": values[:, :steps],
        "past_observed_mask": mask[:, :steps],
        "future_values": values[:, steps:],
        "future_observed_mask": mask[:, steps:],
    }
