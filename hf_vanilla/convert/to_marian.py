"""Convert our models to MarianMTModel, if it can express them."""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from hf_vanilla.files import whole_folder
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.options import Options, option
from hf_vanilla.text.loading import load_translator, require_float

from .marian import NAMES, SAME_FIELDS, compare
from .weight_names import is_zero_at, load_renamed, rename_to_theirs

logger = logging.getLogger(__name__)

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
        ours, tokenizer = load_translator(options.input)
        require_float(ours, options.input)
        if not isinstance(ours, VanillaForConditionalGeneration):
            raise ValueError(
                f"{options.input} is a {type(ours).__name__}: give an encoder-decoder model"
            )
        theirs = to_marian(ours.to("cpu"))
        if options.check:
            logger.info("%s", compare(theirs, ours, tokenizer))
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return Path(options.output)


def to_marian(ours: VanillaForConditionalGeneration) -> MarianMTModel:
    """A MarianMTModel that computes and decodes like our model.

    Biases that our model does not have become zeros. If our model embeds padding as zeros although
    its row of the tied table is not zero, the tables of the result are untied.

    Raises:
        ValueError: MarianMTModel cannot express the model; the message names all reasons.
    """
    config, decoding = ours.config, copy.deepcopy(ours.generation_config)
    if reasons := _marian_faults(config, decoding):
        raise ValueError(f"MarianMTModel cannot express this model: {'; '.join(reasons)}")
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
    renamed = rename_to_theirs(weights, NAMES)
    renamed.weights["final_logits_bias"] = renamed.weights["final_logits_bias"].unsqueeze(0)
    for name, weight in theirs.state_dict().items():
        if "embed_positions" in name:
            renamed.weights[name] = weight
            renamed.origins[name] = name
    load_renamed(theirs, renamed, origin="our model")
    for entry in ("length_penalty_form", "max_tokens_beyond_source"):
        vars(decoding).pop(entry, None)
    theirs.generation_config = decoding
    return theirs.eval()


# --- inside ------------------------------------------------------------------------------------


def _weights_of_their_form(ours: VanillaForConditionalGeneration) -> tuple[dict[str, Tensor], bool]:
    """All weights of MarianMTModel by our names, and whether the output stays tied."""
    config = ours.config
    weights = dict(ours.state_dict())
    for name, weight in ours.state_dict().items():
        if name == "lm_head.weight" or name.endswith("_proj.weight"):
            bias = name.removesuffix("weight") + "bias"
            weights.setdefault(bias, weight.new_zeros(weight.shape[0]))
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


def _marian_faults(config: VanillaConfig, decoding: GenerationConfig) -> list[str]:
    reasons = [
        f"{name}={getattr(config, name)!r} (Marian: {only!r})"
        for name, only in MARIAN_FIELDS.items()
        if getattr(config, name) != only
    ]
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        heads = getattr(config, name)
        widths = config.head_widths(heads)
        if any(width * heads != config.d_model for width in widths):
            reasons.append(
                f"{name}={heads} with head_dim, v_head_dim = {widths[0]}, {widths[1]} "
                f"(Marian: d_model={config.d_model} / heads)"
            )
    if config.decoder_start_token_id is None:
        reasons.append("decoder_start_token_id=None (Marian: an id)")
    form = getattr(decoding, "length_penalty_form", None) or "power"
    if form != "power":
        reasons.append(f"length_penalty_form={form!r} in the generation config (Marian: 'power')")
    if (beyond := getattr(decoding, "max_tokens_beyond_source", None)) is not None:
        reasons.append(
            f"max_tokens_beyond_source={beyond} in the generation config (Marian: max_length)"
        )
    return reasons
