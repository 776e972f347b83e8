"""Forecasting of agents among other agents and lanes as a task of the training engine.

Shapes: B scenes, A agents, T observed steps, P predicted steps.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.data.track_windows import Windows
from hf_vanilla.hub.track_card import track_card
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.proposals_vanilla_scene import VanillaForProposalTrajectoryPrediction
from hf_vanilla.recipes.measures import Measure
from hf_vanilla.recipes.recipe import Recipe
from hf_vanilla.training.task import Batch, RunFacts, Validation, Work, micro_batch_size
from hf_vanilla.trajectories.joint_scores import JointSums
from hf_vanilla.trajectories.loading import SCENE_FORMS, new_scene_forecaster
from hf_vanilla.trajectories.scene_layout import (
    SceneLayout,
    map_inputs,
    scene_batches,
    scene_middles,
)
from hf_vanilla.trajectories.track_scores import Protocol, TrackScores, TrackSums

from .joint_trajectories import SceneOrder
from .scene_trajectory_options import MEASURES, SceneDataOptions
from .trajectories import add_scenes, model_inputs, validation_protocol
from .trajectory_data import (
    TrackData,
    position_errors,
    prepare_tracks,
    random_changes,
    track_facts,
)

logger = logging.getLogger(__name__)

REGION_SCENES = 500  # whose end points give the regions of proposals


def prepare(recipe: Recipe) -> "SceneTrajectoryTask":
    """Read the tracks and lanes of a recipe and group its windows by scene.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read.
    """
    options: SceneDataOptions = recipe.data
    tracks = prepare_tracks(recipe)
    if not options.with_lanes:
        validation = tracks.validation and without_maps(tracks.validation)
        tracks = replace(tracks, train=without_maps(tracks.train), validation=validation)
    groups = tracks.train.groups
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 2))
    sizes = np.diff(starts)
    maps = [found for found in tracks.train.scenes.maps or () if found is not None]
    logger.info(
        "training: %d scenes of up to %d agents, %d with lanes; %d are cut to max_agents=%d",
        *(len(sizes), sizes.max(), len(maps), (sizes > options.max_agents).sum()),
        options.max_agents,
    )
    return SceneTrajectoryTask(recipe, tracks, order, starts)


def without_maps(windows: Windows) -> Windows:
    """The windows of a table without its maps."""
    return replace(windows, scenes=replace(windows.scenes, maps=None))


@dataclass(frozen=True)
class SceneTrajectoryTask:
    """A prepared run of a forecaster of scenes; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        tracks: training and validation windows with their statistics.
        by_scene: `(W,)` training windows, scene after scene.
        starts: `(S + 1,)` place of each scene's first window in `by_scene`.
    """

    recipe: Recipe
    tracks: TrackData
    by_scene: np.ndarray
    starts: np.ndarray
    items: ClassVar[str] = "agents"
    counted: ClassVar[tuple[str, ...]] = ("future steps",)
    measures: ClassVar[Mapping[str, Measure]] = MEASURES
    processor: ClassVar[Any] = None

    @property
    def options(self) -> SceneDataOptions:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def has_validation(self) -> bool:
        """Whether there are validation windows."""
        return self.tracks.validation is not None

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.scenes_per_step // self.options.scenes_per_batch

    def model(self) -> PreTrainedModel:
        """A new model with rate, unit, displacements and regions of the training tracks."""
        scenes = self.tracks.train.scenes
        config = self.recipe.config(
            step_seconds=scenes.step_seconds,
            unit=scenes.unit,
            velocity_std=self.tracks.velocity_std,
            largest_step=self.tracks.largest_step,
        )
        config.architectures = [SCENE_FORMS[self.options.form].__name__]
        model = new_scene_forecaster(config)
        if isinstance(model, VanillaForProposalTrajectoryPrediction):
            count = min(len(self.starts) - 1, REGION_SCENES)
            chosen = np.linspace(0, len(self.starts) - 2, count).astype(np.int64)
            model.set_regions(**self.batch(chosen, torch.Generator().manual_seed(0)))
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of windows and lanes."""
        facts = track_facts(self.tracks)
        maps = [found for found in self.tracks.train.scenes.maps or () if found is not None]
        if maps:
            total = sum(float(found.points.sum()) for found in maps)
            facts["training lanes"] = f"{sum(map(len, maps))}:{total:.9g}"
        return facts

    def order(self, per_step: int) -> SceneOrder:
        """Cut the scenes of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = micro_batch_size("scenes_per_step", self.options.scenes_per_step, per_step)
        return SceneOrder(np.diff(self.starts), size, self.recipe.train.seed)

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """Scenes as the model's inputs, padded, each changed at random as a whole."""
        parts = [self._windows_of(scene, generator) for scene in scenes]
        rows = np.concatenate(parts)
        layout = SceneLayout.of_groups(np.repeat(np.arange(len(parts)), [len(p) for p in parts]))
        windows = self.tracks.train
        inputs = model_inputs(windows, rows)
        if self.options.position_noise:
            shape = inputs["past_values"].shape
            inputs["past_values"] += position_errors(self.options, shape, generator)
        last_rows = windows.last_rows[rows]
        last = windows.scenes.positions[last_rows]
        middles = scene_middles(last, layout)
        offset = torch.from_numpy(last - middles[layout.scene]).float().unsqueeze(1)
        change = random_changes(self.options, len(parts), generator)  # (B, 2, 2)
        for name in ("past_values", "future_values"):
            inputs[name] = (inputs[name] + offset) @ change[layout.scene]
        agents = torch.ones(len(rows), dtype=torch.bool)
        batch = {name: layout.pad(part) for name, part in {**inputs, "agent_mask": agents}.items()}
        if windows.scenes.maps is not None:
            batch |= map_inputs(windows.scenes.maps_of(last_rows), layout, middles)
            batch["lane_values"] = batch["lane_values"] @ change.unsqueeze(1)
        return batch

    def _windows_of(self, scene: int, generator: torch.Generator) -> np.ndarray:
        """Windows of a scene, at most `max_agents`, others at random."""
        rows = self.by_scene[self.starts[scene] : self.starts[scene + 1]]
        if len(rows) <= self.options.max_agents:
            return rows
        chosen = torch.randperm(len(rows), generator=generator)[: self.options.max_agents]
        return rows[chosen.numpy()]

    def counts(self, batch: Batch) -> Sequence[int]:
        """Known future steps."""
        return [int(batch["future_observed_mask"].sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Loss per known future step of the optimizer step."""
        return {"loss": model(**batch, num_items_in_batch=totals[0].clamp(min=1)).loss}

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Nothing follows from the logged values."""
        return {}

    def work(self, config: VanillaSceneConfig, batch: Batch) -> Work:
        """Agents and their observed and future steps."""
        masks = (batch["past_observed_mask"], batch["future_observed_mask"])
        steps, size = sum(int(m.sum()) for m in masks), sum(m.numel() for m in masks)
        return Work(int(batch["agent_mask"].sum()), steps, size)

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest and of the top-scored futures over all validation scenes."""
        windows = self.tracks.validation
        assert windows is not None
        modes = model.config.num_modes
        sums = TrackSums(modes, largest_step=model.config.largest_step)
        together = JointSums(modes)
        agents = self.options.scenes_per_batch * self.options.max_agents
        batches = list(scene_batches(windows.groups, agents))
        for rows in batches[accelerator.process_index :: accelerator.num_processes]:
            add_scenes(sums, together, model, windows, rows)
        kind = torch.float32 if accelerator.device.type == "mps" else torch.float64
        means = sums.means(accelerator.reduce(sums.sums.to(accelerator.device, kind)))
        values = {
            "min_ade": means[f"minADE{modes}"],
            "min_fde": means[f"minFDE{modes}"],
            "ade": means["minADE1"],
            "fde": means["minFDE1"],
        }
        return Validation(values, TrackScores(means, self._protocol(windows)))

    def _protocol(self, windows: Windows) -> Protocol:
        return validation_protocol(windows, self.options.test_scene, self.recipe.train.seed)

    def save(self, folder: Path) -> None:
        """Nothing is needed beside config and weights."""

    def card(self, facts: RunFacts, validation: Validation | None) -> ModelCard:
        """The model card with data, protocol and scores."""
        scenes = self.tracks.train.scenes
        count = sum(found is not None for found in scenes.maps or ())
        return track_card(
            facts,
            license=self.recipe.train.model_license,
            dataset=Path(self.options.dataset).name,
            data=f"{scenes.describe()}; {len(self.starts) - 1:,} scenes, {count:,} maps of lanes",
            scores=None if validation is None else str(validation.details),
        )
