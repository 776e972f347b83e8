"""ViT checkpoints of timm (`vit_*`) and of the ViT authors (`.npz`) to our model, without either.

Shapes: D width, F feed-forward width, N heads, K width of a head, C channels, P positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import ViTImageProcessorPil

from hf_vanilla.data.image_models import label_fields
from hf_vanilla.file_values import checked
from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification
from hf_vanilla.options import Options, option

from .checkpoint_files import local_folder, read_arrays, read_json, read_weights
from .vit import authors_processor
from .weight_names import Names, count_layers, load_renamed, rename_to_ours, with_zero_biases

_LAYER = "model.layers.{n}"
TIMM_NAMES: Names = {
    "cls_token": "model.embeddings.class_token",
    "pos_embed": "model.embeddings.positions",
    "patch_embed.proj.{kind}": "model.embeddings.patch_projection.{kind}",
    "blocks.{n}.norm1.{kind}": f"{_LAYER}.self_attn_layer_norm.{{kind}}",
    "blocks.{n}.attn.qkv.{kind}": tuple(
        f"{_LAYER}.self_attn.{part}_proj.{{kind}}" for part in "qkv"
    ),
    "blocks.{n}.attn.proj.{kind}": f"{_LAYER}.self_attn.out_proj.{{kind}}",
    "blocks.{n}.norm2.{kind}": f"{_LAYER}.final_layer_norm.{{kind}}",
    "blocks.{n}.mlp.fc{k}.{kind}": f"{_LAYER}.fc{{k}}.{{kind}}",
    "norm.{kind}": "model.layer_norm.{kind}",
    "head.{kind}": "classifier.{kind}",
}
TIMM_FOREIGN = {
    "dist_token": "a distillation token",
    "head_dist.{kind}": "a distillation token",
    "reg_token": "register tokens",
    "blocks.{n}.ls{k}.gamma": "layer scale",
    "blocks.{n}.gamma_{k}": "layer scale",
    "blocks.{n}.attn.rel_pos_{axis}": "windowed attention with relative positions",
    "blocks.{n}.attn.{part}_norm.{kind}": "norms on queries and keys",
    "norm_pre.{kind}": "a norm below the first layer",
    "fc_norm.{kind}": "a mean over patches instead of the class token",
    "attn_pool.{part}.{kind}": "an attention head for pooling",
}
# heads are not stored; all have 64 channels, but those of test_vit, huge, giant and gigantic
HEAD_WIDTH, OTHER_HEADS = 64, {64: 2, 1280: 16, 1408: 16, 1664: 16}
# of pretrained_cfg: what our processor can do, the default first
READ_OF_IMAGES = {
    "interpolation": ("bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"),
    "crop_mode": ("center",),
}


@dataclass(frozen=True, kw_only=True)
class TimmOptions(Options):
    """Convert a `vit_*` checkpoint of timm."""

    input: str = option(text="folder of weights and config.json, file of weights, or Hub id")
    output: str = option(text="folder for our model")
    heads: int | None = option(
        None, "attention heads; default: config.json, else as timm has them", at_least=1
    )


def convert_timm(options: TimmOptions) -> Path:
    """Our model folder, image processor and label names included, from timm's files.

    Raises:
        ValueError: the checkpoint is damaged or another architecture; the message names all that
            is left over.
        OSError: nothing is found under that name, or the output is taken.
    """
    with whole_folder(options.output) as folder:
        settings: dict[str, Any] = {}
        path = Path(options.input)
        if not path.is_file():
            path = local_folder(options.input, ("model.safetensors", "config.json"))
            settings = _timm_settings(path / "config.json")
        ours = from_timm(read_weights(path), settings, origin=options.input, heads=options.heads)
        carry_over(options.input, folder, ours, timm_processor(ours.config, settings))
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
    settings, names = settings or {}, dict(TIMM_NAMES)
    pooling = settings.get("global_pool", "token" if "fc_norm.weight" not in weights else "avg")
    if pooling != "token":
        raise ValueError(
            f"{origin} does not fit this architecture; global_pool={pooling!r}, where ours reads "
            "the class token (global_pool='token')"
        )
    if "fc_norm.weight" in weights:
        names["fc_norm.{kind}"] = names.pop("norm.{kind}")
    ours = VanillaForImageClassification(_timm_config(weights, settings, origin, heads))
    if "blocks.0.attn.qkv.bias" not in weights:
        weights = with_zero_biases(weights, ".qkv.weight")
    load_renamed(ours, rename_to_ours(weights, names), origin=origin, reasons=TIMM_FOREIGN)
    return ours.eval()


def timm_processor(config: VanillaVitConfig, settings: Mapping[str, Any]) -> ViTImageProcessorPil:
    """Resize, crop the middle and normalise, as `pretrained_cfg` of `config.json` says."""
    from PIL.Image import Resampling

    pretrained = settings.get("pretrained_cfg") or {}
    if "mean" not in pretrained:
        return authors_processor(config)
    height, width = config.image_height_width
    share = pretrained.get("crop_pct") or 1.0
    resample = Resampling[pretrained.get("interpolation", "bicubic").upper()]
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


def _timm_settings(path: Path) -> dict[str, Any]:
    """The content of timm's `config.json`, in the form of today; empty without the file."""
    settings = read_json(path) if path.is_file() else {}
    if "pretrained_cfg" not in settings:  # older files have all in one dict
        settings |= {"pretrained_cfg": {**settings}, "label_names": settings.get("labels")}
    for part in ("pretrained_cfg", "model_args"):
        checked(settings.get(part) or {}, dict, f"{path}: {part}")
    pretrained = settings["pretrained_cfg"] or {}
    checked(pretrained.get("crop_pct") or 1.0, (int, float), f"{path}: crop_pct")
    for name, known in READ_OF_IMAGES.items():
        if (pretrained.get(name) or known[0]) not in known:
            raise ValueError(f"{path}: {name}={pretrained[name]!r}: give {' or '.join(known)}")
    return settings


