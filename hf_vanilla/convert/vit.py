"""Transformers' ViT, `google/vit-base-patch16-224` and its kin, to our model and back."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import (
    AutoImageProcessor,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
)

from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_model, load_saved, load_with_report
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification, VanillaVitModel
from hf_vanilla.options import Options, option

from .checkpoint_files import settings_of_type
from .weight_names import (
    Names,
    add_report,
    load_renamed,
    refuse,
    rename_to_ours,
    rename_to_theirs,
    require_same_outputs,
    with_zero_biases,
)

logger = logging.getLogger(__name__)

OurModel: TypeAlias = VanillaForImageClassification | VanillaVitModel
TheirModel: TypeAlias = ViTForImageClassification | ViTModel
# of the body, without its prefix
MODEL_NAMES: Names = {
    "embeddings.cls_token": "embeddings.class_token",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.patch_embeddings.projection.{kind}": "embeddings.patch_projection.{kind}",
    "layers.{n}.attention.q_proj.{kind}": "layers.{n}.self_attn.q_proj.{kind}",
    "layers.{n}.attention.k_proj.{kind}": "layers.{n}.self_attn.k_proj.{kind}",
    "layers.{n}.attention.v_proj.{kind}": "layers.{n}.self_attn.v_proj.{kind}",
    "layers.{n}.attention.o_proj.{kind}": "layers.{n}.self_attn.out_proj.{kind}",
    "layers.{n}.layernorm_before.{kind}": "layers.{n}.self_attn_layer_norm.{kind}",
    "layers.{n}.layernorm_after.{kind}": "layers.{n}.final_layer_norm.{kind}",
    "layers.{n}.mlp.fc{k}.{kind}": "layers.{n}.fc{k}.{kind}",
    "layernorm.{kind}": "layer_norm.{kind}",
    "pooler.dense.{kind}": "pooler.{kind}",
}
CLASSIFIER_NAMES: Names = {
    **{f"vit.{theirs}": f"model.{ours}" for theirs, ours in MODEL_NAMES.items()},
    "classifier.{kind}": "classifier.{kind}",
}
# fields that mean the same in both configs
SAME_FIELDS = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "num_channels",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "layer_norm_eps",
    **{name: name for name in ("id2label", "label2id", "problem_type")},
}
FOREIGN_TYPES = {
    "beit": "relative positions and layer scale",
    "deit": "a distillation token",
    "dinov2": "layer scale",
    "dinov2_with_registers": "register tokens and layer scale",
    "dinov3_vit": "register tokens, rotary positions and layer scale",
    "swin": "windowed attention",
    "swinv2": "windowed attention",
    "vitdet": "windowed attention",
    "vit_mae": "a decoder of masked patches",
}
ARCHITECTURES = {kind.__name__: kind for kind in (ViTForImageClassification, ViTModel)}


@dataclass(frozen=True, kw_only=True)
class VitOptions(Options):
    """Convert a ViT of transformers to one of ours."""

    input: str = option(text="folder or Hub id of a ViTForImageClassification")
    output: str = option(text="folder for our model")


@dataclass(frozen=True, kw_only=True)
class ToVitOptions(Options):
    """Convert an image model of ours to a ViT of transformers."""

    input: str = option(text="folder or Hub id of our model")
    output: str = option(text="folder for the ViTForImageClassification")


def convert_vit(options: VitOptions) -> Path:
    """Our model folder, image processor included, from one of `ViTForImageClassification`.

    Raises:
        ValueError: it is no such model, is damaged, or has what ours cannot express; the message
            names all of it. Or both models have other outputs for one random image.
        OSError: nothing is found under that name, or the output is taken.
    """
    with whole_folder(options.output) as folder:
        theirs, loading = _read_vit(options.input)
        ours = from_vit(theirs, origin=options.input, loading=loading)
        processor = read_image_processor(options.input, ours.config)
        carry_over(options.input, folder, ours, processor)
        require_same_outputs(read_image_model(str(folder)), theirs, ours.config.image_height_width)
    return Path(options.output)


def convert_to_vit(options: ToVitOptions) -> Path:
    """A `ViTForImageClassification` folder, image processor included, from one of ours.

    Raises:
        ValueError: the model has what ViT cannot express; the message names all of it. Or both
            models have other outputs for one random image.
        OSError: nothing is found under that name, or the output is taken.
    """
    with whole_folder(options.output) as folder:
        ours = read_image_model(options.input)
        to_vit(ours).save_pretrained(folder)
        read_image_processor(options.input, ours.config).save_pretrained(folder)
        theirs, _ = _read_vit(str(folder))
        require_same_outputs(theirs, ours, ours.config.image_height_width)
    return Path(options.output)


def from_vit(
    theirs: TheirModel, *, origin: str = "the ViT", loading: Mapping[str, Any] | None = None
) -> OurModel:
    """Our model with the weights and the function of transformers' ViT.

    Where theirs has no biases on queries, keys and values, ours get zeros.

    Args:
        theirs: in float32.
        origin: for messages.
        loading: what `from_pretrained` reported with `output_loading_info=True`.

    Raises:
        ValueError: it has what ours cannot express; the message names all of it.
    """
    config = theirs.config
    is_body = isinstance(theirs, ViTModel)
    fields = {ours: getattr(config, name) for name, ours in SAME_FIELDS.items()}
    has_pooler = is_body and theirs.pooler is not None
    kind = VanillaVitModel if is_body else VanillaForImageClassification
    ours = kind(VanillaVitConfig(**fields, has_pooler=has_pooler))
    weights = theirs.state_dict()
    if not config.qkv_bias:
        weights = with_zero_biases(weights, "q_proj.weight", "k_proj.weight", "v_proj.weight")
    names = MODEL_NAMES if is_body else CLASSIFIER_NAMES
    renamed = rename_to_ours(weights, names)
    if is_body and (config.pooler_act != "tanh" or config.pooler_output_size != config.hidden_size):
        renamed.problems.append(
            f"pooler_act={config.pooler_act!r}, pooler_output_size={config.pooler_output_size} "
            "(here: tanh, d_model)"
        )
    if loading is not None:
        missing = dict.fromkeys(loading["missing_keys"], torch.zeros(1))
        add_report(renamed, loading, missing=rename_to_ours(missing, names).weights)
    load_renamed(ours, renamed, origin=origin)
    return ours.eval()


def to_vit(ours: OurModel) -> TheirModel:
    """Transformers' ViT with the weights and the function of our model.

    Raises:
        ValueError: ours has what ViT cannot express; the message names all of it.
    """
    config = ours.config
    is_body = isinstance(ours, VanillaVitModel)
    reasons = {
        "has_pooler=True (there: no pooler below a classifier)": config.has_pooler and not is_body,
        f"activation_dropout={config.activation_dropout} (there: 0)": config.activation_dropout,
        "attention_bias=False (there: a bias on the output projection)": not config.attention_bias,
    }
    refuse("ViT", reasons)
    fields = {name: getattr(config, ours) for name, ours in SAME_FIELDS.items()}
    settings = ViTConfig(**fields, qkv_bias=True)
    theirs: PreTrainedModel
    if is_body:
        theirs = ViTModel(settings, add_pooling_layer=config.has_pooler)
    else:
        theirs = ViTForImageClassification(settings)
    names = MODEL_NAMES if is_body else CLASSIFIER_NAMES
    load_renamed(theirs, rename_to_theirs(ours.state_dict(), names), origin="our model")
    return theirs.eval()


def read_image_model(name: str) -> OurModel:
    """Our image model of a folder or Hub id, in float32.

    Raises:
        ValueError: it is another kind of model.
        OSError: nothing is found under that name.
    """
    settings = settings_of_type(name, "vanilla_vit")
    has_head = "VanillaVitModel" not in (settings.get("architectures") or [])
    model = VanillaForImageClassification if has_head else VanillaVitModel
    return load_model(model, name, dtype=torch.float32)


def read_image_processor(name: str, config: VanillaVitConfig) -> Any:
    """The image processor of a folder or Hub id; without one, that of the authors' models."""
    try:
        return load_saved(AutoImageProcessor, name)
    except OSError:
        logger.warning("%s has no image processor: values are scaled to -1..1 instead", name)
        return authors_processor(config)


def authors_processor(config: VanillaVitConfig) -> ViTImageProcessorPil:
    """Resize to the model's size, values from -1 to 1, as the authors' models read images."""
    height, width = config.image_height_width
    size, half = {"height": height, "width": width}, [0.5] * config.num_channels
    return ViTImageProcessorPil(size=size, do_convert_rgb=True, image_mean=half, image_std=half)


# --- inside ------------------------------------------------------------------------------------


def _read_vit(name: str) -> tuple[TheirModel, dict[str, Any]]:
    """The model in float32, and what transformers reports of its tensors."""
    settings = settings_of_type(name, "vit", foreign=FOREIGN_TYPES)
    architecture = (settings.get("architectures") or ["ViTForImageClassification"])[0]
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{name} is a {architecture}: give one of {', '.join(ARCHITECTURES)}")
    theirs, loading = load_with_report(ARCHITECTURES[architecture], name, dtype=torch.float32)
    return theirs.eval(), loading
