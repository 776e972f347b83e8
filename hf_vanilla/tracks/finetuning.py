"""Fine-tune a trajectory forecaster on a table of positions, by transformers' Trainer."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hf_vanilla.loading import task_of_model
from hf_vanilla.options import option
from hf_vanilla.training.task import RunFacts

from .card import track_card
from .evaluation import EvaluateTracksOptions, score_windows
from .file_options import TrackFileOptions
from .forecaster import check_rate
from .layout import reads_scene
from .loading import load_forecaster
from .scores import Protocol, TrackScores
from .simple_models import SIMPLE_MODELS
from .single_task import model_inputs
from .table import Scenes
from .windows import Windows, cut_windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuneTracksOptions(TrackFileOptions):  # the files' options, flat on the command line
    """Which forecaster to fine-tune on which tracks; `TrainingArguments` say how."""

    _argument_group_name = "tracks and model"

    model: str = option(text="model folder or Hub id to start from")
    dataset: str = option(
        text="file or folder of tracks, or built-in ones: walkers, forks, junctions"
    )
    validation: str | None = option(None, "tracks to validate on, likewise; default: none")
    stride: int = option(1, "steps from one training window to the next", at_least=1)
    allow_missing: bool = option(
        default=False, text="mask missing steps instead of leaving out windows that have some"
    )
    mirror: float = option(0.5, "probability of a mirror image", at_least=0, at_most=1)
    model_license: str | None = option(None, "licence of the weights, for the model card")


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


def finetune_tracks(options: FinetuneTracksOptions, arguments: TrainingArguments) -> Path:
    """Train a forecaster further on other tracks; returns the model folder.

    The model keeps its rate, unit and standard deviation of velocities.

    Raises:
        ValueError: the tracks do not fit the model, or no window fits.
        OSError: nothing is found under a name, or the folder cannot be written.
    """
    if options.model in SIMPLE_MODELS:
        raise ValueError(f"{options.model} has no weights: give a model folder")
    model = load_forecaster(options.model, device="cpu").float()
    if reads_scene(model.config):
        raise ValueError(
            f"{options.model} forecasts whole scenes, and finetune trains forecasters of single "
            f"agents: use hf-vanilla train --task {task_of_model(options.model)}"
        )
    train = _windows(options, options.dataset, model.config, seed=0)
    validation = None
    if options.validation is not None:
        validation = _windows(options, options.validation, model.config, seed=1)
    arguments.remove_unused_columns = False
    arguments.label_names = ["future_values"]
    trainer = Trainer(
        model,
        arguments,
        train_dataset=WindowDataset(train, options.mirror),
        eval_dataset=None if validation is None else WindowDataset(validation),
    )
    trainer.train()
    folder = Path(arguments.output_dir)
    if trainer.is_world_process_zero():
        model.config.largest_step = max(
            float(model.config.largest_step), float(train.scenes.displacements.max(initial=0))
        )
        scores = None if validation is None else _scores(model.eval(), validation, options)
        model.save_pretrained(folder)
        _card(options, trainer, train.scenes, scores).save(folder / "README.md")
        logger.info("wrote the model to %s, in float32", folder)
    return folder


def _windows(options: FinetuneTracksOptions, path: str, config: Any, *, seed: int) -> Windows:
    scenes = options.read(path, seed=seed)
    check_rate(scenes, config, path)
    windows = cut_windows(
        scenes,
        observed=config.observed_steps,
        predicted=config.predicted_steps,
        stride=options.stride if path == options.dataset else 1,
        allow_missing=options.allow_missing,
    )
    if not len(windows):
        raise ValueError(
            f"{path} has no agent with {config.observed_steps} + {config.predicted_steps} steps "
            "without a gap: set allow_missing, or give more data"
        )
    return windows


def _scores(model: Any, windows: Windows, options: FinetuneTracksOptions) -> TrackScores:
    path = str(options.validation)
    protocol = Protocol(
        data=Path(path).name,
        observed=windows.observed,
        predicted=windows.predicted,
        step_seconds=windows.scenes.step_seconds,
        unit=windows.scenes.unit,
        windows=len(windows),
    )
    asked = EvaluateTracksOptions(model=options.model, dataset=path)
    return score_windows(model, windows, protocol, asked)


def _card(
    options: FinetuneTracksOptions, trainer: Trainer, scenes: Scenes, scores: TrackScores | None
) -> Any:
    start, name = Path(options.model).name, Path(options.dataset).name
    facts = RunFacts(
        model_name=Path(trainer.args.output_dir).resolve().name,
        recipe=f"model: {start}\ndataset: {name}",
        parameters=trainer.model.num_parameters(),
        steps=trainer.state.global_step,
        counts={},
        seconds=float(trainer.state.log_history[-1].get("train_runtime", 0.0)),
        processes=trainer.args.world_size,
        device=trainer.args.device.type,
    )
    run = facts.of_card()
    run["training"] = f"{scenes.describe()}; from {start}, by Trainer\n\n{run['training']}"
    return track_card(
        **run,
        license=options.model_license,
        dataset=name,
        scores=scores,
        command="`hf-vanilla finetune`",
    )
