"""Trajectory forecasting as a task of the training engine, and what all its tasks share.

Shapes: B windows, T observed steps, P predicted steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

import hf_vanilla
from hf_vanilla.data.batching import RowOrder
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.training.processes import sum_over_processes, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import (
    Batch,
    Validation,
    Work,
    data_fingerprint,
    micro_batch_size,
)

from .card import track_card
from .data import TrackData, position_errors, prepare_tracks, random_changes
from .forecaster import class_name, new_forecaster
from .layout import model_inputs
from .protocol import Protocol, TrackScores
from .scores import TrackSums, add_windows
from .windows import Windows

TEMPERATURE_ENDS = 2 / 3  # of the run
CODEBOOK_WINDOWS = 20_000  # at most, from the first to the last


@dataclass(frozen=True)
class TrackTask:
    """Base class of the tasks of forecasting; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        tracks: training and validation windows with their statistics.
    """

    recipe: Recipe
    tracks: TrackData
    form_option: ClassVar[str] = "form"
    shown_count: ClassVar[str] = ""
    has_few_shapes: ClassVar[bool] = False

    @property
    def options(self) -> Any:
        """The recipe's data options."""
        return self.recipe.data

    @property
    def form(self) -> str:
        """The form of the model, a name of the task's row."""
        return getattr(self.options, self.form_option)

    @property
    def has_validation(self) -> bool:
        """Whether there are validation windows."""
        return self.tracks.validation is not None

    @property
    def validation(self) -> Windows:
        """The validation windows, for a task with `has_validation`."""
        assert self.tracks.validation is not None
        return self.tracks.validation

    def model(self) -> PreTrainedModel:
        """A model of the recipe's form: a new one, or the initial model.

        Raises:
            ValueError: the initial model is of another form.
        """
        recipe, entry, start = self.recipe, self.recipe.entry, self.recipe.train.initial_model
        measured = self.tracks.measured
        if start is not None:  # rate, unit and scale are its own
            largest_step = max(recipe.config().largest_step, measured["largest_step"])
            measured = {name: value for name, value in measured.items() if name == "reads_lanes"}
            measured["largest_step"] = largest_step
        measured = {name: value for name, value in measured.items() if name in entry.set_by_data}
        config = recipe.config(**measured, **entry.form_fields.get(self.form, {}))
        config.architectures = [entry.forms[self.form]]
        if start is None:
            model = new_forecaster(config)
            self.fit(model)
            return model
        started = load_saved(type(config), start)
        saved = class_name(started)
        if (form := entry.form_of(started, saved)) != self.form:
            raise ValueError(
                f"initial_model={start!r} holds {saved}: set {self.form_option} to {form}"
            )
        return load_model(getattr(hf_vanilla, saved), start, config=config, dtype="float32")

    def fit(self, model: Any) -> None:
        """Set what a form takes from the training windows before training; here nothing."""

    def facts(self) -> dict[str, str]:
        """Fingerprints of the windows."""
        parts = {"training": self.tracks.train, "validation": self.tracks.validation}
        return {
            f"{part} tracks": data_fingerprint(len(w), w.table.positions, w.grid[w.first])
            for part, w in parts.items()
            if w is not None
        }

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

    def work(self, config: Any, batch: Batch) -> Work:
        """Windows or agents, and their observed and future steps, known ones and with padding."""
        masks = (batch["past_observed_mask"], batch["future_observed_mask"])
        known, size = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
        items = int(batch["agent_mask"].sum()) if "agent_mask" in batch else len(masks[0])
        return Work(items, known, size)

    def validated(self, means: dict[str, float], modes: int, **others: float) -> Validation:
        """Values to log, and all scores with their protocol.

        Args:
            means: scores over all validation windows.
            modes: of the model.
            **others: further values by the names of the task's measures.
        """
        values = {"min_ade": means[f"minADE{modes}"], "min_fde": means[f"minFDE{modes}"]}
        values |= others or {"ade": means["minADE1"], "fde": means["minFDE1"]}
        windows, options = self.validation, self.options
        data = "validation part"
        if options.left_out and options.validation is None:
            data = f"ETH/UCY without {options.test_scene}, validation cut"
        known = {"allow_missing": options.allow_missing, "seed": str(self.recipe.train.seed)}
        protocol = Protocol.of(windows, data, **known)
        return Validation(values, TrackScores(means, protocol))

    def save(self, folder: Path) -> None:
        """Nothing is needed beside config and weights."""

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        return f"{len(self.tracks.train):,} windows"

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with data, protocol and scores."""
        options = self.options
        tracks = self.tracks.train.table.describe() + options.left_out
        training = f"{tracks}; {self.describe_training()}\n\n{facts['training']}"
        return track_card(
            **{**facts, "training": training},
            dataset=Path(options.dataset).name,
            scores=None if validation is None else validation.details,
        )


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
        rows = RowOrder(self.windows, self.size, self.seed)[number]
        return WindowRows(np.array(rows), number // self.per_step)

    def describe(self) -> str:
        """The size in words."""
        return f"{self.size:,} windows"


@dataclass(frozen=True)
class TrajectoryTask(TrackTask):
    """A prepared run of trajectory forecasting."""

    items: ClassVar[str] = "windows"
    counted: ClassVar[tuple[str, ...]] = ("future_steps",)
    has_few_shapes: ClassVar[bool] = True

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.windows_per_step // self.options.windows_per_batch

    def fit(self, model: Any) -> None:
        """Set the codebook of the form with codes."""
        if hasattr(model, "fit_codebook"):
            count = min(len(self.tracks.train), CODEBOOK_WINDOWS)
            rows = np.linspace(0, len(self.tracks.train) - 1, count).astype(np.int64)
            model.fit_codebook(**model_inputs(self.tracks.train, rows))

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
        if start and self.form in ("modes", "density"):
            done = rows.step / (TEMPERATURE_ENDS * self.recipe.train.max_steps)
            inputs["winner_temperature"] = torch.tensor(start * max(0.0, 1 - done))
        return inputs

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest and of the top-scored track over all validation windows."""
        windows, config = self.validation, model.config
        share = np.arange(accelerator.process_index, len(windows), accelerator.num_processes)
        modes = 1 if self.form in ("one", "tf_paper") else config.num_modes
        has_spreads = self.form == "density"
        sums = TrackSums(modes, largest_step=config.largest_step, has_spreads=has_spreads)
        size = self.options.windows_per_batch
        for first in validation_bar(accelerator, range(0, len(share), size)):
            add_windows(sums, model, windows, share[first : first + size])
        means = sums.means(sum_over_processes(accelerator, sums.sums))
        single = {"single_ade": means["single_ADE"]} if modes > 1 else {}  # only logged
        return self.validated(means, modes, ade=means["minADE1"], fde=means["minFDE1"], **single)


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
