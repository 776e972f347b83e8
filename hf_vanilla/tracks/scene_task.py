"""Forecasting of agents among other agents and lanes as a task of the training engine.

Shapes: B scenes, A agents, T observed steps, P predicted steps.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.families import Measure
from hf_vanilla.models.modeling_vanilla_scene_proposals import (
    VanillaForProposalTrajectoryPrediction,
)
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Validation

from .data import prepare_tracks, track_facts
from .layout import map_inputs
from .loading import SCENE_FORMS
from .scene_options import MEASURES, SceneDataOptions
from .training_scenes import SceneTask, TrainingScenes, scene_scores
from .windows import Windows

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
    scenes = TrainingScenes.of(tracks.train, options)
    maps = sum(found is not None for found in tracks.train.scenes.maps or ())
    logger.info("training: %s; %d have lanes", scenes.describe(), maps)
    return SceneTrajectoryTask(recipe, tracks, scenes)


def without_maps(windows: Windows) -> Windows:
    """The windows of a table without its maps."""
    return replace(windows, scenes=replace(windows.scenes, maps=None))


@dataclass(frozen=True)
class SceneTrajectoryTask(SceneTask):
    """A prepared run of a forecaster of scenes."""

    counted: ClassVar[tuple[str, ...]] = ("future steps",)
    measures: ClassVar[Mapping[str, Measure]] = MEASURES

    @property
    def options(self) -> SceneDataOptions:
        """The recipe's data options."""
        return self.recipe.data

    def model(self) -> PreTrainedModel:
        """A model of the recipe's form, a new one with regions of proposals; see `new_model`."""
        model = self.new_model("form", SCENE_FORMS)
        is_new = self.recipe.train.initial_model is None
        if is_new and isinstance(model, VanillaForProposalTrajectoryPrediction):
            scenes_there = len(self.scenes.sizes)
            count = min(scenes_there, REGION_SCENES)
            chosen = np.linspace(0, scenes_there - 1, count).astype(np.int64)
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

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """Scenes as the model's inputs, padded, each changed at random as a whole."""
        found = self.scenes.batch(scenes, generator)
        batch, table = found.inputs, self.tracks.train.scenes
        if table.maps is not None:
            batch |= map_inputs(table.maps_of(found.last_rows), found.layout, found.middles)
            batch["lane_values"] = batch["lane_values"] @ found.change.unsqueeze(1)
        return batch

    def counts(self, batch: Batch) -> Sequence[int]:
        """Known future steps."""
        return [int(batch["future_observed_mask"].sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Loss per known future step of the optimizer step."""
        return {"loss": model(**batch, num_items_in_batch=totals[0].clamp(min=1)).loss}

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest and of the top-scored futures over all validation scenes."""
        means = scene_scores(model, self.validation, self.options, accelerator)
        modes = model.config.num_modes
        values = {
            "min_ade": means[f"minADE{modes}"],
            "min_fde": means[f"minFDE{modes}"],
            "ade": means["minADE1"],
            "fde": means["minFDE1"],
        }
        return self.validated(values, means)

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        count = sum(found is not None for found in self.tracks.train.scenes.maps or ())
        return f"{len(self.scenes.sizes):,} scenes, {count:,} maps of lanes"
