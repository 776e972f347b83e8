"""The original Transformer of "Attention Is All You Need" as a Hugging Face model package."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_vanilla import VanillaConfig
from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from .tokenization_fairseq_vanilla import VanillaFairseqTokenizer
from .tokenization_vanilla import VanillaTokenizer
from .tokenizer_training import train_tokenizer

__all__ = [
    "VanillaConfig",
    "VanillaFairseqTokenizer",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "VanillaTokenizer",
    "train_tokenizer",
]

AutoConfig.register("vanilla", VanillaConfig, exist_ok=True)
AutoModel.register(VanillaConfig, VanillaModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration, exist_ok=True)
# known by its name; the class registered last is the one for a folder that names none
AutoTokenizer.register(VanillaConfig, tokenizer_class=VanillaFairseqTokenizer, exist_ok=True)
AutoTokenizer.register(VanillaConfig, fast_tokenizer_class=VanillaTokenizer, exist_ok=True)
