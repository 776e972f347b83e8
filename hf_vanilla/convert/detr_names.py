"""The names of DETR's weights in every form they have been published, and ours.

Three choices make a form: the names of the transformer (the authors', transformers 4,
transformers 5), those of the backbone (torchvision's, as timm's, or transformers' ResNet) and the
prefix of the backbone.
"""

from collections.abc import Iterable

from .weight_names import Names

STATISTICS = ("weight", "bias", "running_mean", "running_var")
OUR_BACKBONE = "model.backbone.model."
# parts of the names of other models' weights
KIN = {
    "sampling_offsets": "Deformable DETR",
    "ref_point_head": "Conditional DETR",
    "reference_points": "Deformable DETR",
    "ca_kcontent_proj": "Conditional DETR",
}

# --- transformer and heads ---------------------------------------------------------------------

HEADS = {
    "class_labels_classifier.{kind}": "class_labels_classifier.{kind}",
    "bbox_predictor.layers.{n}.{kind}": "bbox_predictor.layers.{n}.{kind}",
}


def transformers_names(*, version: int) -> Names:
    """Names of the transformer in `DetrForObjectDetection`.

    Args:
        version: 5 for transformers 5, 4 for the files of the Hub.
    """
    feed_forward = "mlp." if version == 5 else ""
    output = "o_proj" if version == 5 else "out_proj"
    names: dict[str, str | tuple[str, ...] | None] = {
        "model.query_position_embeddings.weight": "model.query_positions.weight",
        "model.input_projection.{kind}": "model.input_projection.{kind}",
        "model.decoder.layernorm.{kind}": "model.decoder.layer_norm.{kind}",
        **HEADS,
    }
    for side, attentions in (
        ("encoder", ("self_attn",)),
        ("decoder", ("self_attn", "encoder_attn")),
    ):
        layer = f"model.{side}.layers.{{n}}."
        for attention in attentions:
            for ours in ("q_proj", "k_proj", "v_proj", "out_proj"):
                theirs = output if ours == "out_proj" else ours
                names[f"{layer}{attention}.{theirs}.{{kind}}"] = (
                    f"{layer}{attention}.{ours}.{{kind}}"
                )
            norm = f"{layer}{attention}_layer_norm.{{kind}}"
            names[norm] = norm
        for linear in ("fc1", "fc2"):
            names[f"{layer}{feed_forward}{linear}.{{kind}}"] = f"{layer}{linear}.{{kind}}"
        names[f"{layer}final_layer_norm.{{kind}}"] = f"{layer}final_layer_norm.{{kind}}"
    return names


def authors_names() -> Names:
    """Names of the transformer in the authors' files; queries, keys and values are one matrix."""
    names: dict[str, str | tuple[str, ...] | None] = {
        "query_embed.weight": "model.query_positions.weight",
        "input_proj.{kind}": "model.input_projection.{kind}",
        "transformer.decoder.norm.{kind}": "model.decoder.layer_norm.{kind}",
        "class_embed.{kind}": "class_labels_classifier.{kind}",
        "bbox_embed.layers.{n}.{kind}": "bbox_predictor.layers.{n}.{kind}",
    }
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    attentions = {
        "encoder": {"self_attn": "self_attn"},
        "decoder": {"self_attn": "self_attn", "multihead_attn": "encoder_attn"},
    }
    for side in norms:
        theirs, ours = f"transformer.{side}.layers.{{n}}.", f"model.{side}.layers.{{n}}."
        for their_attention, attention in attentions[side].items():
            names[f"{theirs}{their_attention}.in_proj_{{kind}}"] = tuple(
                f"{ours}{attention}.{part}_proj.{{kind}}" for part in "qkv"
            )
            names[f"{theirs}{their_attention}.out_proj.{{kind}}"] = (
                f"{ours}{attention}.out_proj.{{kind}}"
            )
        for number, norm in enumerate(norms[side], start=1):
            names[f"{theirs}norm{number}.{{kind}}"] = f"{ours}{norm}.{{kind}}"
        for number in (1, 2):
            names[f"{theirs}linear{number}.{{kind}}"] = f"{ours}fc{number}.{{kind}}"
    return names


