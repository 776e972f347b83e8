"""Our model to CTranslate2, the C++ engine for translation on CPUs and GPUs.

The folder holds CTranslate2's files, the tokenizer beside them, and the generation config that
`Translator(folder, engine="ctranslate2")` decodes with.
"""

import copy
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_vanilla.files import whole_folder
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.stacks_vanilla import VanillaStack
from hf_vanilla.translation.engines import CTRANSLATE2_DECODING, import_ctranslate2
from hf_vanilla.translation.translator import load_translator

logger = logging.getLogger(__name__)

# transformers' names of what CTranslate2 has, by CTranslate2's
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)


@dataclass(frozen=True, kw_only=True)
class ExportCTranslate2Options:
    """Write a model for CTranslate2, with its tokenizer and decoding."""

    model: str = field(metadata={"help": "folder or Hub id of our model"})
    output: str = field(metadata={"help": "folder for CTranslate2's model"})
    quantization: str = field(
        default="float32", metadata={"help": f"one of {', '.join(QUANTIZATIONS)}"}
    )

    def __post_init__(self) -> None:
        if self.quantization not in QUANTIZATIONS:
            names = ", ".join(QUANTIZATIONS)
            raise ValueError(f"quantization={self.quantization!r}: choose one of {names}")


def export_ctranslate2(options: ExportCTranslate2Options) -> Path:
    """Write a CTranslate2 model with its tokenizer and decoding settings; returns the folder.

    What CTranslate2 decodes otherwise is told in a warning, and the generation config of the result
    says what it does instead.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: the model has what CTranslate2 cannot express; the message names all of it.
        OSError: nothing is found under that name, or the output is taken.
    """
    import_ctranslate2()
    with whole_folder(options.output) as folder:
        model, tokenizer = load_translator(options.model)
        if not isinstance(model, VanillaForConditionalGeneration):
            raise ValueError(f"{options.model} is a {type(model).__name__}: give one of our models")
        decoding, told = their_decoding(model.generation_config)
        if told:
            logger.warning("CTranslate2 decodes otherwise: %s", "; ".join(told))
        places = _places(model, tokenizer, decoding)
        spec = to_ctranslate2(model.to("cpu"), tokenizer, places=places)
        spec.optimize(quantization=options.quantization)
        spec.save(str(folder))
        decoding.save_pretrained(folder)
        tokenizer.model_max_length = min(tokenizer.model_max_length, _longest_source(model, places))
        tokenizer.save_pretrained(folder)
    return Path(options.output)


def their_decoding(decoding: GenerationConfig) -> tuple[GenerationConfig, list[str]]:
    """The settings that CTranslate2 will decode with, and in words what is not ours any more."""
    theirs, told = copy.deepcopy(decoding), []
    if getattr(theirs, "length_penalty_form", None) == "gnmt":
        theirs.length_penalty_form = "power"
        told.append(
            f"the penalty is length ** {theirs.length_penalty}, not ((5 + length) / 6) ** "
            f"{theirs.length_penalty}"
        )
    if (theirs.num_beams or 1) > 1 and theirs.early_stopping is not True:
        told.append(
            f"a search ends with its {theirs.num_beams}th finished hypothesis "
            f"(early_stopping=True, not {theirs.early_stopping!r})"
        )
        theirs.early_stopping = True
    if (theirs.bad_words_ids or theirs.no_repeat_ngram_size) and not theirs.renormalize_logits:
        told.append(
            "what bad_words_ids and no_repeat_ngram_size forbid leaves its probability to the "
            "other words (renormalize_logits=True)"
        )
        theirs.renormalize_logits = True
    for name, value in decoding.to_diff_dict().items():
        if name not in CTRANSLATE2_DECODING:
            told.append(f"{name}={value!r} is left out")
            if hasattr(GenerationConfig(), name):
                setattr(theirs, name, getattr(GenerationConfig(), name))
            else:
                delattr(theirs, name)
    return theirs, told


def to_ctranslate2(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, *, places: int
) -> Any:
    """CTranslate2's `TransformerSpec` with copies of all weights, checked and not yet quantized.

    Args:
        model: one of ours, on the CPU.
        tokenizer: its tokenizer, for the words that CTranslate2 knows the ids by.
        places: positions of the longest sequence, source or target.

    Raises:
        ValueError: the model has what CTranslate2 cannot express; the message names all of it.
    """
    if reasons := _foreign_to_ctranslate2(model):
        raise ValueError(f"CTranslate2 cannot express this model: {'; '.join(reasons)}")
    specs = import_ctranslate2().specs
    config, stacks = model.config, model.model
    activation = getattr(specs.Activation, ACTIVATIONS[config.activation_function])
    # with pre_norm there is a place for a last norm; then it is post-norm after all
    told = {
        "activation": activation,
        "pre_norm": True,
        "no_final_norm": not config.final_layer_norm,
    }
    encoder_heads, decoder_heads = config.encoder_attention_heads, config.decoder_attention_heads
    encoder_width, decoder_width = (
        config.head_widths(n)[0] for n in (encoder_heads, decoder_heads)
    )
    encoder = specs.TransformerEncoderSpec(
        config.encoder_layers, encoder_heads, head_dim=encoder_width, **told
    )
    decoder = specs.TransformerDecoderSpec(
        config.decoder_layers, decoder_heads, head_dim=decoder_width, **told
    )
    encoder.pre_norm = decoder.pre_norm = False
    spec = specs.TransformerSpec(encoder, decoder)
    _fill_stack(encoder, encoder.embeddings[0], stacks.encoder, places)
    _fill_stack(decoder, decoder.embeddings, stacks.decoder, places)
    for theirs, layer in zip(encoder.layer, stacks.encoder.layers, strict=True):
        _fill_layer(theirs, layer)
    for theirs, layer in zip(decoder.layer, stacks.decoder.layers, strict=True):
        _fill_layer(theirs, layer)
        _fill_attention(theirs.attention.linear, layer.encoder_attn, is_of_source=True)
        _fill_norm(theirs.attention.layer_norm, layer.encoder_attn_layer_norm)
    _fill_linear(decoder.projection, model.lm_head)
    _fill_words(spec, model, tokenizer)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    return spec


