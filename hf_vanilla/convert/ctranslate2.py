"""Export our models to CTranslate2, a C++ engine for translation on CPUs and GPUs.

The folder contains CTranslate2's files, the tokenizer, and the generation config that
`Translator(folder, engine="ctranslate2")` uses.
"""

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.stacks_vanilla import VanillaStack
from hf_vanilla.text.engines import CTRANSLATE2_DECODING, import_ctranslate2

from .checkpoint_files import load_encoder_decoder
from .weight_names import refuse

logger = logging.getLogger(__name__)

# transformers' name: CTranslate2's name
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
DTYPES = (
    *("float32", "float16", "bfloat16"),
    *("int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
)


def export_translator(name: str, folder: Path, dtype: str) -> None:
    """Write a CTranslate2 model with tokenizer and generation config.

    A warning lists how CTranslate2's decoding differs from ours. The written generation config
    describes CTranslate2's decoding.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights, one of `DTYPES`.

    Raises:
        ValueError: CTranslate2 cannot express the model; the message names all reasons.
        OSError: the model is not found.
    """
    model, tokenizer = load_encoder_decoder(name)
    decoding, differences = their_decoding(model.generation_config)
    if differences:
        logger.warning("CTranslate2 decodes differently: %s", "; ".join(differences))
    positions = _positions(model.config, tokenizer, decoding)
    spec = to_ctranslate2(model, tokenizer, positions=positions)
    spec.optimize(quantization=dtype)
    spec.save(str(folder))
    decoding.save_pretrained(folder)
    longest = positions
    if model.config.position_embedding_type != "learned":
        longest -= getattr(model.generation_config, "max_tokens_beyond_source", None) or 0
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
    tokenizer.save_pretrained(folder)


def their_decoding(decoding: GenerationConfig) -> tuple[GenerationConfig, list[str]]:
    """The generation config of CTranslate2's decoding, and how it differs from ours."""
    theirs, differences = copy.deepcopy(decoding), []
    if getattr(theirs, "length_penalty_form", None) == "gnmt":
        theirs.length_penalty_form = "power"
        differences.append(
            f"the penalty is length ** {theirs.length_penalty}, not ((5 + length) / 6) ** "
            f"{theirs.length_penalty}"
        )
    if (theirs.num_beams or 1) > 1 and theirs.early_stopping is not True:
        differences.append(
            f"a search ends with finished hypothesis {theirs.num_beams} "
            f"(early_stopping=True, not {theirs.early_stopping!r})"
        )
        theirs.early_stopping = True
    if (theirs.bad_words_ids or theirs.no_repeat_ngram_size) and not theirs.renormalize_logits:
        differences.append(
            "the probability of tokens that bad_words_ids and no_repeat_ngram_size forbid goes to "
            "the other tokens (renormalize_logits=True)"
        )
        theirs.renormalize_logits = True
    for name, value in decoding.to_diff_dict().items():
        if name not in CTRANSLATE2_DECODING and value is not False:
            differences.append(f"{name}={value!r} is ignored")
            if hasattr(GenerationConfig(), name):
                setattr(theirs, name, getattr(GenerationConfig(), name))
            else:
                delattr(theirs, name)
    return theirs, differences


def to_ctranslate2(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, *, positions: int
) -> Any:
    """CTranslate2's `TransformerSpec` with copies of all weights, checked and not quantized.

    Args:
        model: our model, on the CPU.
        tokenizer: its tokenizer; CTranslate2 needs a string for each token id.
        positions: length of the longest sequence, source or target.

    Raises:
        ValueError: CTranslate2 cannot express the model; the message names all reasons.
    """
    _check(model)
    specs = import_ctranslate2().specs
    config, stacks = model.config, model.model
    activation = getattr(specs.Activation, ACTIVATIONS[config.activation_function])
    # only a pre-norm spec has a final norm; pre_norm is set to False below
    arguments = {"activation": activation, "pre_norm": True}
    arguments["no_final_norm"] = not config.final_layer_norm
    encoder, decoder = (
        kind(layers, heads, head_dim=config.head_widths(heads)[0], **arguments)
        for kind, layers, heads in (
            (specs.TransformerEncoderSpec, config.encoder_layers, config.encoder_attention_heads),
            (specs.TransformerDecoderSpec, config.decoder_layers, config.decoder_attention_heads),
        )
    )
    encoder.pre_norm = decoder.pre_norm = False
    spec = specs.TransformerSpec(encoder, decoder)
    _fill_stack(encoder, encoder.embeddings[0], stacks.encoder, positions)
    _fill_stack(decoder, decoder.embeddings, stacks.decoder, positions)
    for theirs, layer in zip(decoder.layer, stacks.decoder.layers, strict=True):
        _fill_attention(theirs.attention.linear, layer.encoder_attn, is_cross=True)
        _fill_norm(theirs.attention.layer_norm, layer.encoder_attn_layer_norm)
    _fill_linear(decoder.projection, model.lm_head)
    _fill_vocabularies(spec, model, tokenizer)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    return spec


# --- inside ------------------------------------------------------------------------------------


def _check(model: VanillaForConditionalGeneration) -> None:
    config, known = model.config, ", ".join(ACTIVATIONS)
    activation, end = config.activation_function, config.eos_token_id
    reasons = {
        f"activation_function={activation!r} (CTranslate2: {known})": activation not in ACTIVATIONS,
        "decoder_start_token_id=None (CTranslate2: an id)": config.decoder_start_token_id is None,
        f"eos_token_id={end!r} (CTranslate2: one id)": not isinstance(end, int),
    }
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        keys, values = config.head_widths(getattr(config, name))
        reason = f"{name} with head_dim={keys} and v_head_dim={values} (CTranslate2: equal)"
        reasons[reason] = keys != values
    refuse("CTranslate2", reasons)


def _positions(config: Any, tokenizer: PreTrainedTokenizerBase, decoding: GenerationConfig) -> int:
    """Rows of the position table: CTranslate2 cannot translate longer sequences."""
    longest = config.max_position_embeddings
    if config.position_embedding_type == "learned":
        return longest
    if tokenizer.model_max_length < 1_000_000:  # no limit is stored as a huge number
        longest = max(longest, tokenizer.model_max_length)
    beyond = getattr(decoding, "max_tokens_beyond_source", None) or 0
    return max(longest + beyond, decoding.max_new_tokens or 0, decoding.max_length or 0)


def _fill_stack(theirs: Any, embeddings: Any, ours: VanillaStack, positions: int) -> None:
    table = _copy(ours.embed_tokens.weight)
    if ours.embed_tokens.padding_idx is not None:
        table[ours.embed_tokens.padding_idx] = 0  # our model embeds padding as zeros
    embeddings.weight = table
    theirs.scale_embeddings = bool(ours.config.scale_embedding)
    vectors = ours.embed_positions(positions, 0, ours.embed_tokens.weight)
    theirs.position_encodings.encodings = _copy(vectors)
    if isinstance(ours.layer_norm, nn.LayerNorm):
        _fill_norm(theirs.layer_norm, ours.layer_norm)
    layer: Any
    for spec, layer in zip(theirs.layer, ours.layers, strict=True):
        _fill_attention(spec.self_attention.linear, layer.self_attn, is_cross=False)
        _fill_norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
        _fill_linear(spec.ffn.linear_0, layer.fc1)
        _fill_linear(spec.ffn.linear_1, layer.fc2)
        _fill_norm(spec.ffn.layer_norm, layer.final_layer_norm)


def _fill_attention(theirs: list[Any], ours: Any, *, is_cross: bool) -> None:
    """Self-attention: q, k and v in one matrix; cross-attention: q alone, k and v in one."""
    q, k, v, out = (getattr(ours, f"{name}_proj") for name in ("q", "k", "v", "out"))
    groups = [[q], [k, v], [out]] if is_cross else [[q, k, v], [out]]
    for linear, parts in zip(theirs, groups, strict=True):
        _fill_linear(linear, *parts)


def _fill_linear(theirs: Any, *ours: Any) -> None:
    theirs.weight = _copy(torch.cat([part.weight for part in ours]))
    if ours[0].bias is not None:
        theirs.bias = _copy(torch.cat([part.bias for part in ours]))


def _fill_norm(theirs: Any, ours: Any) -> None:
    theirs.gamma, theirs.beta = _copy(ours.weight), _copy(ours.bias)


def _copy(weight: Tensor) -> np.ndarray:
    """A float32 copy: CTranslate2 quantizes in place."""
    return weight.detach().to(torch.float32).numpy().copy()


def _fill_vocabularies(
    spec: Any, model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    """One string for each token id of each side, and the special tokens."""
    config = model.config
    source = _tokens(tokenizer, config.vocab_size)
    target = _tokens(tokenizer, config.target_vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.add_source_bos = spec.config.add_source_eos = False  # the tokenizer adds its own
    spec.config.decoder_start_token = target[config.decoder_start_token_id]
    spec.config.eos_token = target[config.eos_token_id]
    spec.config.bos_token = target[config.bos_token_id or 0]
    # our tokenizers have no unknown token, but CTranslate2 wants one that is in both vocabularies
    unknown = tokenizer.unk_token
    is_known = unknown in source and unknown in target
    spec.config.unk_token = unknown if is_known else target[config.decoder_start_token_id]


def _tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The tokenizer's tokens, each once; ids that it does not have get a made-up name."""
    tokens: dict[str, int] = {}
    for token_id in range(size):
        token = tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else None
        if token is None or token in tokens:
            token = f"<id {token_id}>"
        tokens[token] = token_id
    return list(tokens)
