"""Joint trajectory forecasting of whole scenes as a task of the training engine.

Shapes: B scenes, A agents, T observed steps, P predicted steps.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.recipes.measures import Measure
from hf_vanilla.recipes.recipe import Recipe
from hf_vanilla.training.task import Batch, RunFacts, Validation, Work, micro_batch_size
from hf_vanilla.trajectories.loading import STAGES, load_first_stage, new_joint_forecaster
from hf_vanilla.trajectories.track_scores import Protocol, TrackScores

from .joint_trajectory_options import MEASURES, JointDataOptions
from .training_scenes import SceneOrder, TrainingScenes, count_steps, scene_scores
from .trajectories import validation_protocol
from .trajectory_data import TrackData, prepare_tracks, track_facts

logger = logging.getLogger(__name__)


def prepare(recipe: Recipe) -> "JointTrajectoryTask":
    """Read the tracks of a recipe and group its windows by scene.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read, or there is no first stage.
    """
    tracks = prepare_tracks(recipe)
    scenes = TrainingScenes.of(tracks.train, recipe.data)
    logger.info("training: %s", scenes.describe())
    first = None
    if recipe.data.stage == "second":
        first = load_first_stage(recipe.data.first_stage, recipe.config())
    return JointTrajectoryTask(recipe, tracks, scenes, first)


@dataclass(frozen=True)
class JointTrajectoryTask:
    """A prepared run of joint forecasting; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        tracks: training and validation windows with their statistics.
        scenes: training windows by scene.
        first: the trained first stage, for the second.
    """

    recipe: Recipe
    tracks: TrackData
    scenes: TrainingScenes
    first: PreTrainedModel | None = None
    items: ClassVar[str] = "agents"
    counted: ClassVar[tuple[str, ...]] = ("agents",)
    measures: ClassVar[Mapping[str, Measure]] = MEASURES
    processor: ClassVar[Any] = None

    @property
    def options(self) -> JointDataOptions:
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
        """A new model with rate and unit of the training tracks, on the trained first stage."""
        scenes = self.tracks.train.scenes
        config = self.recipe.config(
            step_seconds=scenes.step_seconds,
            unit=scenes.unit,
            largest_step=self.tracks.largest_step,
        )
        config.architectures = [STAGES[self.options.stage].__name__]
        model: Any = new_joint_forecaster(config)
        if self.first is not None:
            model.first_stage.load_state_dict(self.first.state_dict())
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of the windows and of the first stage."""
        facts = track_facts(self.tracks)
        if self.first is not None:
            total = sum(weight.double().abs().sum().item() for weight in self.first.parameters())
            facts["first stage"] = f"{total:.9g}"
        return facts

    def order(self, per_step: int) -> SceneOrder:
        """Cut the scenes of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = micro_batch_size("scenes_per_step", self.options.scenes_per_step, per_step)
        return SceneOrder(self.scenes.sizes, size, self.recipe.train.seed)

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """Scenes as the model's inputs, padded, each changed at random as a whole."""
        return self.scenes.batch(scenes, generator).inputs

    def counts(self, batch: Batch) -> Sequence[int]:
        """Agents."""
        return [int(batch["agent_mask"].sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Loss per agent of the optimizer step, and its parts."""
        outputs = model(**batch, num_items_in_batch=totals[0].clamp(min=1))
        names = ("loss", "sample_loss", "reconstruction_loss", "divergence", "similarity")
        found = {name: getattr(outputs, name) for name in (names if is_logged else names[:1])}
        return {name: value for name, value in found.items() if value is not None}

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Nothing follows from the logged values."""
        return {}

    def work(self, config: VanillaAgentFormerConfig, batch: Batch) -> Work:
        """Agents and their observed and future steps."""
        return Work(int(batch["agent_mask"].sum()), *count_steps(batch))

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest samples over all validation scenes."""
        windows = self.tracks.validation
        assert windows is not None
        means = scene_scores(model, windows, self.options, accelerator)
        modes = model.config.num_modes
        values = {"min_ade": means[f"minADE{modes}"], "min_fde": means[f"minFDE{modes}"]}
        # where every scene has one agent, its futures are those of the agent
        values["joint_ade"] = means.get(f"minJADE{modes}", values["min_ade"])
        values["joint_fde"] = means.get(f"minJFDE{modes}", values["min_fde"])
        return Validation(values, TrackScores(means, self._protocol(windows)))

    def _protocol(self, windows: Windows) -> Protocol:
        return validation_protocol(windows, self.options.test_scene, self.recipe.train.seed)

    def save(self, folder: Path) -> None:
        """Nothing is needed beside config and weights."""

    def card(self, facts: RunFacts, validation: Validation | None) -> ModelCard:
        """The model card with data, protocol and scores."""
        scenes = self.tracks.train.scenes
        return track_card(
            facts,
            license=self.recipe.train.model_license,
            dataset=Path(self.options.dataset).name,
            data=f"{scenes.describe()}; {len(self.scenes.sizes):,} scenes of windows",
            scores=None if validation is None else str(validation.details),
        )
