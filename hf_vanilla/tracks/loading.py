"""Forecasters by name: model folders, Hub ids, and models without weights."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForTimeSeriesPrediction

import hf_vanilla
from hf_vanilla.families import entry_of, task_entry
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_tracks import (
    VanillaForecasterConfig,
    VanillaTracksConfig,
)
from hf_vanilla.models.modeling_vanilla_agentformer import VanillaForJointTrajectoryPrediction

from .simple_models import SIMPLE_MODELS, SimpleForecaster


def new_forecaster(config: VanillaForecasterConfig) -> Any:
    """A model with initial weights, of the class that `class_name` gives."""
    return getattr(hf_vanilla, class_name(config))(config)


def class_name(config: VanillaForecasterConfig) -> str:
    """The class that `config.architectures` names; without one of its task, its first form."""
    names = [*entry_of(config).forms.values()]
    return next((name for name in config.architectures or [] if name in names), names[0])


def load_forecaster(name: str, *, device: str | None = None, **simple: Any) -> Any:
    """A forecaster in evaluation mode.

    Args:
        name: model folder, Hub id, or a name of `SIMPLE_MODELS`.
        device: such as cpu; None: a GPU if there is one.
        **simple: steps, rate and unit of a simple model, fields of `VanillaTracksConfig`.

    Raises:
        ValueError: the model is no forecaster, or damaged.
        OSError: there is no such model.
    """
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name in SIMPLE_MODELS:
        return SimpleForecaster(name, VanillaTracksConfig(**simple)).eval().to(target)
    if not isinstance(load_saved(AutoConfig, name), VanillaForecasterConfig):
        raise ValueError(
            f"{name} is no trajectory forecaster: give a folder of task trajectories, "
            f"joint_trajectories or scene_trajectories, or one of {', '.join(SIMPLE_MODELS)}"
        )
    return load_model(AutoModelForTimeSeriesPrediction, name).to(target)


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
        "map_",
        "diversity_",
        "joint_weight",
        "num_modes",
        "_",
        "architectures",
        "dtype",
        *task_entry("joint_trajectories").set_by_data,
        "transformers_version",
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
