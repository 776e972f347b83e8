# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The model families: their Auto classes, and how a model is saved with its code."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import is_vision_available


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family. Classes are named `module.Class`, with a module of this folder.

    Attributes:
        config: the config class.
        models: name of an Auto class -> model class, or several, of which the config's
            `architectures` choose and the first is the default.
        tokenizers: keyword of `AutoTokenizer.register` -> class; the last one is the default.
        image_processor: class that computes with Pillow; empty: the model reads no images.

    A name that starts with `transformers.` is a class of transformers.
    """

    config: str
    models: Mapping[str, str | tuple[str, ...]]
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    image_processor: str = ""


# its code is saved beside the weights
TOKENIZER_WITH_CODE = "tokenization_vanilla.VanillaFairseqTokenizer"
FAMILIES = {
    "vanilla": Family(
        config="configuration_vanilla.VanillaConfig",
        models={
            "AutoModel": "modeling_vanilla.VanillaModel",
            "AutoModelForSeq2SeqLM": "modeling_vanilla.VanillaForConditionalGeneration",
            "AutoModelForCausalLM": "modeling_vanilla_one_sided.VanillaForCausalLM",
            "AutoModelForTextEncoding": "modeling_vanilla_one_sided.VanillaEncoderModel",
            "AutoModelForSequenceClassification": (
                "modeling_vanilla_one_sided.VanillaForSequenceClassification"
            ),
        },
        tokenizers={
            "tokenizer_class": TOKENIZER_WITH_CODE,
            "fast_tokenizer_class": "tokenization_vanilla.VanillaTokenizer",
        },
    ),
    "vanilla_agentformer": Family(
        config="configuration_vanilla_agentformer.VanillaAgentFormerConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_agentformer.VanillaForJointTrajectoryPrediction",
                "modeling_vanilla_agentformer.VanillaForDiverseTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_detr": Family(
        config="configuration_vanilla_detr.VanillaDetrConfig",
        models={
            "AutoModel": "modeling_vanilla_detr.VanillaDetrModel",
            "AutoModelForObjectDetection": "modeling_vanilla_detr.VanillaForObjectDetection",
        },
        image_processor="transformers.DetrImageProcessorPil",
    ),
    "vanilla_scene": Family(
        config="configuration_vanilla_scene.VanillaSceneConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_scene.VanillaForSceneTrajectoryPrediction",
                "modeling_vanilla_scene_proposals.VanillaForProposalTrajectoryPrediction",
                "modeling_vanilla_scene_proposals.VanillaForSocialProposalTrajectoryPrediction",
                "modeling_vanilla_scene_forms.VanillaForNeighborTrajectoryPrediction",
                "modeling_vanilla_scene_forms.VanillaForGatedTrajectoryPrediction",
                "modeling_vanilla_scene_forms.VanillaForVectorTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_tracks": Family(
        config="configuration_vanilla_tracks.VanillaTracksConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_tracks_forms.VanillaForMultimodalTrajectoryPrediction",
                "modeling_vanilla_tracks.VanillaForTrajectoryPrediction",
                "modeling_vanilla_tracks_forms.VanillaForTrajectoryDensityPrediction",
                "modeling_vanilla_tracks_forms.VanillaForQuantizedTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_vit": Family(
        config="configuration_vanilla_vit.VanillaVitConfig",
        models={
            "AutoModel": "modeling_vanilla_vit.VanillaVitModel",
            "AutoModelForImageClassification": "modeling_vanilla_vit.VanillaForImageClassification",
        },
        image_processor="transformers.ViTImageProcessorPil",
    ),
}


def register_families() -> None:
    """Make transformers' Auto classes and `pipeline()` find all families; set our own search."""
    translator = _load("modeling_vanilla.VanillaForConditionalGeneration")
    translator.own_search = _load("search_vanilla_conditions.own_search")
    for model_type, family in FAMILIES.items():
        config = _load(family.config)
        transformers.AutoConfig.register(model_type, config, exist_ok=True)
        for auto_class, model in family.models.items():
            getattr(transformers, auto_class).register(config, _load(model), exist_ok=True)
        for keyword, tokenizer in family.tokenizers.items():
            kinds = {keyword: _load(tokenizer)}
            transformers.AutoTokenizer.register(config, **kinds, exist_ok=True)
        # without Pillow, transformers has no image processors, and text needs none
        if family.image_processor and is_vision_available():
            pil = {"pil": _load(family.image_processor)}
            auto = transformers.AutoImageProcessor
            auto.register(config, image_processor_classes=pil, exist_ok=True)
    PIPELINE_REGISTRY.register_pipeline(
        "vanilla-translation",  # transformers 5 refuses the name "translation"
        _load("pipeline_vanilla.VanillaTranslationPipeline"),
        pt_model=transformers.AutoModelForSeq2SeqLM,
        type="text",
    )
    # the pipeline checks a copy of this table, which lacks what the Auto class has registered
    MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES["vanilla_detr"] = "VanillaForObjectDetection"
    # a Trainer that smooths labels shifts them for the language models of this table alone
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["vanilla"] = "VanillaForCausalLM"


