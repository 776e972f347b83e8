"""Convert FSMT models of transformers, such as facebook/wmt19-en-de, without their class."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import GenerationConfig

from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_saved
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.tokenization_vanilla import VanillaFairseqTokenizer
from hf_vanilla.options import Options, option
from hf_vanilla.text.generation_fields import KINDS, check_fields

from .checkpoint_files import local_folder, pieces_by_id, read_json, read_weights, settings_of_type
from .fairseq_settings import IDS, SIDES, SIZES, config_values, names_of
from .fairseq_tokenizer import SPECIAL_TOKENS, tokenizer_of_merges
from .weight_names import is_sinusoidal, load_renamed, rename_to_ours

MERGES, TOKENIZER_SETTINGS = "merges.txt", "tokenizer_config.json"
# and the fields of the config that are their sizes
VOCABULARIES = {"vocab-src.json": "src_vocab_size", "vocab-tgt.json": "tgt_vocab_size"}
GENERATION = "generation_config.json"
FILES = (
    *(*VOCABULARIES, MERGES, TOKENIZER_SETTINGS, "config.json", GENERATION),
    *("model.safetensors", "pytorch_model.bin"),
)
PREFIX = "model."
POSITIONS = "{side}.embed_positions.weight"
# fields of both configs, and what FSMTConfig has where a file leaves one out
DEFAULTS: dict[str, Any] = {
    "activation_function": "relu",
    "d_model": 1024,
    "max_position_embeddings": 1024,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
    "dropout": 0.1,
    **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
    "scale_embedding": True,
    "decoder_start_token_id": 2,
}
DECODING: dict[str, Any] = {
    "num_beams": 5,
    "max_length": 200,
    "length_penalty": 1.0,
    "early_stopping": False,
    **IDS,
    "forced_eos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class FsmtOptions(Options):
    """Convert an FSMT model of transformers."""

    input: str = option(text="folder or Hub id, such as facebook/wmt19-en-de")
    output: str = option(text="folder to write; must be empty or not exist")


def convert_fsmt(options: FsmtOptions) -> Path:
    """Write model, tokenizer and generation config of an FSMT model; returns the folder.

    Raises:
        ValueError: a file is missing or damaged, or our model cannot express it exactly.
        OSError: the model is not found, or the output exists.
    """
    settings = {**DEFAULTS, **settings_of_type(options.input, "fsmt")}
    if (padding := settings.get("pad_token_id", 1)) != 1:  # positions begin after it
        raise ValueError(f"{options.input}: pad_token_id={padding!r}, but <pad> of FSMT is 1")
    folder = local_folder(options.input, FILES)
    for name in (*VOCABULARIES, MERGES):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: the FSMT model is not whole")
    with whole_folder(options.output) as output:
        model = _model(read_weights(folder), settings, options.input)
        model.generation_config = _decoding(folder, settings)
        carry_over(options.input, output, model, _tokenizer(folder, settings))
    return Path(options.output)


# --- model --------------------------------------------------------------------------------------


def _model(
    weights: dict[str, Tensor], settings: Mapping[str, Any], origin: str
) -> VanillaForConditionalGeneration:
    """Our model in float32, of weights whose names may begin with `model.`."""
    weights = {
        name.removeprefix(PREFIX): weight.float() if weight.is_floating_point() else weight
        for name, weight in weights.items()
    }
    source, target = (weights.get(f"{side}.embed_tokens.weight") for side in SIDES)
    output = weights.get("decoder.output_projection.weight")
    tables = [table for table in (target, output) if table is not None]
    is_shared = target is None or source is None or torch.equal(source, target)
    values = config_values({name: settings[ours] for name, ours in SIZES.items()})
    values |= {name: settings[name] for name in DEFAULTS}
    values["share_encoder_decoder_embeddings"] = is_shared
    values["tie_word_embeddings"] = len(tables) < 2 or torch.equal(*tables)
    # a computed table, stored by some versions
    names = {**names_of(is_shared=is_shared), POSITIONS: None}
    try:
        values["vocab_size"] = settings["src_vocab_size"]
        values["decoder_vocab_size"] = settings["tgt_vocab_size"]
        model = VanillaForConditionalGeneration(VanillaConfig(**values))
    except KeyError as error:
        raise ValueError(f"{origin}: its config has no {error}") from None
    except (ValueError, StrictDataclassError) as error:
        raise ValueError(f"{origin} cannot be converted: {error}") from None
    renamed = rename_to_ours(weights, names)
    renamed.problems.extend(_foreign_positions(weights, model.config))
    load_renamed(model, renamed, origin=origin)
    return model.eval()


def _foreign_positions(weights: Mapping[str, Tensor], config: VanillaConfig) -> list[str]:
    """Position tables of a file that are not the computed ones; FSMT would use them."""
    faults, first = [], config.position_offset  # no real token has an earlier row
    layout, frequencies = config.position_layout, config.position_frequencies
    for side in SIDES:
        table = weights.get(name := POSITIONS.format(side=side))
        if table is None:
            continue
        if table.dim() != 2 or table.shape[1] != config.d_model:
            faults.append(f"{name} has shape {tuple(table.shape)}")
        elif not is_sinusoidal(table, layout=layout, frequencies=frequencies, first=first):
            faults.append(f"{name} is not sinusoidal: the model has learned positions")
    return faults


def _decoding(folder: Path, settings: Mapping[str, Any]) -> GenerationConfig:
    """The saved generation config, or what older files have among the model's settings."""
    path = folder / GENERATION
    if is_saved := path.is_file():
        given = read_json(path)
    else:
        path = folder / "config.json"
        given = {name: settings.get(name, value) for name, value in DECODING.items()}
    # what a search reads: transformers accepts values of other types, or fails on them
    own = {name: given[name] for name in KINDS if given.get(name) is not None}
    check_fields(f"{path}: generation", own)
    decoding = load_saved(GenerationConfig, folder) if is_saved else GenerationConfig(**given)
    decoding.length_penalty_form = "power"
    decoding._from_model_config = False  # or it would be rebuilt from the config
    return decoding


# --- tokenizer ----------------------------------------------------------------------------------


def _tokenizer(folder: Path, settings: Mapping[str, Any]) -> VanillaFairseqTokenizer:
    tokens = []
    for name, size in VOCABULARIES.items():
        path = folder / name
        pieces = pieces_by_id(path, read_json(path), settings[size])
        if tuple(pieces[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise ValueError(f"{path} must begin with {', '.join(SPECIAL_TOKENS)}")
        tokens.append(pieces)
    own = read_json(folder / TOKENIZER_SETTINGS) if (folder / TOKENIZER_SETTINGS).is_file() else {}
    languages = own.get("langs") or settings.get("langs")
    if not isinstance(languages, list) or len(languages) != 2:
        raise ValueError(f"{folder}: langs={languages!r}: the config must name two languages")
    lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
    pairs = [line.split()[:2] for line in lines]
    merges = dict.fromkeys((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    return tokenizer_of_merges(
        list(merges),
        tokens,
        source_lang=languages[0],
        target_lang=languages[1],
        use_moses=True,
        do_lower_case=bool(own.get("do_lower_case")),
        normalize_punctuation=True,
        model_max_length=settings["max_position_embeddings"],
    )
