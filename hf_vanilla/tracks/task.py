"""Trajectory forecasting as a task of the training engine, and what all its tasks share.

Shapes: B windows, T observed steps, P predicted steps.
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
from torch.utils.data import Dataset
from transformers import PreTrainedModel

import hf_vanilla
from hf_vanilla.data.batching import RowOrder
from hf_vanilla.hub.card import model_card
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.training.processes import sum_over_processes, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, RowTask, Validation, Work, data_fingerprint

from .built_in_tracks import BUILT_IN
from .card import CARD
from .eth_ucy import leave_one_out
from .forecaster import check_rate, class_name, new_forecaster
from .layout import model_inputs
from .options import WindowOptions, warn_unread
from .scores import Protocol, TrackScores, TrackSums, add_windows
from .table import TrackTable, resample
from .windows import Windows, cut_windows

logger = logging.getLogger(__name__)

TEMPERATURE_ENDS = 2 / 3  # of the run
CODEBOOK_WINDOWS = 20_000  # at most, from the first to the last


def prepare_tracks(recipe: Recipe) -> tuple[Windows, Windows | None, dict[str, Any]]:
    """Windows to train on and to validate on, and what is measured; see `TrackTask`.

    Raises:
        ValueError: the tracks do not match the recipe, or no window fits.
        OSError: a file cannot be read.
    """
    options: WindowOptions = recipe.data
    warn_unread(getattr(options, "form", ""), recipe.model)
    config = recipe.config()
    tables = training_and_validation(options)
    is_new = recipe.train.initial_model is None
    for table, source in zip(tables, (options.dataset, "validation"), strict=True):
        if table is not None:
            check_rate(table, tables[0] if is_new else config, source)

    how: dict[str, Any] = {
        "observed": config.observed_steps,
        "predicted": config.predicted_steps,
        "allow_missing": options.allow_missing,
        "by_scene": "others" in recipe.entry.reads,
    }
    train = cut_windows(tables[0], stride=options.stride, **how)
    if not len(train):
        shorter = "lower model.observed_steps or model.predicted_steps" if is_new else "give others"
        steps, missing = f"{config.observed_steps} + {config.predicted_steps} steps", ""
        if not options.allow_missing:
            steps, missing = f"{steps} without a gap", ", or set allow_missing"
        raise ValueError(f"{options.dataset} has no agent with {steps}: {shorter}{missing}")
    validation = None if tables[1] is None else cut_windows(tables[1], **how)
    if validation is not None and not len(validation):
        raise ValueError(
            "the validation tracks have no window: give other ones by --validation, more by "
            "--validation_share, or none by --validation_share 0"
        )
    described = tables[0].describe() + options.left_out
    logger.info("training: %s; %s windows", described, f"{len(train):,}")
    logger.info("validation: %s windows", f"{0 if validation is None else len(validation):,}")
    return train, validation, measured_fields(tables[0])


def measured_fields(table: TrackTable) -> dict[str, Any]:
    """Fields of a new model's config that follow from training tracks; see `TrackTask`.

    Raises:
        ValueError: no agent has positions in two steps that follow each other.
    """
    lengths = table.displacements
    if not len(lengths):
        raise ValueError(
            f"no two positions of an agent are one step of {table.step_seconds:g} s apart: give "
            "another step_seconds"
        )
    moves = np.diff(table.positions, axis=0)[table.steps == 1]
    return {
        "step_seconds": table.step_seconds,
        "unit": table.unit,
        "velocity_std": float(np.sqrt(np.mean(lengths**2) / 2)) or 1.0,
        "velocity_mean": moves.mean(axis=0).tolist(),
        "velocity_deviation": [value or 1.0 for value in moves.std(axis=0).tolist()],
        "largest_step": float(lengths.max(initial=0)),
    }


def training_and_validation(options: WindowOptions) -> tuple[TrackTable, TrackTable | None]:
    """The tables to train and to validate on.

    Raises:
        ValueError: a file does not match the options.
        OSError: a file cannot be read.
    """
    chosen = None if options.validation is None else options.read(options.validation, seed=1)
    if options.left_out:
        options.warn_of_file_options(options.test_scene)
        split = leave_one_out(options.dataset, options.test_scene)
        if chosen is None and options.validation_share:
            chosen = resample(split.validation, options.step_seconds)
        return resample(split.train, options.step_seconds), chosen
    train = options.read(options.dataset)
    if chosen is None and options.validation_share and options.dataset in BUILT_IN:
        chosen = options.read(options.dataset, seed=1)
    if chosen is not None:
        return train, chosen
    is_held_out = options.held_out(train)
    if not is_held_out.any():
        if options.validation_share:
            logger.warning(
                "no validation: validation_share=%s of %d agents is less than one; give a larger "
                "share, or other tracks by --validation",
                options.validation_share,
                len(np.unique(train.agent)),
            )
        return train, None
    return train.rows(~is_held_out), train.rows(is_held_out)


def random_changes(options: WindowOptions, count: int, generator: torch.Generator) -> Tensor:
    """Matrices `(count, 2, 2)` that mirror, scale and turn, each at random."""
    mirror, speed, angle = torch.rand(3, count, generator=generator)
    change = torch.eye(2).repeat(count, 1, 1)
    change[:, 1, 1] = torch.where(mirror < options.mirror, -1.0, 1.0)
    # as often by a factor as by its inverse
    change *= ((1 + options.speed_change) ** (2 * speed - 1)).view(-1, 1, 1)
    if options.rotate:
        turn = 2 * torch.pi * angle
        rows = torch.stack((turn.cos(), turn.sin(), -turn.sin(), turn.cos()), -1)
        change = change @ rows.view(-1, 2, 2)
    return change


def add_errors(past: Tensor, options: WindowOptions, generator: torch.Generator) -> None:
    """Change observed positions `(B, T, 2)` by errors, as large for all positions of a window.

    Recordings differ in their noise; a model that has seen several averages over as many steps as
    the noise of a track asks for.
    """
    if options.position_noise:
        share, level = torch.rand(2, len(past), 1, 1, generator=generator)
        level = level * options.position_noise * (share < options.noise_share)
        past += level * torch.randn(*past.shape, generator=generator)


@dataclass(frozen=True)
class TrackTask(RowTask):
    """Base class of the tasks of forecasting; see `hf_vanilla.training.task.Task`.

    Attributes:
        train: windows to train on.
        validation: windows to validate on; None where there are none.
        measured: fields of a new model's config, by name: rate and unit of the training tracks;
            `velocity_std`, the root of the mean square of a component of their displacements;
            `largest_step`, the farthest one; mean and standard deviations in x and y;
            `reads_lanes` of a run without lanes.
    """

    train: Windows
    validation: Any  # Windows or None
    measured: dict[str, Any]
    form_option: ClassVar[str] = "form"
    counted_mask: ClassVar[str] = "future_observed_mask"
    parts: ClassVar[tuple[str, ...]] = ()  # of the loss, for the log

    @property
    def form(self) -> str:
        """The form of the model, a name of the task's row."""
        return getattr(self.options, self.form_option)

    def model(self) -> PreTrainedModel:
        """A model of the recipe's form: a new one, or the initial model.

        Raises:
            ValueError: the initial model is of another form.
        """
        recipe, entry, start = self.recipe, self.recipe.entry, self.recipe.train.initial_model
        measured = self.measured
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
        parts = {"training": self.train, "validation": self.validation}
        return {
            f"{part} tracks": data_fingerprint(len(w), w.table.positions, w.first_rows)
            for part, w in parts.items()
            if w is not None
        }

    def counts(self, batch: Batch) -> Sequence[int]:
        """How often `counted_mask` is set: known future steps, or agents."""
        return [int(batch[self.counted_mask].sum())]

    def losses(
        self, model: nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Loss per item counted in the optimizer step, and its parts."""
        outputs = model(**batch, num_items_in_batch=totals[0].clamp(min=1))
        names = ("loss", *self.parts) if is_logged else ("loss",)
        values = {name: getattr(outputs, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

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
        options = self.options
        data = "validation part"
        if options.left_out and options.validation is None:
            data = f"ETH/UCY without {options.test_scene}, validation cut"
        known = {"allow_missing": options.allow_missing, "seed": str(self.recipe.train.seed)}
        protocol = Protocol(windows=self.validation, data=data, **known)
        return Validation(values | others, TrackScores(means, protocol))

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        return f"{len(self.train):,} windows"

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with data, protocol and scores."""
        options = self.options
        tracks = self.train.table.describe() + options.left_out
        training = f"{tracks}; {self.describe_training()}\n\n{facts['training']}"
        facts = {**facts, "training": training, "dataset": Path(options.dataset).name}
        if validation is not None:
            lines = str(validation.details).splitlines()
            facts["scores"] = "\n".join(f"- {line}" for line in lines)
        return model_card(replace(CARD, **facts))


def prepare(recipe: Recipe) -> "TrajectoryTask":
    """Read the tracks of a recipe and measure them.

    Raises:
        ValueError: the tracks do not match the recipe.
        OSError: a file cannot be read.
    """
    return TrajectoryTask(recipe, *prepare_tracks(recipe))


@dataclass(frozen=True)
class WindowOrder(RowOrder):
    """Micro-batches of windows, each with the number of its optimizer step.

    Attributes:
        per_step: micro-batches of a step.
    """

    per_step: int = 1

    def __getitem__(self, number: int) -> Any:
        """Windows `(B,)` of micro-batch `number` of the run, and its optimizer step from 0."""
        return np.array(super().__getitem__(number)), number // self.per_step


@dataclass(frozen=True)
class TrajectoryTask(TrackTask):
    """A prepared run of trajectory forecasting."""

    items: ClassVar[str] = "windows"
    counted: ClassVar[tuple[str, ...]] = ("future_steps",)
    has_few_shapes = True

    def fit(self, model: Any) -> None:
        """Set the codebook of the form with codes."""
        if hasattr(model, "fit_codebook"):
            count = min(len(self.train), CODEBOOK_WINDOWS)
            rows = np.linspace(0, len(self.train) - 1, count).astype(np.int64)
            model.fit_codebook(**model_inputs(self.train, rows))

    def order(self, per_step: int) -> WindowOrder:
        """Cut the windows of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: they cannot be cut so.
        """
        size = self.micro_batch_size(per_step)
        seed = self.recipe.train.seed
        return WindowOrder(len(self.train), size, seed, per_step)

    def batch(self, rows: tuple[np.ndarray, int], generator: torch.Generator) -> Batch:
        """Windows as the model's inputs, changed at random."""
        windows, step = rows
        inputs = model_inputs(self.train, windows)
        change = random_changes(self.options, len(windows), generator)  # (B, 2, 2)
        for name in ("past_values", "future_values"):
            inputs[name] = inputs[name] @ change
        add_errors(inputs["past_values"], self.options, generator)
        start = self.options.winner_temperature
        if start and self.form in ("modes", "density"):
            done = step / (TEMPERATURE_ENDS * self.recipe.train.max_steps)
            inputs["winner_temperature"] = torch.tensor(start * max(0.0, 1 - done))
        return inputs

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Errors of the closest and of the top-scored track over all validation windows."""
        windows = self.validation
        share = np.arange(accelerator.process_index, len(windows), accelerator.num_processes)
        sums = TrackSums.of(model)
        size = self.options.windows_per_batch
        for first in validation_bar(accelerator, range(0, len(share), size)):
            add_windows(sums, model, windows, share[first : first + size])
        means = sums.means(sum_over_processes(accelerator, sums.sums))
        modes = sums.modes
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
