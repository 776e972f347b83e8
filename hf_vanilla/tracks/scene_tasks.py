"""Forecasting of whole scenes: agents jointly, and agents among other agents and lanes.

Shapes: W windows, S scenes, B scenes of a batch, A agents of the largest one, T observed steps,
P predicted steps.
"""

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from hf_vanilla.data.batching import shuffled
from hf_vanilla.families import task_entry
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.inputs_vanilla_scene import checked_scenes
from hf_vanilla.models.modeling_vanilla_agentformer import VanillaForJointTrajectoryPrediction
from hf_vanilla.training.processes import sum_over_processes, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Validation, weights_fingerprint

from .forecaster import check_rate, load_forecaster
from .layout import Surroundings, model_inputs, scene_batches, scene_inputs
from .road_maps import RoadMap
from .scores import JointSums, TrackSums, add_windows
from .task import TrackTask, add_errors, prepare_tracks, random_changes
from .windows import rows_of_groups

logger = logging.getLogger(__name__)

POOL = 8  # batches that are sorted by size together, so that little is padding
REGION_SCENES = 500  # whose end points give the regions of proposals


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
        pool, index = divmod(number, POOL)
        positions = np.arange(pool * POOL * self.size, (pool + 1) * POOL * self.size)
        epochs, rows = np.divmod(positions, len(self.sizes))
        scenes = np.empty_like(rows)
        for epoch in np.unique(epochs):
            order = shuffled(len(self.sizes), self.seed, 0, int(epoch))
            scenes[epochs == epoch] = order[rows[epochs == epoch]]
        scenes = scenes[np.argsort(self.sizes[scenes], kind="stable")]
        first = shuffled(POOL, self.seed, 1, pool)[index] * self.size
        return scenes[first : first + self.size]


