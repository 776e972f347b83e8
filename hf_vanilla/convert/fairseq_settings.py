"""Settings and names of fairseq's translation models: our config, or reasons against it."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig

from .weight_names import Names

# fairseq's limit on the tokens of a translation, </s> not counted
MAX_TARGET_TOKENS = 200
SETTINGS_PARTS = ("task", "criterion", "model")
SIDES = ("encoder", "decoder")
IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}

# fairseq's name: our name; all must be in the checkpoint
SIZES = {
    "encoder_embed_dim": "d_model",
    "encoder_layers": "encoder_layers",
    "encoder_attention_heads": "encoder_attention_heads",
    "encoder_ffn_embed_dim": "encoder_ffn_dim",
    "decoder_layers": "decoder_layers",
    "decoder_attention_heads": "decoder_attention_heads",
    "decoder_ffn_embed_dim": "decoder_ffn_dim",
}
TYPES: dict[str, tuple[tuple[str, ...], type | tuple[type, ...]]] = {
    "an integer": ((*SIZES, "max_source_positions", "max_target_positions"), int),
    "a number": (
        ("dropout", "attention_dropout", "activation_dropout", "relu_dropout", "label_smoothing"),
        (int, float),
    ),
    "a string": (("activation_fn", "source_lang", "target_lang", "arch", "task"), str),
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "tanh": "tanh",
    "linear": "linear",
    "swish": "silu",
    "relu_squared": "relu2",
}
# norms of a layer by their numbers in old checkpoints
OLD_NORMS = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
# settings that must be off, and what they mean
REFUSED = {
    "encoder_normalize_before": "pre-norm encoder",
    "decoder_normalize_before": "pre-norm decoder",
    "layernorm_embedding": "norm on the embeddings",
    "adaptive_softmax_cutoff": "adaptive softmax",
    "adaptive_input": "adaptive input",
    "cross_self_attention": "one attention over source and target",
    "no_cross_attention": "no cross-attention",
    "no_token_positional_embeddings": "no positions",
    "no_enc_token_positional_embeddings": "no positions in the encoder",
    "no_dec_token_positional_embeddings": "no positions in the decoder",
    "encoder_layers_to_keep": "layers pruned",
    "decoder_layers_to_keep": "layers pruned",
    "encoder_recurrent_stacking": "one layer used repeatedly",
    "decoder_recurrent_stacking": "one layer used repeatedly",
    "encoder_add_adapters": "adapters",
    "decoder_add_adapters": "adapters",
    "encoder_xformers_att_config": "a different attention",
    "decoder_xformers_att_config": "a different attention",
    "use_factorized_embedding": "factorized embeddings",
    "base_layers": "sparse layers",
    "char_inputs": "characters as input",
    "character_embeddings": "characters as input",
    "scale_attn": "norm inside attention",
    "scale_fc": "norm inside the feed-forward network",
    "scale_heads": "scaled heads",
    "scale_resids": "scaled residuals",
}
OTHER_ARCHITECTURES = (
    "transformer_lm",
    "transformer_align",
    "transformer_from_",
    "transformer_moe",
)


def settings_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by fairseq's flat names, from `args` or from a nested `cfg`."""
    config = checkpoint.get("cfg")
    if config is None:
        return _as_dict(checkpoint.get("args"))
    flat: dict[str, Any] = {"label_smoothing_type": "non_target"}
    for part in SETTINGS_PARTS:
        values = _as_dict(_as_dict(config).get(part))
        name = values.pop("_name", None)
        for key, value in values.items():
            nested = _as_dict(value) if key in SIDES else {}
            flat.update({f"{key}_{name}": inner for name, inner in nested.items()} or {key: value})
        if name is not None:
            flat["arch" if part == "model" else part] = name
    return flat


def wrong_types(settings: Mapping[str, Any]) -> list[str]:
    """Descriptions of settings whose value has not the type that fairseq gives them."""
    return [
        f"{name}={settings[name]!r} is not {kind}"
        for kind, (names, types) in TYPES.items()
        for name in names
        if settings.get(name) is not None
        and (isinstance(settings[name], bool) or not isinstance(settings[name], types))
    ]


def refusals(settings: Mapping[str, Any]) -> list[str]:
    """Descriptions of all settings that our architecture cannot express."""
    faults = [f"{n}={settings[n]!r} ({why})" for n, why in REFUSED.items() if settings.get(n)]
    faults += [f"{name} is missing" for name in SIZES if settings.get(name) is None]
    arch, task = settings.get("arch", "transformer"), settings.get("task", "translation")
    if not str(arch).startswith("transformer") or str(arch).startswith(OTHER_ARCHITECTURES):
        faults.append(f"arch={arch!r} is not the transformer")
    if task != "translation":
        faults.append(f"task={task!r} is not 'translation'")
    activation = settings.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        faults.append(f"activation_fn={activation!r} is none of {', '.join(ACTIVATIONS)}")
    return faults + _unequal_sides(settings)


