"""Trajectory forecasting as a task of the training engine.

Shapes: B windows, T observed steps, P predicted steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from hf_vanilla.data.row_order import shuffled
from hf_vanilla.families import Measure
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_tracks_codes import VanillaForQuantizedTrajectoryPrediction
from hf_vanilla.training.processes import sum_over_processes
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Validation, Work, micro_batch_size

from .data import (
    position_errors,
    prepare_tracks,
    random_changes,
    track_facts,
)
from .joint_scores import JointSums
from .layout import joint_forecast, reads_scene
from .loading import FORMS
from .options import MEASURES, TrackDataOptions
from .scores import TrackSums
from .task import TrackTask
from .windows import Windows

TEMPERATURE_ENDS = 2 / 3  # of the run
CODEBOOK_WINDOWS = 20_000  # at most, from the first to the last
SAMPLING_SEED = 0  # of futures that are drawn while scores are measured


def prepare(recipe: Recipe) -> "TrajectoryTask":
    """Read the tracks of a recipe and measure them.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read.
    """
    return TrajectoryTask(recipe, prepare_tracks(recipe))


@dataclass(frozen=True)
class WindowRows:
    """One micro-batch.

    Attributes:
        rows: `(B,)` numbers of windows.
        step: number of the optimizer step, from 0.
    """

    rows: np.ndarray
    step: int


@dataclass(frozen=True)
class WindowOrder:
    """Micro-batches of equal size, epoch after epoch without a gap.

    Attributes:
        windows: how many there are.
        size: windows of a micro-batch.
        seed: of the order.
        per_step: micro-batches of an optimizer step.
    """

    windows: int
    size: int
    seed: int
    per_step: int = 1

    def __getitem__(self, number: int) -> WindowRows:
        """Micro-batch `number` of the run."""
        places = np.arange(number * self.size, (number + 1) * self.size)
        epochs, rows = np.divmod(places, self.windows)
        parts = [
            shuffled(self.windows, self.seed, int(epoch))[rows[epochs == epoch]]
            for epoch in np.unique(epochs)
        ]
        return WindowRows(np.concatenate(parts), number // self.per_step)

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} windows"


@dataclass(frozen=True)
class TrajectoryTask(TrackTask):
    """A prepared run of trajectory forecasting."""

    items: ClassVar[str] = "windows"
    counted: ClassVar[tuple[str, ...]] = ("future_steps",)
    measures: ClassVar[Mapping[str, Measure]] = MEASURES

    @property
    def options(self) -> TrackDataOptions:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.windows_per_step // self.options.windows_per_batch

    def model(self) -> PreTrainedModel:
        """A model of the recipe's form; see `new_model`."""
        model = self.new_model("form", FORMS)
        is_new = self.recipe.train.initial_model is None
        if is_new and isinstance(model, VanillaForQuantizedTrajectoryPrediction):
            count = min(len(self.tracks.train), CODEBOOK_WINDOWS)
            rows = np.linspace(0, len(self.tracks.train) - 1, count).astype(np.int64)
            model.fit_codebook(**model_inputs(self.tracks.train, rows))
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of the windows."""
        return track_facts(self.tracks)

    def order(self, per_step: int) -> WindowOrder:
        """Cut the windows of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = micro_batch_size("windows_per_step", self.options.windows_per_step, per_step)
        return WindowOrder(len(self.tracks.train), size, self.recipe.train.seed, per_step)

    def batch(self, rows: WindowRows, generator: torch.Generator) -> Batch:
        """Windows as the model's inputs, changed at random."""
        inputs = model_inputs(self.tracks.train, rows.rows)
        change = random_changes(self.options, len(rows.rows), generator)  # (B, 2, 2)
        for name in ("past_values", "future_values"):
            inputs[name] = inputs[name] @ change
        if self.options.position_noise:
            shape = inputs["past_values"].shape
            inputs["past_values"] += position_errors(self.options, shape, generator)
        start = self.options.winner_temperature
        if start and self.options.form in ("modes", "density"):
            done = rows.step / (TEMPERATURE_ENDS * self.recipe.train.max_steps)
            inputs["winner_temperature"] = torch.tensor(start * max(0.0, 1 - done))
        return inputs

    def counts(self, batch: Batch) -> Sequence[int]:
        """Observed future steps."""
        return [int(batch["future_observed_mask"].sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Loss per observed future step of the optimizer step."""
        return {"loss": model(**batch, num_items_in_batch=totals[0].clamp(min=1)).loss}

    def work(self, config: VanillaTracksConfig, batch: Batch) -> Work:
        """Windows and their observed and future steps."""
        steps = int(batch["past_observed_mask"].sum() + batch["future_observed_mask"].sum())
        size = batch["past_observed_mask"].numel() + batch["future_observed_mask"].numel()
        return Work(len(batch["past_values"]), steps, size)

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest and of the top-scored track over all validation windows."""
        windows = self.validation
        config = model.config
        share = np.arange(accelerator.process_index, len(windows), accelerator.num_processes)
        modes = 1 if self.options.form == "one" else config.num_modes
        has_spreads = self.options.form == "density"
        sums = TrackSums(modes, largest_step=config.largest_step, has_spreads=has_spreads)
        for first in range(0, len(share), self.options.windows_per_batch):
            rows = share[first : first + self.options.windows_per_batch]
            add_windows(sums, model, windows, rows, accelerator.device)
        means = sums.means(sum_over_processes(accelerator, sums.sums))
        values = {
            "min_ade": means[f"minADE{modes}"],
            "min_fde": means[f"minFDE{modes}"],
            "ade": means["minADE1"],
            "fde": means["minFDE1"],
            **({"single_ade": means["single_ADE"]} if modes > 1 else {}),  # only logged
        }
        return self.validated(values, means)


class WindowDataset(Dataset):
    """Windows as rows for transformers' Trainer.

    Args:
        windows: cut from a table.
        mirror: probability of a mirror image.
    """

    def __init__(self, windows: Windows, mirror: float = 0.0) -> None:
        self.windows, self.mirror = windows, mirror

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """`past_values` `(T, 2)`, `future_values` `(P, 2)` and their masks."""
        batch = model_inputs(self.windows, np.array([row]))
        inputs = {name: rows[0] for name, rows in batch.items()}
        if self.mirror and torch.rand(()) < self.mirror:
            for name in ("past_values", "future_values"):
                inputs[name] = inputs[name] * torch.tensor([1.0, -1.0])
        return inputs


def model_inputs(windows: Windows, rows: np.ndarray) -> Batch:
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


@torch.no_grad()
def add_windows(
    sums: TrackSums,
    model: Any,
    windows: Windows,
    rows: np.ndarray,
    device: torch.device,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Predict some windows and add them to the sums.

    Args:
        sums: to add to.
        model: a forecaster; of a joint one, `rows` are all windows of their scenes.
        windows: cut from a table.
        rows: `(B,)` numbers of windows.
        device: of the model.
        **kwargs: passed to a joint forecaster.

    Returns:
        `(B, M, P, 2)` tracks relative to the last observed positions, `(B, M)` scores of the modes.
    """
    inputs = model_inputs(windows, rows)
    past, is_observed = inputs["past_values"], inputs["past_observed_mask"]
    with torch.random.fork_rng():  # samples do not depend on what was drawn before
        torch.manual_seed(SAMPLING_SEED + int(rows[0]))
        if reads_scene(model.config):
            last = windows.scenes.positions[windows.last_rows[rows]]
            maps = windows.scenes.maps_of(windows.last_rows[rows])
            groups = windows[rows].groups
            outputs = joint_forecast(model, past, is_observed, last, groups, maps, **kwargs)
            spreads = None
        else:
            outputs = model(past.to(device), past_observed_mask=is_observed.to(device))
            spreads = outputs.spreads
    tracks, logits = outputs.trajectories.float().cpu(), outputs.mode_logits.float().cpu()
    spreads = None if spreads is None else spreads.float().cpu()
    sums.add(
        tracks, logits, inputs["future_values"], inputs["future_observed_mask"], spreads=spreads
    )
    return tracks, logits


def add_scenes(
    sums: TrackSums,
    together: JointSums,
    model: Any,
    windows: Windows,
    rows: np.ndarray,
    **kwargs: Any,
) -> Tensor:
    """Predict all windows of some scenes and add them to both sums.

    Args:
        sums: scores of single agents.
        together: scores of scenes.
        model: a forecaster.
        windows: cut from a table.
        rows: `(B,)` numbers of windows, all those of their scenes.
        **kwargs: passed to a joint forecaster, such as `samples_at_once`.

    Returns:
        `(B, P, 2)` float64 top-scored tracks in the world.
    """
    device = next(model.parameters(), torch.empty(0)).device
    tracks, logits = add_windows(sums, model, windows, rows, device, **kwargs)
    positions, is_known, origin = windows.positions(rows)
    in_world = tracks.double() + torch.from_numpy(origin)[:, None, None]
    future = torch.from_numpy(positions[:, windows.observed :] + origin[:, None])
    known = torch.from_numpy(is_known[:, windows.observed :])
    together.add(in_world, future, known, windows[rows].groups)
    return in_world[torch.arange(len(rows)), logits.argmax(1)]
