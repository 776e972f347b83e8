"""Checkpoints of timm's `vit_*` models to our model, without timm itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from torch import Tensor
from transformers import ViTImageProcessorPil
from transformers.image_utils import PILImageResampling

from hf_vanilla.files import whole_folder
from hf_vanilla.loading import found_on_hub
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification
from hf_vanilla.options import Options, option

from .checkpoint_files import read_checkpoint
from .vit import add_zero_biases, authors_processor, save_image_model
from .weight_names import Names, load_renamed, rename_to_ours

_LAYER = "model.layers.{n}"
NAMES: Names = {
    "cls_token": "model.embeddings.class_token",
    "pos_embed": "model.embeddings.positions",
    "patch_embed.proj.{kind}": "model.embeddings.patch_projection.{kind}",
    "blocks.{n}.norm1.{kind}": f"{_LAYER}.self_attn_layer_norm.{{kind}}",
    "blocks.{n}.attn.qkv.{kind}": tuple(
        f"{_LAYER}.self_attn.{part}_proj.{{kind}}" for part in ("q", "k", "v")
    ),
    "blocks.{n}.attn.proj.{kind}": f"{_LAYER}.self_attn.out_proj.{{kind}}",
    "blocks.{n}.norm2.{kind}": f"{_LAYER}.final_layer_norm.{{kind}}",
    "blocks.{n}.mlp.fc1.{kind}": f"{_LAYER}.fc1.{{kind}}",
    "blocks.{n}.mlp.fc2.{kind}": f"{_LAYER}.fc2.{{kind}}",
    "norm.{kind}": "model.layer_norm.{kind}",
    "head.{kind}": "classifier.{kind}",
}
FOREIGN = {
    "dist_token": "a distillation token",
    "head_dist.{kind}": "a distillation token",
    "reg_token": "register tokens",
    "blocks.{n}.ls1.gamma": "layer scale",
    "blocks.{n}.ls2.gamma": "layer scale",
    "blocks.{n}.gamma_1": "layer scale",
    "blocks.{n}.gamma_2": "layer scale",
    "blocks.{n}.attn.rel_pos_h": "windowed attention with relative positions",
    "blocks.{n}.attn.rel_pos_w": "windowed attention with relative positions",
    "blocks.{n}.attn.q_norm.{kind}": "norms on queries and keys",
    "blocks.{n}.attn.k_norm.{kind}": "norms on queries and keys",
    "norm_pre.{kind}": "a norm below the first layer",
    "fc_norm.{kind}": "a mean over patches instead of the class token",
    "attn_pool.{part}.{kind}": "an attention head for pooling",
}
HEAD_WIDTH, HUGE = 64, {1280: 16}  # heads are not stored; all sizes but huge have heads of 64


@dataclass(frozen=True, kw_only=True)
class TimmOptions(Options):
    """Convert a `vit_*` checkpoint of timm."""

    input: str = option(
        text="folder with model.safetensors and config.json, a .safetensors, or Hub id"
    )
    output: str = option(text="folder for our model")
    heads: int | None = option(
        None, "attention heads; default: config.json, else of 64 channels as in timm"
    )


def convert_timm(options: TimmOptions) -> Path:
    """Our model folder, image processor and label names included, from timm's files.

    Raises:
        ValueError: the checkpoint is damaged or another architecture; the message names all that
            is left over.
        OSError: nothing is found under that name, or the output is taken.
    """
    with whole_folder(options.output) as folder:
        weights, settings = _read_timm(options.input)
        ours = from_timm(weights, settings, origin=options.input, heads=options.heads)
        save_image_model(ours, timm_processor(ours.config, settings), folder)
    return Path(options.output)


def from_timm(
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any] | None = None,
    *,
    origin: str = "the checkpoint",
    heads: int | None = None,
) -> VanillaForImageClassification:
    """Our model with the weights and the function of a timm checkpoint.

    A final norm of the name `fc_norm` is taken where `global_pool` is `"token"`; with the mean over
    patches, timm's default beside it, the model is refused.

    Args:
        weights: by timm's names.
        settings: `config.json` beside them; None: there is none.
        origin: for messages.
        heads: attention heads; None: as timm's models of that width have.

    Raises:
        ValueError: weights are left over, missing, or of a wrong shape; the message names them all.
    """
    settings, names = settings or {}, dict(NAMES)
    pooling = settings.get("global_pool", "token" if "fc_norm.weight" not in weights else "avg")
    if pooling != "token":
        raise ValueError(
            f"{origin} does not fit this architecture; global_pool={pooling!r}, a mean over "
            "patches, where ours reads the class token (global_pool='token')"
        )
    if "fc_norm.weight" in weights:
        names["fc_norm.{kind}"] = names.pop("norm.{kind}")
    config = _config(weights, settings, origin, heads)
    ours = VanillaForImageClassification(config)
    renamed = rename_to_ours(weights, names)
    if "blocks.0.attn.qkv.bias" not in weights:
        add_zero_biases(renamed, ours)
    load_renamed(ours, renamed, origin=origin, reasons=FOREIGN)
    return ours.eval()


def timm_processor(config: VanillaVitConfig, settings: Mapping[str, Any]) -> ViTImageProcessorPil:
    """Resize, crop the middle and normalise, as `pretrained_cfg` of `config.json` says."""
    pretrained = settings.get("pretrained_cfg") or {}
    if "mean" not in pretrained:
        return authors_processor(config)
    height, width = config.image_height_width
    share = pretrained.get("crop_pct") or 1.0
    resample = PILImageResampling[pretrained.get("interpolation", "bicubic").upper()]
    return ViTImageProcessorPil(
        size={"shortest_edge": int(min(height, width) / share)},
        do_center_crop=True,
        crop_size={"height": height, "width": width},
        resample=resample,
        do_convert_rgb=True,
        image_mean=list(pretrained["mean"]),
        image_std=list(pretrained["std"]),
    )


# --- inside ------------------------------------------------------------------------------------


def _read_timm(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and `config.json`, empty where a lone file of weights was given."""
    path = Path(name)
    if path.is_file():
        return read_checkpoint(path), {}
    if path.is_dir():
        weights, settings = path / "model.safetensors", path / "config.json"
    else:
        with found_on_hub(name):
            weights = Path(hf_hub_download(name, "model.safetensors"))
            settings = Path(hf_hub_download(name, "config.json"))
    try:
        content = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{settings} is not JSON: {error}") from None
    return read_checkpoint(weights), content


