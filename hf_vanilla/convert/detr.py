"""Convert published DETR models to ours and back: transformers' folders and the authors' files."""

import logging
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessorPil, ResNetConfig

from hf_vanilla.data.image_models import load_image_model
from hf_vanilla.files import whole_file, whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_saved, load_with_report
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.options import Options, option

from .checkpoint_files import (
    local_folder,
    read_checkpoint,
    read_weights,
    settings_of_type,
    weights_of,
)
from .weight_names import (
    Names,
    count_layers,
    load_renamed,
    refuse,
    rename_to_ours,
    rename_to_theirs,
    require_same_outputs,
    torch_layer_names,
)

logger = logging.getLogger(__name__)

IMAGE_SIZE = (96, 128)  # of the random image that both models are compared on
DEPTHS = {"resnet50": [3, 4, 6, 3], "resnet101": [3, 4, 23, 3]}
INTEGER_FIELDS = (
    *("class_cost", "bbox_cost", "giou_cost"),
    *("bbox_loss_coefficient", "giou_loss_coefficient"),
)
SAME_FIELDS = (
    *("num_queries", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "d_model"),
    *("dropout", "attention_dropout", "activation_dropout", "activation_function"),
    *("num_channels", "dilation", "eos_coefficient", *INTEGER_FIELDS),
)
SEGMENTER = "detr."  # prefix of the detector inside a segmentation model
MASK_HEADS = ("mask_head.", "bbox_attention.")
UNUSED = "num_batches_tracked"  # of a norm whose statistics are frozen
QUERIES = ("query_embed.weight", "model.query_position_embeddings.weight")
AUTHORS_HEADS = 8


@dataclass(frozen=True, kw_only=True)
class DetrOptions(Options):
    """Convert a DETR model of transformers (`facebook/detr-resnet-50`) or of its authors (.pth)."""

    input: str = option(text="folder, Hub id, or the authors' .pth file")
    output: str = option(text="folder for our model")
    without_masks: bool = option(False, "leave a segmentation head out; otherwise it is an error")
    heads: int | None = option(None, "attention heads of a .pth; default: its own args, else 8")
    dilation: bool | None = option(None, "the .pth is a DC5 model; default: its own args, else not")


@dataclass(frozen=True, kw_only=True)
class ToDetrOptions(Options):
    """Convert our DETR model to transformers' `DetrForObjectDetection` or to the authors' form."""

    input: str = option(text="folder or Hub id of our model")
    output: str = option(text="folder for transformers' model, or a file NAME.pth")


def convert_detr(options: DetrOptions) -> Path:
    """Write our model folder with its image processor; returns the folder.

    Raises:
        ValueError: it is no DETR model, or damaged; the message names every tensor at fault. Or
            transformers' own model of the folder has other outputs for one random image.
        OSError: the input is not found, or the output exists.
    """
    with whole_folder(options.output) as folder:
        is_file = Path(options.input).is_file()
        source = Path(options.input) if is_file else local_folder(options.input)
        processor = DetrImageProcessorPil()
        if is_file:
            weights, config = _read_file(source, options)
        else:
            if options.heads is not None or options.dilation is not None:
                raise ValueError(
                    f"heads={options.heads} and dilation={options.dilation} are for a .pth file: "
                    f"leave them out, {options.input} has its own in config.json"
                )
            weights = read_weights(source)
            config = config_of_folder(source)
            try:
                processor = load_saved(DetrImageProcessorPil, source)
            except OSError:
                logger.warning("%s has no image processor: that of DETR's authors is saved", source)
        ours = from_detr(weights, config, origin=options.input, without_masks=options.without_masks)
        if not is_file and load_saved(DetrConfig, source).backbone_config.model_type == "resnet":
            theirs, report = load_with_report(DetrForObjectDetection, source, dtype=torch.float32)
            if not report["missing_keys"]:
                require_same_outputs(ours, theirs.eval(), IMAGE_SIZE)
        carry_over(options.input, folder, ours, processor)
    return Path(options.output)


