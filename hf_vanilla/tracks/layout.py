"""Agents in rows, scenes in batches: how forecasters are fed.

Shapes: W windows or agents, S scenes, A agents of the largest scene, T observed steps, K samples,
P predicted steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.data.batching import batch_bounds
from hf_vanilla.families import entry_of

from .road_maps import RoadMap, maps_side_by_side
from .table import TrackTable
from .windows import Windows, rows_of_groups


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


def run_model(  # noqa: PLR0913 - all that any model reads
    model: Any,
    past: Tensor,
    is_observed: Tensor,
    last: np.ndarray,
    groups: np.ndarray,
    maps: Sequence[RoadMap | None],
    agents: Mapping[str, Tensor] | None = None,
    **kwargs: Any,
) -> Any:
    """Outputs of a forecaster for agents in rows: the one place where a model is called.

    A model that reads whole scenes gets the rows of each scene together, relative to the mean of
    their last positions, so that single precision suffices for large coordinates.

    Args:
        model: a forecaster.
        past: `(W, T, 2)` positions relative to each agent's last one.
        is_observed: `(W, T)` bool; last steps are observed.
        last: `(W, 2)` float64 last positions in the world.
        groups: `(W,)` equal numbers for agents of one scene.
        maps: map of each row, equal for rows of one scene, for a model that reads maps.
        agents: what `agent_inputs` gives for the rows; None: nothing is known of them.
        **kwargs: passed to the model, such as `samples_at_once`.

    Returns:
        Outputs whose `trajectories` `(W, K, P, 2)` are relative to each agent's last position and
        whose `mode_logits` are `(W, K)`.
    """
    device = next(model.parameters(), torch.empty(0)).device
    reads = entry_of(model.config).reads
    if "others" not in reads:
        return model(past.to(device), past_observed_mask=is_observed.to(device), **kwargs)
    layout = SceneLayout.of_groups(groups)
    values = {"past_values": past, "past_observed_mask": is_observed}
    read_maps = maps if "lanes" in reads else None
    inputs, offset = scene_inputs(values, last, layout, agents or {}, read_maps)
    outputs = model(**{name: values.to(device) for name, values in inputs.items()}, **kwargs)
    tracks = layout.unpad(outputs.trajectories.float().cpu())
    outputs.trajectories = tracks - offset.unsqueeze(1)
    outputs.mode_logits = layout.unpad(outputs.mode_logits.float().cpu())
    return outputs


def scene_middles(last: np.ndarray, layout: SceneLayout) -> np.ndarray:
    """Mean `(S, 2)` of the last positions `(W, 2)` of each scene."""
    counts = np.bincount(layout.scene)
    return np.stack([np.bincount(layout.scene, column) / counts for column in last.T], 1)


def scene_inputs(
    values: Mapping[str, Tensor],
    last: np.ndarray,
    layout: SceneLayout,
    agents: Mapping[str, Tensor],
    maps: Sequence[RoadMap | None] | None,
    change: Tensor | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """A model's inputs, relative to the mean of the last positions of each scene.

    Args:
        values: of the rows, as of `model_inputs`; future ones may be missing.
        last: `(W, 2)` float64 last positions in the world.
        layout: of the rows.
        agents: what `agent_inputs` gives for the rows.
        maps: of each row, equal for rows of one scene; None: lanes are not read.
        change: `(S, 2, 2)` matrices that positions of each scene are multiplied with.

    Returns:
        The inputs by name, and `(W, 1, 2)` last positions relative to the means.
    """
    middles = scene_middles(last, layout)
    offset = torch.from_numpy(last - middles[layout.scene]).float().unsqueeze(1)
    first = np.unique(layout.scene, return_index=True)[1]  # row of each scene
    inputs = {"agent_mask": torch.ones(len(last), dtype=torch.bool), **values}
    for name in ("past_values", "future_values"):
        if name in inputs:
            moved = inputs[name] + offset
            inputs[name] = moved if change is None else moved @ change[layout.scene]
    inputs |= {name: part for name, part in agents.items() if name.startswith("agent_")}
    inputs = {name: layout.pad(part) for name, part in inputs.items()}
    if "light_values" in agents:
        points = agents["light_values"][first] - torch.from_numpy(middles).unsqueeze(1)
        inputs |= {"light_values": points.float(), "light_states": agents["light_states"][first]}
    if maps is not None:
        arrays = maps_side_by_side([maps[row] for row in first], middles)
        names = ("lane_values", "lane_mask", "lane_kinds")
        inputs |= dict(zip(names, map(torch.from_numpy, arrays), strict=True))
    if change is not None:
        for name, of_scene in (("light_values", change), ("lane_values", change.unsqueeze(1))):
            if name in inputs:
                inputs[name] = inputs[name] @ of_scene
    return inputs, offset


def agent_inputs(config: Any, table: TrackTable, rows: np.ndarray) -> dict[str, Tensor]:
    """What a model reads beside the tracks of some rows.

    Kinds `(W,)` and sizes `(W, 2)` of agents; positions `(W, Q, 2)` and states `(W, Q, T)` of the
    lights of their scenes.
    """
    inputs: dict[str, Tensor] = {}
    if "lanes" not in entry_of(config).reads:
        return inputs
    if config.num_agent_kinds:
        inputs["agent_kinds"] = torch.from_numpy(table.kinds_of(rows))
    if config.reads_sizes:
        inputs["agent_sizes"] = torch.from_numpy(table.sizes_of(rows))
    if config.num_light_states:
        lights = table.lights_of(rows, config.observed_steps)
        inputs["light_values"], inputs["light_states"] = map(torch.from_numpy, lights)
    return inputs


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
