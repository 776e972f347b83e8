"""Training windows by scene, and scores of whole scenes; for the tasks that forecast scenes.

Shapes: W windows, S scenes, B scenes of a batch, A agents of the largest one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from hf_vanilla.data.row_order import shuffled
from hf_vanilla.training.processes import sum_over_processes
from hf_vanilla.training.task import Batch, Work, micro_batch_size

from .data import position_errors, random_changes
from .joint_scores import JointSums
from .layout import SceneLayout, scene_batches, scene_middles
from .options import SceneOptions
from .scores import TrackSums
from .single_task import add_scenes, model_inputs
from .task import TrackTask
from .windows import Windows

POOL = 8  # batches that are sorted by size together, so that little is padding


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
class SceneBatch:
    """Scenes as inputs of a model, each changed at random as a whole.

    Attributes:
        inputs: padded to the largest scene, with `agent_mask` `(B, A)`, True = agent.
        layout: where each window stands in them.
        last_rows: `(W,)` row of each window's last observed step in the table.
        middles: `(B, 2)` origins of the scenes, means of their last observed positions.
        change: `(B, 2, 2)` how each scene was mirrored, scaled and turned.
    """

    inputs: Batch
    layout: SceneLayout
    last_rows: np.ndarray
    middles: np.ndarray
    change: Tensor


@dataclass(frozen=True)
class TrainingScenes:
    """Training windows grouped by scene.

    Attributes:
        windows: of the training tracks.
        options: of the task.
        by_scene: `(W,)` windows, scene after scene.
        starts: `(S + 1,)` index of each scene's first window in `by_scene`.
    """

    windows: Windows
    options: SceneOptions
    by_scene: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, windows: Windows, options: SceneOptions) -> "TrainingScenes":
        """Group windows by scene, in the order of the scenes' numbers."""
        by_scene = np.argsort(windows.groups, kind="stable")
        numbers = np.arange(windows.groups.max() + 2)
        return cls(windows, options, by_scene, np.searchsorted(windows.groups[by_scene], numbers))

    @property
    def sizes(self) -> np.ndarray:
        """Agents of each scene, `(S,)`."""
        return np.diff(self.starts)

    def describe(self) -> str:
        """Number and size of the scenes, and how many are cut, in words."""
        limit = self.options.max_agents
        return (
            f"{len(self.sizes)} scenes of up to {self.sizes.max()} agents; "
            f"{(self.sizes > limit).sum()} are cut to max_agents={limit}"
        )

    def batch(self, scenes: np.ndarray, generator: torch.Generator) -> SceneBatch:
        """Scenes as inputs of a model, each changed at random as a whole."""
        parts = [self.rows(scene, generator) for scene in scenes]
        rows = np.concatenate(parts)
        layout = SceneLayout.of_groups(np.repeat(np.arange(len(parts)), [len(p) for p in parts]))
        inputs = model_inputs(self.windows, rows)
        if self.options.position_noise:
            shape = inputs["past_values"].shape
            inputs["past_values"] += position_errors(self.options, shape, generator)
        last_rows = self.windows.last_rows[rows]
        last = self.windows.scenes.positions[last_rows]
        middles = scene_middles(last, layout)
        offset = torch.from_numpy(last - middles[layout.scene]).float().unsqueeze(1)
        change = random_changes(self.options, len(parts), generator)
        for name in ("past_values", "future_values"):
            inputs[name] = (inputs[name] + offset) @ change[layout.scene]
        inputs["agent_mask"] = torch.ones(len(rows), dtype=torch.bool)
        padded = {name: layout.pad(part) for name, part in inputs.items()}
        return SceneBatch(padded, layout, last_rows, middles, change)

    def rows(self, scene: int, generator: torch.Generator) -> np.ndarray:
        """Windows of a scene, at most `max_agents`, others at random."""
        rows = self.by_scene[self.starts[scene] : self.starts[scene + 1]]
        if len(rows) <= self.options.max_agents:
            return rows
        chosen = torch.randperm(len(rows), generator=generator)[: self.options.max_agents]
        return rows[chosen.numpy()]


def count_steps(batch: Batch) -> tuple[int, int]:
    """Observed and future steps of a batch that are known, and all of them with padding."""
    masks = (batch["past_observed_mask"], batch["future_observed_mask"])
    return sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)


def scene_scores(
    model: PreTrainedModel, windows: Windows, options: SceneOptions, accelerator: Accelerator
) -> dict[str, float]:
    """Scores of single agents and of whole scenes over all windows, with all processes."""
    modes = model.config.num_modes
    single = TrackSums(modes, largest_step=model.config.largest_step)
    together = JointSums(modes)
    batches = list(scene_batches(windows.groups, options.scenes_per_batch * options.max_agents))
    for rows in batches[accelerator.process_index :: accelerator.num_processes]:
        add_scenes(single, together, model, windows, rows)
    found: dict[str, float] = {}
    for part in (single, together):
        found |= part.means(sum_over_processes(accelerator, part.sums))
    return found


@dataclass(frozen=True)
class SceneTask(TrackTask):
    """Base class of the tasks whose items are scenes.

    Attributes:
        scenes: training windows by scene.
    """

    scenes: TrainingScenes
    items: ClassVar[str] = "agents"

    @property
    def options(self) -> SceneOptions:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.scenes_per_step // self.options.scenes_per_batch

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

    def work(self, config: Any, batch: Batch) -> Work:
        """Agents and their observed and future steps."""
        return Work(int(batch["agent_mask"].sum()), *count_steps(batch))
