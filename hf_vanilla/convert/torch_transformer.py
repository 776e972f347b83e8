"""Convert state dicts of models around `torch.nn.Transformer`, such as PyTorch's tutorial's.

A state dict contains neither the number of heads nor special tokens; options give them. It does not
show `norm_first=True` either: do not convert such a model.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_vanilla.files import whole_folder
from hf_vanilla.models.configuration_vanilla import (
    POSITION_FREQUENCIES,
    POSITION_LAYOUTS,
    VanillaConfig,
)
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.options import Options, option

from .checkpoint_files import is_state_dict, read_checkpoint
from .weight_names import (
    Names,
    Weights,
    count_layers,
    is_sinusoidal,
    is_zero_at,
    load_renamed,
    rename_to_ours,
    torch_layer_names,
    with_zero_biases,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TorchOptions(Options):
    """Convert a state dict around `torch.nn.Transformer`.

    Names are those of attributes; an empty name is the model itself.
    """

    input: str = option(text="file of a state dict: torch.save or safetensors")
    output: str = option(text="folder for our model")
    heads: int = option(text="attention heads (nhead)", at_least=1)
    pad_token_id: int = option(text="id of padding")
    decoder_start_token_id: int = option(text="id that targets start with")
    eos_token_id: int = option(text="id that sentences end with")
    entry: str = option("", "key of the state dict in a file that contains more")
    prefix: str = option("", "prefix of all names: module. (DataParallel), _orig_mod. ...")
    transformer: str = option("transformer", "name of the nn.Transformer")
    source_embedding: str = option("src_tok_emb.embedding", "name of the source embedding")
    target_embedding: str = option("tgt_tok_emb.embedding", "name of the target embedding")
    output_projection: str = option("generator", "name of the output layer")
    positions: str = option(
        "positional_encoding.pos_embedding", "name of the sinusoid table, if it was saved"
    )
    activation_function: str = option("relu", "relu or gelu")
    layer_norm_eps: float = option(1e-5, "epsilon of the layer norms")
    scale_embedding: bool = option(True, "embeddings are multiplied by sqrt(d_model)")
    dropout: float = option(0.1, "dropout rate for further training")
    trust_pickle: bool = option(False, "load any class, which can run code; for trusted authors")

    @property
    def inner(self) -> str:
        """The prefix of names inside the `nn.Transformer`."""
        return f"{self.transformer}." if self.transformer else ""


def convert_torch(options: TorchOptions) -> Path:
    """Write our model folder from a state dict, without a tokenizer; returns the folder.

    Raises:
        ValueError: the file is damaged or incomplete, or our model cannot express it; the message
            names all reasons.
        OSError: there is no such file, or the output exists.
    """
    with whole_folder(options.output) as folder:
        content = read_checkpoint(options.input, trust_pickle=options.trust_pickle)
        from_torch(_state_dict(content, options), options).save_pretrained(folder)
    return Path(options.output)


def from_torch(weights: Weights, options: TorchOptions) -> VanillaForConditionalGeneration:
    """Our model that computes like a model around `torch.nn.Transformer`.

    The two additional dropouts of `torch.nn.Transformer` (on attention weights and inside the
    feed-forward network) become `attention_dropout` and `activation_dropout`.

    Args:
        weights: the state dict.
        options: what the state dict does not contain; its files are not used.

    Raises:
        ValueError: it is incomplete, or our model cannot express it; the message names all reasons.
    """
    config, faults = _config(weights, options)
    ours = VanillaForConditionalGeneration(config)
    if not any(re.match(rf"{options.inner}(en|de)coder\..*bias$", name) for name in weights):
        # of nn.Transformer(bias=False)
        norms = (f"norm{number}.weight" for number in ("", 1, 2, 3))
        weights = with_zero_biases(weights, "linear1.weight", "linear2.weight", *norms)
    renamed = rename_to_ours(weights, torch_names(options))
    renamed.problems.extend(faults)
    load_renamed(ours, renamed, origin=options.input)
    return ours.eval()


def torch_names(options: TorchOptions) -> Names:
    """The table of names for the attribute names in `options`."""
    inner = options.inner
    return {
        f"{inner}{{side}}.norm.{{kind}}": "model.{side}.layer_norm.{kind}",
        f"{options.output_projection}.{{kind}}": "lm_head.{kind}",
        **({options.positions: None} if options.positions else {}),
        **torch_layer_names(f"{inner}{{side}}.layers.{{n}}.", "model.{side}.layers.{n}."),
        # the same name for both: one shared table
        f"{options.source_embedding}.weight": "model.encoder.embed_tokens.weight",
        f"{options.target_embedding}.weight": "model.decoder.embed_tokens.weight",
    }


# --- inside ------------------------------------------------------------------------------------


def _state_dict(content: Any, options: TorchOptions) -> dict[str, Tensor]:
    path, entry = options.input, options.entry
    if entry:
        if not isinstance(content, Mapping) or entry not in content:
            raise ValueError(f"{path} has no entry {entry!r}; it contains {_described(content)}")
        content = content[entry]
    if not is_state_dict(content):
        raise ValueError(
            f"{path} is not a state dict; it contains {_described(content)}: name the state dict "
            "with --entry, or save model.state_dict()"
        )
    return {name.removeprefix(options.prefix): weight for name, weight in content.items()}


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return ", ".join(map(str, content)) or "nothing"
    return f"a {type(content).__name__}"


def _config(weights: Weights, options: TorchOptions) -> tuple[VanillaConfig, list[str]]:
    """The config from shapes, names and options, and reasons why our model cannot express it."""
    inner = options.inner
    names = [
        f"{options.source_embedding}.weight",
        f"{options.target_embedding}.weight",
        f"{options.output_projection}.weight",
        f"{inner}encoder.layers.0.linear1.weight",
        f"{inner}decoder.layers.0.linear1.weight",
    ]
    if absent := [name for name in names if name not in weights or weights[name].dim() != 2]:
        # of the layers, name only the module that contains them
        parts = sorted({re.sub(r"(^|\.)(en|de)coder\..*", r"\1", name) for name in weights})
        raise ValueError(
            f"{options.input} has no matrix {', '.join(absent)}; it has "
            f"{', '.join(part.rstrip('.') or 'encoder, decoder' for part in parts)}: give names "
            "with --transformer, --source_embedding, --target_embedding, --output_projection and "
            "--prefix"
        )
    source, target, output, encoder_inner, decoder_inner = (weights[name] for name in names)
    positions, faults = _positions(weights, options, source.shape[1])
    is_shared = torch.equal(source, target)
    config = VanillaConfig(
        vocab_size=source.shape[0],
        decoder_vocab_size=target.shape[0],
        d_model=source.shape[1],
        encoder_layers=count_layers(weights, f"{inner}encoder.layers."),
        encoder_attention_heads=options.heads,
        encoder_ffn_dim=encoder_inner.shape[0],
        decoder_layers=count_layers(weights, f"{inner}decoder.layers."),
        decoder_attention_heads=options.heads,
        decoder_ffn_dim=decoder_inner.shape[0],
        dropout=options.dropout,
        attention_dropout=options.dropout,
        activation_dropout=options.dropout,
        activation_function=options.activation_function,
        attention_bias=any(name.endswith(".in_proj_bias") for name in weights),
        layer_norm_eps=options.layer_norm_eps,
        final_layer_norm=any(re.match(rf"{inner}(en|de)coder\.norm\.", name) for name in weights),
        scale_embedding=options.scale_embedding,
        zero_pad_embedding=is_zero_at(options.pad_token_id, source, target),
        share_encoder_decoder_embeddings=is_shared,
        tie_word_embeddings=torch.equal(output, target),
        lm_head_bias=f"{options.output_projection}.bias" in weights,
        pad_token_id=options.pad_token_id,
        eos_token_id=options.eos_token_id,
        decoder_start_token_id=options.decoder_start_token_id,
        **positions,
    )
    return config, faults


def _positions(
    weights: Weights, options: TorchOptions, width: int
) -> tuple[dict[str, Any], list[str]]:
    """Config fields for the saved position table, and why our model cannot express it."""
    if options.positions not in weights:
        logger.warning(
            "no position table %r was saved: assuming interleaved sinusoids (3.5); --positions "
            "gives another name",
            options.positions,
        )
        return {}, []
    table = weights[options.positions]
    if table.numel() % width == 0 and width % 2 == 0:
        table = table.reshape(-1, width).float()  # saved with a batch axis
        for layout, frequencies in product(POSITION_LAYOUTS, POSITION_FREQUENCIES):
            # tutorials compute angles in float32: an error of 5e-4 at position 5,000
            if is_sinusoidal(table, layout=layout, frequencies=frequencies, atol=2e-3):
                return {
                    "max_position_embeddings": table.shape[0],
                    "position_layout": layout,
                    "position_frequencies": frequencies,
                }, []
    return {}, [f"{options.positions} {tuple(table.shape)} is not sinusoidal"]
