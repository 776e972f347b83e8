"""The trained model from which a translation run starts."""

import copy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.training.initial_model import OF_TRAINING, check_section
from hf_vanilla.training.recipe import Recipe

from .loading import load_translator
from .options import changed_decoding


@dataclass(frozen=True)
class InitialModel:
    """A trained model with its tokenizer.

    Attributes:
        model: on the CPU, in float32.
        tokenizer: of both languages.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def copy_for(self, recipe: Recipe) -> PreTrainedModel:
        """The model with the recipe's dropout, label smoothing and decoding."""
        config = copy.deepcopy(self.model.config)
        config.update({name: recipe.model[name] for name in OF_TRAINING & recipe.model.keys()})
        model = VanillaForConditionalGeneration(config)
        model.load_state_dict(self.model.state_dict())
        model.generation_config = changed_decoding(self.model.generation_config, recipe.decoding)
        return model


def load_initial_model(recipe: Recipe) -> InitialModel | None:
    """Load `initial_model` of a recipe; None where it names none.

    Raises:
        ValueError: it is no float model of this package, or the recipe's section `model` describes
            another one.
        OSError: there is no such model.
    """
    name = recipe.train.initial_model
    if name is None:
        return None
    model, tokenizer = load_translator(name, dtype="float32", device=torch.device("cpu"))
    if not isinstance(model, VanillaForConditionalGeneration):
        raise ValueError(
            f"initial_model={name!r} holds {type(model).__name__}: convert it by hf-vanilla convert"
        )
    check_section(name, model.config, recipe.model)
    return InitialModel(model, tokenizer)
