"""The original Transformer of "Attention Is All You Need" as a Hugging Face model package."""

from typing import TYPE_CHECKING, Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
)
from transformers.pipelines import PIPELINE_REGISTRY

from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from hf_vanilla.models.modeling_vanilla_decoder import VanillaForCausalLM
from hf_vanilla.models.modeling_vanilla_encoder import (
    VanillaEncoderModel,
    VanillaForSequenceClassification,
)
from hf_vanilla.models.pipeline_vanilla import VanillaTranslationPipeline
from hf_vanilla.models.tokenization_vanilla import VanillaTokenizer
from hf_vanilla.models.tokenization_vanilla_fairseq import VanillaFairseqTokenizer

if TYPE_CHECKING:
    from hf_vanilla.data.tokenizer_training import train_tokenizer

__version__ = "0.1.0"

__all__ = [
    "VanillaConfig",
    "VanillaEncoderModel",
    "VanillaFairseqTokenizer",
    "VanillaForCausalLM",
    "VanillaForConditionalGeneration",
    "VanillaForSequenceClassification",
    "VanillaModel",
    "VanillaTokenizer",
    "VanillaTranslationPipeline",
    "train_tokenizer",
]

AutoConfig.register("vanilla", VanillaConfig, exist_ok=True)
AutoModel.register(VanillaConfig, VanillaModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration, exist_ok=True)
AutoModelForCausalLM.register(VanillaConfig, VanillaForCausalLM, exist_ok=True)
AutoModelForTextEncoding.register(VanillaConfig, VanillaEncoderModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    VanillaConfig, VanillaForSequenceClassification, exist_ok=True
)
# known by its name; the class registered last is the one for a folder that names none
AutoTokenizer.register(VanillaConfig, tokenizer_class=VanillaFairseqTokenizer, exist_ok=True)
AutoTokenizer.register(VanillaConfig, fast_tokenizer_class=VanillaTokenizer, exist_ok=True)
# transformers 5 refuses the name "translation", whoever registers it
PIPELINE_REGISTRY.register_pipeline(
    "vanilla-translation", VanillaTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
)


def __getattr__(name: str) -> Any:
    """What needs more libraries than the model does comes when it is asked for."""
    if name == "train_tokenizer":
        from hf_vanilla.data.tokenizer_training import train_tokenizer

        return train_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