def _load(name: Any) -> Any:
    """The class of that name; for a tuple of names, a tuple of classes."""
    if isinstance(name, tuple):
        return tuple(_load(part) for part in name)
    module, class_name = name.rsplit(".", 1)
    home = module if module == "transformers" else f"{__package__}.{module}"
    return getattr(importlib.import_module(home), class_name)


def save_with_code(
    model: PreTrainedModel, save_directory: str | Path, processor: Any = None
) -> None:
    """Save a model with the source files of its classes.

    Such a folder loads with `trust_remote_code=True` where this package is not installed, and its
    pipelines too. `save_pretrained` alone writes no code.

    Args:
        model: of one of the families; the files of any other model are those of `save_pretrained`.
        save_directory: folder; made if it is new.
        processor: its tokenizer or image processor, which is saved too.

    Raises:
        OSError: the folder cannot be made; transformers writes nothing then, and goes on.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hf_vanilla import VanillaConfig, VanillaModel, save_with_code
        >>> model = VanillaModel(VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1,
        ...                                    decoder_layers=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_with_code(model, folder)
        ...     (Path(folder) / "modeling_vanilla.py").is_file()
        True
    """
    Path(save_directory).mkdir(parents=True, exist_ok=True)
    auto_classes = _auto_classes(model, processor)
    # transformers keeps the setting on the classes, so it is restored afterwards
    before = {kind: kind._auto_class for kind in auto_classes}
    try:
        for kind, auto_class in auto_classes.items():
            kind.register_for_auto_class(auto_class)
        body: Any = auto_classes and FAMILIES[model.config.model_type].models.get("AutoModel")
        # transformers itself adds only the class that is saved; an encoder alone has no such file
        if body and body.partition(".")[0] == _short_name(type(model)).partition(".")[0]:
            model.config.auto_map = {"AutoModel": body}
        model.save_pretrained(save_directory)
        if processor is not None:
            processor.save_pretrained(save_directory)
    finally:
        for kind, auto_class in before.items():
            kind._auto_class = auto_class
        if before:
            model.config.forget_code()


def _auto_classes(model: PreTrainedModel, processor: Any) -> dict[Any, str]:
    """Classes whose code is saved -> their Auto classes; none for a model of no family."""
    config = type(model.config)
    family = FAMILIES.get(getattr(config, "model_type", ""))
    if family is None or config is not _load(family.config):
        return {}
    found: dict[Any, str] = {config: "AutoConfig"}
    for auto_class, names in family.models.items():
        if _short_name(type(model)) in (names if isinstance(names, tuple) else (names,)):
            found[type(model)] = auto_class
    if _short_name(type(processor)) == TOKENIZER_WITH_CODE:
        found[type(processor)] = "AutoTokenizer"
    return found


def _short_name(kind: type) -> str:
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
