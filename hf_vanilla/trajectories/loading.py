"""Forecasters by name: model folders, Hub ids, and models without weights."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForTimeSeriesPrediction

from hf_vanilla.models.configuration_vanilla_trajectory import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_modes import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_quantized import VanillaForQuantizedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_spread import VanillaForTrajectoryDensityPrediction
from hf_vanilla.models.modeling_vanilla_trajectory import (
    VanillaForTrajectoryPrediction,
    VanillaTracksPreTrainedModel,
)

from .simple_models import SIMPLE_MODELS, SimpleForecaster

FORMS = {
    "modes": VanillaForMultimodalTrajectoryPrediction,
    "one": VanillaForTrajectoryPrediction,
    "density": VanillaForTrajectoryDensityPrediction,
    "quantized": VanillaForQuantizedTrajectoryPrediction,
}


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
        ValueError: the model is no forecaster.
        OSError: there is no such model.
    """
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name in SIMPLE_MODELS:
        return SimpleForecaster(name, config or VanillaTracksConfig()).eval().to(place)
    if not isinstance(AutoConfig.from_pretrained(name), VanillaTracksConfig):
        raise ValueError(
            f"{name} is no trajectory forecaster: give a folder of task trajectories, or one of "
            f"{', '.join(SIMPLE_MODELS)}"
        )
    return AutoModelForTimeSeriesPrediction.from_pretrained(name).eval().to(place)
