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
from hf_vanilla.trajectories.joint_scores import JointSums
from hf_vanilla.trajectories.loading import STAGES, load_first_stage, new_joint_forecaster
from hf_vanilla.trajectories.scene_layout import SceneLayout, offsets_in_scene, scene_batches
from hf_vanilla.trajectories.track_scores import Protocol, TrackScores, TrackSums

from .joint_trajectory_options import MEASURES, JointDataOptions
from .trajectories import add_scenes, model_inputs, shuffled, validation_protocol
from .trajectory_data import (
    TrackData,
    position_errors,
    prepare_tracks,
    random_changes,
    track_facts,
)

logger = logging.getLogger(__name__)

POOL = 8  # batches that are sorted by size together, so that little is padding


def prepare(recipe: Recipe) -> "JointTrajectoryTask":
    """Read the tracks of a recipe and group its windows by scene.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read, or there is no first stage.
    """
    tracks = prepare_tracks(recipe)
    groups = tracks.train.groups
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 2))
    sizes = np.diff(starts)
    cut = int((sizes > recipe.data.max_agents).sum())
    logger.info(
        "training: %d scenes of up to %d agents; %d are cut to max_agents=%d",
        *(len(sizes), sizes.max(), cut, recipe.data.max_agents),
    )
    first = None
    if recipe.data.stage == "second":
        first = load_first_stage(recipe.data.first_stage, recipe.config())
    return JointTrajectoryTask(recipe, tracks, order, starts, first)


@dataclass(frozen=True)
class SceneOrder:
    """Micro-batches of equally many scenes, epoch after epoch without a gap.

    The scenes of `POOL` micro-batches that follow each other are sorted by size, so that a batch
    has scenes of similar size; these batches come in random order.

    Attributes:
        sizes: `(S,)` agents of each scene.
        size: scenes of a micro-batch.
        seed: of the order.
    """

    sizes: np.ndarray
    size: int
    seed: int

    def __getitem__(self, number: int) -> np.ndarray:
        """Scenes of micro-batch `number` of the run."""
        pool, place = divmod(number, POOL)
        places = np.arange(pool * POOL * self.size, (pool + 1) * POOL * self.size)
        epochs, rows = np.divmod(places, len(self.sizes))
        scenes = np.empty_like(rows)
        for epoch in np.unique(epochs):
            order = shuffled(len(self.sizes), self.seed, 0, int(epoch))
            scenes[epochs == epoch] = order[rows[epochs == epoch]]
        scenes = scenes[np.argsort(self.sizes[scenes], kind="stable")]
        first = shuffled(POOL, self.seed, 1, pool)[place] * self.size
        return scenes[first : first + self.size]

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} scenes"


@dataclass(frozen=True)
class JointTrajectoryTask:
    """A prepared run of joint forecasting; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        tracks: training and validation windows with their statistics.
        by_scene: `(W,)` training windows, scene after scene.
        starts: `(S + 1,)` place of each scene's first window in `by_scene`.
        first: the trained first stage, for the second.
    """

    recipe: Recipe
    tracks: TrackData
    by_scene: np.ndarray
    starts: np.ndarray
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
        return SceneOrder(np.diff(self.starts), size, self.recipe.train.seed)

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """Scenes as the model's inputs, padded, each changed at random as a whole."""
        parts = [self._windows_of(scene, generator) for scene in scenes]
        rows = np.concatenate(parts)
        layout = SceneLayout.of_groups(np.repeat(np.arange(len(parts)), [len(p) for p in parts]))
        inputs = model_inputs(self.tracks.train, rows)
        if self.options.position_noise:
            shape = inputs["past_values"].shape
            inputs["past_values"] += position_errors(self.options, shape, generator)
        windows = self.tracks.train
        last = windows.scenes.positions[windows.last_rows[rows]]
        offset = torch.from_numpy(offsets_in_scene(last, layout)).float().unsqueeze(1)
        change = random_changes(self.options, len(parts), generator)[layout.scene]
        for name in ("past_values", "future_values"):
            inputs[name] = (inputs[name] + offset) @ change
        agents = torch.ones(len(rows), dtype=torch.bool)
        return {name: layout.pad(part) for name, part in {**inputs, "agent_mask": agents}.items()}

    def _windows_of(self, scene: int, generator: torch.Generator) -> np.ndarray:
        """Windows of a scene, at most `max_agents`, others at random."""
        rows = self.by_scene[self.starts[scene] : self.starts[scene + 1]]
        if len(rows) <= self.options.max_agents:
            return rows
        chosen = torch.randperm(len(rows), generator=generator)[: self.options.max_agents]
        return rows[chosen.numpy()]

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
        masks = (batch["past_observed_mask"], batch["future_observed_mask"])
        steps, size = (
            sum(int(part) for part in parts)
            for parts in zip(*((mask.sum(), mask.numel()) for mask in masks), strict=True)
        )
        return Work(int(batch["agent_mask"].sum()), steps, size)

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest samples over all validation scenes."""
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
        total, joint = (
            part.means(accelerator.reduce(part.sums.to(accelerator.device, kind)))
            for part in (sums, together)
        )
        means = {**total, **joint}
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
            data=f"{scenes.describe()}; {len(self.starts) - 1:,} scenes of windows",
            scores=None if validation is None else str(validation.details),
        )
