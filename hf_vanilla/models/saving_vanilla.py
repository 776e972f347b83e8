# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The model families: their Auto classes, and the code that is saved beside their weights."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import is_vision_available


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family. Classes are named `module.Class`, with a module of this folder.

    Attributes:
        config: the config class.
        models: name of an Auto class -> model class, or several, of which the config's
            `architectures` choose and the first is the default.
        processors: what goes with the model: name of an Auto class and the keyword of its
            `register`, with the class or classes. The last one of an Auto class is the default.
            A name that starts with `transformers.` is a class of transformers.
        with_code: processor class -> Auto class, for those whose code is saved beside the weights.
        pipelines: name of a pipeline -> its class and the Auto class of its model.
    """

    config: str
    models: Mapping[str, str | tuple[str, ...]]
    processors: tuple[tuple[str, str, Any], ...] = ()
    with_code: Mapping[str, str] = field(default_factory=dict)
    pipelines: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def class_names(self, auto_class: str) -> tuple[str, ...]:
        """Names of the model classes that belong to an Auto class."""
        names = self.models[auto_class]
        return names if isinstance(names, tuple) else (names,)


FAMILIES = {
    "vanilla": Family(
        config="configuration_vanilla.VanillaConfig",
        models={
            "AutoModel": "modeling_vanilla.VanillaModel",
            "AutoModelForSeq2SeqLM": "modeling_vanilla.VanillaForConditionalGeneration",
            "AutoModelForCausalLM": "modeling_vanilla_decoder.VanillaForCausalLM",
            "AutoModelForTextEncoding": "modeling_vanilla_encoder.VanillaEncoderModel",
            "AutoModelForSequenceClassification": (
                "modeling_vanilla_encoder.VanillaForSequenceClassification"
            ),
        },
        processors=(
            (
                "AutoTokenizer",
                "tokenizer_class",
                "tokenization_vanilla_fairseq.VanillaFairseqTokenizer",
            ),
            ("AutoTokenizer", "fast_tokenizer_class", "tokenization_vanilla.VanillaTokenizer"),
        ),
        with_code={"tokenization_vanilla_fairseq.VanillaFairseqTokenizer": "AutoTokenizer"},
        # transformers 5 refuses the name "translation"
        pipelines={
            "vanilla-translation": (
                "pipeline_vanilla.VanillaTranslationPipeline",
                "AutoModelForSeq2SeqLM",
            )
        },
    ),
    "vanilla_agentformer": Family(
        config="configuration_vanilla_agentformer.VanillaAgentFormerConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_agentformer.VanillaForJointTrajectoryPrediction",
                "modeling_vanilla_agentformer_dlow.VanillaForDiverseTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_detr": Family(
        config="configuration_vanilla_detr.VanillaDetrConfig",
        models={
            "AutoModel": "modeling_vanilla_detr.VanillaDetrModel",
            "AutoModelForObjectDetection": "modeling_vanilla_detr.VanillaForObjectDetection",
        },
        processors=(
            (
                "AutoImageProcessor",
                "image_processor_classes",
                {"pil": "transformers.DetrImageProcessorPil"},
            ),
        ),
    ),
    "vanilla_scene": Family(
        config="configuration_vanilla_scene.VanillaSceneConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_scene.VanillaForSceneTrajectoryPrediction",
                "modeling_vanilla_scene_proposals.VanillaForProposalTrajectoryPrediction",
                "modeling_vanilla_scene_neighbors.VanillaForNeighborTrajectoryPrediction",
                "modeling_vanilla_scene_gated.VanillaForGatedTrajectoryPrediction",
                "modeling_vanilla_scene_vectors.VanillaForVectorTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_tracks": Family(
        config="configuration_vanilla_tracks.VanillaTracksConfig",
        models={
            "AutoModelForTimeSeriesPrediction": (
                "modeling_vanilla_tracks_modes.VanillaForMultimodalTrajectoryPrediction",
                "modeling_vanilla_tracks.VanillaForTrajectoryPrediction",
                "modeling_vanilla_tracks_spread.VanillaForTrajectoryDensityPrediction",
                "modeling_vanilla_tracks_codes.VanillaForQuantizedTrajectoryPrediction",
            ),
        },
    ),
    "vanilla_vit": Family(
        config="configuration_vanilla_vit.VanillaVitConfig",
        models={
            "AutoModel": "modeling_vanilla_vit.VanillaVitModel",
            "AutoModelForImageClassification": "modeling_vanilla_vit.VanillaForImageClassification",
        },
        processors=(
            (
                "AutoImageProcessor",
                "image_processor_classes",
                {"pil": "transformers.ViTImageProcessorPil"},
            ),
        ),
    ),
}


def register_families() -> None:
    """Make transformers' Auto classes and `pipeline()` find the classes of all families."""
    for model_type, family in FAMILIES.items():
        config = _load(family.config)
        transformers.AutoConfig.register(model_type, config, exist_ok=True)
        for auto_class, model in family.models.items():
            getattr(transformers, auto_class).register(config, _load(model), exist_ok=True)
        for auto_class, keyword, processor in family.processors:
            # without Pillow, transformers has no image processors, and text needs none
            if auto_class != "AutoImageProcessor" or is_vision_available():
                chosen = {keyword: _load(processor)}
                getattr(transformers, auto_class).register(config, **chosen, exist_ok=True)
        for name, (pipeline, auto_class) in family.pipelines.items():
            auto_model = getattr(transformers, auto_class)
            PIPELINE_REGISTRY.register_pipeline(
                name, _load(pipeline), pt_model=auto_model, type="text"
            )


def _load(name: Any) -> Any:
    """The class of that name; for a mapping or tuple of names, a mapping or tuple of classes."""
    if isinstance(name, tuple):
        return tuple(_load(part) for part in name)
    if isinstance(name, Mapping):
        return {key: _load(value) for key, value in name.items()}
    module, class_name = name.rsplit(".", 1)
    home = module if module == "transformers" else f"{__package__}.{module}"
    return getattr(importlib.import_module(home), class_name)


@contextmanager
def code_beside_weights(model: PreTrainedModel, processor: Any = None) -> Iterator[None]:
    """Within this context, saving or pushing writes the source files of the classes too.

    Such a folder loads with `trust_remote_code=True` where this package is not installed, and its
    pipelines too. transformers keeps the setting on the classes, so it is restored afterwards.

    Args:
        model: of one of the families; any other model is saved as without this context.
        processor: its tokenizer or image processor, if that is saved too.
    """
    family = FAMILIES.get(getattr(model.config, "model_type", ""))
    # by name: where the code came with the weights, not every file of this folder is there
    if family is None or _short_name(type(model.config)) != family.config:
        yield
        return
    auto_classes: dict[Any, str] = {type(model.config): "AutoConfig"}
    name = _short_name(type(model))
    auto_classes |= {
        type(model): auto for auto in family.models if name in family.class_names(auto)
    }
    name = _short_name(type(processor))
    if name in family.with_code:
        auto_classes[type(processor)] = family.with_code[name]
    before = {kind: kind._auto_class for kind in auto_classes}
    for kind, auto_class in auto_classes.items():
        kind.register_for_auto_class(auto_class)
    # transformers itself adds only the class that is saved
    if "AutoModel" in family.models:
        model.config.auto_map = {"AutoModel": family.models["AutoModel"]}
    try:
        yield
    finally:
        for kind, auto_class in before.items():
            kind._auto_class = auto_class
        if before[type(model.config)] is None:
            model.config.forget_code()


def _short_name(kind: type) -> str:
    return f"{kind.__module__.rsplit('.', 1)[-1]}.{kind.__name__}"