def _timm_config(
    weights: Mapping[str, Tensor], settings: Mapping[str, Any], origin: str, heads: int | None
) -> VanillaVitConfig:
    """Every size, from shapes where possible."""
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "head.weight")
    if missing := [name for name in needed if name not in weights]:
        raise ValueError(f"{origin} is no vit_* of timm with classes: missing {', '.join(missing)}")
    patches, positions, fed, head = (weights[name] for name in needed)
    width, channels, *patch = patches.shape
    pretrained = settings.get("pretrained_cfg") or {}
    given = settings.get("model_args") or {}
    for name, own in (("act_layer", "gelu"), ("norm_layer", "layernorm")):  # not seen in shapes
        if given.get(name) not in (None, own):
            raise ValueError(f"{origin} has {name}={given[name]!r} in config.json; ours is {own!r}")
    heads = heads or given.get("num_heads") or OTHER_HEADS.get(width)
    if heads is None and width % HEAD_WIDTH:
        raise ValueError(f"{origin} does not tell its attention heads: give them with --heads")
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
    return VanillaVitConfig(
        image_size=list(size[1:]),
        patch_size=patch,
        num_channels=channels,
        d_model=width,
        encoder_layers=count_layers(weights, "blocks."),
        encoder_attention_heads=heads or width // HEAD_WIDTH,
        encoder_ffn_dim=fed.shape[0],
        layer_norm_eps=1e-6,
        **_classes(labels, len(head), origin),
    )


def _classes(labels: Any, count: int, origin: str) -> dict[str, Any]:
    """Config fields for the classes; a dict of labels may have gaps."""
    if not labels:
        return {"num_labels": count}
    if isinstance(labels, dict):
        labels = [labels.get(str(index), f"LABEL_{index}") for index in range(count)]
    if len(labels) != count:
        raise ValueError(
            f"{origin} has {count} classes, but {len(labels)} label_names in config.json: correct "
            "them there, or remove them"
        )
    return label_fields([str(label) for label in labels])


# --- .npz files of the ViT authors, github.com/google-research/vision_transformer ---------------

_BLOCK = "Transformer.encoderblock_{n}"
_ATTENTION = f"{_BLOCK}.MultiHeadDotProductAttention_1"
# dots for the slashes of the file, so that braces stand for one piece
GOOGLE_NAMES: Names = {
    "cls": "model.embeddings.class_token",
    "Transformer.posembed_input.pos_embedding": "model.embeddings.positions",
    **{
        f"{theirs}.{their_kind}": f"{ours}.{our_kind}"
        for theirs, ours in {
            "embedding": "model.embeddings.patch_projection",
            f"{_BLOCK}.LayerNorm_0": f"{_LAYER}.self_attn_layer_norm",
            f"{_BLOCK}.LayerNorm_2": f"{_LAYER}.final_layer_norm",
            f"{_BLOCK}.MlpBlock_3.Dense_0": f"{_LAYER}.fc1",
            f"{_BLOCK}.MlpBlock_3.Dense_1": f"{_LAYER}.fc2",
            f"{_ATTENTION}.query": f"{_LAYER}.self_attn.q_proj",
            f"{_ATTENTION}.key": f"{_LAYER}.self_attn.k_proj",
            f"{_ATTENTION}.value": f"{_LAYER}.self_attn.v_proj",
            f"{_ATTENTION}.out": f"{_LAYER}.self_attn.out_proj",
            "Transformer.encoder_norm": "model.layer_norm",
            "pre_logits": "model.pooler",
            "head": "classifier",
        }.items()
        for their_kind, our_kind in (("kernel", "weight"), ("scale", "weight"), ("bias", "bias"))
    },
}
GOOGLE_FOREIGN = {
    "{part}_root.{kind}": "a convolutional stem",
    "{block}.{unit}.{part}.{kind}": "a convolutional stem",
    "MAPHead_0.{part}.{kind}": "an attention head for pooling",
}


