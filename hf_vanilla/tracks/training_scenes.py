"""Training windows by scene: their order, and batches of scenes.

Shapes: W windows, S scenes, B scenes of a batch, A agents of the largest one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.data.batching import shuffled
from hf_vanilla.training.task import Batch

from .data import position_errors, random_changes
from .layout import SceneLayout, model_inputs, scene_middles
from .options import SceneOptions
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

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} scenes"


@dataclass(frozen=True)
class SceneBatch:
    """Scenes as inputs of a model, each changed at random as a whole.

    Attributes:
        inputs: padded to the largest scene, with `agent_mask` `(B, A)`, True = agent.
        layout: row and slot of each window in them.
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
        last = self.windows.table.positions[last_rows]
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
        selected = torch.randperm(len(rows), generator=generator)[: self.options.max_agents]
        return rows[selected.numpy()]
