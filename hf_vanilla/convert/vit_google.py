"""The ViT authors' own checkpoints, `.npz` files of github.com/google-research/vision_transformer.

Everything is read from the shapes of the arrays. Shapes: D width, F feed-forward width, N heads, K
width of a head, C channels, P positions.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hf_vanilla.files import whole_folder
from hf_vanilla.models.configuration_vanilla_vit import VanillaVitConfig
from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification
from hf_vanilla.options import Options, option

from .checkpoint_files import read_arrays
from .vit import authors_processor, save_image_model
from .weight_names import Names, load_renamed, rename_to_ours

_BLOCK = "Transformer.encoderblock_{n}"
_ATTENTION = f"{_BLOCK}.MultiHeadDotProductAttention_1"
# dots for the slashes of the file, so that braces stand for one piece
NAMES: Names = {
    "cls": "model.embeddings.class_token",
    "embedding.kernel": "model.embeddings.patch_projection.weight",
    "embedding.bias": "model.embeddings.patch_projection.bias",
    "Transformer.posembed_input.pos_embedding": "model.embeddings.positions",
    **{
        f"{theirs}.{their_kind}": f"{ours}.{our_kind}"
        for theirs, ours, kinds in (
            (f"{_BLOCK}.LayerNorm_0", "model.layers.{n}.self_attn_layer_norm", ("scale", "bias")),
            (f"{_BLOCK}.LayerNorm_2", "model.layers.{n}.final_layer_norm", ("scale", "bias")),
            (f"{_BLOCK}.MlpBlock_3.Dense_0", "model.layers.{n}.fc1", ("kernel", "bias")),
            (f"{_BLOCK}.MlpBlock_3.Dense_1", "model.layers.{n}.fc2", ("kernel", "bias")),
            (f"{_ATTENTION}.query", "model.layers.{n}.self_attn.q_proj", ("kernel", "bias")),
            (f"{_ATTENTION}.key", "model.layers.{n}.self_attn.k_proj", ("kernel", "bias")),
            (f"{_ATTENTION}.value", "model.layers.{n}.self_attn.v_proj", ("kernel", "bias")),
            (f"{_ATTENTION}.out", "model.layers.{n}.self_attn.out_proj", ("kernel", "bias")),
            ("Transformer.encoder_norm", "model.layer_norm", ("scale", "bias")),
            ("pre_logits", "model.pooler", ("kernel", "bias")),
            ("head", "classifier", ("kernel", "bias")),
        )
        for their_kind, our_kind in zip(kinds, ("weight", "bias"), strict=True)
    },
}
FOREIGN = {
    "conv_root.{kind}": "a convolutional stem",
    "gn_root.{kind}": "a convolutional stem",
    "{block}.{unit}.{part}.{kind}": "a convolutional stem",
    "MAPHead_0.{part}.{kind}": "an attention head for pooling",
}
_PARTS = ("query", "key", "value")


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
        save_image_model(ours, authors_processor(ours.config), folder)
    return Path(options.output)


def from_google(
    arrays: dict[str, np.ndarray], *, origin: str = "the file", image_height: int | None = None
) -> VanillaForImageClassification:
    """Our model with the weights and the function of the authors' arrays.

    Args:
        arrays: by the authors' names, with slashes.
        origin: for messages.
        image_height: in pixels, where images are not square.

    Raises:
        ValueError: arrays are left over, missing, or of a wrong shape; the message names them all.
    """
    config = _config(arrays, origin, image_height)
    weights = {
        name.replace("/", "."): torch.from_numpy(_to_ours(name, array).copy())
        for name, array in arrays.items()
    }
    ours = VanillaForImageClassification(config)
    load_renamed(ours, rename_to_ours(weights, NAMES), origin=origin, reasons=FOREIGN)
    return ours.eval()


# --- inside ------------------------------------------------------------------------------------


def _config(
    arrays: dict[str, np.ndarray], origin: str, image_height: int | None
) -> VanillaVitConfig:
    """Every size, from the shapes of the arrays."""
    needed = {
        "embedding/kernel": 4,
        "Transformer/posembed_input/pos_embedding": 3,
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel": 2,
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel": 3,
        "head/kernel": 2,
    }
    found = [arrays[name] if name in arrays else np.zeros(0) for name in needed]
    wrong = [name for name, array in zip(needed, found, strict=True) if array.ndim != needed[name]]
    if wrong:
        raise ValueError(
            f"{origin} is no ViT of the authors: missing or misshapen {', '.join(wrong)}"
        )
    embedding, positions, fed, query, head = found
    patch_height, patch_width, channels, width = embedding.shape
    count = positions.shape[1] - 1
    rows = round(count**0.5) if image_height is None else image_height // patch_height
    if rows < 1 or count % rows or (image_height is None and rows * rows != count):
        raise ValueError(
            f"{origin} has {count} positions, which make no grid: give image_height in pixels"
        )
    layers = {name.split("/")[1] for name in arrays if name.startswith("Transformer/encoderblock_")}
    return VanillaVitConfig(
        image_size=[rows * patch_height, count // rows * patch_width],
        patch_size=[patch_height, patch_width],
        num_channels=channels,
        d_model=width,
        encoder_layers=len(layers),
        encoder_attention_heads=query.shape[1],
        encoder_ffn_dim=fed.shape[1],
        has_pooler="pre_logits/kernel" in arrays,
        num_labels=head.shape[1],
        layer_norm_eps=1e-6,
    )


def _to_ours(name: str, array: np.ndarray) -> np.ndarray:
    """An array in the shape of our weight."""
    if name == "embedding/kernel" and array.ndim == 4:
        return array.transpose(3, 2, 0, 1)  # (height, width, C, D) -> (D, C, height, width)
    parts = name.split("/")
    is_input = len(parts) > 1 and parts[-2] in _PARTS
    if parts[-1] == "bias" and is_input:
        return array.reshape(-1)  # (N, K) -> (N K,)
    if parts[-1] == "kernel" and is_input:
        return array.reshape(array.shape[0], -1).T  # (D, N, K) -> (N K, D)
    if parts[-2:] == ["out", "kernel"]:
        return array.reshape(-1, array.shape[-1]).T  # (N, K, D) -> (D, N K)
    return array.T if parts[-1] == "kernel" else array
