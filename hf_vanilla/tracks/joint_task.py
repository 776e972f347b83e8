"""Joint trajectory forecasting of whole scenes as a task of the training engine.

Shapes: B scenes, A agents, T observed steps, P predicted steps.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_vanilla.families import Measure
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Validation, weights_fingerprint

from .data import prepare_tracks, track_facts
from .joint_options import MEASURES, JointDataOptions
from .loading import STAGES, load_first_stage
from .training_scenes import SceneTask, TrainingScenes, scene_scores

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
    if recipe.data.first_stage is not None:
        first = load_first_stage(recipe.data.first_stage, recipe.config())
    return JointTrajectoryTask(recipe, tracks, scenes, first)


@dataclass(frozen=True)
class JointTrajectoryTask(SceneTask):
    """A prepared run of joint forecasting.

    Attributes:
        first: the trained first stage, for the second.
    """

    first: PreTrainedModel | None = None
    counted: ClassVar[tuple[str, ...]] = ("agents",)
    measures: ClassVar[Mapping[str, Measure]] = MEASURES

    @property
    def options(self) -> JointDataOptions:
        """The recipe's data options."""
        return self.recipe.data

    def model(self) -> PreTrainedModel:
        """A model of the recipe's stage, the second on the trained first; see `new_model`."""
        model = self.new_model("stage", STAGES)
        if self.first is not None:
            model.first_stage.load_state_dict(self.first.state_dict())
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of the windows and of the first stage."""
        facts = track_facts(self.tracks)
        if self.first is not None:
            facts["first stage"] = weights_fingerprint(self.first)
        return facts

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

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest samples over all validation scenes."""
        means = scene_scores(model, self.validation, self.options, accelerator)
        modes = model.config.num_modes
        values = {"min_ade": means[f"minADE{modes}"], "min_fde": means[f"minFDE{modes}"]}
        # where every scene has one agent, its futures are those of the agent
        values["joint_ade"] = means.get(f"minJADE{modes}", values["min_ade"])
        values["joint_fde"] = means.get(f"minJFDE{modes}", values["min_fde"])
        return self.validated(values, means)

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        return f"{len(self.scenes.sizes):,} scenes of windows"