def from_detr(
    weights: dict[str, Tensor],
    config: VanillaDetrConfig,
    *,
    origin: str = "the checkpoint",
    without_masks: bool = False,
) -> VanillaForObjectDetection:
    """Our model with the weights of a checkpoint in any published form.

    Args:
        weights: the state dict.
        config: of our model.
        origin: where the weights come from, for messages.
        without_masks: leave a segmentation head out.

    Raises:
        ValueError: tensors are left over, missing or of another shape; the message names them all.
    """
    weights = _of_detector(weights, origin)
    if weights.keys().isdisjoint(QUERIES):
        raise ValueError(f"{origin}: these weights are not DETR's")
    masks = [name for name in weights if name.startswith(MASK_HEADS)]
    if masks and not without_masks:
        raise ValueError(
            f"{origin} has a segmentation head ({len(masks)} tensors, such as {masks[0]}), which "
            "detects no boxes: leave it out by --without_masks"
        )
    weights = {name: weight for name, weight in weights.items() if name not in masks}
    model = VanillaForObjectDetection(config)
    load_renamed(model, rename_to_ours(weights, PUBLISHED_NAMES), origin=origin)
    return model.eval()


def config_of_folder(folder: Path) -> VanillaDetrConfig:
    """Our config from the `config.json` of transformers' DETR.

    Raises:
        ValueError: it is another kind of model or damaged, or its backbone is not a ResNet we know.
        OSError: there is no such file.
    """
    theirs = settings_of_type(folder, "detr")
    if theirs.get("position_embedding_type", "sine") != "sine":
        raise ValueError(f"{folder} has learned positions: ours are the sines of the paper")
    if theirs.get("auxiliary_loss"):
        logger.warning(
            "auxiliary_loss is true in %s: transformers then computes otherwise than the paper; "
            "set it to false if the weights are the authors'",
            folder,
        )
    known = {name: theirs[name] for name in SAME_FIELDS if theirs.get(name) is not None}
    if labels := theirs.get("id2label"):
        known["id2label"] = {int(number): label for number, label in labels.items()}
        known["label2id"] = {label: number for number, label in known["id2label"].items()}
    inner = theirs.get("backbone_config") or {}
    name = inner.get("backbone") or theirs.get("backbone") or "resnet50"
    if inner.get("model_type") == "resnet":
        known["dilation"] = False  # transformers dilates timm's backbones only
        backbone = ResNetConfig.from_dict(inner)
    elif name in DEPTHS:
        backbone = ResNetConfig(depths=DEPTHS[name], out_features=["stage4"])
    else:
        raise ValueError(f"backbone={name!r}: known: {', '.join(DEPTHS)} and transformers' resnet")
    return VanillaDetrConfig(**known, backbone_config=backbone, auxiliary_loss=True)


def config_of_weights(
    weights: dict[str, Tensor], *, heads: int, dilation: bool = False, origin: str = "the file"
) -> VanillaDetrConfig:
    """Our config from the shapes of an authors' checkpoint.

    Args:
        weights: the state dict in the authors' names.
        heads: attention heads, which shapes do not tell.
        dilation: whether it is a DC5 model.
        origin: where the weights come from, for messages.

    Raises:
        ValueError: the names are not the authors'.
        KeyError: a tensor is missing.
    """
    weights = _of_detector(weights, origin)
    if "query_embed.weight" not in weights:
        raise ValueError(
            f"{origin} has no query_embed.weight, so these names are not the authors': of "
            "transformers' model, give the folder"
        )
    queries, d_model = weights["query_embed.weight"].shape
    stem = weights["backbone.0.body.conv1.weight"]  # (width, C, 7, 7)
    is_basic = "backbone.0.body.layer1.0.bn3.weight" not in weights
    last = "bn2" if is_basic else "bn3"
    stages = [f"backbone.0.body.layer{stage}." for stage in (1, 2, 3, 4)]
    backbone = ResNetConfig(
        num_channels=stem.shape[1],
        embedding_size=stem.shape[0],
        hidden_sizes=[weights[f"{stage}0.{last}.weight"].shape[0] for stage in stages],
        depths=[count_layers(weights, stage) for stage in stages],
        layer_type="basic" if is_basic else "bottleneck",
        out_features=["stage4"],
    )
    sizes: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        layers = f"transformer.{side}.layers."
        sizes[f"{side}_layers"] = count_layers(weights, layers)
        sizes[f"{side}_attention_heads"] = heads
        sizes[f"{side}_ffn_dim"] = weights[f"{layers}0.linear1.weight"].shape[0]
    return VanillaDetrConfig(
        backbone_config=backbone,
        num_channels=stem.shape[1],
        dilation=dilation,
        num_queries=queries,
        d_model=d_model,
        num_labels=weights["class_embed.weight"].shape[0] - 1,
        **sizes,
    )


