"""Export a translator to ONNX: two graphs, tokenizer, generation config, and its search."""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, TokenizersBackend

import hf_vanilla.text
from hf_vanilla.convert.checkpoint_files import load_encoder_decoder
from hf_vanilla.convert.weight_names import refuse
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.text.attentions import start_token_id

from .files import write_graph
from .graphs import PLAIN, DecoderGraph, EncoderGraph

RUNNER = Path(hf_vanilla.text.__file__).with_name("onnx_search.py")  # without ONNX Runtime
ANY = torch.export.Dim.AUTO
# fields of a generation config that translate.py reads, or that do not concern its search
DECODING = frozenset(
    {
        "bad_words_ids",
        "bos_token_id",
        "decoder_start_token_id",
        "early_stopping",
        "eos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "length_penalty_form",
        "max_length",
        "max_new_tokens",
        "max_tokens_beyond_source",
        "num_beams",
        "num_return_sequences",
        "pad_token_id",
        "renormalize_logits",
        "transformers_version",
        "use_cache",
    }
)

STEP = ("input_ids", "position", "beam_mask")


def export_translator(name: str, folder: Path, dtype: str) -> None:
    """Write encoder.onnx, decoder.onnx, tokenizer, generation config and translate.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.

    Raises:
        ValueError: the export cannot express the model; the message names all reasons.
    """
    model, tokenizer = load_for_export(name)
    decoding = written_decoding(model)
    write_encoder(model, folder / "encoder.onnx", dtype)
    _write_decoder(model, folder / "decoder.onnx", dtype)
    if model.config.position_embedding_type == "learned":
        longest = model.config.max_position_embeddings
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
        decoding.max_length = min(decoding.max_length or longest, longest)
    decoding.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copy(RUNNER, folder / "translate.py")


def load_for_export(name: str) -> tuple[VanillaForConditionalGeneration, PreTrainedTokenizerBase]:
    """A model in float32 on the CPU with the attention of the graphs, and its tokenizer.

    Raises:
        ValueError: it is no translator of this package, is quantized, decodes by settings that
            the exported search does not have, or has a tokenizer with code of its own.
    """
    model, tokenizer = load_encoder_decoder(name)
    refuse("the export to ONNX", _faults(model, tokenizer))
    model = model.float().eval()
    model.set_attn_implementation(PLAIN)
    return model, tokenizer


def _faults(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Parts that an exported folder cannot have."""
    decoding = model.generation_config
    reasons = [
        f"{name}={value!r} of the generation config"
        for name, value in decoding.to_diff_dict().items()
        if name not in DECODING
    ]
    if any(len(ids) != 1 for ids in decoding.bad_words_ids or []):
        reasons.append(f"bad_words_ids={decoding.bad_words_ids} (needed: single tokens)")
    for name in ("eos_token_id", "decoder_start_token_id", "forced_eos_token_id"):
        value = getattr(decoding, name)
        value = getattr(model.config, name, None) if value is None else value
        if not isinstance(value, int) and not (value is None and name == "forced_eos_token_id"):
            reasons.append(f"{name}={value!r} (needed: one id)")
    # a tokenizer.json says all about a tokenizer whose class adds no code
    used = type(tokenizer)
    if any(getattr(used, name, 0) is not getattr(TokenizersBackend, name) for name in _OF_BACKEND):
        reasons.append(f"a {used.__name__}, whose code is not in tokenizer.json")
    return reasons


_OF_BACKEND = ("_encode_plus", "_decode", "_convert_encoding")


def written_decoding(model: VanillaForConditionalGeneration) -> GenerationConfig:
    """The generation config of the folder; ids that are only in the model's config are added."""
    decoding = copy.deepcopy(model.generation_config)
    decoding.decoder_start_token_id = start_token_id(model)
    for name in ("eos_token_id", "pad_token_id"):
        if getattr(decoding, name) is None:
            setattr(decoding, name, getattr(model.config, name))
    limits = ("max_length", "max_new_tokens", "max_tokens_beyond_source")
    if all(getattr(decoding, name, None) is None for name in limits):
        decoding.max_length = GenerationConfig._get_default_generation_params()["max_length"]
    return decoding


def write_encoder(
    model: VanillaForConditionalGeneration, path: Path, dtype: str, *, has_cache: bool = True
) -> None:
    """Write the graph of `EncoderGraph`."""
    ids = torch.ones(2, 5, dtype=torch.long)
    if has_cache:
        outputs = ["encoder_hidden_states", *_slots("source", model)]
    else:
        outputs = ["last_hidden_state"]
    write_graph(
        EncoderGraph(model, has_cache=has_cache),
        (ids, ids.clone()),  # one tensor would become one input
        path,
        names=(["input_ids", "attention_mask"], outputs),
        sizes=({0: ANY, 1: ANY}, {0: ANY, 1: ANY}),
        dtype=dtype,
    )


def _write_decoder(model: VanillaForConditionalGeneration, path: Path, dtype: str) -> None:
    """Write the graph of `DecoderGraph`."""
    decoding = model.generation_config
    forbidden = [ids[0] for ids in decoding.bad_words_ids or []]
    graph = DecoderGraph(model, forbidden, is_renormalized=bool(decoding.renormalize_logits))
    batch, beams, source, slots = 2, 3, 5, 6  # all different: an equal one would be made the same
    inputs: tuple[Any, ...] = (
        torch.ones(batch, beams, dtype=torch.long),
        torch.ones(1, dtype=torch.long),
        torch.zeros(batch, beams, slots + beams),
        torch.ones(batch, source, dtype=torch.long),
        empty_cache(model, batch, source),
        empty_cache(model, batch, slots),
    )
    of_cache = [{0: ANY, 2: ANY} for _ in _slots("", model)]
    write_graph(
        graph,
        inputs,
        path,
        names=(
            [*STEP, "attention_mask", *_slots("source", model), *_slots("past", model)],
            ["log_probs", "tokens", *_slots("present", model)],
        ),
        sizes=(
            {0: ANY, 1: ANY},
            None,
            {0: ANY, 1: ANY, 2: ANY},
            {0: ANY, 1: ANY},
            of_cache,
            of_cache,
        ),
        dtype=dtype,
    )


def _slots(name: str, model: VanillaForConditionalGeneration) -> list[str]:
    """Names of keys and values of each layer of the decoder."""
    layers = range(model.config.decoder_layers)
    return [f"{name}_{kind}_{layer}" for layer in layers for kind in ("key", "value")]


def empty_cache(
    model: VanillaForConditionalGeneration, batch: int, slots: int
) -> list[torch.Tensor]:
    """Zeros as keys and values of each layer of the decoder, `(batch, H, slots, K)`."""
    heads = model.config.decoder_attention_heads
    widths = model.config.head_widths(heads) * model.config.decoder_layers
    return [torch.zeros(batch, heads, slots, width) for width in widths]