@dataclass(frozen=True, kw_only=True)
class GoogleVitOptions(Options):
    """Convert a `.npz` file of the ViT authors."""

    input: str = option(text=".npz file")
    output: str = option(text="folder for our model")
    image_height: int | None = option(None, "pixels, for images that are not square")


def convert_google_vit(options: GoogleVitOptions) -> Path:
    """Our model folder from a `.npz` file.

    Raises:
        ValueError: the file is damaged, holds Python objects, or another architecture; the message
            names all that is left over.
        OSError: there is no such file, or the output is taken.
    """
    with whole_folder(options.output) as folder:
        arrays = read_arrays(Path(options.input))
        ours = from_google(arrays, origin=options.input, image_height=options.image_height)
        ours.save_pretrained(folder)
        authors_processor(ours.config).save_pretrained(folder)
    return Path(options.output)


def from_google(
    arrays: dict[str, Tensor], *, origin: str = "the file", image_height: int | None = None
) -> VanillaForImageClassification:
    """Our model with the weights and the function of the authors' arrays.

    Args:
        arrays: by the authors' names, with slashes.
        origin: for messages.
        image_height: in pixels, where images are not square.

    Raises:
        ValueError: arrays are left over, missing, or of a wrong shape; the message names them all.
    """
    config = _google_config(arrays, origin, image_height)
    weights = {n.replace("/", "."): _to_ours(n, weight) for n, weight in arrays.items()}
    ours = VanillaForImageClassification(config)
    load_renamed(ours, rename_to_ours(weights, GOOGLE_NAMES), origin=origin, reasons=GOOGLE_FOREIGN)
    return ours.eval()


def _google_config(
    arrays: dict[str, Tensor], origin: str, image_height: int | None
) -> VanillaVitConfig:
    """Every size, from the shapes of the arrays."""
    needed = {
        "embedding/kernel": 4,
        "Transformer/posembed_input/pos_embedding": 3,
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel": 2,
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel": 3,
        "head/kernel": 2,
    }
    found = [arrays.get(name, torch.zeros(())) for name in needed]
    wrong = [name for name, array in zip(needed, found, strict=True) if array.ndim != needed[name]]
    if wrong:
        raise ValueError(f"{origin} is no ViT of the authors: wrong or missing {', '.join(wrong)}")
    embedding, positions, fed, query, head = found
    patch_height, patch_width, channels, width = embedding.shape
    count = positions.shape[1] - 1
    rows = round(count**0.5) if image_height is None else image_height // patch_height
    if image_height is None and rows * rows != count:
        raise ValueError(f"{origin} has {count} positions, which make no grid: give image_height")
    if rows < 1 or count % rows or image_height not in (None, rows * patch_height):
        raise ValueError(
            f"image_height={image_height} does not fit the {count} positions of {origin}, for "
            f"patches of {patch_height} pixels"
        )
    return VanillaVitConfig(
        image_size=[rows * patch_height, count // rows * patch_width],
        patch_size=[patch_height, patch_width],
        num_channels=channels,
        d_model=width,
        encoder_layers=count_layers(arrays, "Transformer/encoderblock_"),
        encoder_attention_heads=query.shape[1],
        encoder_ffn_dim=fed.shape[1],
        activation_function="gelu_pytorch_tanh",  # flax's gelu; timm and transformers use erf
        has_pooler="pre_logits/kernel" in arrays,
        num_labels=head.shape[1],
        layer_norm_eps=1e-6,
    )


def _to_ours(name: str, array: Tensor) -> Tensor:
    """An array in the shape of our weight."""
    *_, module, kind = ("", *name.split("/"))
    if kind == "bias":
        return array.reshape(-1)  # (N, K) -> (N K,)
    if kind != "kernel":
        return array
    if array.ndim == 4:
        return array.permute(3, 2, 0, 1)  # (height, width, C, D) -> (D, C, height, width)
    if array.ndim == 3:  # (N, K, D) of the output, (D, N, K) of queries, keys and values
        size = (-1, array.shape[2]) if module == "out" else (array.shape[0], -1)
        array = array.reshape(size)
    return array.T