def config_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `VanillaConfig`, without the vocabulary sizes.

    Args:
        settings: in which `refusals` finds no fault.
    """
    is_learned = bool(settings.get("encoder_learned_pos"))
    # the older name counts where the newer one has 0, as in fairseq
    dropout = settings.get("activation_dropout") or settings.get("relu_dropout") or 0.0
    smoothing = settings.get("label_smoothing") or 0.0
    is_smoothed = "smoothed" in str(settings.get("criterion"))
    return {
        **{ours: settings[theirs] for theirs, ours in SIZES.items()},
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout") or 0.0,
        "activation_dropout": dropout,
        "activation_function": ACTIVATIONS[settings.get("activation_fn", "relu")],
        "attention_bias": True,
        "layer_norm_eps": 1e-5,
        "scale_embedding": not settings.get("no_scale_embedding"),
        "max_position_embeddings": max_positions(settings, "source"),
        "position_embedding_type": "learned" if is_learned else "sinusoidal",
        "position_layout": "concatenated",
        "position_frequencies": "tensor2tensor",
        "position_offset": 0 if is_learned else 2,  # `cut_positions` cuts learned tables
        "label_smoothing": smoothing if is_smoothed else 0.0,
        # until 2021 fairseq saved `args` instead of `cfg`, and smoothed over all tokens
        "label_smoothing_type": settings.get("label_smoothing_type", "uniform"),
        **sharing_of(settings),
        **IDS,
    }


def sharing_of(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Which embedding tables the settings share, as fields of `VanillaConfig`."""
    sides = ("share_all_embeddings", "merge_src_tgt_embed")
    output = ("share_all_embeddings", "share_decoder_input_output_embed")
    return {
        "share_encoder_decoder_embeddings": any(settings.get(name) for name in sides),
        "tie_word_embeddings": any(settings.get(name) for name in output),
    }


def max_positions(settings: Mapping[str, Any], side: str) -> int:
    """Maximum tokens of a sentence; `side` is `"source"` or `"target"`."""
    return int(settings.get(f"max_{side}_positions") or 1024)


def names_of(*, is_shared: bool) -> Names:
    """The table of names from fairseq, old and new, to ours.

    Args:
        is_shared: whether both sides share one embedding.
    """
    table = "model.shared.weight" if is_shared else "model.{side}.embed_tokens.weight"
    layer = "{side}.layers.{n}."
    same = (
        f"{layer}{{attention}}.{{what}}_proj.{{kind}}",
        f"{layer}fc{{k}}.{{kind}}",
        f"{layer}{{norm}}_layer_norm.{{kind}}",
        "{side}.embed_positions.weight",
    )
    return {
        **{name: f"model.{name}" for name in same},
        f"{layer}{{attention}}.in_proj_{{kind}}": tuple(
            f"model.{layer}{{attention}}.{part}_proj.{{kind}}" for part in "qkv"
        ),
        **{
            f"{side}.layers.{{n}}.layer_norms.{number}.{{kind}}": (
                f"model.{side}.layers.{{n}}.{norm}_layer_norm.{{kind}}"
            )
            for side, norms in OLD_NORMS.items()
            for number, norm in enumerate(norms)
        },
        "{side}.embed_tokens.weight": table,
        "decoder.output_projection.weight": "lm_head.weight",
        "decoder.embed_out": "lm_head.weight",
        "{side}.embed_positions._float_tensor": None,
        "{side}.embed_positions.weights": None,  # the computed table
        "{side}.version": None,
    }


def cut_positions(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut learned position tables: row p of fairseq is position p - 2."""
    cut = {n: w[2:].clone() for n, w in weights.items() if n.endswith(".embed_positions.weight")}
    return {**weights, **cut}


def _as_dict(part: Any) -> dict[str, Any]:
    """A namespace or mapping as a dict; an empty dict for anything else."""
    if isinstance(part, Namespace):
        return dict(vars(part))
    return {key: part[key] for key in part} if isinstance(part, Mapping) else {}


def _unequal_sides(settings: Mapping[str, Any]) -> list[str]:
    """Settings that must be equal on both sides in our model."""
    width = settings.get("encoder_embed_dim")
    faults = [
        f"{name}={settings[name]} differs from encoder_embed_dim={width}"
        for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim")
        if isinstance(settings.get(name), int) and settings[name] != width
    ]
    learned = [bool(settings.get(f"{side}_learned_pos")) for side in SIDES]
    if learned[0] != learned[1]:
        faults.append(f"{SIDES[learned[1]]}_learned_pos on one side only")
    lengths = [max_positions(settings, side) for side in ("source", "target")]
    if any(learned) and lengths[0] != lengths[1]:
        faults.append(
            f"max_source_positions={lengths[0]} differs from max_target_positions={lengths[1]}, "
            "and positions are learned"
        )
    return faults


def fairseq_decoding(settings: Mapping[str, Any]) -> GenerationConfig:
    """The default decoding of fairseq.

    Beam size 5, log probability divided by length, stop at five finished hypotheses, 1 to 200
    tokens and a forced `</s>`; `<pad>` is never generated.
    """
    longest = min(MAX_TARGET_TOKENS, max_positions(settings, "target") - 1)
    return GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        length_penalty_form="power",
        early_stopping=True,
        min_new_tokens=1,
        max_new_tokens=longest + 1,
        forced_eos_token_id=2,
        suppress_tokens=[1],
        **IDS,
    )