def convert_to_detr(options: ToDetrOptions) -> Path:
    """Write transformers' folder, or the authors' file if the output ends in .pth.

    Raises:
        ValueError: it is no detector of ours, or has what the other format cannot express; the
            message names all of it. Or what was written has other outputs for one random image.
        OSError: the model is not found, or the output exists.
    """
    output = Path(options.output)
    remedy = "give a detector of this package"
    model, processor = load_image_model(
        options.input, "object_detection", remedy=remedy, device="cpu"
    )
    model = model.float()
    if output.suffix == ".pth":
        if output.exists():
            raise FileExistsError(f"{output} exists: choose another name")
        with whole_file(output) as unfinished:
            torch.save({"model": to_authors(model)}, unfinished)
            weights, heads = read_weights(unfinished), model.config.encoder_attention_heads
            config = config_of_weights(weights, heads=heads, dilation=model.config.dilation)
            require_same_outputs(from_detr(weights, config), model, IMAGE_SIZE)
        return output
    with whole_folder(output) as folder:
        to_detr(model).save_pretrained(folder)
        processor.save_pretrained(folder)
        theirs = DetrForObjectDetection.from_pretrained(folder).eval()
        require_same_outputs(theirs, model, IMAGE_SIZE)
    return output


def to_detr(model: VanillaForObjectDetection) -> DetrForObjectDetection:
    """Transformers' model with the same weights; it has the same logits in evaluation mode.

    Raises:
        ValueError: theirs cannot express the model; the message names all reasons.
    """
    config = model.config
    copied = (*SAME_FIELDS, "backbone_config", "id2label", "label2id")
    fields = {name: getattr(config, name) for name in copied}
    integers = {name: int(fields[name]) for name in INTEGER_FIELDS}
    reasons = _foreign(config)
    reasons["dilation=True (there: not with the ResNet of transformers)"] = config.dilation
    for name, value in integers.items():
        reasons[f"{name}={fields[name]} (there: an integer)"] = fields[name] != value
    refuse("transformers' DETR", reasons)
    theirs = DetrForObjectDetection(DetrConfig(**fields | integers, auxiliary_loss=False))
    names = {**transformers_names(version=5), **transformers_backbone(OUR_BACKBONE)}
    renamed = rename_to_theirs(_of_detector(model.state_dict()), names)
    load_renamed(theirs, renamed, origin="our model")
    return theirs.eval()


def to_authors(model: VanillaForObjectDetection) -> dict[str, Tensor]:
    """The state dict in the authors' names.

    Raises:
        ValueError: their code cannot express the model; the message names all reasons.
    """
    config, activation = model.config, model.config.activation_function
    stages = len(getattr(config.backbone_config, "depths", ()))
    encoder, decoder = config.encoder_attention_heads, config.decoder_attention_heads
    reasons = {
        **_foreign(config),
        f"activation_function={activation!r} (there: 'relu')": activation != "relu",
        f"a backbone of {stages} stages (there: 4)": stages != 4,
        f"{encoder} and {decoder} attention heads (there: equal)": encoder != decoder,
    }
    refuse("the authors' DETR", reasons)
    return rename_to_theirs(_of_detector(model.state_dict()), AUTHORS_NAMES).weights


# --- inside ------------------------------------------------------------------------------------


def _read_file(path: Path, options: DetrOptions) -> tuple[dict[str, Tensor], VanillaDetrConfig]:
    """Weights and config of a file of the authors, whose training also saves its arguments."""
    content = read_checkpoint(path, allowed=[Namespace])
    weights, heads, dilation = weights_of(content, path), options.heads, options.dilation
    said = vars(content["args"]) if isinstance(content.get("args"), Namespace) else {}
    heads = said.get("nheads", AUTHORS_HEADS) if heads is None else heads
    dilation = said.get("dilation", False) if dilation is None else dilation
    try:
        config = config_of_weights(weights, heads=heads, dilation=dilation, origin=str(path))
    except KeyError as error:  # such as a file whose class head was removed
        raise ValueError(f"{path} has no {error}: give a whole checkpoint") from None
    return weights, config


def _foreign(config: Any) -> dict[str, bool]:
    """What neither of the other formats can express, for `refuse`."""
    kind = config.backbone_config.model_type
    return {
        f"a backbone of type {kind!r} (there: 'resnet')": kind != "resnet",
        f"layer_norm_eps={config.layer_norm_eps} (there: 1e-05)": config.layer_norm_eps != 1e-5,
        "attention_bias=False (there: biases)": not config.attention_bias,
    }


def _of_detector(weights: dict[str, Tensor], origin: str = "the file") -> dict[str, Tensor]:
    """The weights by their names in a detector, without counts that frozen norms do not use.

    Raises:
        ValueError: they are those of another model; the message says what it looks like.
    """
    if found := {kin for mark, kin in KIN.items() if any(mark in name for name in weights)}:
        hint = " or ".join(sorted(found))
        raise ValueError(f"{origin}: these weights are not DETR's: they look like {hint}")
    return {
        name.removeprefix(SEGMENTER): weight
        for name, weight in weights.items()
        if not name.endswith(UNUSED)
    }