@dataclass(frozen=True)
class SceneTask(TrackTask):
    """Base class of the tasks whose items are scenes."""

    items: ClassVar[str] = "agents"

    @cached_property
    def by_scene(self) -> list[np.ndarray]:
        """Training windows of each scene, in the order of the scenes' numbers."""
        return rows_of_groups(self.train.groups)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Agents of each training scene, `(S,)`."""
        return np.array([len(rows) for rows in self.by_scene])

    @cached_property
    def config(self) -> Any:
        """The config of the recipe."""
        return self.recipe.config()

    @cached_property
    def maps(self) -> list[RoadMap]:
        """The maps of training scenes whose lanes are read."""
        are_read = "lanes" in self.recipe.entry.reads and self.options.with_lanes
        maps = self.train.table.maps if are_read else None
        return [road for road in maps or () if road is not None]

    def order(self, per_step: int) -> SceneOrder:
        """Cut the scenes of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        return SceneOrder(self.sizes, self.micro_batch_size(per_step), self.recipe.train.seed)

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """Scenes as the model's inputs, padded, each changed at random as a whole.

        Beside the tracks, kinds and sizes of agents, lights and lanes, as far as the model reads
        them.
        """
        windows, options = self.train, self.options
        parts = [self.by_scene[scene] for scene in scenes]
        for index, rows in enumerate(parts):
            if len(rows) > options.max_agents:
                selected = torch.randperm(len(rows), generator=generator)[: options.max_agents]
                parts[index] = rows[selected.numpy()]
        rows = np.concatenate(parts)
        inputs, table = model_inputs(windows, rows), windows.table
        add_errors(inputs["past_values"], options, generator)
        change = random_changes(options, len(parts), generator)  # (B, 2, 2)
        last_rows = windows.last_rows[rows]
        beside = Surroundings.of_rows(self.config, table, last_rows)
        beside = replace(beside, groups=np.repeat(np.arange(len(parts)), [len(p) for p in parts]))
        if not self.maps:
            beside = replace(beside, maps=[None] * len(rows))
        return scene_inputs(inputs, table.positions[last_rows], beside, change)[0]

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Scores of single agents and of whole scenes over all validation scenes."""
        windows, options, modes = self.validation, self.options, model.config.num_modes
        single, together = TrackSums.of(model), JointSums(modes)
        size = options.scenes_per_batch * options.max_agents
        batches = list(scene_batches(windows.groups, size))
        share = batches[accelerator.process_index :: accelerator.num_processes]
        for rows in validation_bar(accelerator, share):
            add_windows(single, model, windows, rows, together)
        means: dict[str, float] = {}
        for sums in (single, together):
            means |= sums.means(sum_over_processes(accelerator, sums.sums))
        others = {"ade": means["minADE1"], "fde": means["minFDE1"]}
        if self.recipe.entry.is_joint:  # where a scene has one agent, its errors
            others = {
                f"joint_{kind.lower()}": means.get(f"minJ{kind}{modes}", means[f"min{kind}{modes}"])
                for kind in ("ADE", "FDE")
            }
        return self.validated(means, modes, **others)

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        is_joint = self.recipe.entry.is_joint
        beside = " of windows" if is_joint else f", {len(self.maps):,} maps of lanes"
        return f"{len(self.sizes):,} scenes{beside}"

    def log_training(self, beside: str = "") -> None:
        """Log number and size of the training scenes, and how many are cut."""
        limit = self.options.max_agents
        logger.info(
            "training: %s scenes of up to %d agents; %d are cut to max_agents=%d%s",
            *(f"{len(self.sizes):,}", self.sizes.max(), (self.sizes > limit).sum(), limit, beside),
        )


def prepare_joint(recipe: Recipe) -> "JointTrajectoryTask":
    """Read the tracks of a recipe and group its windows by scene.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read, or there is no first stage.
    """
    tracks, first = prepare_tracks(recipe), None
    if recipe.data.first_stage is not None:
        first = load_first_stage(recipe.data.first_stage, recipe.config())
        check_rate(tracks[0].table, first.config, recipe.data.dataset)
    task = JointTrajectoryTask(recipe, *tracks, first)
    task.log_training()
    return task


def load_first_stage(
    name: str, config: VanillaAgentFormerConfig
) -> VanillaForJointTrajectoryPrediction:
    """A trained first stage that a second stage of this config can hold.

    Args:
        name: model folder or Hub id.
        config: of the second stage.

    Raises:
        ValueError: it is no first stage, or one of another config.
        OSError: there is no such model.
    """
    model = load_forecaster(name, device="cpu")
    if not isinstance(model, VanillaForJointTrajectoryPrediction):
        raise ValueError(
            f"first_stage={name!r} holds {type(model).__name__}: give a folder of task "
            "joint_trajectories, stage first"
        )
    may_differ = (
        *("map_", "diversity_", "joint_weight", "num_modes"),
        *("_", "architectures", "dtype", "transformers_version"),
        *task_entry("joint_trajectories").set_by_data,
    )
    saved = model.config.to_dict()
    wrong = [
        f"{key} is {saved[key]} there and {value} here"
        for key, value in config.to_dict().items()
        if not key.startswith(may_differ) and saved.get(key, value) != value
    ]
    if wrong:
        raise ValueError(
            f"first_stage={name!r} has another config: {'; '.join(wrong)}: set the section model "
            "to the values there"
        )
    return model


@dataclass(frozen=True)
class JointTrajectoryTask(SceneTask):
    """A prepared run of joint forecasting.

    Attributes:
        first: the trained first stage, for the second.
    """

    first: PreTrainedModel | None = None
    counted: ClassVar[tuple[str, ...]] = ("agents",)
    counted_mask: ClassVar[str] = "agent_mask"
    parts = ("sample_loss", "reconstruction_loss", "divergence", "similarity")
    form_option: ClassVar[str] = "stage"

    def fit(self, model: Any) -> None:
        """Put the second stage on the trained first one."""
        if self.first is not None:
            model.first_stage.load_state_dict(self.first.state_dict())

    def facts(self) -> dict[str, str]:
        """Fingerprints of the windows and of the first stage."""
        facts = super().facts()
        if self.first is not None:
            facts["first stage"] = weights_fingerprint(self.first)
        return facts


def prepare_scenes(recipe: Recipe) -> "SceneTrajectoryTask":
    """Read the tracks and lanes of a recipe and group its windows by scene.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read.
    """
    train, validation, measured = prepare_tracks(recipe)
    if not recipe.data.with_lanes:
        measured["reads_lanes"] = False
    task = SceneTrajectoryTask(recipe, train, validation, measured)
    task.log_training(f"; {len(task.maps)} have lanes")
    return task


@dataclass(frozen=True)
class SceneTrajectoryTask(SceneTask):
    """A prepared run of a forecaster of scenes."""

    counted: ClassVar[tuple[str, ...]] = ("future steps",)

    def fit(self, model: Any) -> None:
        """Take the regions of proposals from the training scenes."""
        if hasattr(model, "set_regions"):
            count = min(len(self.sizes), REGION_SCENES)
            scenes = np.linspace(0, len(self.sizes) - 1, count).astype(np.int64)
            model.set_regions(**self.batch(scenes, torch.Generator().manual_seed(0)))

    def facts(self) -> dict[str, str]:
        """Fingerprints of windows and lanes."""
        facts = super().facts()
        if self.maps:
            total = sum(float(road.points.sum()) for road in self.maps)
            facts["training lanes"] = f"{sum(map(len, self.maps))}:{total:.9g}"
        return facts

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> Batch:
        """As of all tasks of scenes, and checked on the CPU: the model does not check on a GPU."""
        batch = super().batch(scenes, generator)
        checked_scenes(self.config, **batch)
        return batch