def _config(
    weights: Mapping[str, Tensor], settings: Mapping[str, Any], origin: str, heads: int | None
) -> VanillaVitConfig:
    """Every size, from shapes where they tell it."""
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "head.weight")
    if missing := [name for name in needed if name not in weights]:
        raise ValueError(f"{origin} is no vit_* of timm: missing {', '.join(missing)}")
    patches, positions, fed, head = (weights[name] for name in needed)
    width, channels, *patch = patches.shape
    pretrained = settings.get("pretrained_cfg") or {}
    heads = heads or (settings.get("model_args") or {}).get("num_heads")
    size, count = pretrained.get("input_size"), positions.shape[1] - 1
    if not size:
        side = round(count**0.5)
        if side * side != count:
            raise ValueError(
                f"{origin} has {count} positions, which make no square: put its config.json, with "
                "pretrained_cfg.input_size, beside the weights"
            )
        size = [channels, side * patch[0], side * patch[1]]
    labels = settings.get("label_names") or pretrained.get("label_names")
    names = {index: str(label) for index, label in enumerate(labels or ())}
    layers = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    return VanillaVitConfig(
        image_size=list(size[1:]),
        patch_size=patch,
        num_channels=channels,
        d_model=width,
        encoder_layers=len(layers),
        encoder_attention_heads=heads or HUGE.get(width) or max(1, width // HEAD_WIDTH),
        encoder_ffn_dim=fed.shape[0],
        layer_norm_eps=1e-6,
        **({"id2label": names} if names else {"num_labels": head.shape[0]}),
    )
