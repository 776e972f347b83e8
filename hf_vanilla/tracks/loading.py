"""Forecasters by name: model folders, Hub ids, and models without weights."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForTimeSeriesPrediction

from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_agentformer import (
    VanillaAgentFormerPreTrainedModel,
    VanillaForJointTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_agentformer_dlow import (
    VanillaForDiverseTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_scene import (
    VanillaForSceneTrajectoryPrediction,
    VanillaScenePreTrainedModel,
)
from hf_vanilla.models.modeling_vanilla_scene_gated import VanillaForGatedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_scene_neighbors import (
    VanillaForNeighborTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_scene_proposals import (
    VanillaForProposalTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_scene_vectors import VanillaForVectorTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks import (
    VanillaForTrajectoryPrediction,
    VanillaTracksPreTrainedModel,
)
from hf_vanilla.models.modeling_vanilla_tracks_codes import VanillaForQuantizedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_modes import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_spread import VanillaForTrajectoryDensityPrediction

from .simple_models import SIMPLE_MODELS, SimpleForecaster

FORMS = {
    "modes": VanillaForMultimodalTrajectoryPrediction,
    "one": VanillaForTrajectoryPrediction,
    "density": VanillaForTrajectoryDensityPrediction,
    "quantized": VanillaForQuantizedTrajectoryPrediction,
}
SET_BY_DATA = ("step_seconds", "unit", "largest_step", "transformers_version")
STAGES = {
    "first": VanillaForJointTrajectoryPrediction,
    "second": VanillaForDiverseTrajectoryPrediction,
}
SCENE_FORMS = {
    "fusion": VanillaForSceneTrajectoryPrediction,
    "proposals": VanillaForProposalTrajectoryPrediction,
    "neighbors": VanillaForNeighborTrajectoryPrediction,
    "gate": VanillaForGatedTrajectoryPrediction,
    "vectors": VanillaForVectorTrajectoryPrediction,
}


def new_scene_forecaster(config: VanillaSceneConfig) -> VanillaScenePreTrainedModel:
    """A model with initial weights, of the class that `config.architectures` names.

    Without a name there, the form with fusions.
    """
    names = config.architectures or []
    forms = {form.__name__: form for form in SCENE_FORMS.values()}
    return next((forms[name] for name in names if name in forms), SCENE_FORMS["fusion"])(config)


def new_joint_forecaster(config: VanillaAgentFormerConfig) -> VanillaAgentFormerPreTrainedModel:
    """A model with initial weights, of the class that `config.architectures` names.

    Without a name there, the first stage.
    """
    names = config.architectures or []
    is_second = STAGES["second"].__name__ in names
    return STAGES["second" if is_second else "first"](config)


def new_forecaster(config: VanillaTracksConfig) -> VanillaTracksPreTrainedModel:
    """A model with initial weights, of the class that `config.architectures` names.

    Without a name there, the form with several modes.
    """
    names = config.architectures or []
    forms = {form.__name__: form for form in FORMS.values()}
    found = next((forms[name] for name in names if name in forms), FORMS["modes"])
    return found(config)


def load_forecaster(
    name: str, *, device: str | None = None, config: VanillaTracksConfig | None = None
) -> Any:
    """A forecaster in evaluation mode.

    Args:
        name: model folder, Hub id, or a name of `SIMPLE_MODELS`.
        device: such as cpu; None: a GPU if there is one.
        config: steps and rate of a simple model; None: the defaults.

    Raises:
        ValueError: the model is no forecaster, or damaged.
        OSError: there is no such model.
    """
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name in SIMPLE_MODELS:
        return SimpleForecaster(name, config or VanillaTracksConfig()).eval().to(place)
    kinds = (VanillaTracksConfig, VanillaAgentFormerConfig, VanillaSceneConfig)
    if not isinstance(load_saved(AutoConfig, name), kinds):
        raise ValueError(
            f"{name} is no trajectory forecaster: give a folder of task trajectories, "
            f"joint_trajectories or scene_trajectories, or one of {', '.join(SIMPLE_MODELS)}"
        )
    return load_model(AutoModelForTimeSeriesPrediction, name).to(place)


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
    fields = [key for key in config.to_diff_dict() if key in vars(model.config)]
    fields += [key for key in model.config.to_diff_dict() if key in vars(config)]
    free = (
        "map_",
        "diversity_",
        "joint_weight",
        "num_modes",
        "_",
        "architectures",
        "dtype",
        *SET_BY_DATA,
    )
    wrong = [
        f"{key} is {getattr(model.config, key)} there and {getattr(config, key)} here"
        for key in dict.fromkeys(fields)
        if not key.startswith(free) and getattr(model.config, key) != getattr(config, key)
    ]
    if wrong:
        raise ValueError(
            f"first_stage={name!r} has another config: {'; '.join(wrong)}: set the section model "
            "to the values there"
        )
    return model
