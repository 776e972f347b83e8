"""The models of the page of translation, by the names that visitors give."""

import os
from collections import OrderedDict
from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.search_vanilla_ensemble import Ensemble

from .loading import check_same_vocabulary, load_translator
from .page_input import one_line

PLUS = " + "  # between the names of an ensemble
MAX_MODELS = 4  # of an ensemble


@dataclass(frozen=True)
class NamedModel:
    """What a name stands for.

    Attributes:
        name: folder or Hub id; of an ensemble, of the first model.
        model: in evaluation mode; of an ensemble, the first.
        tokenizer: of the model.
        ensemble: the further models; None: there are none.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ensemble: Ensemble | None = None


class ModelCache:
    """Models by name, loaded at first use. Not for several threads at once.

    Args:
        size: the least recently used model is dropped above it, but none of the ensemble in use.
        dtype: numbers of the models, as for `Translator`.
    """

    def __init__(self, size: int, dtype: str | None) -> None:
        self._size, self._dtype = size, dtype
        self._models: OrderedDict[str, NamedModel] = OrderedDict()

    def load(self, name: str) -> NamedModel:
        """The model of a folder or Hub id, or the ensemble of several, as `names_in` reads them.

        Raises:
            ValueError: no model is named, one cannot be used, or these are no ensemble.
        """
        names = names_in(name)
        if len(names) > MAX_MODELS:
            raise ValueError(
                f"{len(names)} models are named; the limit is {MAX_MODELS}: name fewer."
            )
        first, *others = [self._one(part, len(names)) for part in names]
        if not others:
            return first
        for part, other in zip(names[1:], others, strict=True):
            check_same_vocabulary(names[0], first.tokenizer, part, other.tokenizer)
        models = [first.model, *(other.model for other in others)]
        for part, model in zip(names, models, strict=True):
            if not isinstance(model, VanillaForConditionalGeneration):
                raise ValueError(f"{part} is no model of this package: use it alone.")
        ensemble = Ensemble(models[1:])
        ensemble.check(models[0])
        return replace(first, ensemble=ensemble)

    def _one(self, name: str, kept: int) -> NamedModel:
        if not name:
            raise ValueError("No model is named: give a model folder or a Hub id.")
        if name not in self._models:
            try:
                self._models[name] = NamedModel(name, *load_translator(name, dtype=self._dtype))
            except Exception as error:  # of any kind: the files may be anyone's
                raise ValueError(f"This model cannot be used. {one_line(error)}") from error
        self._models.move_to_end(name)
        while len(self._models) > max(self._size, kept):
            self._models.popitem(last=False)
        return self._models[name]


def names_in(name: str) -> list[str]:
    """The names of an ensemble, written `A + B`; of a single model, its own."""
    is_folder = os.path.isdir(name)  # unlike pathlib, False for a name that cannot be one
    return [name] if is_folder else [part.strip() for part in name.split(PLUS)]