# --- names --------------------------------------------------------------------------------------
# Three choices make a published form: the names of the transformer (the authors', transformers 4,
# transformers 5), those of the backbone (torchvision's, as timm's, or transformers' ResNet) and the
# prefix of the backbone. A name means the same in all forms that have it.

OUR_BACKBONE = "model.backbone.model."
# parts of the names of other models' weights
KIN = {
    "sampling_offsets": "Deformable DETR",
    "ref_point_head": "Conditional DETR",
    "reference_points": "Deformable DETR",
    "ca_kcontent_proj": "Conditional DETR",
}


def transformers_names(*, version: int) -> Names:
    """Names of the transformer in `DetrForObjectDetection`.

    Args:
        version: 5 for transformers 5, 4 for the files of the Hub.
    """
    output, linear = ("o_proj", "mlp.fc") if version == 5 else ("out_proj", "fc")
    layer = "model.{side}.layers.{n}."
    same = (
        *(f"{layer}{{attention}}.{part}_proj.{{kind}}" for part in "qkv"),
        f"{layer}{{norm}}_layer_norm.{{kind}}",
        "model.input_projection.{kind}",
        "class_labels_classifier.{kind}",
        "bbox_predictor.layers.{n}.{kind}",
    )
    return {
        **{name: name for name in same},
        f"{layer}{{attention}}.{output}.{{kind}}": f"{layer}{{attention}}.out_proj.{{kind}}",
        f"{layer}{linear}{{k}}.{{kind}}": f"{layer}fc{{k}}.{{kind}}",
        "model.query_position_embeddings.weight": "model.query_positions.weight",
        "model.decoder.layernorm.{kind}": "model.decoder.layer_norm.{kind}",
    }


def torchvision_backbone(prefix: str) -> Names:
    """Names of a ResNet of torchvision or timm, stored under `prefix`."""
    modules = {("conv1", "bn1"): "embedder.embedder."}
    for stage in (1, 2, 3, 4):
        theirs, ours = f"layer{stage}.{{block}}.", f"encoder.stages.{stage - 1}.layers.{{block}}."
        for k in (1, 2, 3):
            modules[f"{theirs}conv{k}", f"{theirs}bn{k}"] = f"{ours}layer.{k - 1}."
        modules[f"{theirs}downsample.0", f"{theirs}downsample.1"] = f"{ours}shortcut."
    names: dict[str, str | None] = {f"{prefix}fc.{{kind}}": None}  # classifier, where it was kept
    for (convolution, norm), module in modules.items():
        names[f"{prefix}{convolution}.weight"] = f"{OUR_BACKBONE}{module}convolution.weight"
        names[f"{prefix}{norm}.{{kind}}"] = f"{OUR_BACKBONE}{module}normalization.{{kind}}"
    return names


AUTHORS_NAMES: Names = {
    **torchvision_backbone("backbone.0.body."),
    "query_embed.weight": "model.query_positions.weight",
    "input_proj.{kind}": "model.input_projection.{kind}",
    "transformer.decoder.norm.{kind}": "model.decoder.layer_norm.{kind}",
    "class_embed.{kind}": "class_labels_classifier.{kind}",
    "bbox_embed.layers.{n}.{kind}": "bbox_predictor.layers.{n}.{kind}",
    **torch_layer_names("transformer.{side}.layers.{n}.", "model.{side}.layers.{n}."),
}


def transformers_backbone(prefix: str) -> Names:
    """Names of a ResNet of transformers, stored under `prefix`."""
    layer = "encoder.stages.{stage}.layers.{block}."
    modules = ("embedder.embedder", f"{layer}layer.{{k}}", f"{layer}shortcut")
    names = [f"{module}.{{part}}.{{kind}}" for module in modules]
    return {prefix + name: OUR_BACKBONE + name for name in names}


PUBLISHED_NAMES: Names = {
    **AUTHORS_NAMES,
    **transformers_names(version=4),
    **transformers_names(version=5),
    **{
        name: ours
        for prefix in ("model.backbone.conv_encoder.model.", OUR_BACKBONE)
        for names in (
            torchvision_backbone(prefix),
            torchvision_backbone(f"{prefix}_backbone."),  # of timm, in transformers 4
            transformers_backbone(prefix),
        )
        for name, ours in names.items()
    },
}
