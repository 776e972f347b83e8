"""Convert MarianMTModel, and so the OPUS-MT models on the Hub, to our models, and ours back.

Both are post-norm and name their weights alike. `from_marian` sets the fields of our config that
are fixed in Marian. Settings that only affect training (LayerDrop, `init_std`) are not converted.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
)

from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_saved, load_with_report
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.options import Options, option
from hf_vanilla.text.decoding import IDS_ALONE

from .checkpoint_files import load_encoder_decoder, settings_of_type
from .marian_npz import npz_of, read_npz
from .weight_names import (
    Names,
    add_report,
    is_sinusoidal,
    is_zero_at,
    load_renamed,
    refuse,
    rename_to_ours,
    rename_to_theirs,
    with_zero_biases,
)

logger = logging.getLogger(__name__)

_SAME = (
    "model.shared.weight",
    "model.{side}.embed_tokens.weight",
    "model.{side}.layers.{n}.{attention}.{projection}.{kind}",
    "model.{side}.layers.{n}.{part}.{kind}",
    "lm_head.weight",
)
POSITIONS = "model.{side}.embed_positions.weight"
NAMES: Names = {
    **{name: name for name in _SAME},
    "final_logits_bias": "lm_head.bias",
    POSITIONS: None,
}

# fields that mean the same in both configs
SAME_FIELDS = (
    *("vocab_size", "d_model", "max_position_embeddings"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("dropout", "attention_dropout", "activation_dropout", "activation_function"),
    *("scale_embedding", "use_cache"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
)
# position frequencies and layer norm epsilon: of transformers, and of Marian itself, which trained
# these models
FREQUENCIES = {"transformers": ("paper", 1e-5), "marian": ("tensor2tensor", 1e-6)}
# flags of old config files that MarianMTModel ignores
FOREIGN_FLAGS = {
    "normalize_before": (True, "a pre-norm model"),
    "add_final_layer_norm": (True, "a norm after each stack"),
    "normalize_embedding": (True, "a norm on the embeddings"),
    "static_position_embeddings": (False, "learned positions"),
}
FOREIGN_WEIGHTS = {
    "model.{side}.layer_norm.{kind}": "final norm of a pre-norm model",
    "model.{side}.layernorm_embedding.{kind}": "a norm on the embeddings",
}

CHECK_SENTENCES = (
    "The house is small.",
    "Where is the station?",
    "Owning a dog is good for you, as several studies have shown since the year 1998.",
)
# float32 sums in a different order; logits of trained models reach 20
CHECK_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class MarianOptions(Options):
    """Convert an OPUS-MT or other `MarianMTModel` to our model."""

    input: str = option(text="MarianMTModel folder or Hub id, or a folder of Marian itself (.npz)")
    output: str = option(text="folder for our model")
    frequencies: str | None = option(
        None,
        "positions and epsilon: transformers (as MarianMTModel) or marian; default: that of the "
        "folder",
        choices=FREQUENCIES,
    )
    check: bool = option(False, "translate with both models and compare before writing")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.check and self.frequencies == "marian":
            raise ValueError(
                f"check compares with MarianMTModel, whose positions differ from "
                f"frequencies={self.frequencies!r}: give only one of the two options"
            )


def convert_marian(options: MarianOptions) -> Path:
    """Write our model folder, with tokenizer and generation config; returns the folder.

    Raises:
        ValueError: it is no MarianMTModel, is damaged, or cannot be expressed; the message names
            all reasons.
        OSError: the model is not found, or the output exists.
    """
    with whole_folder(options.output) as folder:
        weights = npz_of(Path(options.input))
        loading: dict[str, Any] | None = None
        if weights is None:
            theirs, tokenizer, loading, faults = _read_marian(options.input)
        else:
            (theirs, tokenizer), faults = read_npz(weights), []
        faults += _contradictions(tokenizer, theirs.config)
        own = "transformers" if weights is None else "marian"
        frequencies, origin = options.frequencies or own, options.input
        read = partial(from_marian, theirs, origin=origin, loading=loading, faults=faults)
        ours = read(frequencies=frequencies)
        carry_over(options.input, folder, ours, tokenizer)
        if options.check:  # last: it switches padding on in the tokenizer
            same = ours if frequencies == "transformers" else read(frequencies="transformers")
            logger.info("%s", compare(theirs, same, tokenizer))
    return Path(options.output)


def from_marian(
    theirs: MarianMTModel,
    *,
    frequencies: str = "transformers",
    origin: str = "the MarianMTModel",
    loading: Mapping[str, Any] | None = None,
    faults: Sequence[str] = (),
) -> VanillaForConditionalGeneration:
    """Our model that computes and decodes like a MarianMTModel.

    Two differences: left padding does not shift positions, and sequences may be longer than
    `max_position_embeddings`.

    Args:
        theirs: in float32.
        frequencies: `"transformers"` to compute as MarianMTModel; `"marian"` to compute as Marian
            itself, whose positions and epsilon differ.
        origin: name of the model, for messages.
        loading: the loading info of `from_pretrained(..., output_loading_info=True)`.
        faults: problems already found, for the same message.

    Raises:
        ValueError: our model cannot express it; the message names all reasons.
    """
    if frequencies not in FREQUENCIES:
        raise ValueError(f"frequencies={frequencies!r}: choose one of {', '.join(FREQUENCIES)}")
    config = theirs.config
    source, target = theirs.model.encoder.embed_tokens, theirs.model.decoder.embed_tokens
    is_shared = source.weight is target.weight
    position_frequencies, layer_norm_eps = FREQUENCIES[frequencies]
    ours = VanillaForConditionalGeneration(
        VanillaConfig(
            **{name: getattr(config, name) for name in SAME_FIELDS},
            decoder_vocab_size=theirs.lm_head.out_features,
            share_encoder_decoder_embeddings=is_shared,
            tie_word_embeddings=theirs.lm_head.weight is target.weight,
            attention_bias=True,
            lm_head_bias=True,
            position_layout="concatenated",
            position_frequencies=position_frequencies,
            layer_norm_eps=layer_norm_eps,
            zero_pad_embedding=is_zero_at(config.pad_token_id, source.weight, target.weight),
            label_smoothing_type="uniform",  # as Marian trains
        )
    )
    weights = theirs.state_dict()
    weights["final_logits_bias"] = weights["final_logits_bias"].squeeze(0)
    names = NAMES if is_shared else {**NAMES, "model.shared.weight": None}  # it is unused then
    renamed = rename_to_ours(weights, names)
    renamed.problems.extend(faults)
    for side in ("encoder", "decoder"):
        table = getattr(theirs.model, side).embed_positions.weight
        if not is_sinusoidal(table, layout="concatenated"):
            renamed.problems.append(f"{POSITIONS.format(side=side)} is not sinusoidal")
    if loading is not None:
        add_report(renamed, loading, missing=loading["missing_keys"])
    load_renamed(ours, renamed, origin=origin, reasons=FOREIGN_WEIGHTS)
    ours.generation_config = copy.deepcopy(theirs.generation_config)
    ours.generation_config.length_penalty_form = "power"
    ours.generation_config._from_model_config = False  # or it would be rebuilt from the config
    return ours.eval()


@torch.inference_mode()
def compare(
    theirs: MarianMTModel,
    ours: VanillaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str] = CHECK_SENTENCES,
) -> str:
    """Compare logits and beam search of two models; returns one line with the result.

    Raises:
        ValueError: they differ.
    """
    batch = tokenizer(
        list(sentences),
        padding=True,
        truncation=True,
        max_length=min(tokenizer.model_max_length, theirs.config.max_position_embeddings),
        return_tensors="pt",
    )
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    expected, found = (model.generate(**inputs, **IDS_ALONE) for model in (theirs, ours))
    real = expected.ne(theirs.config.pad_token_id)
    real[:, 0] = True  # the decoder start token is the padding token
    logits = [model(**inputs, decoder_input_ids=expected).logits for model in (theirs, ours)]
    difference = (logits[0] - logits[1])[real].abs().max().item()
    is_same = torch.equal(expected, found)
    result = (
        f"largest difference of {int(real.sum()) * logits[0].shape[-1]:,} logits: "
        f"{difference:.1e}; beam search gives {'the same' if is_same else 'DIFFERENT'} tokens"
    )
    if difference > CHECK_TOLERANCE or not is_same:
        raise ValueError(f"the converted model differs from the original: {result}")
    return result


# --- inside ------------------------------------------------------------------------------------


def _read_marian(
    name: str,
) -> tuple[MarianMTModel, PreTrainedTokenizerBase, dict[str, Any], list[str]]:
    """Model in float32, tokenizer, loading info, and flags that our model cannot express."""
    settings = settings_of_type(name, "marian", foreign={"fsmt": "use --format fsmt"})
    faults = [
        f"{flag}={value} ({why})"
        for flag, (value, why) in FOREIGN_FLAGS.items()
        if settings.get(flag) is value
    ]
    theirs, loading = load_with_report(MarianMTModel, name, dtype=torch.float32)
    try:
        tokenizer = load_saved(AutoTokenizer, name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}, with source.spm, target.spm and vocab.json there") from None
    return theirs.eval(), tokenizer, loading, faults


def _contradictions(tokenizer: PreTrainedTokenizerBase, config: MarianConfig) -> list[str]:
    """Contradictions between the tokenizer and the config."""
    vocabularies = {"vocab_size": tokenizer.get_vocab()}
    if target := getattr(tokenizer, "target_encoder", None):  # separate vocabularies
        vocabularies["decoder_vocab_size"] = target
    faults = [
        f"the vocabulary goes up to id {last}, but {name}={getattr(config, name)}"
        for name, ids in vocabularies.items()
        if (last := max(ids.values())) >= getattr(config, name)
    ]
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, name) != getattr(config, name):
            pair = f"{getattr(tokenizer, name)}, in the config {getattr(config, name)}"
            faults.append(f"{name} of the tokenizer is {pair}")
    return faults


# --- our models to MarianMTModel -----------------------------------------------------------------

# the only values that MarianMTModel can express
MARIAN_FIELDS = {
    "position_embedding_type": "sinusoidal",
    "position_layout": "concatenated",
    "position_frequencies": "paper",
    "position_offset": 0,
    "layer_norm_eps": 1e-5,
    "final_layer_norm": False,
}


@dataclass(frozen=True, kw_only=True)
class ToMarianOptions(Options):
    """Convert a model of ours to a `MarianMTModel`."""

    input: str = option(text="folder or Hub id of our model")
    output: str = option(text="folder for the MarianMTModel")
    check: bool = option(False, "translate with both models and compare before writing")


def convert_to_marian(options: ToMarianOptions) -> Path:
    """Write a MarianMTModel folder, with tokenizer and generation config; returns the folder.

    Raises:
        ValueError: MarianMTModel cannot express the model; the message names all reasons.
        OSError: the model is not found, or the output exists.
    """
    with whole_folder(options.output) as folder:
        ours, tokenizer = load_encoder_decoder(options.input)
        theirs = to_marian(ours)
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if options.check:  # last: it switches padding on in the tokenizer
            logger.info("%s", compare(theirs, ours, tokenizer))
    return Path(options.output)


def to_marian(ours: VanillaForConditionalGeneration) -> MarianMTModel:
    """A MarianMTModel that computes and decodes like our model.

    Biases that our model does not have become zeros. If our model embeds padding as zeros although
    its row of the tied table is not zero, the tables of the result are untied.

    Raises:
        ValueError: MarianMTModel cannot express the model; the message names all reasons.
    """
    config, decoding = ours.config, copy.deepcopy(ours.generation_config)
    refuse("MarianMTModel", _marian_faults(config, decoding))
    weights, is_tied = _weights_of_their_form(ours)
    theirs = MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in SAME_FIELDS},
            decoder_vocab_size=config.target_vocab_size,
            # MarianMTModel shares the two tables only if the output is tied too
            share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings and is_tied,
            tie_word_embeddings=is_tied,
            forced_eos_token_id=decoding.forced_eos_token_id,
        )
    )
    load_renamed(theirs, rename_to_theirs(weights, NAMES), origin="our model")
    for entry in ("length_penalty_form", "max_tokens_beyond_source"):
        vars(decoding).pop(entry, None)
    theirs.generation_config = decoding
    return theirs.eval()


def _weights_of_their_form(ours: VanillaForConditionalGeneration) -> tuple[dict[str, Tensor], bool]:
    """All weights of MarianMTModel by our names, and whether the output stays tied."""
    config = ours.config
    weights = with_zero_biases(ours.state_dict(), "lm_head.weight", "_proj.weight")
    weights["lm_head.bias"] = weights["lm_head.bias"].unsqueeze(0)
    is_tied = config.tie_word_embeddings
    tables = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    row = config.zero_token_id
    if not is_zero_at(row, *(weights[name] for name in tables)):
        is_tied = False
        for name in tables:
            weights[name] = weights[name].clone()
            weights[name][row] = 0
    if not (is_tied and config.share_encoder_decoder_embeddings):
        weights.pop("model.shared.weight", None)
    return weights, is_tied


def _marian_faults(config: VanillaConfig, decoding: GenerationConfig) -> dict[str, bool]:
    form = getattr(decoding, "length_penalty_form", None) or "power"
    beyond = getattr(decoding, "max_tokens_beyond_source", None)
    reasons = {
        f"{name}={getattr(config, name)!r} (Marian: {only!r})": getattr(config, name) != only
        for name, only in MARIAN_FIELDS.items()
    }
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        heads = getattr(config, name)
        widths = config.head_widths(heads)
        reason = (
            f"{name}={heads} with head_dim, v_head_dim = {widths[0]}, {widths[1]} "
            f"(Marian: d_model={config.d_model} / heads)"
        )
        reasons[reason] = any(width * heads != config.d_model for width in widths)
    in_search = "in the generation config"
    return reasons | {
        "decoder_start_token_id=None (Marian: an id)": config.decoder_start_token_id is None,
        f"length_penalty_form={form!r} {in_search} (Marian: 'power')": form != "power",
        f"max_tokens_beyond_source={beyond} {in_search} (Marian: max_length)": beyond is not None,
    }