# --- inside ------------------------------------------------------------------------------------


def _foreign_to_ctranslate2(model: VanillaForConditionalGeneration) -> list[str]:
    config, reasons = model.config, []
    if config.activation_function not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        reasons.append(f"activation_function={config.activation_function!r} (there: {known})")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        keys, values = config.head_widths(getattr(config, name))
        if keys != values:
            reasons.append(f"{name} with head_dim={keys} and v_head_dim={values} (there: equal)")
    if config.decoder_start_token_id is None:
        reasons.append("decoder_start_token_id=None (there: an id)")
    if not isinstance(config.eos_token_id, int):
        reasons.append(f"eos_token_id={config.eos_token_id!r} (there: one id)")
    return reasons


def _places(
    model: VanillaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    decoding: GenerationConfig,
) -> int:
    """Rows that a table of positions needs: CTranslate2 has nothing for those behind its end."""
    longest = model.config.max_position_embeddings
    if model.config.position_embedding_type == "learned":
        return longest
    if tokenizer.model_max_length < 1_000_000:  # without a limit it is an astronomical number
        longest = max(longest, tokenizer.model_max_length)
    beyond = getattr(decoding, "max_tokens_beyond_source", None) or 0
    return max(longest + beyond, decoding.max_new_tokens or 0, decoding.max_length or 0)


def _longest_source(model: VanillaForConditionalGeneration, places: int) -> int:
    if model.config.position_embedding_type == "learned":
        return places
    beyond = getattr(model.generation_config, "max_tokens_beyond_source", None) or 0
    return places - beyond


def _fill_stack(theirs: Any, embeddings: Any, ours: VanillaStack, places: int) -> None:
    table = _copy(ours.embed_tokens.weight)
    if ours.embed_tokens.padding_idx is not None:
        table[ours.embed_tokens.padding_idx] = 0  # ours looks it up as zeros, trained or not
    embeddings.weight = table
    theirs.scale_embeddings = bool(ours.config.scale_embedding)
    theirs.position_encodings.encodings = _copy(
        ours.embed_positions(places, 0, ours.embed_tokens.weight)
    )
    if isinstance(ours.layer_norm, nn.LayerNorm):
        _fill_norm(theirs.layer_norm, ours.layer_norm)


def _fill_layer(theirs: Any, ours: Any) -> None:
    _fill_attention(theirs.self_attention.linear, ours.self_attn, is_of_source=False)
    _fill_norm(theirs.self_attention.layer_norm, ours.self_attn_layer_norm)
    _fill_linear(theirs.ffn.linear_0, ours.fc1)
    _fill_linear(theirs.ffn.linear_1, ours.fc2)
    _fill_norm(theirs.ffn.layer_norm, ours.final_layer_norm)


def _fill_attention(theirs: list[Any], ours: Any, *, is_of_source: bool) -> None:
    """q, k and v in one product; of the source, q apart and k, v in one."""
    q, k, v, out = (getattr(ours, f"{name}_proj") for name in ("q", "k", "v", "out"))
    groups = [[q], [k, v], [out]] if is_of_source else [[q, k, v], [out]]
    for linear, parts in zip(theirs, groups, strict=True):
        _fill_linear(linear, *parts)


def _fill_linear(theirs: Any, *ours: Any) -> None:
    theirs.weight = _copy(torch.cat([part.weight for part in ours]))
    if ours[0].bias is not None:
        theirs.bias = _copy(torch.cat([part.bias for part in ours]))


def _fill_norm(theirs: Any, ours: Any) -> None:
    theirs.gamma, theirs.beta = _copy(ours.weight), _copy(ours.bias)


def _copy(weight: Tensor) -> np.ndarray:
    """An array of its own, float32: quantization there works in place."""
    return weight.detach().to(torch.float32).numpy().copy()


def _fill_words(
    spec: Any, model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    """One word for each id of each side, and which of them are special."""
    config = model.config
    source = _words(tokenizer, config.vocab_size)
    target = _words(tokenizer, config.target_vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.add_source_bos = spec.config.add_source_eos = False  # the tokenizer adds its own
    spec.config.decoder_start_token = target[config.decoder_start_token_id]
    spec.config.eos_token = target[config.eos_token_id]
    spec.config.bos_token = target[config.bos_token_id or 0]
    # no tokenizer of ours has one, or none that differs; there it must be a word of both sides
    unknown = tokenizer.unk_token
    is_known = unknown in source and unknown in target
    spec.config.unk_token = unknown if is_known else target[config.decoder_start_token_id]


def _words(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The tokenizer's own words, each once; ids that it does not have get a name all the same."""
    words: dict[str, int] = {}
    for token_id in range(size):
        word = tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else None
        if word is None or word in words:
            word = f"<id {token_id}>"
        words[word] = token_id
    return list(words)
