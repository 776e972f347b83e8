"""The original Transformer of "Attention Is All You Need" as a Hugging Face model package."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

# `python -m hf_vanilla` is a command, and this file is imported before `__main__`. Torch reads the
# variables for its threads when it is imported, by the lines below.
if sys.argv[:1] == ["-m"] and "hf_vanilla" in sys.orig_argv:
    from hf_vanilla.cpus import limit_threads

    limit_threads(os.environ)

from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.configuration_vanilla_trajectory import VanillaTracksConfig
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.dlow_vanilla_agentformer import VanillaForDiverseTrajectoryPrediction
from hf_vanilla.models.gate_vanilla_scene import VanillaForGatedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from hf_vanilla.models.modeling_vanilla_agentformer import VanillaForJointTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_decoder import VanillaForCausalLM
from hf_vanilla.models.modeling_vanilla_detr import VanillaDetrModel, VanillaForObjectDetection
from hf_vanilla.models.modeling_vanilla_encoder import (
    VanillaEncoderModel,
    VanillaForSequenceClassification,
)
from hf_vanilla.models.modeling_vanilla_modes import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_quantized import VanillaForQuantizedTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_scene import VanillaForSceneTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_spread import VanillaForTrajectoryDensityPrediction
from hf_vanilla.models.modeling_vanilla_trajectory import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification, VanillaVitModel
from hf_vanilla.models.neighbors_vanilla_scene import VanillaForNeighborTrajectoryPrediction
from hf_vanilla.models.pipeline_vanilla import VanillaTranslationPipeline
from hf_vanilla.models.pretrained_vanilla import VanillaPreTrainedModel
from hf_vanilla.models.proposals_vanilla_scene import VanillaForProposalTrajectoryPrediction
from hf_vanilla.models.quantization_vanilla import VanillaInt8Config, quantize
from hf_vanilla.models.saving_vanilla import register_families
from hf_vanilla.models.tokenization_vanilla import VanillaTokenizer
from hf_vanilla.models.tokenization_vanilla_fairseq import VanillaFairseqTokenizer
from hf_vanilla.models.vectors_vanilla_scene import VanillaForVectorTrajectoryPrediction

if TYPE_CHECKING:
    from hf_vanilla.data.batching import PairCollator
    from hf_vanilla.data.tokenizer_training import train_tokenizer
    from hf_vanilla.tasks.translation_finetuning import TokenBatches, bleu_metrics
    from hf_vanilla.training.optimization import inverse_sqrt_schedule, paper_adam
    from hf_vanilla.translation.demo_model import demo_model
    from hf_vanilla.translation.loading import load_translator
    from hf_vanilla.translation.translator import Translator, translate

__version__ = "0.1.0"

__all__ = [
    "PairCollator",
    "TokenBatches",
    "Translator",
    "VanillaAgentFormerConfig",
    "VanillaConfig",
    "VanillaDetrConfig",
    "VanillaDetrModel",
    "VanillaEncoderModel",
    "VanillaFairseqTokenizer",
    "VanillaForCausalLM",
    "VanillaForConditionalGeneration",
    "VanillaForDiverseTrajectoryPrediction",
    "VanillaForGatedTrajectoryPrediction",
    "VanillaForImageClassification",
    "VanillaForJointTrajectoryPrediction",
    "VanillaForMultimodalTrajectoryPrediction",
    "VanillaForNeighborTrajectoryPrediction",
    "VanillaForObjectDetection",
    "VanillaForProposalTrajectoryPrediction",
    "VanillaForQuantizedTrajectoryPrediction",
    "VanillaForSceneTrajectoryPrediction",
    "VanillaForSequenceClassification",
    "VanillaForTrajectoryDensityPrediction",
    "VanillaForTrajectoryPrediction",
    "VanillaForVectorTrajectoryPrediction",
    "VanillaInt8Config",
    "VanillaModel",
    "VanillaPreTrainedModel",
    "VanillaSceneConfig",
    "VanillaTokenizer",
    "VanillaTracksConfig",
    "VanillaTranslationPipeline",
    "VanillaVitConfig",
    "VanillaVitModel",
    "bleu_metrics",
    "demo_model",
    "inverse_sqrt_schedule",
    "load_translator",
    "paper_adam",
    "quantize",
    "train_tokenizer",
    "translate",
]

# modules that need more libraries than the models; imported when a name is first used
LAZY = {
    "PairCollator": "data.batching",
    "TokenBatches": "tasks.translation_finetuning",
    "Translator": "translation.translator",
    "bleu_metrics": "tasks.translation_finetuning",
    "demo_model": "translation.demo_model",
    "inverse_sqrt_schedule": "training.optimization",
    "load_translator": "translation.loading",
    "paper_adam": "training.optimization",
    "train_tokenizer": "data.tokenizer_training",
    "translate": "translation.translator",
}

register_families()


def __getattr__(name: str) -> Any:
    """Import a lazy name (PEP 562)."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
