"""Windows of a training run: training and validation part, statistics, what a resume compares."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_vanilla.training.recipe import Recipe

from .built_in_tracks import BUILT_IN
from .eth_ucy import leave_one_out
from .forecaster import check_rate
from .options import WindowOptions
from .table import TrackTable, resample
from .windows import Windows, cut_windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackData:
    """Everything a run reads.

    Attributes:
        train: windows to train on.
        validation: windows to validate on; None where there are none.
        measured: fields of a new model's config, by name: rate and unit of the training tracks;
            `velocity_std`, the root of the mean square of a component of their displacements;
            `largest_step`, the farthest one; mean and standard deviations in x and y;
            `reads_lanes` of a run without lanes.
    """

    train: Windows
    validation: Windows | None
    measured: dict[str, Any]


def prepare_tracks(recipe: Recipe) -> TrackData:
    """Read training and validation tracks, cut windows, measure displacements.

    Raises:
        ValueError: the tracks do not match the recipe, or no window fits.
        OSError: a file cannot be read.
    """
    options: WindowOptions = recipe.data
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
    }
    by_scene = "others" in recipe.entry.reads
    train = cut_windows(tables[0], stride=options.stride, by_scene=by_scene, **how)
    if not len(train):
        shorter = "lower model.observed_steps or model.predicted_steps" if is_new else "give others"
        raise ValueError(
            f"{options.dataset} has no agent with {config.observed_steps} + "
            f"{config.predicted_steps} steps without a gap: {shorter}, or set allow_missing"
        )
    validation = None if tables[1] is None else cut_windows(tables[1], **how)
    if validation is not None and not len(validation):
        raise ValueError(
            "the validation tracks have no window: give other ones by --validation, more by "
            "--validation_share, or none by --validation_share 0"
        )
    described = tables[0].describe() + options.left_out
    logger.info("training: %s; %d windows", described, len(train))
    logger.info("validation: %s windows", 0 if validation is None else len(validation))
    return TrackData(train, validation, measured_fields(tables[0]))


def measured_fields(table: TrackTable) -> dict[str, Any]:
    """Fields of a new model's config that follow from training tracks; see `TrackData`."""
    lengths = table.displacements
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


def position_errors(
    options: WindowOptions, shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Errors of observed positions `(B, T, 2)`, as large for all positions of a window.

    Recordings differ in their noise; a model that has seen several averages over as many steps as
    the noise of a track asks for.
    """
    share, level = torch.rand(2, shape[0], 1, 1, generator=generator)
    level = level * options.position_noise * (share < options.noise_share)
    return level * torch.randn(*shape, generator=generator)