# --- backbone ----------------------------------------------------------------------------------


def torchvision_backbone(prefix: str) -> Names:
    """Names of a ResNet of torchvision or timm, stored under `prefix`."""
    names: dict[str, str | tuple[str, ...] | None] = {
        f"{prefix}conv1.weight": f"{OUR_BACKBONE}embedder.embedder.convolution.weight",
        f"{prefix}bn1.num_batches_tracked": None,
        f"{prefix}fc.{{kind}}": None,  # the classifier, where it was kept
    }
    for kind in STATISTICS:
        names[f"{prefix}bn1.{kind}"] = f"{OUR_BACKBONE}embedder.embedder.normalization.{kind}"
    for stage in range(1, 5):
        theirs = f"{prefix}layer{stage}.{{block}}."
        ours = f"{OUR_BACKBONE}encoder.stages.{stage - 1}.layers.{{block}}."
        parts = {
            **{(f"conv{k}", f"bn{k}"): f"layer.{k - 1}." for k in (1, 2, 3)},
            ("downsample.0", "downsample.1"): "shortcut.",
        }
        for (convolution, norm), part in parts.items():
            names[f"{theirs}{convolution}.weight"] = f"{ours}{part}convolution.weight"
            names[f"{theirs}{norm}.num_batches_tracked"] = None
            for kind in STATISTICS:
                names[f"{theirs}{norm}.{kind}"] = f"{ours}{part}normalization.{kind}"
    return names


def transformers_backbone(prefix: str) -> Names:
    """Names of a ResNet of transformers, stored under `prefix`."""
    stem = "embedder.embedder."
    layer = "encoder.stages.{stage}.layers.{block}."
    parts = (stem, f"{layer}layer.{{k}}.", f"{layer}shortcut.")
    names: dict[str, str | tuple[str, ...] | None] = {}
    for part in parts:
        weight = f"{part}convolution.weight"
        names[f"{prefix}{weight}"] = f"{OUR_BACKBONE}{weight}"
        names[f"{prefix}{part}normalization.num_batches_tracked"] = None
        for kind in STATISTICS:
            statistic = f"{part}normalization.{kind}"
            names[f"{prefix}{statistic}"] = f"{OUR_BACKBONE}{statistic}"
    return names


# --- forms -------------------------------------------------------------------------------------


def names_of(weights: Iterable[str]) -> Names:
    """The table of the form that these names have.

    Raises:
        ValueError: it is none of the known forms; the message says what it looks like.
    """
    known = set(weights)
    if any(name.startswith("transformer.encoder.") for name in known):
        return {**authors_names(), **torchvision_backbone("backbone.0.body.")}
    version = 5 if any(".mlp.fc1." in name for name in known) else 4
    places = ("model.backbone.conv_encoder.model.", "model.backbone.model.")
    prefix = next((p for p in places if any(name.startswith(p) for name in known)), None)
    if prefix is None or "model.query_position_embeddings.weight" not in known:
        found = {kin for mark, kin in KIN.items() if any(mark in name for name in known)}
        hint = f": they look like {' or '.join(sorted(found))}" if found else ""
        raise ValueError(f"these weights are not DETR's{hint}")
    is_timm = any(
        name.startswith((f"{prefix}conv1.", f"{prefix}_backbone.conv1.")) for name in known
    )
    if not is_timm:
        return {**transformers_names(version=version), **transformers_backbone(prefix)}
    wrapped = f"{prefix}_backbone."
    inner = wrapped if any(name.startswith(wrapped) for name in known) else prefix
    return {**transformers_names(version=version), **torchvision_backbone(inner)}
