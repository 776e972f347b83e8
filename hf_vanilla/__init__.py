"""The original Transformer of "Attention Is All You Need" as a Hugging Face model package."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

# `python -m hf_vanilla` is a command, and this file is imported before `__main__`. Torch reads the
# variables for its threads when it is imported, by the lines below.
if sys.argv[:1] == ["-m"] and "hf_vanilla" in sys.orig_argv:
    from hf_vanilla.cpus import limit_torch

    limit_torch(os.environ)

from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from hf_vanilla.models.modeling_vanilla_agentformer import (
    VanillaForDiverseTrajectoryPrediction,
    VanillaForJointTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_detr import VanillaDetrModel, VanillaForObjectDetection
from hf_vanilla.models.modeling_vanilla_one_sided import (
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForSequenceClassification,
)
from hf_vanilla.models.modeling_vanilla_scene import VanillaForSceneTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_scene_forms import (
    VanillaForGatedTrajectoryPrediction,
    VanillaForNeighborTrajectoryPrediction,
    VanillaForVectorTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_scene_proposals import (
    VanillaForProposalTrajectoryPrediction,
    VanillaForSocialProposalTrajectoryPrediction,
)
from hf_vanilla.models.modeling_vanilla_tracks import VanillaForTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import (
    VanillaForMultimodalTrajectoryPrediction,
    VanillaForQuantizedTrajectoryPrediction,
    VanillaForTrajectoryDensityPrediction,
)
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification, VanillaVitModel
from hf_vanilla.models.pipeline_vanilla import VanillaTranslationPipeline
from hf_vanilla.models.pretrained_vanilla import VanillaPreTrainedModel
from hf_vanilla.models.quantization_vanilla import VanillaInt8Config, quantize
from hf_vanilla.models.saving_vanilla import register_families, save_with_code
from hf_vanilla.models.tokenization_vanilla import VanillaFairseqTokenizer, VanillaTokenizer

if TYPE_CHECKING:
    from hf_vanilla.data.batching import PairCollator
    from hf_vanilla.text.loading import demo_model, load_translator
    from hf_vanilla.text.tokenizer_training import train_tokenizer
    from hf_vanilla.text.trainer import TokenBatches, bleu_metrics
    from hf_vanilla.text.translator import Translator, translate
    from hf_vanilla.training.optimization import inverse_sqrt_schedule, paper_adam

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
    "VanillaForSocialProposalTrajectoryPrediction",
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
    "save_with_code",
    "train_tokenizer",
    "translate",
]

# modules that need more libraries than the models; imported when a name is first used
LAZY = {
    "PairCollator": "data.batching",
    "TokenBatches": "text.trainer",
    "Translator": "text.translator",
    "bleu_metrics": "text.trainer",
    "demo_model": "text.loading",
    "inverse_sqrt_schedule": "training.optimization",
    "load_translator": "text.loading",
    "paper_adam": "training.optimization",
    "train_tokenizer": "text.tokenizer_training",
    "translate": "text.translator",
}

register_families()


def __getattr__(name: str) -> Any:
    """Import a lazy name (PEP 562)."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
