"""Figures of an image classifier: attention on an image, positions, patch filters, confusion.

Shapes: P patches in R rows and K columns, D `d_model`.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hf_vanilla.data.images import open_image
from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import check_output, saved_panels, show_image

from .classifier import PatchAttention, load_classifier, patch_attention

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = ("attention", "rollout", "positions", "filters")
MOST_FILTERS = 64
MOST_CLASSES = 100


@dataclass(frozen=True, kw_only=True)
class PlotPatchesOptions(Options):
    """Draw which patches an image classifier attends to, its positions, or its patch filters."""

    model: str = option(text="model folder or Hub id")
    image: str | None = option(None, "image file, for kind attention and rollout")
    kind: str = option("attention", f"one of {', '.join(KINDS)}", choices=KINDS)
    layer: int | None = option(None, "for kind attention: layer from 0, -1: the last; default: all")
    output: str = option("patches.png", "figure file, .png or .svg")
    overwrite: bool = option(False, "replace an existing figure")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind in ("attention", "rollout") and self.image is None:
            raise ValueError(f"kind={self.kind!r} needs an image: give --image FILE")
        if self.layer is not None and self.kind != "attention":
            raise ValueError(f"kind={self.kind!r} has no layer: leave --layer out")


def plot_patches(options: PlotPatchesOptions) -> Path:
    """Draw one figure and save it; returns the file.

    Raises:
        ValueError: the model is another, the layer does not exist, or the image is unreadable.
        OSError: the figure cannot be written, or it exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite)
    classifier = load_classifier(options.model, device="cpu")
    embeddings = classifier.model.model.embeddings
    if options.kind == "positions":
        similarity = position_similarity(embeddings.positions, embeddings.config.grid)
        rows, columns = similarity.shape[:2]
        title = "cosine of a patch's position with all others"
        with saved_panels(path, rows * columns, columns, inches=0.7, title=title) as panels:
            for panel, values in zip(panels, similarity.flatten(0, 1), strict=True):
                panel.imshow(values.numpy(), vmin=-1, vmax=1)
    elif options.kind == "filters":
        filters = patch_filters(embeddings.patch_projection.weight, MOST_FILTERS)
        title = "main directions of the patch projection"
        with saved_panels(path, len(filters), 8, inches=0.7, title=title) as panels:
            for panel, values in zip(panels, filters, strict=True):
                panel.imshow(values.permute(1, 2, 0).numpy())
    else:
        image = open_image(str(options.image))
        attention = patch_attention(classifier, image)
        if getattr(classifier.processor, "do_center_crop", None):
            image = classifier.seen(image)  # patches are of the part that is cut out
        if options.kind == "rollout":
            with saved_panels(path, 2, 2, inches=3.0) as (left, right):
                show_image(left, image)
                left.set_title("image")
                show_image(right, image, attention.rollout)
                right.set_title("attention rollout of the class token")
        else:
            save_patch_attention(image, attention, path, layer=options.layer)
    return path


def position_similarity(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cosine of each patch's position with all others.

    Args:
        positions: `(1, 1 + P, D)`.
        grid: rows and columns of patches.

    Returns:
        `(R, K, R, K)` in [-1, 1].
    """
    unit = nn.functional.normalize(positions[0, 1:].detach().float(), dim=-1)
    return (unit @ unit.T).view(*grid, *grid)


def patch_filters(projection: Tensor, count: int) -> Tensor:
    """Main directions of the patch projection, as images.

    Args:
        projection: `(D, C, height, width)` weights of the convolution.
        count: how many, at most D.

    Returns:
        `(count, C, height, width)` in [0, 1], the strongest first.
    """
    flat = projection.detach().float().flatten(1)
    _, _, directions = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    filters = directions[:count]
    low, high = filters.amin(1, keepdim=True), filters.amax(1, keepdim=True)
    return ((filters - low) / (high - low).clamp(min=1e-12)).view(-1, *projection.shape[1:])


def save_patch_attention(
    image: "Image", attention: PatchAttention, path: Path, *, layer: int | None = None
) -> None:
    """Save the class token's attention on the image: a row for each layer, a column for each head.

    Args:
        image: RGB.
        attention: of that image.
        path: figure file.
        layer: from 0, negative from the end; None: all.

    Raises:
        ValueError: there is no such layer.
    """
    weights = attention.of_class_token  # (L, H, R, K)
    layers = range(len(weights))
    if layer is not None:
        if not -len(weights) <= layer < len(weights):
            raise ValueError(f"layer={layer}: the model has layers 0 to {len(weights) - 1}")
        layers = range(len(weights))[layer:][:1]
    guess, heads = attention.guesses[0], weights.shape[1]
    title = f"attention of the class token; {guess.label}: {guess.probability:.2f}"
    with saved_panels(path, len(layers) * heads, heads, inches=1.4, title=title) as panels:
        places = product(layers, range(heads))
        for panel, (number, head) in zip(panels, places, strict=True):
            show_image(panel, image, weights[number, head])
            panel.set_title(f"layer {number}, head {head}", fontsize=7)


def save_confusion(confusion: Tensor, label_names: tuple[str, ...], path: Path) -> None:
    """Save how often each class was taken for each other.

    Args:
        confusion: `(C, C)` counts; row: true class, column: most probable class.
        label_names: C names, at most `MOST_CLASSES`.
        path: figure file.
    """
    count = len(label_names)
    shares = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    with saved_panels(path, 1, inches=min(12.0, 2.5 + 0.35 * count)) as (panel,):
        panel.set_axis_on()
        panel.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        panel.set_xticks(range(count), label_names, rotation=90)
        panel.set_yticks(range(count), label_names)
        panel.set(xlabel="most probable class", ylabel="true class")
        for row, column in confusion.nonzero().tolist():
            color = "white" if shares[row, column] > 0.5 else "black"
            text = str(int(confusion[row, column]))
            panel.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
